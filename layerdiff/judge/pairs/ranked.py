"""The tables of a comparison with many target ranks: one row a call, its values made up of all ranks' parts.

A row's target file and call are those of the first rank that ran it; `RankedTables.ranks` has the parts. How they make up the logical
tensor is found when they are measured (judge/pairs/measuring_ranks.py). A reference of many ranks has parts in the same way (`ours`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from layerdiff.align.alignment import Alignment, Calls
from layerdiff.align.global_numbers import split_number
from layerdiff.align.stages import stages
from layerdiff.judge.pairs.pairing import Edges, Tables, add_values, handed_state, interned, merged
from layerdiff.judge.tables import Verdict
from layerdiff.sides import Both
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind

BY_ITSELF: Final = "each rank's call is judged by its own replay"
_OTHER_LAYER: Final = "this rank runs other layers"
BY_PARTS: Final = "held against what the ranks put in"
_SiteKey = tuple[str, int, int]
_Key = tuple[str, int, int, int]
"""A row: ("reference", call, 0, 0), or (site, step, occurrence, count of it) of a call that only ranks ran."""


class RankedTables(Tables):
    """Tables whose target values are made up of parts: `ranks` has (file, value) of every part of each pair."""

    def __init__(self) -> None:
        super().__init__()
        self.ranks: list[tuple[tuple[int, int], ...]] = []
        self.ours: list[tuple[tuple[int, int], ...]] = []
        """The same of the reference: a single part where it is one process."""
        self.row_of: dict[tuple[int, int], int] = {}
        """By file and call of every rank, the row of the sites."""
        self.calls: dict[int, Both[dict[int, int]]] = {}
        """By row of a paired call, the call in every file of each side that ran it."""
        self.stages: Both[list[int]] = Both([], [])
        """For each file the stage of a pipeline that it is: all the same where there is none."""
        self._held: Both[dict[int, dict[tuple[int, int], int]]] = Both({}, {})
        self._own: dict[int, tuple[int, int]] = {}

    def hold(self, held: Both[dict[int, dict[tuple[int, int], int]]], own: dict[int, tuple[int, int]]) -> None:
        """From here on: by file, the value at each (role, position) of the call that pairs are added for, of each side.

        `own`: where each value stands in the reference's own call, whose positions may have other names than the target's.
        """
        self._held, self._own = held, own

    def add_pair(self, row: int, role: int, position: int, reference: int, target: int) -> None:
        """As Tables, noting the parts."""
        super().add_pair(row, role, position, reference, target)
        ours = self._own.get(reference, (role, position))
        self.ranks.append(tuple((file, at[role, position]) for file, at in self._held.target.items() if (role, position) in at))
        self.ours.append(tuple((file, at[ours]) for file, at in self._held.reference.items() if ours in at))


def add_ranks(
    tables: RankedTables,
    files: Both[tuple[TraceFile, ...]],
    calls: Both[list[Calls]],
    alignments: Sequence[Sequence[Alignment]],
) -> None:
    """Append the sites and pairs of all files of both sides. `alignments`: of each reference file with each of the target's.

    A call of a further reference file has a row of its own only where no file before it ran it (a stage of a pipeline); else it adds parts.
    """
    texts = tables.texts
    tables.stages = calls.map(lambda side: stages([own.site for own in side]))
    edges = files.map(lambda side: [Edges(file, texts) for file in side])
    operators = files.map(lambda side: [interned(texts, file, file.calls.operator) for file in side])
    handed = files.map(lambda side: [handed_state(file) for file in side])
    paired = {(file, int(t)) for one in alignments for file, alignment in enumerate(one) for _, t in alignment.pairs}
    keys = _site_keys(calls.reference, calls.target[0], [one[0] for one in alignments])
    ours = _same_calls(keys)
    known_rows: set[_SiteKey] = set()
    row_of_reference: dict[tuple[int, int], int] = {}
    row_of_target = tables.row_of
    for number, one in enumerate(alignments):
        for r, parts, reason in _rows(calls.target, one):
            key = keys[number][r] if r >= 0 else None
            if key in known_rows or (key is None and (number or any(part in paired for part in parts.items()))):
                continue
            if key is not None:
                known_rows.add(key)
            row = len(tables.sites)
            file, call = next(iter(parts.items()), (0, -1))
            own, at = (calls.target[file], call) if call >= 0 else (calls.reference[number], r)
            alignment = one[file]
            side = "target" if call >= 0 else "reference"
            held = {number: r} if key is None else ours[key]
            statement = reason
            if reason is None:
                tables.calls[row] = Both(held, parts)
            if reason is None and own.kind[at] != CallKind.MODULE:
                statement = BY_ITSELF if own.kind[at] == CallKind.OPERATOR else BY_PARTS
            elif reason is None:
                statement = _add(tables, edges, row, (number, held), parts)
            parent = int(getattr(alignment.parents, side)[at])
            above = row_of_target.get((file, parent), -1) if call >= 0 else row_of_reference.get((number, parent), -1)
            if above < 0 and r >= 0:
                above = row_of_reference.get((number, int(alignment.parents.reference[r])), -1)
            type_name = calls.reference[number].type[r] if r >= 0 else None
            tables.sites.append(
                (
                    texts.intern(getattr(alignment.sites, side)[at]),
                    own.kind[at],
                    texts.intern(type_name or own.type[at]),
                    operators.target[file][call] if call >= 0 else operators.reference[number][r],
                    own.step[at],
                    own.occurrence[at],
                    -1,
                    above,
                    (r >= 0 and handed.reference[number][r]) or (call >= 0 and handed.target[file][call]),
                    number,
                    file,
                    r,
                    call,
                    int(Verdict.PENDING if reason is None else Verdict.NOT_COMPARABLE),
                    texts.intern(statement),
                )
            )
            for part in held.items() if r >= 0 else ():
                row_of_reference[part] = row
            for part in parts.items():
                row_of_target[part] = row
            tables.end_part(Both(files.reference[number], files.target[file]))


def of_one_layer(alignment: Alignment) -> Alignment:
    """An alignment without pairs of different layers: a stage has no partner for the layers of another, and their operators look alike."""
    names = alignment.sites.map(lambda side: [split_number(site) for site in side])
    kept = [
        (ours := names.reference[r]) is None or (theirs := names.target[t]) is None or ours[:2] == theirs[:2]
        for r, t in alignment.pairs.tolist()
    ]
    if all(kept):
        return alignment
    left = [pair for pair, keep in zip(alignment.pairs.tolist(), kept, strict=True) if not keep]
    return replace(
        alignment,
        pairs=alignment.pairs[np.array(kept)],
        reference_only=[*alignment.reference_only, *((r, _OTHER_LAYER) for r, _ in left)],
        target_only=[*alignment.target_only, *((t, _OTHER_LAYER) for _, t in left)],
    )


def as_one_reference(calls: Both[list[Calls]], alignments: Sequence[Sequence[Alignment]]) -> list[Alignment]:
    """The alignments of each target file with all reference files as if they were one: a call that several of those ran counts once."""
    if len(alignments) == 1:
        return list(alignments[0])
    offset, offsets = 0, []
    for one in calls.reference:
        offsets.append(offset)
        offset += len(one.site)
    keys = _site_keys(calls.reference, calls.target[0], [one[0] for one in alignments])
    own = {min((number, call) for number, call in same.items()) for same in _same_calls(keys).values()}
    sites = [site for one in alignments for site in one[0].sites.reference]
    found = []
    for file in range(len(alignments[0])):
        each = [one[file] for one in alignments]
        paired = {int(t) for alignment in each for _, t in alignment.pairs}
        pairs = [
            (offsets[number] + int(r), int(t))
            for number, alignment in enumerate(each)
            for r, t in alignment.pairs
            if (number, int(r)) in own
        ]
        found.append(
            replace(
                each[0],
                pairs=np.array(pairs, np.int64).reshape(-1, 2),
                reference_only=[
                    (offsets[number] + r, reason)
                    for number, alignment in enumerate(each)
                    for r, reason in alignment.reference_only
                    if (number, r) in own
                ],
                target_only=[one for one in each[0].target_only if one[0] not in paired],
                sites=Both(sites, each[0].sites.target),
            )
        )
    return found


def _site_keys(calls: Sequence[Calls], target: Calls, alignments: Sequence[Alignment]) -> list[list[_SiteKey]]:
    """For each reference file by call: site, step and occurrence; of calls that words may have told apart their partner's occurrence."""
    found = []
    for one, alignment in zip(calls, alignments, strict=True):
        occurrence = np.array(one.occurrence)
        for r, t in alignment.pairs.tolist() if one.words else ():
            if one.words[r] or one.words[max(0, alignment.parents.reference[r])]:
                occurrence[r] = target.occurrence[t]
        found.append(list(zip(alignment.sites.reference, one.step.tolist(), occurrence.tolist(), strict=True)))
    return found


