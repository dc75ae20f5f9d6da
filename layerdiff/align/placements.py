"""How the values of many ranks make up one logical tensor: inferred from shapes and numbers against the reference, and nothing else.

Every reading that the shapes allow is scored, the best is taken, and what fits as well is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.forms import without_ones
from layerdiff.align.matching import matched_places
from layerdiff.align.nested import infer_nested
from layerdiff.align.placement import FITS, PAD, TURNED, Placement, places_of, turned, wide

Array = NDArray[Any]
ALIKE: Final = 1.05
"""How much worse another reading may fit and still be kept: numbers that do not tell them apart."""
_SURELY: Final = 0.25
"""The same of what is matched place by place: the nearest of many wrong slices may come under a half."""
_NO_DOUBT: Final = 2.0**-7
"""The same where places are left out for others that are held twice: parts of a wrong value resemble something, too."""
_TELLING: Final = 4
"""Numbers of a place that are like those of no other: one or two may come near many."""
APART: Final = "whole shapes, and the ranks differ"
"""Copies that should agree, or parts of a sum that is off: the numbers do not tell."""
ENOUGH_ELEMENTS: Final = 1 << 18
"""Elements of a value that are looked at to place it."""


def infer(reference: Array, parts: Sequence[Array], likely: Placement | None = None) -> Placement:
    """The placement of the ranks' values, given the reference's.

    Args:
        reference: the logical tensor, as numbers.
        parts: what each rank holds, in rank order, as numbers.
        likely: a sharding that fitted another value of these sizes; it is taken where none fits this one.
    """
    form = parts[0].shape
    if form != reference.shape and without_ones(form) == without_ones(reference.shape) and all(part.shape == form for part in parts):
        return replace(_as_they_lie(reference, [part.reshape(reference.shape) for part in parts], None), form=form)
    found = _as_they_lie(reference, parts, likely)
    if (found.kind != "unknown" and found.fits) or not _may_be_turned(reference.shape, [part.shape for part in parts]):
        return found
    other = _as_they_lie(reference, [turned(part) for part in parts], likely)
    if other.kind == "unknown" or (found.kind != "unknown" and not (other.fits and other.error < FITS)):
        return found
    return replace(other, name=TURNED + other.name, turned=True)


def _may_be_turned(reference: tuple[int, ...], parts: Sequence[tuple[int, ...]]) -> bool:
    """Whether the ranks may have the positions of a batch before its requests, all of them or some."""
    if len(reference) < 3 or reference[0] == reference[1] or any(len(part) != len(reference) for part in parts):
        return False
    return all(part[1] == reference[0] and part[0] > 0 and reference[1] % part[0] == 0 for part in parts)


def _as_they_lie(reference: Array, parts: Sequence[Array], likely: Placement | None) -> Placement:
    """The placement of parts whose dimensions are in the order of the reference's."""
    entire = reference, parts
    reference, parts = thinned(reference, parts)
    found = _in_one_dimension(reference, parts, likely)
    if found.name == APART and not (found.error < FITS or found.against < FITS):
        found = _rows_of_its_own(*entire) or found
    regular = found.fits and (found.kind == "partial" or (found.kind == "sharded" and bool(found.reading)))
    whole = found.kind == "replicated" and (found.error < FITS or found.name != APART)
    alike = all(part.ndim == reference.ndim for part in parts)
    if regular or whole or not alike or len(parts) < 4:
        return found
    nested = infer_nested(reference, parts, readings, _grid_or_one_dimension)
    if nested is not None and reference.dtype.kind not in "fc" and nested.error > 0.0:  # whole numbers of a wrong part agree here and there
        nested = None
    matched = found.kind == "sharded" and found.fits
    return found if nested is None or (matched and nested.error > ALIKE * found.error + 1e-12) else nested


def _grid_or_one_dimension(reference: Array, parts: Sequence[Array]) -> Placement:
    """Inside a group of a grid: where no placement along one dimension fits, a grid again, of three dimensions then."""
    found = _in_one_dimension(reference, parts)
    if len(parts) < 4 or (found.kind != "unknown" and found.fits and found.error < FITS):
        return found
    return infer_nested(reference, parts, readings, _in_one_dimension) or found


