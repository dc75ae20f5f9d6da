"""Norms and attention that thresholds convict, held against what the reference's would make of what they were given.

Both magnify a difference without bound (`judge/norms.py`, `judge/attention_forms.py`), and both can be run from what modules hand on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.diagnose.causes.norm_epsilon import epsilon_of
from layerdiff.diagnose.evidence import Evidence
from layerdiff.judge.attention_forms import Given, held_against_form
from layerdiff.judge.classes import ATTENTION, NORM, ModuleClass, module_class
from layerdiff.judge.norms import local_error
from layerdiff.judge.profiles import Profile
from layerdiff.judge.tables import Verdict
from layerdiff.sides import Both
from layerdiff.trace.dtypes import dtype_named
from layerdiff.trace.schema import CallKind, Role

Numbers = Callable[[int], Sequence[Both[NDArray[Any]]]]
"""Both sides' of a pair of values, of each rank; none where they are not at hand."""
NORMS: Final = "norms: relative L2 to what the reference's norm makes of the target's input"
ATTENTIONS: Final = "attention: relative L2 to what the reference's form makes of the target's queries, keys and values"
_MOST: Final = 1 << 24
"""Elements of a value that is looked at."""
_PROJECTION: Final = re.compile(r"^(?:w|to_|lin_|linear_|proj_)?(q|k|v)(?:$|_|uery|ey|alue)")
_FUSED: Final = re.compile(r"qkv|query_key_value|c_attn|in_proj")
_TABLE: Final = re.compile(r"(?:position_embeddings|rotary\w*)\[([01])\]$|(?:^|\.)(cos|sin)$")
_SCALE: Final = ("scaling", "scale", "softmax_scale", "norm_factor", "scale_attn")


def acquit(evidence: Evidence, rows: Iterable[int], profile: Profile, numbers: Numbers) -> dict[str, NDArray[Any]]:
    """The columns of exact verdicts, with those of these rows that only hand on what came in; not where users set a limit."""
    sites, texts = evidence.sites, evidence.texts
    columns = {name: sites[name].copy() for name in ("exact", "exact_measured", "exact_allowed", "exact_rule")}
    for row in rows:
        children, kind = _children(evidence, row), _kind(evidence, row)
        if kind not in (NORM, ATTENTION) or any(limit.matches(texts[int(sites["site"][row])] or "") for limit in profile.thresholds):
            continue
        found = _norm(evidence, row, numbers) if kind is NORM else _attention(evidence, row, children, numbers)
        if found is not None:
            rule = texts.intern(NORMS if kind is NORM else ATTENTIONS)
            for name, value in zip(columns, (int(Verdict.INHERITED), *found, rule), strict=True):
                columns[name][row] = value
    return columns


def may_be_acquitted(evidence: Evidence, row: int) -> bool:
    """Whether `acquit` looks at a site at all: while values are measured still it waits for that."""
    return _kind(evidence, row) in (NORM, ATTENTION)


def _children(evidence: Evidence, row: int) -> list[int]:
    found: list[int] = np.flatnonzero((evidence.sites["parent"] == row) & (evidence.sites["kind"] == CallKind.MODULE)).tolist()
    return found


def _kind(evidence: Evidence, row: int) -> ModuleClass:
    return module_class(evidence.texts[int(evidence.sites["type"][row])], has_children=bool(_children(evidence, row)))


def _roundoffs(evidence: Evidence, pair: int) -> list[float] | None:
    dtypes = [dtype_named(evidence.texts[int(evidence.pairs[f"{side}_dtype"][pair])] or "") for side in ("reference", "target")]
    known = [dtype.unit_roundoff for dtype in dtypes if dtype is not None and dtype.unit_roundoff]
    return known if len(known) == 2 else None


def _worst(every: Iterable[tuple[float, float] | None]) -> tuple[float, float] | None:
    """The largest of all ranks; None where one is not acquitted."""
    found = list(every)
    return max((one for one in found if one is not None), default=None) if None not in found else None


def _norm(evidence: Evidence, row: int, numbers: Numbers) -> tuple[float, float] | None:
    pairs = evidence.pairs
    here = [pair for pair in evidence.pairs_of(row) if pairs["role"][pair] in (Role.INPUT, Role.OUTPUT) and pairs["count"][pair] <= _MOST]
    if sorted(int(pairs["role"][pair]) for pair in here) != [Role.INPUT, Role.OUTPUT]:
        return None
    inputs, outputs = (numbers(pair) for pair in sorted(here, key=lambda pair: int(pairs["role"][pair])))
    roundoffs = _roundoffs(evidence, here[-1])
    if not inputs or len(inputs) != len(outputs) or roundoffs is None:
        return None
    epsilon = epsilon_of(evidence.attributes(row).reference) or 0.0
    return _worst(local_error(tuple(x), tuple(y), epsilon, roundoffs) for x, y in zip(inputs, outputs, strict=True))


