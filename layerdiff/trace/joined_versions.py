"""`versions_in_order`: which version of its memory each value is, where operators run in another order than they did.

A version counts the writes to a memory until then. The caches of all layers may lie in one memory: there a step wrote to those of all
layers before the next one wrote to the first, and does no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import Role

_WRITES = '"writes"'


def versions_in_order(file: TraceFile, order: Sequence[int], versions: NDArray[np.int32]) -> NDArray[np.int32]:
    """By value its version. `order`: operator calls, as they run now; in memory that one of them writes to, versions are counted anew."""
    written = {call: list(_written(file, call)) for call in order if _WRITES in (file.text(int(file.calls.detail[call])) or "")}
    memory = np.asarray(file.values.memory)
    memories = {int(memory[value]) for values in written.values() for value in values if memory[value] >= 0}
    if not memories:
        return versions
    touched = {call: [edge for edge in file.edges_of(call) if int(memory[edge.value]) in memories] for call in order}
    first: dict[int, int] = {}
    unseen: dict[tuple[int, int], int] = {}  # writes that nobody recorded, by the call that first reads what they left
    now: dict[int, int] = {}
    for call in sorted(touched):
        for edge in touched[call]:
            where, version = int(memory[edge.value]), int(versions[edge.value])
            if edge.role == Role.INPUT:
                first.setdefault(where, version)
                if version > now.setdefault(where, version):
                    unseen[call, where] = unseen.get((call, where), 0) + version - now[where]
                    now[where] = version
        for where in {int(memory[value]) for value in written.get(call, ())}:
            now[where] = now.get(where, 0) + 1
    found: NDArray[np.int32] = versions.copy()
    made = {edge.value for call in order for edge in touched[call] if edge.role == Role.OUTPUT}
    known: set[int] = set()
    now = dict(first)
    for call in order:
        for where in {int(memory[edge.value]) for edge in touched[call]}:
            now[where] = now.get(where, 0) + unseen.get((call, where), 0)
        # what a call reads that a later one makes, as the number of tokens until then, was made by another step
        before = {edge.value for edge in touched[call] if edge.role == Role.INPUT} - made
        for value in before - known:
            found[value] = now[int(memory[value])]
        known |= before
        for where in {int(memory[value]) for value in written.get(call, ())}:
            now[where] += 1
        for edge in touched[call]:
            if edge.role == Role.OUTPUT and edge.value not in known and int(memory[edge.value]) in now:
                known.add(edge.value)
                found[edge.value] = now[int(memory[edge.value])]
    return found


def _written(file: TraceFile, call: int) -> Iterator[int]:
    detail = file.json(int(file.calls.detail[call]))
    positions = detail.get("writes") if isinstance(detail, dict) else None
    inputs = {edge.position: edge.value for edge in file.edges_of(call) if edge.role == Role.INPUT}
    yield from (inputs[position] for position in positions if position in inputs) if isinstance(positions, list) else ()
