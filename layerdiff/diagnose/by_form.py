"""Norms and attention that make something else than the reference's form, where the bits of the dtype hide it from thresholds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.diagnose.attention_given import ATTENTIONS, told_of_attention
from layerdiff.diagnose.causes.attention_form import SAMPLE, handed_on, named_by_form
from layerdiff.diagnose.causes.norm_epsilon import epsilon_of
from layerdiff.diagnose.evidence import Evidence, Numbers
from layerdiff.judge.attention_forms import Form, Told
from layerdiff.judge.classes import ATTENTION, NORM, module_class
from layerdiff.judge.epsilons import OtherEpsilon, other_epsilon
from layerdiff.judge.found import Found
from layerdiff.judge.local import Local
from layerdiff.judge.profiles import Profile
from layerdiff.judge.tables import BY_THRESHOLDS, Verdict
from layerdiff.trace.schema import CallKind

EPSILONS: Final = "norms: relative L2 of what another epsilon makes, told by the factors of the rows"
_COARSE: Final = 2.0**-12
"""Unit roundoffs from which on it is asked, fp16 and bf16: fp32 rounds sums as well, and thresholds see what it does not hide."""
_MISSES: Final = 3
"""How many more modules of a class, with results of a shape, have had no known form than have had one, before no more is asked."""
_NUMBERS: Final = 1 << 17
"""Of a norm that are looked at, of `_ROWS` rows at least."""
_ROWS: Final = 32


def found_by_form(evidence: Evidence, profile: Profile, numbers: Numbers) -> Iterator[Found]:
    """An origin for each norm and attention that computes something else, whatever thresholds say; not where users set a limit."""
    sites, texts = evidence.sites, evidence.texts
    attention = _Attention(evidence, numbers)
    modules = sites["kind"] == CallKind.MODULE
    parents = set(sites["parent"][modules].tolist())
    for row in np.flatnonzero(modules & (sites["exact"] == BY_THRESHOLDS)).tolist():
        kind = module_class(texts[int(sites["type"][row])], has_children=row in parents)
        if kind not in (ATTENTION, NORM) or min(_calls(evidence, row)) < 0 or profile.limits(texts[int(sites["site"][row])] or ""):
            continue
        local = attention.local(row) if kind is ATTENTION else _of_norm(evidence, row, numbers)
        if local is not None:
            yield Found(row, local)


class _Attention:
    def __init__(self, evidence: Evidence, numbers: Numbers) -> None:
        self._evidence, self._numbers = evidence, numbers
        self._missed: Counter[tuple[int, int]] = Counter()
        self._forms: dict[tuple[int, int], Form | None] = {}

    def local(self, row: int) -> Local | None:
        evidence = self._evidence
        made = handed_on(evidence, row)
        if made is None or not _is_hidden(evidence, made):
            return None
        kind = int(evidence.sites["type"][row]), int(evidence.pairs["reference_shape"][made])
        if self._missed[kind] > _MISSES:
            return None
        told = told_of_attention(evidence, row, made, self._numbers, SAMPLE, self._forms.get(kind))
        known = next((one.form for one in told if one is not None), None)
        self._missed[kind] += 1 if known is None else -1
        self._forms[kind] = known or self._forms.get(kind)
        wrong = max((one for one in told if one is not None and one.wrong), key=lambda one: one.error, default=None)
        return None if wrong is None else _of_attention(evidence, row, made, wrong)


def _of_norm(evidence: Evidence, row: int, numbers: Numbers) -> Local | None:
    given, made = evidence.inputs_and_output(row)
    if len(given) != 1 or made < 0 or not _is_hidden(evidence, made):
        return None
    roundoffs, inputs, outputs = evidence.roundoffs(made), numbers(given[0]), numbers(made)
    if roundoffs is None or len(inputs) != len(outputs):
        return None
    epsilon = epsilon_of(evidence.attributes(row).reference) or 0.0
    told = [
        other_epsilon([_some(one) for one in x], [_some(one) for one in y], epsilon, roundoffs)
        for x, y in zip(inputs, outputs, strict=True)
    ]
    other = max((one for one in told if one is not None), key=lambda one: one.effect / one.allowed, default=None)
    return None if other is None else _of_epsilon(evidence, row, other)


def _is_hidden(evidence: Evidence, pair: int) -> bool:
    """Whether two values differ, and one was rounded to 16 bits or fewer."""
    return not evidence.pairs["equal"][pair] and max(evidence.roundoffs(pair) or [0.0]) >= _COARSE


def _some(x: NDArray[Any]) -> NDArray[Any]:
    """Rows along the last axis, evenly apart."""
    if x.size == 0:
        return x
    rows = x.reshape(-1, x.shape[-1]) if x.ndim > 1 else x.reshape(1, -1)
    count = max(_ROWS, _NUMBERS // max(rows.shape[1], 1))
    return rows if len(rows) <= count else rows[np.linspace(0, len(rows) - 1, count).astype(np.int64)]


def _of_epsilon(evidence: Evidence, row: int, other: OtherEpsilon) -> Local:
    epsilons = evidence.attributes(row).map(epsilon_of)
    fit = {"epsilon": other.fitted, "uncertainty": other.uncertainty, "rows": other.rows}
    found: dict[str, Any] = {"fit": fit, "reference_epsilon": other.reference, **_attributes(evidence, row)}
    own = "" if epsilons.target is None else f"epsilon {epsilons.target:g}, "
    fitted = f"fitted {other.fitted:.3g} ± {other.uncertainty:.1g} by the factors of {other.rows} rows"
    statement = f"{own}{fitted}, reference {epsilons.reference or other.reference:.3g}"
    return Local(
        _calls(evidence, row),
        "out",
        Verdict.DEFECT,
        statement,
        other.effect,
        other.allowed,
        EPSILONS,
        "layernorm-eps" if other.centred else "rmsnorm-eps",
        evidence=found,
    )


def _of_attention(evidence: Evidence, row: int, made: int, told: Told) -> Local:
    texts, child = evidence.texts, int(evidence.pairs["site"][made])
    position = texts[int(evidence.pairs["position"][made])] or ""
    handed = {"site": texts[int(evidence.sites["site"][child])] or "", "value": position}
    found: dict[str, Any] = {"handed_to": handed, "rows": told.beyond, "rows_looked_at": told.rows, **_attributes(evidence, row)}
    cause, said = named_by_form(told)
    statement = (
        f"{said}: what it hands to {handed['site']} ({position}) is off by {told.error:.2g}, and roundings make {told.allowed:.2g} at most"
    )
    verdict = Verdict.UNEXPLAINED if cause is None else Verdict.DEFECT
    return Local(_calls(evidence, row), "out", verdict, statement, told.error, told.allowed, ATTENTIONS, cause, evidence=found)


def _attributes(evidence: Evidence, row: int) -> dict[str, Any]:
    """Attributes of the module that are others in the target, as evidence."""
    changed = evidence.changed_attributes(row)
    return {"attributes": {name: {"reference": r, "target": t} for name, (r, t) in changed.items()}} if changed else {}


def _calls(evidence: Evidence, row: int) -> tuple[int, int]:
    return int(evidence.sites["reference_call"][row]), int(evidence.sites["target_call"][row])
