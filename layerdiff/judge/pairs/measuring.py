"""Numbers for every pair of values: each distinct pair is read once, however many calls share it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.beside import AS_THEY_ARE, Forms
from layerdiff.errors import TraceError
from layerdiff.judge.pairs.packing import FormsOfSteps, forms_of_steps
from layerdiff.judge.pairs.padded_rows import PaddedRows
from layerdiff.judge.tables import Source, Texts
from layerdiff.measure.blocks import ArrayBlocks, Blocks
from layerdiff.measure.equality import same_bits
from layerdiff.measure.screening import screen
from layerdiff.measure.stored_statistics import compare_statistics
from layerdiff.sides import Both
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import Storage, ValueKind

NUMBERS = (
    *("equal", "count", "rel_l2", "max_abs", "rms_reference", "max_reference", "rms_difference", "mismatched"),
    *("nonfinite_reference", "nonfinite_target", "nonfinite_differ", "worst"),
)

_SPREADING = ("nonfinite_reference", "nonfinite_target", "nonfinite_differ")
"""What counts in padding, too: it spreads to rows that are read."""


@dataclass(frozen=True)
class Numbers:
    """What was measured of one pair: names and entries of columns of PAIRS, and why there is nothing where there is nothing."""

    columns: dict[str, Any]
    reason: str | None = None
    shape: tuple[int, ...] | None = None
    """Of what was compared, where that is neither value whole."""


def measure_values(files: Both[TraceFile], values: Both[int], forms: Forms = AS_THEY_ARE) -> Numbers:
    """Measure one pair: from its bytes, else from recorded statistics. An unreadable value is a result with a reason."""
    shapes = Both(files.reference.shape(values.reference), files.target.shape(values.target))
    if not forms.as_stored(*shapes):
        if forms.common(shapes.reference, shapes.target):
            return _what_both_have(files, values, forms)
        return Numbers({"source": int(Source.NOTHING)}, f"shapes differ: reference {list(shapes.reference)}, target {list(shapes.target)}")
    try:
        stored = Both(files.reference.stored(values.reference), files.target.stored(values.target))
        if stored.reference is not None and stored.target is not None:
            found = _screened(stored.reference, stored.target, same=_views_of_the_same(files, values))
            if found.columns.get("equal") and found.columns["mismatched"] == 0:
                found.columns["max_reference"] = _largest(files.reference, values.reference)
            return found
    except TraceError as error:
        return Numbers({"source": int(Source.NOTHING)}, str(error))
    return _from_statistics(files, values)


def _what_both_have(files: Both[TraceFile], values: Both[int], forms: Forms) -> Numbers:
    """Of a value with a dimension, or with positions, that one side filled up."""
    try:
        sides = forms.beside(files.reference.raw(values.reference), files.target.raw(values.target))
    except TraceError as error:
        return Numbers({"source": int(Source.NOTHING)}, str(error))
    ours, theirs = files.reference.dtype(values.reference), files.target.dtype(values.target)
    assert sides is not None and ours is not None and theirs is not None
    blocks = Both(ArrayBlocks(ours, np.ascontiguousarray(sides[0])), ArrayBlocks(theirs, np.ascontiguousarray(sides[1])))
    return replace(_screened(blocks.reference, blocks.target), shape=sides[0].shape)


def _screened(ours: Blocks, theirs: Blocks, *, same: bool = False) -> Numbers:
    screening = vars(screen(ours, theirs, same=same))
    if not screening["equal"] and screening["mismatched"] < 0 and screening["rel_l2"] != screening["rel_l2"]:
        return Numbers({"source": int(Source.NOTHING)}, f"{ours.dtype.name} and {theirs.dtype.name} cannot be compared by number")
    return Numbers({"source": int(Source.BYTES), **{name: screening[name] for name in NUMBERS}})


def _views_of_the_same(files: Both[TraceFile], values: Both[int]) -> bool:
    """Whether two values are the same view of stored values with the same bits: nothing has to be put in order to know it."""
    sides = list(zip(files, values, strict=True))
    if any(file.values.storage[value] != Storage.VIEW for file, value in sides):
        return False
    views = [(file.dtype_name(value), file.text(int(file.values.view[value]))) for file, value in sides]
    ours, theirs = (file.stored(int(file.values.base[value])) for file, value in sides)
    if views[0] != views[1] or ours is None or theirs is None or ours.place is None or theirs.place is None:
        return False
    return ours.count == theirs.count and same_bits(ours, theirs)


def _largest(file: TraceFile, value: int) -> float:
    """The largest magnitude of integers, as recorded: a rotary table is judged by the positions that it was made for."""
    known = file.statistics(value)
    return nan if known is None else max(abs(known.minimum), abs(known.maximum))


def _from_statistics(files: Both[TraceFile], values: Both[int]) -> Numbers:
    statistics = Both(files.reference.statistics(values.reference), files.target.statistics(values.target))
    if statistics.reference is None or statistics.target is None:
        side = "reference" if statistics.reference is None else "target"
        file, value = getattr(files, side), getattr(values, side)
        why = file.text(int(file.values.reason[value])) or "the keep policy"
        return Numbers({"source": int(Source.NOTHING)}, f"nothing was recorded of it in the {side}: {why}")
    found = compare_statistics(
        statistics.reference,
        statistics.target,
        fingerprints=Both(files.reference.fingerprint(values.reference), files.target.fingerprint(values.target)),
        dtypes=Both(files.reference.dtype_name(values.reference), files.target.dtype_name(values.target)),
    )
    verified = -1 if found["equal"] else _verified(files, values)
    return Numbers({"source": int(Source.STATISTICS), **found, "mismatched": verified})


def _verified(files: Both[TraceFile], values: Both[int]) -> int:
    """What fingerprints say of two weights whose bytes are not kept: 1, other bits; 0, one is the other rounded; -1, nothing.

    A recorder notes the fingerprints that a float32 weight would have in narrower dtypes.
    """
    sides = Both((files.reference, values.reference), (files.target, values.target))
    if any(file.values.kind[value] not in (ValueKind.PARAMETER, ValueKind.BUFFER) for file, value in sides):
        return -1
    fingerprints = sides.map(lambda side: side[0].fingerprint(side[1]))
    if fingerprints.reference is None or fingerprints.target is None:
        return -1
    names = sides.map(lambda side: side[0].dtype_name(side[1]))
    if names.reference == names.target:
        return 1
    for (file, value), narrow, found in (
        (sides.reference, names.target, fingerprints.target),
        (sides.target, names.reference, fingerprints.reference),
    ):
        detail = file.json(int(file.values.detail[value]))
        rounded = detail.get("rounded") if isinstance(detail, dict) else None
        if isinstance(rounded, dict) and isinstance(rounded.get(narrow), str):
            return int(rounded[narrow] != f"{found[0]:016x}{found[1]:016x}")
    return -1


def fill(
    pairs: dict[str, NDArray[Any]],
    sites: dict[str, NDArray[Any]],
    texts: Texts,
    files: Both[tuple[TraceFile, ...]],
    forms: FormsOfSteps | None = None,
) -> Iterator[int]:
    """Fill the columns of `pairs`, in their order; yields the bytes done, after each pair.

    A pair's reason goes into its site's statement where that has none.
    """
    known: dict[tuple[int, int, int, int], Numbers] = {}
    if forms is None:
        forms = forms_of_steps(sites, pairs, files)
    padded, done = PaddedRows(files), 0
    for pair, site in enumerate(pairs["site"].tolist()):
        numbers = Both(int(sites["reference_file"][site]), int(sites["target_file"][site]))
        values = Both(int(pairs["reference_value"][pair]), int(pairs["target_value"][pair]))
        side = Both(files.reference[numbers.reference], files.target[numbers.target])
        key = (numbers.reference, numbers.target, values.reference, values.target)
        found = known.get(key)
        if found is None:
            calls = Both(int(sites["reference_call"][site]), int(sites["target_call"][site]))
            found = measure_values(side, values, forms.at(numbers.target, calls.target))
            found = known[key] = _without(found, side, values, lambda: padded.among(numbers, calls, values))  # noqa: B023
            done += bytes_of(side, values)
        for name, number in found.columns.items():
            pairs[name][pair] = number
        if found.shape is not None:
            for name in ("reference", "target"):
                pairs[f"{name}_shape"][pair] = texts.intern(json.dumps(list(found.shape)))
        if found.reason is not None and sites["statement"][site] < 0:
            sites["statement"][site] = texts.intern(f"{texts[int(pairs['position'][pair])]}: {found.reason}")
        yield done


def _without(found: Numbers, files: Both[TraceFile], values: Both[int], padding: Callable[[], NDArray[np.bool_] | None]) -> Numbers:
    """What was measured of two values as they are stored, without their elements of padding.

    Of what is discrete all counts: padding is routed, too, and moves what experts are given.
    """
    if found.columns["source"] == Source.NOTHING or found.columns["equal"] or found.shape is not None or found.columns["mismatched"] >= 0:
        return found
    left_out = padding()
    dtypes = Both(files.reference.dtype(values.reference), files.target.dtype(values.target))
    if left_out is None or dtypes.reference is None or dtypes.target is None:
        return found
    if found.columns["source"] == Source.STATISTICS:
        return Numbers({"source": int(Source.NOTHING)}, "its statistics count padding, of which right runs make other things")
    if left_out.all():
        return found
    ours, theirs = (file.raw(value) for file, value in zip(files, values, strict=True))
    return Numbers(without_padding(found.columns, ArrayBlocks(dtypes.reference, ours), ArrayBlocks(dtypes.target, theirs), left_out))


def without_padding(whole: Mapping[str, Any], reference: ArrayBlocks, target: ArrayBlocks, padding: NDArray[np.bool_]) -> dict[str, Any]:
    """The columns of two values without their elements of padding; `whole`: those with them."""
    kept = np.flatnonzero(~padding.reshape(-1))
    ours, theirs = (ArrayBlocks(side.dtype, side.bits.reshape(-1)[kept]) for side in (reference, target))
    without = _screened(ours, theirs).columns
    worst = int(without["worst"])
    spreading = {name: whole[name] for name in ("equal", "count", *_SPREADING)}
    return {**without, **spreading, "worst": int(kept[worst]) if worst >= 0 else -1}


def bytes_of(files: Both[TraceFile], values: Both[int]) -> int:
    """Bytes to read for one pair."""
    return int(files.reference.values.nbytes[values.reference]) + int(files.target.values.nbytes[values.target])


def total_bytes(pairs: dict[str, NDArray[Any]], sites: dict[str, NDArray[Any]], files: Both[tuple[TraceFile, ...]]) -> int:
    """Bytes to read for all distinct pairs."""
    total, seen = 0, set()
    columns = (sites["reference_file"][pairs["site"]], sites["target_file"][pairs["site"]], pairs["reference_value"], pairs["target_value"])
    for key in zip(*(column.tolist() for column in columns), strict=True):
        if key not in seen:
            seen.add(key)
            total += bytes_of(Both(files.reference[key[0]], files.target[key[1]]), Both(key[2], key[3]))
    return total