def _attention(evidence: Evidence, row: int, children: Sequence[int], numbers: Numbers) -> tuple[float, float] | None:
    made = int(evidence.sites["pair"][row])
    roundoffs = _roundoffs(evidence, made) if made >= 0 and int(evidence.pairs["site"][made]) in children else None
    if roundoffs is None or evidence.pairs["count"][made] > _MOST:
        return None
    attributes = evidence.attributes(row).reference
    known = [float(value) for name in _SCALE if isinstance(value := attributes.get(name), int | float) and not isinstance(value, bool)]
    found: list[tuple[float, float] | None] = []
    for given in _given(evidence, row, children, made, numbers):
        tables = given.reference.cosines
        dims = [value for name, value in attributes.items() if "head" in name and "dim" in name and type(value) is int and value > 0]
        dims += [] if tables is None else [tables.shape[-1]]
        told = held_against_form(given.reference, given.target, list(dict.fromkeys(dims)), known[:1], max(roundoffs))
        found.append((told.error, told.allowed) if told is not None and told.right else None)
    return _worst(found) if found else None


def _given(evidence: Evidence, row: int, children: Sequence[int], made: int, numbers: Numbers) -> list[Both[Given]]:
    """Of each rank what attention was given, and made; nothing where the names of the modules inside do not tell it of all."""
    named = dict(_named(evidence, row, children, made))
    read = {name: numbers(pair) for name, pair in named.items()}
    if len({len(ranks) for ranks in read.values()}) != 1 or not ({"q", "k", "v"} <= set(read) or "qkv" in read):
        return []
    found: list[Both[Given]] = []
    for every in zip(*read.values(), strict=True):
        reference, target = (
            _as_given({name: getattr(both, side) for name, both in zip(read, every, strict=True)}) for side in ("reference", "target")
        )
        if reference is None or target is None or reference.queries.shape != target.queries.shape:
            return []
        found.append(Both(reference, target))
    return found


def _named(evidence: Evidence, row: int, children: Sequence[int], made: int) -> Iterator[tuple[str, int]]:
    """(what it is, pair): `q`, `k`, `v` or `qkv`, `made`, and where there are some `cos`, `sin`, `mask`. Of several the last counts."""
    pairs, texts = evidence.pairs, evidence.texts
    for pair in evidence.pairs_of(row):
        position = texts[int(pairs["position"][pair])] or ""
        table = _TABLE.search(position)
        if pairs["role"][pair] == Role.INPUT and table is not None:
            yield table[2] or ("cos", "sin")[int(table[1])], pair
        elif pairs["role"][pair] == Role.INPUT and position.endswith("attention_mask"):
            yield "mask", pair
    for child in children:
        name = (texts[int(evidence.sites["site"][child])] or "").rpartition(".")[2].lower()
        outputs = [pair for pair in evidence.pairs_of(child) if pairs["role"][pair] == Role.OUTPUT and pairs["count"][pair] <= _MOST]
        if len(outputs) == 1 and (_FUSED.search(name) or _PROJECTION.match(name)) and child != int(pairs["site"][made]):
            projection = _PROJECTION.match(name)
            yield "qkv" if _FUSED.search(name) or projection is None else projection[1], outputs[0]
    yield "made", made


def _as_given(values: dict[str, NDArray[Any]]) -> Given | None:
    """None where it is not told what is which, or where forms do not fit each other."""
    if any(x.dtype.kind != "f" for name, x in values.items() if name != "mask"):
        return None
    made = _rows(values["made"], None)
    if made is None:
        return None
    batch, tokens, _ = made.shape
    parts = [_rows(x, tokens) for x in _projections(values, made.shape[-1])]
    known = [part for part in parts if part is not None]
    if len(known) != 3 or known[0].shape != made.shape or known[1].shape != known[2].shape:
        return None
    tables = [values[name].astype(np.float64) for name in ("cos", "sin") if name in values]
    if any(x.ndim < 2 or x.shape[-2] != tokens or x.size != x.shape[-1] * tokens * (x.shape[0] if x.ndim == 3 else 1) for x in tables):
        return None
    tables = [x.reshape(-1, tokens, x.shape[-1]) for x in tables]
    if tables and (len(tables) != 2 or tables[0].shape != tables[1].shape or len(tables[0]) not in (1, batch)):
        return None
    mask = values.get("mask")
    if mask is not None and (mask.ndim != 4 or mask.shape[0] not in (1, batch) or mask.shape[1] != 1 or mask.shape[2:] != (tokens, tokens)):
        return None
    seen = mask if mask is None or mask.dtype == bool else mask.astype(np.float64)
    cos, sin = tables or (None, None)
    return Given(known[0], known[1], known[2], made, cos, sin, seen)


def _projections(values: dict[str, NDArray[Any]], width: int) -> list[NDArray[Any]]:
    """Queries, keys and values; of one product the queries come first."""
    if "qkv" not in values:
        return [values[name] for name in "qkv"]
    both = (values["qkv"].shape[-1] - width) // 2
    return np.split(values["qkv"], [width, width + both], axis=-1) if both > 0 else []


def _rows(x: NDArray[Any], tokens: int | None) -> NDArray[np.float64] | None:
    """(batch, tokens, channels), of tokens in a row a batch of one, of heads with theirs beside each other."""
    x = x.astype(np.float64)
    if x.ndim == 4 and tokens is not None:
        x = x if x.shape[1] == tokens else np.swapaxes(x, 1, 2)
        x = x.reshape(*x.shape[:2], -1)
    x = x[None] if x.ndim == 2 else x
    return x if x.ndim == 3 and x.size and tokens in (None, x.shape[1]) else None
