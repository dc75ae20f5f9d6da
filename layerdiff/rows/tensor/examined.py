"""What a screen shows of a pair of values, made a pass at a time so that it can be painted as it comes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from layerdiff.measure.along_axis import Element, Profile, along, worst
from layerdiff.measure.full import Full, full
from layerdiff.measure.pooled import Pooled, pooled
from layerdiff.rows.tensor.pair import Tensor

WORST: Final = 100
"""Elements listed."""
_BUCKETS: Final = 4096
"""Of a profile: a screen pools them further."""


@dataclass(frozen=True)
class AxisProfile:
    """Norms along one axis of the value, or along the rows that were sampled."""

    name: str
    size: int
    """Indices along the axis."""
    step: int
    """Indices of the axis from one measured index to the next: k where rows were sampled."""
    norms: Profile


@dataclass(frozen=True)
class Examined:
    """What is known of a pair of values so far; None is not measured yet."""

    tensor: Tensor
    done: int
    total: int
    """Passes over both values."""
    picture: Pooled | None = None
    numbers: Full | None = None
    worst: tuple[Element, ...] | None = None
    """The worst first; indices are those of the value."""
    profiles: tuple[AxisProfile, ...] = ()


def examine(tensor: Tensor) -> Iterator[Examined]:
    """Measure a pair of values; hands out what is known after each pass.

    Raises TraceError where a trace cannot be read on, ValueError for types that cannot be held against each other.
    """
    reference, target = tensor.measured.reference, tensor.measured.target
    axes = list(_axes(tensor))
    state = Examined(tensor, 0, 4 + len(axes))
    if not tensor.count:
        yield replace(state, done=state.total, numbers=full(reference, target), worst=())
        return
    yield state
    state = replace(state, done=1, picture=pooled(reference, target, tensor.columns))
    yield state
    state = replace(state, done=2, numbers=full(reference, target))
    yield state
    found = worst(reference, target, WORST)
    state = replace(state, done=4, worst=tuple(replace(element, index=tensor.flat(element.index)) for element in found))
    yield state
    for name, shape, axis, step in axes:
        norms = along(reference, target, shape, axis, most=_BUCKETS)
        size = tensor.rows if step > 1 else norms.size
        state = replace(state, done=state.done + 1, profiles=(*state.profiles, AxisProfile(name, size, step, norms)))
        yield state


def _axes(tensor: Tensor) -> Iterator[tuple[str, tuple[int, ...], int, int]]:
    """(name, shape to measure in, axis of it, step): every axis of more than one index; of a sample, its rows and the last axis."""
    if tensor.every == 1:
        for axis, size in enumerate(tensor.shape):
            if size > 1:
                yield f"axis {axis}", tensor.shape, axis, 1
        return
    shape = tensor.measured.reference.count // tensor.columns, tensor.columns
    yield "rows", shape, 0, tensor.every
    if not tensor.wrapped:
        yield f"axis {len(tensor.shape) - 1}", shape, 1, 1
