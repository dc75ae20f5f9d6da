"""Norms and attention that thresholds convict, held against what the reference's would make of what they were given.

Both magnify a difference without bound (`judge/norms.py`, `judge/attention_forms.py`), and both can be run from what modules hand on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from numpy.typing import NDArray

from layerdiff.diagnose.attention_given import ATTENTIONS, told_of_attention
from layerdiff.diagnose.causes.norm_epsilon import epsilon_of
from layerdiff.diagnose.evidence import Evidence, Numbers
from layerdiff.judge.attention_forms import MOST
from layerdiff.judge.classes import ATTENTION, NORM, ModuleClass, module_class
from layerdiff.judge.gated_norms import gated_error
from layerdiff.judge.norms import local_error
from layerdiff.judge.profiles import Profile
from layerdiff.judge.tables import Verdict

NORMS: Final = "norms: relative L2 to what the reference's norm makes of the target's input"


def acquit(evidence: Evidence, rows: Iterable[int], profile: Profile, numbers: Numbers) -> dict[str, NDArray[Any]]:
    """The columns of exact verdicts, with those of these rows that only hand on what came in; not where users set a limit."""
    sites, texts = evidence.sites, evidence.texts
    columns = {name: sites[name].copy() for name in ("exact", "exact_measured", "exact_allowed", "exact_rule")}
    for row in rows:
        kind = _kind(evidence, row)
        if kind not in (NORM, ATTENTION) or profile.limits(texts[int(sites["site"][row])] or ""):
            continue
        found = _norm(evidence, row, numbers) if kind is NORM else _attention(evidence, row, numbers)
        if found is not None:
            rule = texts.intern(NORMS if kind is NORM else ATTENTIONS)
            for name, value in zip(columns, (int(Verdict.INHERITED), *found, rule), strict=True):
                columns[name][row] = value
    return columns


def may_be_acquitted(evidence: Evidence, row: int) -> bool:
    """Whether `acquit` looks at a site at all: while values are measured still it waits for that."""
    return _kind(evidence, row) in (NORM, ATTENTION)


def _kind(evidence: Evidence, row: int) -> ModuleClass:
    return module_class(evidence.texts[int(evidence.sites["type"][row])], has_children=bool(evidence.children(row)))


def _worst(every: Iterable[tuple[float, float] | None]) -> tuple[float, float] | None:
    """The largest of all ranks; None where one is not acquitted."""
    found = list(every)
    return max((one for one in found if one is not None), default=None) if None not in found else None


def _norm(evidence: Evidence, row: int, numbers: Numbers) -> tuple[float, float] | None:
    given, made = evidence.inputs_and_output(row)
    roundoffs = None if made < 0 else evidence.roundoffs(made)
    if len(given) not in (1, 2) or roundoffs is None:
        return None
    inputs, outputs = [numbers(pair) for pair in given], numbers(made)
    if not outputs or any(len(of) != len(outputs) for of in inputs):
        return None
    epsilon = epsilon_of(evidence.attributes(row).reference) or 0.0
    if len(given) == 1:
        return _worst(local_error(tuple(x), tuple(y), epsilon, roundoffs) for x, y in zip(inputs[0], outputs, strict=True))
    each = zip(*inputs, outputs, strict=True)  # one of the two is a gate
    return _worst(gated_error((tuple(x), tuple(gate)), tuple(y), epsilon, roundoffs) for x, gate, y in each)


def _attention(evidence: Evidence, row: int, numbers: Numbers) -> tuple[float, float] | None:
    made = int(evidence.sites["pair"][row])
    if made < 0 or int(evidence.pairs["site"][made]) not in evidence.children(row):
        return None
    told = told_of_attention(evidence, row, made, numbers, MOST)
    return _worst((one.error, one.allowed) if one is not None and one.right else None for one in told)