def _same_calls(keys: Sequence[Sequence[_SiteKey]]) -> dict[_SiteKey, dict[int, int]]:
    """By site, step and occurrence the call of each reference file that ran it."""
    found: dict[_SiteKey, dict[int, int]] = {}
    for number, own in enumerate(keys):
        for call, key in enumerate(own):
            found.setdefault(key, {}).setdefault(number, call)
    return found


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


def _add(tables: RankedTables, edges: Both[list[Edges]], row: int, ours: tuple[int, dict[int, int]], theirs: dict[int, int]) -> str | None:
    """The pairs of one row, with the parts of every rank of each side at the same position. `ours`: the file of the row, and all calls."""
    number, held = ours
    first = next(iter(theirs))
    roles, positions, values = edges.reference[number].of(held[number])
    own = {value: (role, position) for role, position, value in zip(roles, positions, values, strict=True)}
    tables.hold(Both(_values(edges.reference, held), _values(edges.target, theirs)), own)
    return add_values(tables, Both(edges.reference[number], edges.target[first]), row, held[number], theirs[first])


def _values(edges: Sequence[Edges], calls: dict[int, int]) -> dict[int, dict[tuple[int, int], int]]:
    """By file, the value at each (role, position) of its call."""
    found = {}
    for file, call in calls.items():
        roles, positions, values = edges[file].of(call)
        found[file] = {(role, position): value for role, position, value in zip(roles, positions, values, strict=True)}
    return found