def _in_one_dimension(reference: Array, parts: Sequence[Array], likely: Placement | None = None) -> Placement:
    """A placement that is none of a grid."""
    shapes = {part.shape for part in parts}
    if len(parts) == 1 and parts[0].shape == reference.shape:
        alone = Placement("replicated", "on one rank", error=relative_error(reference, parts[0]))
        return alone if alone.error < FITS else _in_another_order(reference, parts[0]) or alone
    if any(part.ndim != reference.ndim for part in parts):
        return Placement("unknown", f"its parts have {', '.join(sorted({str(len(shape)) for shape in shapes}))} dimensions")
    if shapes == {reference.shape}:
        return _whole(reference, parts)
    differing = [dim for dim in range(reference.ndim) if any(part.shape[dim] != reference.shape[dim] for part in parts)]
    if len(differing) != 1:
        return Placement("unknown", f"its parts differ from the reference in {len(differing)} dimensions")
    if all(part.shape[differing[0]] == 1 for part in parts) and _uniform(reference, differing[0]):
        return Placement(
            "replicated", f"the same at every place of dimension {differing[0]}", differing[0], error=relative_error(reference, parts[0])
        )
    return _sharded(reference, parts, differing[0], likely)


def as_well(least: float) -> float:
    """The error up to which a reading fits as well as the best: of a wrong value, which another order may be nearer to, all that fit."""
    return max(ALIKE * least + 1e-12, FITS if _SURELY < least < FITS else 0.0)


def _uniform(reference: Array, dim: int) -> bool:
    """Whether a value is the same at every place of a dimension, as what is broadcast is."""
    if reference.shape[dim] == 0:
        return False
    first = np.take(reference, [0], axis=dim)
    return bool(np.all((reference == first) | ((reference != reference) & (first != first))))


