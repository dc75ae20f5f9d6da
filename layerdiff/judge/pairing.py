"""The tables of a comparison before anything is measured: which calls and which values stand side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.alignment import Alignment, Calls
from layerdiff.align.positions import pair_positions
from layerdiff.judge.tables import PAIRS, SITES, Columns, Source, Texts, Verdict
from layerdiff.sides import Both
from layerdiff.trace.reader import Edge, TraceFile
from layerdiff.trace.schema import ABSENT, CallKind, Role


@dataclass
class Tables:
    """Sites and pairs, still growing."""

    texts: Texts = field(default_factory=Texts)
    sites: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in SITES})
    pairs: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in PAIRS})

    def columns(self) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        """Both tables as arrays."""
        return (
            {name: np.array(self.sites[name], dtype) for name, dtype in SITES.items()},
            {name: np.array(self.pairs[name], dtype) for name, dtype in PAIRS.items()},
        )


def calls_of(file: TraceFile) -> Calls:
    """What alignment needs to know of one file."""
    calls = file.calls
    count = len(calls)
    top = (np.asarray(calls.parent) == ABSENT) & (np.asarray(calls.kind) == CallKind.MODULE)
    is_root = top & (np.asarray(calls.module) == _number_of(file, ""))
    names: dict[tuple[int, int, int, int], str] = {}
    sites: list[str] = []
    for call, key in enumerate(
        zip(calls.root.tolist(), calls.module.tolist(), calls.operator.tolist(), calls.number.tolist(), strict=True)
    ):
        found = names.get(key)
        if found is None:
            found = names[key] = file.site(call)
        sites.append(found)
    types = [file.text(text) for text in calls.type.tolist()]
    inputs = [""] * count
    for call in np.flatnonzero(is_root).tolist():
        inputs[call] = _input_shapes(file, call)
    return Calls(sites, calls.kind, types, calls.parent, calls.root, calls.step, calls.occurrence, inputs)


def _number_of(file: TraceFile, text: str) -> int:
    """The number of a module path that some call has; -2 where none has it."""
    return next((number for number in np.unique(file.calls.module).tolist() if file.text(number) == text), -2)


def _input_shapes(file: TraceFile, call: int) -> str:
    shapes = [(e.position, file.shape(e.value)) for e in file.edges_of(call) if e.role == Role.INPUT]
    return ", ".join(f"{position} {'x'.join(map(str, shape)) or 'scalar'}" for position, shape in shapes)


def add_file_pair(
    tables: Tables, files: Both[TraceFile], numbers: Both[int], calls: Both[Calls], alignment: Alignment, *, rank: int | None
) -> None:
    """Append the sites and pairs of one process's file on each side, in the order in which the target's calls began.

    Calls that only the reference ran stand behind the last target call before them.
    """
    texts, sites = tables.texts, tables.sites
    row_of: Both[dict[int, int]] = Both({}, {})
    for reference, target, reason in _merged(alignment):
        row = len(sites["site"])
        side, call = ("target", target) if target >= 0 else ("reference", reference)
        file, own = getattr(files, side), getattr(calls, side)
        parent = int(getattr(alignment.parents, side)[call])
        known = calls.reference.type[reference] if reference >= 0 else None
        sites["site"].append(texts.intern(getattr(alignment.sites, side)[call]))
        sites["kind"].append(int(own.kind[call]))
        sites["type"].append(texts.intern(known or own.type[call]))
        sites["operator"].append(texts.intern(file.text(int(file.calls.operator[call]))))
        sites["step"].append(int(own.step[call]))
        sites["occurrence"].append(int(own.occurrence[call]))
        sites["rank"].append(-1 if rank is None else rank)
        sites["parent"].append(getattr(row_of, side).get(parent, -1))
        sites["reference_file"].append(numbers.reference)
        sites["target_file"].append(numbers.target)
        sites["reference_call"].append(reference)
        sites["target_call"].append(target)
        sites["verdict"].append(int(Verdict.PENDING if reason is None else Verdict.NOT_COMPARABLE))
        sites["pair"].append(-1)
        sites["measured"].append(np.nan)
        sites["allowed"].append(np.nan)
        sites["rule"].append(-1)
        sites["statement"].append(texts.intern(reason))
        if reference >= 0:
            row_of.reference[reference] = row
        if target >= 0:
            row_of.target[target] = row
        if reason is None:
            _add_values(tables, files, row, reference, target)


def _merged(alignment: Alignment) -> list[tuple[int, int, str | None]]:
    """(reference call or -1, target call or -1, reason where unpaired), in order."""
    target_alone = dict(alignment.target_only)
    reference_alone = dict(alignment.reference_only)
    paired = {int(t): int(r) for r, t in alignment.pairs}
    rows: list[tuple[int, int, str | None]] = []
    waiting = sorted(reference_alone)
    position = 0
    for target in sorted({*paired, *target_alone}):
        reference = paired.get(target, -1)
        if reference >= 0:
            while position < len(waiting) and waiting[position] < reference:
                rows.append((waiting[position], -1, reference_alone[waiting[position]]))
                position += 1
        rows.append((reference, target, None if reference >= 0 else target_alone[target]))
    rows.extend((call, -1, reference_alone[call]) for call in waiting[position:])
    return rows


def _add_values(tables: Tables, files: Both[TraceFile], row: int, reference: int, target: int) -> None:
    edges = Both(list(files.reference.edges_of(reference)), list(files.target.edges_of(target)))
    keys = edges.map(lambda side: [(edge.role, edge.position) for edge in side])
    paired, reference_left, target_left = pair_positions(keys.reference, keys.target)
    for i, j in paired:
        _add_pair(tables, files, row, edges.reference[i], edges.target[j])
    left = [f"{edges.reference[i].position} only in the reference" for i in reference_left]
    left += [f"{edges.target[j].position} only in the target" for j in target_left]
    if left:
        tables.sites["statement"][row] = tables.texts.intern(
            "Not compared: " + ", ".join(left[:4]) + (f" and {len(left) - 4} more" if len(left) > 4 else "")
        )


def _add_pair(tables: Tables, files: Both[TraceFile], row: int, reference: Edge, target: Edge) -> None:
    texts, pairs = tables.texts, tables.pairs
    values = Both(reference.value, target.value)
    pairs["site"].append(row)
    pairs["role"].append(target.role)
    pairs["position"].append(texts.intern(target.position))
    for side in ("reference", "target"):
        file, value = getattr(files, side), getattr(values, side)
        pairs[f"{side}_value"].append(value)
        pairs[f"{side}_dtype"].append(texts.intern(file.dtype_name(value)))
        pairs[f"{side}_shape"].append(texts.intern(file.text(int(file.values.shape[value]))))
    pairs["source"].append(int(Source.PENDING))
    pairs["count"].append(files.target.count(target.value))
    for name in ("rel_l2", "max_abs", "rms_reference", "max_reference", "rms_difference", "statistic"):
        pairs[name].append(np.nan)
    for name in ("mismatched", "worst"):
        pairs[name].append(-1)
    for name in ("equal", "nonfinite_reference", "nonfinite_target", "nonfinite_differ"):
        pairs[name].append(0)


def rows_of(pairs: Columns, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs grouped by site: order, and start of each site's run in it; shapes (pairs,) and (count + 1,)."""
    sites: Sequence[int] | NDArray[Any] = pairs["site"]
    start = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(np.asarray(sites, np.int64), minlength=count), out=start[1:])
    return np.argsort(np.asarray(sites), kind="stable").astype(np.int64), start
