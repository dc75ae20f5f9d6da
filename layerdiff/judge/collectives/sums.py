"""A reduction over ranks held against what the ranks put in: exact sums, what P additions may be off, and what fits where it is more.

Sums are taken in float64, which is exact for a few terms of nearby size and off by 2^-53 of them otherwise: far below any allowance
here. An order is looked for among at most `SAMPLE` evenly spaced elements; the bound holds for every element.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.formats import FLOAT32, Format, format_named
from layerdiff.arithmetic.orders.ranks import rank_sum
from layerdiff.judge.tables import Verdict

Array = NDArray[Any]
SAMPLE: Final = 1 << 17
_BLOCK: Final = 1 << 15
"""Elements that are looked at together: all that is made of them stays in a processor's cache."""
_SLACK: Final = 1.01
"""Terms of second order in the bound of a few additions."""
RULE: Final = "the sum of what the ranks put in"
PARTIAL_SUMS: Final = "partial_sums"
"""Evidence: the dtype that partial sums are rounded to, where the numbers tell."""


@dataclass(frozen=True)
class Outcome:
    """What is said of one collective on the ranks `ranks`; empty: on all of them."""

    verdict: Verdict
    statement: str | None = None
    measured: float = 0.0
    allowed: float = 0.0
    rule: str = "the same bits"
    kind: str = ""
    position: str = "out[0]"
    ranks: tuple[int, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class _Bound:
    """The worst element so far, over its allowance."""

    worst: float = 0.0
    error: float = 0.0
    allowed: float = 0.0
    narrow: float = 0.0
    """The worst ratio to what additions in the tensor's own dtype may be off."""
    bad: int = 0
    first: int = -1
    last: int = -1
    broken: int = 0


def reduced(parts: Sequence[Array], result: Array, dtype: str, op: str, ranks: Sequence[int], rank: int) -> Outcome:
    """Judge the result that `rank` got.

    Args:
        parts: what each rank put in, flat, as numbers.
        result: what came out, flat, as numbers, of the parts' length.
        dtype: torch's name.
        op: `sum`, `avg`, `product`, `min`, `max`, `band`, `bor`, `bxor`.
        ranks: global ranks, in the order of the parts.
        rank: whose result it is.
    """
    sizes = {len(part) for part in parts} | {len(result)}
    if len(sizes) > 1:
        return _mismatch(f"{len(result)} elements came out, and the ranks put in {', '.join(str(len(part)) for part in parts)}", op)
    format = format_named(dtype)
    if format is None or op not in ("sum", "avg", "product"):
        return _exactly(parts, result, op, ranks, rank)
    bound = _Bound()
    for start in range(0, len(result), _BLOCK):
        block = slice(start, start + _BLOCK)
        _hold([part[block] for part in parts], result[block], format, op, bound, start)
    if bound.broken or bound.bad:
        return _wrong(parts, result, format, op, ranks, rank, bound)
    return _order(parts, result, format, op, bound)


def _hold(terms: Sequence[Array], result: Array, format: Format, op: str, bound: _Bound, start: int) -> None:
    with np.errstate(all="ignore"):
        got = np.asarray(result, np.float64)
        exact, wide, narrow, size = _allowances(terms, format, op)
        finite = np.isfinite(size)
        error = np.abs(got - exact)
        may_overflow = size * _SLACK >= format.overflow
        classes = ~finite & ~(np.isnan(got) & np.isnan(exact)) & (got != exact)
        broken = finite & ~np.isfinite(got) & ~may_overflow
        compared = finite & np.isfinite(got)
        ratio = np.where(compared, error / wide, 0.0)
        in_dtype = np.where(compared, error / np.maximum(narrow, wide), 0.0)
    ratio, in_dtype = np.nan_to_num(ratio, nan=0.0, posinf=np.inf), np.nan_to_num(in_dtype, nan=0.0, posinf=np.inf)
    bad = classes | broken | (in_dtype > 1.0)
    bound.broken += int(np.count_nonzero(broken))
    if ratio.size and float(ratio.max()) > bound.worst:
        at = int(ratio.argmax())
        bound.worst, bound.error, bound.allowed = float(ratio[at]), float(error[at]), float(wide[at])
    bound.narrow = max(bound.narrow, float(in_dtype.max(initial=0.0)))
    where = np.flatnonzero(bad)
    if where.size:
        bound.bad += int(where.size)
        bound.first = start + int(where[0]) if bound.first < 0 else bound.first
        bound.last = start + int(where[-1])


def _allowances(terms: Sequence[Array] | Array, format: Format, op: str) -> tuple[Array, Array, Array, Array]:
    """Exact result; what it may be off if added in fp32 and rounded once; if every addition is rounded to the dtype; size of the terms."""
    count, unit = len(terms), format.unit
    exact = np.array(terms[0], np.float64)
    inner = FLOAT32.unit if format.significand_bits <= FLOAT32.significand_bits else 2.0 * unit  # `exact` is in float64 itself
    tiny = format.smallest_normal  # a device may flush what lies below
    if op == "product":
        for term in terms[1:]:
            exact *= term
        size = np.abs(exact)
        return exact, _SLACK * ((count - 1) * inner + unit) * size + tiny, _SLACK * (count + 1) * unit * size + tiny, size
    size = np.abs(exact)
    for term in terms[1:]:
        wide_term = np.asarray(term, np.float64)
        exact += wide_term
        size += np.abs(wide_term)
    steps = count - 1
    if op == "avg":
        exact, steps, scaled = exact / count, count + 1, size / count
    else:
        scaled = size
    wide = _SLACK * (steps * inner * scaled + unit * np.abs(exact)) + tiny
    return exact, wide, _SLACK * steps * unit * scaled + tiny, size


def _order(parts: Sequence[Array], result: Array, format: Format, op: str, bound: _Bound) -> Outcome:
    """Within the bound: which order, and whether partial sums were rounded to the dtype."""
    sampled = f", {SAMPLE} of {len(result)} rows sampled" if len(result) > SAMPLE else ""
    found = {"measured": bound.error, "allowed": bound.allowed, "rule": RULE}
    if op == "sum" and len(result):
        taken = np.linspace(0, len(result) - 1, SAMPLE).astype(np.intp) if len(result) > SAMPLE else np.arange(len(result))
        terms = np.stack([np.asarray(part[taken], np.float64) for part in parts])
        with np.errstate(all="ignore"):
            certain = np.isfinite(terms).all(0) & np.isfinite(result[taken])
            told = rank_sum(terms, np.asarray(result[taken], np.float64), format, certain)
        if told.explained:
            ways = [told.ways] if told.ways else [stretch.ways for stretch in told.stretches]
            wide = all(any(_is_wide(way, format) for way in each) for each in ways)
            chosen = [next((way for way in each if _is_wide(way, format)), each[0]) if wide else each[0] for each in ways]
            order = chosen[0] if len(ways) == 1 else _in_chunks(chosen)
            evidence = {"order": order, "chunks": len(ways)}
            if wide and not all(any(not _is_wide(way, format) for way in each) for each in ways):
                evidence[PARTIAL_SUMS] = FLOAT32.name  # the numbers tell the two apart
            found["rule"] = f"{RULE}, {order}{sampled}"
            if wide:
                return Outcome(Verdict.ORDER_EXACT, None, **found, evidence=evidence)  # type: ignore[arg-type]
            return _narrow(format, f"added {order}: every partial sum is rounded to {format.name}", found, evidence)
    if bound.worst > 1.0:
        return _narrow(format, f"off by more than a sum in fp32 can be, and by no more than partial sums in {format.name}", found, {})
    return Outcome(Verdict.ORDER_CONSISTENT if bound.worst > 0 else Verdict.IDENTICAL, None, **found)  # type: ignore[arg-type]


def _in_chunks(ways: Sequence[str]) -> str:
    """`in a ring of 4 chunks in bf16`, where every chunk is begun by another rank; else the distinct ways."""
    ends = {way.rpartition(" in ")[2] for way in ways}
    chains = [way for way in ways if way.startswith(("in rank order", "from the last rank", "in a ring"))]
    if len(ends) == 1 and len(chains) == len(ways):
        return f"in a ring of {len(ways)} chunks in {ends.pop()}"
    return f"in {len(ways)} chunks: {'; '.join(dict.fromkeys(ways))}"


def _is_wide(way: str, format: Format) -> bool:
    return way.endswith(" in fp32") or format.significand_bits >= FLOAT32.significand_bits


def _narrow(format: Format, statement: str, found: Mapping[str, Any], evidence: Mapping[str, Any]) -> Outcome:
    return Outcome(Verdict.PRECISION, statement, **found, kind="collectives", evidence={**evidence, PARTIAL_SUMS: format.name})


def _wrong(parts: Sequence[Array], result: Array, format: Format, op: str, ranks: Sequence[int], rank: int, bound: _Bound) -> Outcome:
    """Beyond any order: what the wrong elements are instead."""
    where = slice(bound.first, bound.last + 1)
    taken = np.arange(where.start, where.stop)
    if len(taken) > SAMPLE:
        taken = taken[np.linspace(0, len(taken) - 1, SAMPLE).astype(np.intp)]
    with np.errstate(all="ignore"):
        terms = np.stack([np.asarray(part[taken], np.float64) for part in parts])
        exact, wide, narrow, _ = _allowances(terms, format, op)
        got = np.asarray(result[taken], np.float64)
        off = ~(np.abs(got - exact) <= np.maximum(wide, narrow))
        if op == "avg":
            terms = terms / len(parts)
    fits = None if op == "product" else fitting(terms[:, off], got[off], format, ranks, rank, op)
    span = "" if bound.bad == len(result) else f" in {bound.bad} of {len(result)} elements, from {bound.first} to {bound.last}"
    said = f"what came out is not the {_words(op)} of what the ranks put in{span}"
    if fits is not None:
        said += f": it is {fits[0]}"
    evidence = {"elements": bound.bad, "first": bound.first, "last": bound.last, **(fits[1] if fits is not None else {})}
    verdict = Verdict.DEFECT
    if bound.broken:
        verdict = Verdict.BROKEN
        said = f"{bound.broken} elements are NaN or Inf, and all that the ranks put in there is finite"
    return Outcome(verdict, said, bound.error, bound.allowed, RULE, evidence=evidence, ranks=(rank,))


def fitting(
    terms: Array, got: Array, format: Format, ranks: Sequence[int], rank: int, op: str = "sum"
) -> tuple[str, dict[str, Any]] | None:
    """What a wrong result is instead: the parts with other weights. In words, with the weights as evidence; None where nothing fits."""
    finite = np.isfinite(terms).all(0) & np.isfinite(got)
    terms, got = terms[:, finite], got[finite]
    if not got.size:
        return None
    count = terms.shape[0]
    size = np.sum(np.abs(terms), axis=0)
    allowed = _SLACK * (count + 1) * format.unit * size + format.smallest_normal
    allowed = np.maximum(allowed, _SLACK * format.unit * np.abs(got) * (count + 1))
    if not np.any(size > 0):
        return None
    for words, weights in _candidates(count, ranks, rank, op):
        with np.errstate(all="ignore"):
            if bool(np.all(np.abs(got - weights @ terms) <= allowed)):
                return words, {"weights": [round(float(weight), 6) for weight in weights]}
    solved, _, full, _ = np.linalg.lstsq(terms.T, got, rcond=None)
    weights = np.rint(solved)
    if (
        int(full) == count
        and got.size > count
        and bool(np.all(np.abs(got - weights @ terms) <= allowed * max(1.0, float(np.abs(weights).max()))))
    ):
        said = ", ".join(f"{int(weight)} times rank {one}'s" for weight, one in zip(weights, ranks, strict=True) if weight != 1)
        return f"the sum with {said} part", {"weights": weights.tolist()}
    return None


def _candidates(count: int, ranks: Sequence[int], rank: int, op: str) -> Iterator[tuple[str, Array]]:
    all_of_them, unit = np.ones(count), np.eye(count)
    own = list(ranks).index(rank) if rank in ranks else -1
    scale = float(count) if op == "avg" else 1.0  # terms of an average are divided already
    yield "zero: nothing arrived", np.zeros(count)
    if own >= 0:
        yield f"what rank {rank} put in itself: nothing was added to it", scale * unit[own]
    for i, one in enumerate(ranks):
        if i != own:
            yield f"what rank {one} put in, alone", scale * unit[i]
    for i, one in enumerate(ranks):
        yield f"the {_words(op)} without rank {one}'s part", all_of_them - unit[i]
    for i, one in enumerate(ranks):
        yield f"the {_words(op)} with rank {one}'s part counted twice", all_of_them + unit[i]
    if op == "avg":
        yield "the sum, not divided by the number of ranks", count * all_of_them
    else:
        yield "the average: it was divided by the number of ranks", all_of_them / count
        yield f"the sum {count} times: it was reduced again", count * all_of_them


def _exactly(parts: Sequence[Array], result: Array, op: str, ranks: Sequence[int], rank: int) -> Outcome:
    """Reductions without rounding: integers, minimum, maximum, bits."""
    terms = np.stack(parts)
    with np.errstate(all="ignore"):
        if terms.dtype.kind == "b":
            wanted = terms.any(0) if op in ("sum", "max", "bor") else terms.all(0) if op in ("min", "product", "band") else None
            if op == "bxor":
                wanted = np.bitwise_xor.reduce(terms, axis=0)
        else:
            wanted = _folded(terms, op)
    if wanted is None:
        return Outcome(Verdict.NOT_COMPARABLE, f"{op} is not checked")
    numbers = np.isnan(terms).any(0) if terms.dtype.kind == "f" else np.zeros(len(result), bool)
    bad = (wanted != result) & ~numbers
    if terms.dtype.kind == "f":
        bad |= numbers & ~np.isnan(result) & np.isnan(terms).all(0)
    if not bad.any():
        return Outcome(Verdict.IDENTICAL, rule=f"the {_words(op)} of what the ranks put in")
    where = np.flatnonzero(bad)
    said = f"what came out is not the {_words(op)} of what the ranks put in, in {where.size} of {len(result)} elements"
    for i, one in enumerate(ranks):
        if np.array_equal(terms[i], result, equal_nan=terms.dtype.kind == "f"):
            said += f": it is what rank {one} put in{' itself' if one == rank else ''}, alone"
            break
    else:
        others = _other_op(terms, result, op)
        said += f": it is the {_words(others)}" if others else ""
    evidence = {"elements": int(where.size), "first": int(where[0]), "last": int(where[-1])}
    rule = f"the {_words(op)} of what the ranks put in"
    return Outcome(Verdict.DEFECT, said, float(where.size), 0.0, rule, ranks=(rank,), evidence=evidence)


def _folded(terms: Array, op: str) -> Array | None:
    whole = terms.dtype.kind in "iu"
    if op in ("sum", "product") and whole:
        made = (np.add if op == "sum" else np.multiply).reduce(terms, axis=0, dtype=terms.dtype)
    elif op == "avg" and whole:
        made = np.trunc(np.add.reduce(terms, axis=0, dtype=np.int64) / len(terms)).astype(terms.dtype)
    elif op in ("min", "max"):
        made = (np.fmin if op == "min" else np.fmax).reduce(terms, axis=0)
    elif op in ("band", "bor", "bxor") and whole:
        made = {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}[op].reduce(terms, axis=0)
    else:
        return None
    return np.asarray(made)


def _other_op(terms: Array, result: Array, op: str) -> str | None:
    for other in ("min", "max", "sum"):
        if other != op and (made := _folded(terms, other)) is not None and np.array_equal(made, result):
            return other
    return None


def _words(op: str) -> str:
    return {"avg": "average", "min": "minimum", "max": "maximum", "band": "bitwise and", "bor": "bitwise or", "bxor": "bitwise xor"}.get(
        op, op
    )


def _mismatch(statement: str, op: str) -> Outcome:
    return Outcome(Verdict.DEFECT, statement, rule=f"the {_words(op)} of what the ranks put in")