def thinned(reference: Array, parts: Sequence[Array]) -> tuple[Array, Sequence[Array]]:
    """The middle of the dimensions in which all sizes agree, where a value is large: a placement shows in a part of it."""
    if reference.size <= ENOUGH_ELEMENTS or any(part.ndim != reference.ndim for part in parts):
        return reference, parts
    key: list[Any] = [slice(None)] * reference.ndim
    excess = reference.size / ENOUGH_ELEMENTS
    for dim in sorted(range(reference.ndim), key=lambda dim: -reference.shape[dim]):
        size = reference.shape[dim]
        if excess > 1 and size > 1 and all(part.shape[dim] == size for part in parts):
            kept = max(1, int(size / excess))
            key[dim] = slice((size - kept) // 2, (size - kept) // 2 + kept)
            excess *= kept / size
    chosen = tuple(key)
    return np.ascontiguousarray(reference[chosen]), [np.ascontiguousarray(part[chosen]) for part in parts]


def _ordinal(number: int) -> str:
    return f"{number}{'th' if 4 <= number % 100 <= 20 else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def by_shapes(reference: tuple[int, ...], parts: Sequence[tuple[int, ...]]) -> Placement | None:
    """What shapes alone allow, where no numbers were kept; None where they allow no reading. Its positions are the plain ones."""
    if all(part == reference for part in parts):
        return Placement("replicated", "of the whole shape; not checked")
    if any(len(part) != len(reference) for part in parts):
        return None
    differing = [dim for dim in range(len(reference)) if any(part[dim] != reference[dim] for part in parts)]
    if len(differing) != 1:
        return None
    found = list(readings(reference[differing[0]], [part[differing[0]] for part in parts]))
    return (
        Placement("sharded", f"sharded along {differing[0]} by its shape; not checked", differing[0], tuple(found[0][1])) if found else None
    )


def _whole(reference: Array, parts: Sequence[Array]) -> Placement:
    """Every rank holds the whole shape: the whole value, or a part of a sum."""
    each = max(relative_error(reference, part) for part in parts)
    if reference.dtype.kind not in "fc" or all(np.array_equal(part, parts[0], equal_nan=part.dtype.kind == "f") for part in parts[1:]):
        return Placement("replicated", "replicated", error=each)
    with np.errstate(all="ignore"):
        summed = relative_error(reference, np.sum([wide(part) for part in parts], axis=0))
    if summed < FITS and 2.0 * summed < each:
        return Placement("partial", "partial: the ranks add up to it", error=summed, against=each)
    return Placement("replicated", APART, error=each, against=summed)


def _rows_of_its_own(reference: Array, parts: Sequence[Array]) -> Placement | None:
    """Each row on one rank, and beside them what is none of it: what a rank's experts make of the tokens that chose them, others masked.

    None where the ranks do not hold each row of the reference once, or one holds all: then the others are off.
    """
    positions = []
    for part in parts if reference.ndim > 1 and reference.dtype.kind == "f" else ():
        at = matched_places(reference, part, 0)
        if at is None:
            return None
        there, own = (np.asarray(x, np.float64).reshape(at.size, -1) for x in (reference[at], part))
        with np.errstate(all="ignore"):
            near = np.square(own - there).sum(1) < _SURELY**2 * np.square(there).sum(1)
        positions.append(np.where(near, at, PAD))
        if np.count_nonzero(near) == len(reference):
            return None
    held = np.concatenate(positions) if positions else np.empty(0, np.intp)
    if not held.size or not np.array_equal(np.sort(held[held != PAD]), np.arange(len(reference))):
        return None
    error = _sharded_error(reference, parts, 0, positions)
    name = f"sharded along 0, {_said([at[at != PAD] for at in positions], len(reference))}, and others beside them"
    return Placement("sharded", name, 0, tuple(positions), error)


def _in_another_order(reference: Array, part: Array) -> Placement | None:
    """The rows of a value on one rank in an order of their own, as the tokens that come to an expert; None where they are other rows."""
    at = matched_places(reference, part, 0, once=True) if reference.ndim > 1 and reference.dtype.kind == "f" else None
    if at is None:
        return None
    error = _sharded_error(reference, [part], 0, [at])
    if not error < _SURELY:
        return None
    return Placement("sharded", f"sharded along 0, {_said([at], reference.shape[0])}", 0, (at,), error)


def _sharded(reference: Array, parts: Sequence[Array], dim: int, likely: Placement | None) -> Placement:
    """The best reading along one dimension; where none fits the likely one, or the plain one."""
    size, sizes = reference.shape[dim], [part.shape[dim] for part in parts]
    tried = [(name, at) for name, at in readings(size, sizes) if all(one.max(initial=-1) < size for one in at)]
    matched_before = ""
    inside = likely is not None and all(at.max(initial=-1) < size for at in likely.positions)
    if likely is not None and inside and not likely.reading and [at.size for at in likely.positions] == sizes:
        matched_before = _said(likely.positions, size)
        tried.append((matched_before, list(likely.positions)))
    known = "" if likely is None else likely.reading or matched_before
    scored = sorted(
        ((_sharded_error(reference, parts, dim, at), i, name, at) for i, (name, at) in enumerate(tried)), key=lambda one: one[:2]
    )
    best = scored[0] if scored else None
    if (best is None or not best[0] < FITS) and reference.dtype.kind == "f" and any(sizes):
        matched = _matched(reference, parts, dim)
        if matched is not None:
            error = _sharded_error(reference, parts, dim, matched)
            if error < _believed(matched, size, reference.size // size) and (best is None or 2.0 * error < best[0]):
                return Placement(
                    "sharded", f"sharded along {dim}, {_said(matched, size)}", dim, matched, error, (), best[0] if best else np.nan
                )
    if best is None:
        held = sum(sizes)
        return Placement("unknown", f"its parts hold {held} of {size} places along dimension {dim}")
    if not best[0] < FITS:
        error, _, name, at = min(scored, key=lambda one: (one[2] != known, one[1]))  # the readings begin with the plain one
        regular = "" if name == matched_before else name
        return Placement("sharded", f"sharded along {dim}, {name}; no reading fits", dim, tuple(at), error, reading=regular, fits=False)
    if best[0] > _SURELY:
        best = min((one for one in scored if one[0] < FITS), key=lambda one: (one[2] != known, one[1]))
    error, _, name, at = best
    others = [one for one in scored if one is not best]
    also = tuple(one[2] for one in others if one[0] <= ALIKE * error + 1e-12 and not _same(one[3], at))
    rest = min((one[0] for one in others if not _same(one[3], at)), default=np.nan)
    regular = "" if name == matched_before else name
    return Placement("sharded", f"sharded along {dim}, {name}", dim, tuple(at), error, also, rest, regular)


def _believed(matched: Sequence[NDArray[np.intp]], size: int, numbers: int) -> float:
    """The error up to which places that were matched are believed; `numbers` of each. Where none is left out each is held equally often."""
    held = np.bincount(np.concatenate(matched), minlength=size)
    alike = held.sum() % size != 0 or bool(np.all(held == held[0]))
    return _SURELY if alike else _NO_DOUBT if numbers >= _TELLING else 0.0


def readings(size: int, sizes: Sequence[int]) -> Iterator[tuple[str, list[NDArray[np.intp]]]]:
    """Every regular reading of parts of these sizes along a dimension of `size`, the plain one first."""
    ranks, total, equal = len(sizes), sum(sizes), len(set(sizes)) == 1
    if size == 0 or total == 0:
        return
    part = sizes[0]
    places = np.arange(size, dtype=np.intp)
    edges = np.concatenate([[0], np.cumsum(sizes)])
    if total == size:
        yield "contiguous", [places[a : a + n] for a, n in zip(edges.tolist(), sizes, strict=False)]
    if equal and total == size:
        yield "strided", [places[rank::ranks] for rank in range(ranks)]
        if part % 2 == 0:
            chunks = places.reshape(2 * ranks, -1)
            yield "zigzag", [np.concatenate([chunks[rank], chunks[2 * ranks - 1 - rank]]) for rank in range(ranks)]
        for blocks in (2, 3, 4):
            if part % blocks == 0:
                fused = places.reshape(blocks, ranks, -1)
                yield f"{blocks} blocks, each contiguous", [fused[:, rank].reshape(-1) for rank in range(ranks)]
        yield "contiguous from the last rank", [places[rank * part : (rank + 1) * part] for rank in reversed(range(ranks))]
    if equal and total > size:
        if size % part == 0 and ranks % (size // part) == 0:
            groups = size // part
            each = ranks // groups
            yield f"contiguous, each part on {each} ranks in a row", [places[(r // each) * part :][:part] for r in range(ranks)]
            yield f"contiguous, each part on every {_ordinal(groups)} rank", [places[(r % groups) * part :][:part] for r in range(ranks)]
        padded = np.full(total, PAD, np.intp)
        padded[:size] = places
        if (ranks - 1) * part < size or size % part:  # else the last ranks may hold what the first do
            yield "contiguous, padded at the end", [padded[rank * part : (rank + 1) * part] for rank in range(ranks)]
        for real in dict.fromkeys([-(-size // ranks), size // ranks]):
            last = size - (ranks - 1) * real
            if 0 < real <= part and 0 < last <= part:
                held = [np.full(part, PAD, np.intp) for _ in range(ranks)]
                for rank in range(ranks):
                    own = places[rank * real : (rank + 1) * real if rank < ranks - 1 else size]
                    held[rank][: own.size] = own
                yield f"contiguous, {real} places a rank, each part padded", held


def _sharded_error(reference: Array, parts: Sequence[Array], dim: int, positions: Sequence[NDArray[np.intp]]) -> float:
    off = size = 0.0
    with np.errstate(all="ignore"):
        for part, at in zip(parts, positions, strict=True):
            held = at != PAD
            every = bool(held.all())
            whole = places_of(reference, at if every else at[held], dim)
            own = part if every else np.compress(held, part, axis=dim)
            if whole.dtype.kind not in "fc":
                off += float(np.count_nonzero(whole != own))
                size += float(whole.size)
                continue
            good = np.isfinite(whole) & np.isfinite(own)
            off += _squares(np.where(good, wide(own) - whole, 0.0))
            size += _squares(np.where(good, wide(whole), 0.0))
    return (off / size) ** 0.5 if size > 0 else (0.0 if off == 0 else np.inf)


def relative_error(reference: Array, other: Array) -> float:
    """Relative L2 error; of whole numbers the share that differs."""
    if reference.dtype.kind not in "fc" or other.dtype.kind not in "fc":
        return float(np.mean(reference != other)) if reference.size else 0.0
    with np.errstate(all="ignore"):
        good = np.isfinite(reference) & np.isfinite(other)
        off, size = _squares(np.where(good, wide(other) - reference, 0.0)), _squares(np.where(good, wide(reference), 0.0))
    return (off / size) ** 0.5 if size > 0 else (0.0 if off == 0 else np.inf)


def _squares(x: Array) -> float:
    return float(np.vdot(x, x).real)


def _matched(reference: Array, parts: Sequence[Array], dim: int) -> tuple[NDArray[np.intp], ...] | None:
    found = [matched_places(reference, part, dim) for part in parts]
    return None if any(one is None for one in found) else tuple(one for one in found if one is not None)


def _said(positions: Sequence[NDArray[np.intp]], size: int) -> str:
    """`in an order of its own: rank 0 holds [0, 4), [16, 20); rank 1 ...`."""
    texts = []
    for rank, at in enumerate(positions[:4]):
        breaks = np.flatnonzero(np.diff(at) != 1) + 1
        runs = [f"[{run[0]}, {run[-1] + 1})" for run in np.split(at, breaks) if run.size]
        texts.append(f"rank {rank} holds {', '.join(runs[:4])}{', ...' if len(runs) > 4 else ''}")
    twice = sum(at.size for at in positions) > np.unique(np.concatenate(positions)).size
    left = size - np.unique(np.concatenate(positions)).size
    more = (", some twice" if twice else "") + (f", {left} places on no rank" if left > 0 else "")
    return f"matched by its numbers: {'; '.join(texts)}{'; ...' if len(positions) > 4 else ''}{more}"


def _same(one: Sequence[NDArray[np.intp]], other: Sequence[NDArray[np.intp]]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
