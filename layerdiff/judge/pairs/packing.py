"""In which forms the two runs have the values of each step: what is filled up, and batches that one side has without their padding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.beside import Forms
from layerdiff.align.filling import NOTHING_FILLED, Fillings
from layerdiff.align.packing import Packing, packed
from layerdiff.errors import TraceError
from layerdiff.judge.tables import Columns
from layerdiff.sides import Both
from layerdiff.trace.dtypes import dtype_named
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind, Role

Array = NDArray[Any]
_LONGEST: Final = 1 << 24
"""Bytes of ids that are read."""


class FormsOfSteps:
    """The forms of the steps of two traces, each told by the inputs of its root."""

    def __init__(self, files: Both[tuple[TraceFile, ...]], packings: Mapping[tuple[int, int], Packing], fillings: Fillings) -> None:
        self._files = files
        self._of = {root: Forms(fillings, packing) for root, packing in packings.items()}
        self._plain = Forms(fillings)
        self.packings = packings
        """By the target's file and root call."""

    def at(self, file: int, call: int) -> Forms:
        """Those of a call of the target's file of that number."""
        if not self._of or call < 0:
            return self._plain
        parents = self._files.target[file].calls.parent
        while int(parents[call]) >= 0:
            call = int(parents[call])
        return self._of.get((file, call), self._plain)


def forms_of_steps(sites: Columns, files: Both[tuple[TraceFile, ...]], fillings: Fillings = NOTHING_FILLED) -> FormsOfSteps:
    """The forms of all steps that a table of sites pairs, of one process with one."""
    found: dict[tuple[int, int], Packing] = {}
    paired = (sites["kind"] == CallKind.MODULE) & (sites["reference_call"] >= 0) & (sites["target_call"] >= 0)
    for row in np.flatnonzero(paired & (sites["parent"] < 0)).tolist():
        here, there = int(sites["reference_file"][row]), int(sites["target_file"][row])
        both = Both(files.reference[here], files.target[there])
        calls = Both(int(sites["reference_call"][row]), int(sites["target_call"][row]))
        if any(int(file.calls.parent[call]) >= 0 for file, call in zip(both, calls, strict=True)):
            continue
        packing = _packing(both, calls)
        if packing is not None:
            found[there, calls.target] = packing
    return FormsOfSteps(files, found, fillings)


def _packing(files: Both[TraceFile], calls: Both[int]) -> Packing | None:
    for side, other in (("reference", "target"), ("target", "reference")):
        batch: TraceFile = getattr(files, side)
        counts = _mask(batch, getattr(calls, side))
        if counts is None or counts.all():
            continue
        ours = [x for x in _whole_numbers(batch, getattr(calls, side)) if x.shape == counts.shape]
        for row in _whole_numbers(getattr(files, other), getattr(calls, other)):
            for ids in ours:
                places = packed(ids, counts, row.reshape(-1))
                if places is not None:
                    return Packing(side, (counts.shape[0], counts.shape[1]), places)
    return None


def _mask(file: TraceFile, call: int) -> NDArray[np.bool_] | None:
    """Shape (requests, positions): where a root was told that there is a token; None where it was told nothing."""
    for edge in file.edges_of(call):
        if edge.role == Role.INPUT and edge.position.endswith("attention_mask") and len(file.shape(edge.value)) == 2:
            try:
                return np.asarray(file.read(edge.value) != 0)
            except TraceError:
                return None
    return None


def _whole_numbers(file: TraceFile, call: int) -> Iterable[Array]:
    """The inputs of a root that may be ids."""
    for edge in file.edges_of(call):
        kind = dtype_named(file.dtype_name(edge.value))
        if edge.role != Role.INPUT or kind is None or kind.kind != "integer" or edge.position.endswith("attention_mask"):
            continue
        if file.has_bytes(edge.value) and int(file.values.nbytes[edge.value]) <= _LONGEST:
            try:
                yield np.asarray(file.read(edge.value))
            except TraceError:
                continue
