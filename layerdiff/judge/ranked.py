"""The tables of a comparison of one reference process with many target ranks: one row a call, its values made up of all ranks' parts.

A row's target file and call are those of the first rank that ran it; `RankedTables.ranks` has the parts. How they make up the logical
tensor is found when they are measured (judge/measuring_ranks.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from layerdiff.align.alignment import Alignment, Calls
from layerdiff.align.stages import Print, renumbered, stage_offsets
from layerdiff.judge.pairing import Edges, Tables, add_values, calls_of, handed_state, interned, merged
from layerdiff.judge.tables import Verdict
from layerdiff.sides import Both
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind, ValueKind

BY_ITSELF: Final = "each rank's call is judged by its own replay"
_Key = tuple[str, int, int, int]
"""A row: ("reference", call, 0, 0), or (site, step, occurrence, count of it) of a call that only ranks ran."""


class RankedTables(Tables):
    """Tables whose target values are made up of parts: `ranks` has (file, value) of every part of each pair."""

    def __init__(self) -> None:
        super().__init__()
        self.ranks: list[tuple[tuple[int, int], ...]] = []
        self.row_of: dict[tuple[int, int], int] = {}
        """By file and call of every rank, the row of the sites."""
        self._held: dict[int, dict[tuple[int, int], int]] = {}

    def hold(self, held: dict[int, dict[tuple[int, int], int]]) -> None:
        """From here on: by file, the value at each (role, position) of the call that pairs are added for."""
        self._held = held

    def add_pair(self, row: int, role: int, position: int, reference: int, target: int) -> None:
        """As Tables, noting the parts."""
        super().add_pair(row, role, position, reference, target)
        self.ranks.append(tuple((file, at[role, position]) for file, at in self._held.items() if (role, position) in at))


def numbered_globally(reference: TraceFile, targets: Sequence[TraceFile]) -> list[Calls]:
    """The calls of each rank's file, layers of a pipeline stage by their numbers in the whole model."""
    known = _weight_prints(reference)
    found = []
    for file in targets:
        calls = calls_of(file)
        offsets = stage_offsets(known, _weight_prints(file))
        if offsets:
            site = renumbered(offsets)
            calls = replace(calls, site=[site(one) for one in calls.site])
        found.append(calls)
    return found


def _weight_prints(file: TraceFile) -> dict[str, Print]:
    """The bits of each parameter, by its name."""
    columns = file.values
    found: dict[str, Print] = {}
    for value in np.flatnonzero(np.asarray(columns.kind) == ValueKind.PARAMETER).tolist():
        name, bits = file.text(int(columns.name[value])), file.fingerprint(value)
        if name is not None and bits is not None:
            found[name] = bits, file.dtype_name(value), str(file.shape(value))
    return found


def add_ranks(
    tables: RankedTables,
    reference: TraceFile,
    targets: Sequence[TraceFile],
    calls: tuple[Calls, Sequence[Calls]],
    alignments: Sequence[Alignment],
) -> None:
    """Append the sites and pairs of a reference file (number 0) and the files of all ranks."""
    texts = tables.texts
    edges = Edges(reference, texts), [Edges(file, texts) for file in targets]
    operators = interned(texts, reference, reference.calls.operator), [interned(texts, file, file.calls.operator) for file in targets]
    handed = handed_state(reference), [handed_state(file) for file in targets]
    rows = _rows(calls[1], alignments)
    row_of_reference: dict[int, int] = {}
    row_of_target = tables.row_of
    for r, parts, reason in rows:
        row = len(tables.sites)
        file, call = next(iter(parts.items()), (0, -1))
        own, at = (calls[1][file], call) if call >= 0 else (calls[0], r)
        alignment = alignments[file]
        side = "target" if call >= 0 else "reference"
        statement = reason
        if reason is None and own.kind[at] == CallKind.OPERATOR:
            statement = BY_ITSELF  # what one operator makes of parts is no operator's result on the whole
        elif reason is None:
            statement = _add(tables, edges, row, r, parts)
        parent = getattr(alignment.parents, side)[at]
        above = row_of_target.get((file, int(parent)), -1) if call >= 0 else row_of_reference.get(int(parent), -1)
        if above < 0 and r >= 0:
            above = row_of_reference.get(int(alignment.parents.reference[r]), -1)
        known = calls[0].type[r] if r >= 0 else None
        tables.sites.append(
            (
                texts.intern(getattr(alignment.sites, side)[at]),
                own.kind[at],
                texts.intern(known or own.type[at]),
                operators[1][file][call] if call >= 0 else operators[0][r],
                own.step[at],
                own.occurrence[at],
                -1,
                above,
                (r >= 0 and handed[0][r]) or (call >= 0 and handed[1][file][call]),
                0,
                file,
                r,
                call,
                int(Verdict.PENDING if reason is None else Verdict.NOT_COMPARABLE),
                texts.intern(statement),
            )
        )
        if r >= 0:
            row_of_reference[r] = row
        for part in parts.items():
            row_of_target[part] = row
        tables.end_part(Both(reference, targets[file]))


def _rows(calls: Sequence[Calls], alignments: Sequence[Alignment]) -> list[tuple[int, dict[int, int], str | None]]:
    """(reference call or -1, call by file, reason where it has no partner), in the order of the first rank that ran each."""
    parts: dict[_Key, dict[int, int]] = {}
    reasons: dict[_Key, str | None] = {}
    after: dict[_Key | None, list[_Key]] = {None: []}
    for file, alignment in enumerate(alignments):
        seen: dict[tuple[str, int, int], int] = {}
        last: _Key | None = None
        for r, t, reason in merged(alignment):
            if r >= 0:
                key: _Key = ("reference", r, 0, 0)
            else:
                site = alignment.sites.target[t], int(calls[file].step[t]), int(calls[file].occurrence[t])
                seen[site] = seen.get(site, 0) + 1
                key = (*site, seen[site])
            if key not in parts:
                parts[key] = {}
                reasons[key] = reason
                after.setdefault(last, []).append(key)
                after.setdefault(key, [])
            if t >= 0:
                parts[key][file] = t
                if r >= 0:
                    reasons[key] = None
            last = key
    order: list[_Key] = []
    stack = list(reversed(after[None]))
    while stack:
        key = stack.pop()
        order.append(key)
        stack += reversed(after[key])
    return [(key[1] if key[0] == "reference" else -1, parts[key], reasons[key]) for key in order]


def _add(tables: RankedTables, edges: tuple[Edges, Sequence[Edges]], row: int, r: int, parts: dict[int, int]) -> str | None:
    """The pairs of one row, with the parts of every rank at the same position."""
    held = {}
    for file, call in parts.items():
        roles, positions, values = edges[1][file].of(call)
        held[file] = {(role, position): value for role, position, value in zip(roles, positions, values, strict=True)}
    tables.hold(held)
    first = next(iter(parts))
    return add_values(tables, Both(edges[0], edges[1][first]), row, r, parts[first])
