"""What is said of a cache that a run had filled before anything was recorded, where it holds other numbers than the other run makes.

Nobody who was recorded made it: it is an input of the run, and what reads it is not to blame.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.placements import relative_error
from layerdiff.diagnose.findings import Notice
from layerdiff.diagnose.root_inputs import LAYERS
from layerdiff.errors import TraceError
from layerdiff.sides import Both
from layerdiff.trace.along import First
from layerdiff.trace.chunks import Chunks
from layerdiff.trace.joined import Joined
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import Role

Array = NDArray[Any]


def notices_of_caches(files: Both[TraceFile]) -> Iterator[Notice]:
    """One for each step that is handed a cache with other numbers: what is furthest off."""
    for whole, part in (("reference", "target"), ("target", "reference")):
        made, handed = getattr(files, whole), getattr(files, part)
        if not (isinstance(made, Joined) and isinstance(handed, Joined)):
            continue
        for root, chunks in made.roots.items():
            there = [call for call, other in handed.roots.items() if chunks.before and other.tokens is chunks.tokens]
            for call in there:
                count = next(iter(chunks.before.values()))[1].count
                worst = max(_off(Both(made, handed), Both(root, call), chunks), default=(0.0, ""))
                if worst[0] > 1:
                    said = f"the {part} was handed a cache that was filled before anything was recorded"
                    more = f"of its {count} tokens it holds other numbers than the {whole} makes: {worst[1]}"
                    yield Notice("input-differs", f"{said}, and {more}", site=handed.site(call), defect=True)


def _off(files: Both[TraceFile], roots: Both[int], chunks: Chunks) -> Iterator[tuple[float, str]]:
    """How many times more than layers make what was handed is off, and what is said of it. Both: who makes it, and who was handed it."""
    own, given = (
        {e.position: e.value for e in file.edges_of(call) if e.role == Role.INPUT} for file, call in zip(files, roots, strict=True)
    )
    mask = next((values for position, values in given.items() if position.endswith("attention_mask")), None)
    for position in chunks.before:
        value, dtype = given.get(position), files.target.dtype(given.get(position, own[position]))
        coarser = max(one.unit_roundoff or 0.0 for one in (dtype, files.reference.dtype(own[position])) if one is not None)
        try:
            if value is None or not coarser:
                continue
            read = files.reference.read(own[position]), files.target.read(value)
            seen = None if mask is None else files.target.read(mask)
        except TraceError:
            continue
        apart = relative_error(*_that_count(*read, chunks.before[position][1], seen))
        yield apart / (LAYERS * coarser), f"{position} differs by {apart:.2g} (relative L2)"


def _that_count(usual: Array, own: Array, first: First, mask: Array | None) -> tuple[Array, Array]:
    """Those of the tokens that no mask hides."""
    usual, own = (np.moveaxis(x.astype(np.float64), first.axis, 1) for x in (usual, own))
    if mask is None or mask.ndim != 2 or len(mask) != len(own) or mask.shape[1] < first.count:
        return usual, own
    counts = mask[:, : first.count] != 0
    return usual[counts], own[counts]
