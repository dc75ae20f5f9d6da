"""`Placement`: where the part of a value that each rank holds belongs in the logical tensor.

A placement is a list of positions: which places of one dimension of the logical tensor each rank holds. So contiguous, strided, zigzag,
fused and replicated parts are one thing. Ranks that form a grid have one over groups of them, and one inside each group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Kind = Literal["replicated", "sharded", "partial", "nested", "unknown"]
PAD: Final = -1
"""Of positions: what a rank holds here is no part of the logical tensor."""
SURELY: Final = 0.05
"""Relative error up to which parts that were matched one by one are believed of other values too."""
TURNED: Final = "positions before requests; "
"""How the name of a turned placement begins."""
FITS: Final = 0.5
"""Relative error up to which a reading is believed against the plain one: a part of another rank has an error of about 1.4."""


@dataclass(frozen=True)
class Placement:
    """Where each rank's part belongs. Dimensions are those of the logical tensor.

    Attributes:
        kind: "replicated": every rank holds the whole; "sharded": parts along `dim`; "partial": the ranks' values add up to the whole;
            "nested": the ranks form a grid, groups of them hold `outer`, and each group its part as `inner`; "unknown": the shapes allow
            no reading.
        name: `sharded along 1, contiguous`.
        dim: of the logical tensor, -1 where there is none; of a replicated value the one along which it is broadcast.
        positions: for each rank the places along `dim` that it holds, PAD for padding; empty unless sharded.
        error: relative L2 error of this reading over all ranks; NaN where nothing was scored.
        also: other readings that fit as well.
        against: the error of the best reading that was left, NaN where there was none.
        reading: of a regular sharding its name, `zigzag`; empty else.
        fits: whether the numbers bear it out.
        groups: of "nested", the ranks of each group.
        numbers: of whole numbers that each rank counts for itself, what each of its own stands for, from zero on.
        absent: what a rank has there for those of other ranks.
        turned: whether the ranks have its first two dimensions in the other order: positions before requests.
        form: the shape in which they have the whole, where it has dimensions of size 1 elsewhere; None where it is the logical one.
    """

    kind: Kind
    name: str
    dim: int = -1
    positions: tuple[NDArray[np.intp], ...] = ()
    error: float = float("nan")
    also: tuple[str, ...] = ()
    against: float = float("nan")
    reading: str = ""
    fits: bool = True
    groups: tuple[tuple[int, ...], ...] = ()
    outer: Placement | None = None
    inner: Placement | None = None
    numbers: tuple[NDArray[np.intp], ...] = ()
    absent: tuple[int, ...] = ()
    turned: bool = False
    form: tuple[int, ...] | None = None

    def part(self, whole: Array, rank: int) -> Array:
        """What this rank should hold of the logical tensor, of a sum the whole; padding reads as zero."""
        if self._is_other:
            return self._as_held(self._plain.part(whole, rank))
        if self.outer is not None and self.inner is not None:
            group, own = self._at[rank]
            return self.inner.part(self.outer.part(whole, group), own)
        if self.numbers:
            most = max(int(whole.max(initial=0)), *(int(at.max(initial=0)) for at in self.numbers))
            counted = np.full(most + 1, self.absent[rank], np.int64)
            counted[self.numbers[rank]] = np.arange(self.numbers[rank].size)
            return np.asarray(counted[whole]).astype(whole.dtype)
        if self.kind == "replicated" and self.dim >= 0:
            return np.asarray(np.take(whole, [0], axis=self.dim))
        if self.kind != "sharded":
            return whole
        at = self.positions[rank]
        padded = bool(np.any(at == PAD))
        found = places_of(whole, np.maximum(at, 0) if padded else at, self.dim)
        if padded:
            found = np.where(_along(at != PAD, self.dim, found.ndim), found, np.zeros((), found.dtype))
        return np.asarray(found)

    def joined(self, parts: Sequence[Array], shape: tuple[int, ...]) -> Array:
        """The logical tensor of all ranks: of a place that several hold the first rank's part; of partial ones the sum, in float64.

        Of numbers that each counts for itself -1 where none of them is a rank's own, or two stand for something else.
        """
        if self._is_other:
            return self._plain.joined([turned(part) if self.turned else part.reshape(shape) for part in parts], shape)
        if self.numbers:
            return _counted(parts, self.numbers)
        if self.outer is not None and self.inner is not None:
            shapes = [self.outer.part_shape(shape, i) for i in range(len(self.groups))]
            inside = [self.inner.joined([parts[r] for r in ranks], own) for ranks, own in zip(self.groups, shapes, strict=True)]
            return self.outer.joined(inside, shape)
        if self.kind == "partial":
            return np.asarray(np.sum([wide(part) for part in parts], axis=0))
        if self.kind == "replicated" and self.dim >= 0:
            return np.broadcast_to(parts[0], shape)
        if self.kind != "sharded":
            return parts[0]
        whole = np.zeros(shape, parts[0].dtype)
        for part, at in reversed(list(zip(parts, self.positions, strict=True))):
            held = at != PAD
            ahead = (slice(None),) * self.dim
            if at.size and held.all() and np.all(np.diff(at) == 1):
                whole[ahead + (slice(int(at[0]), int(at[-1]) + 1),)] = part  # noqa: RUF005
            else:
                whole[ahead + (at[held],)] = part[ahead + (held,)]  # noqa: RUF005
        return whole

    def divided(self, whole: Array, ranks: int) -> list[Array]:
        """The logical tensor as `ranks` ranks may hold it: of a sum the first has all."""
        if self._is_other:
            return [self._as_held(part) for part in self._plain.divided(whole, ranks)]
        if self.outer is not None and self.inner is not None:
            found: dict[int, Array] = {}
            for part, group in zip(self.outer.divided(whole, len(self.groups)), self.groups, strict=True):
                found |= dict(zip(group, self.inner.divided(part, len(group)), strict=True))
            return [found[rank] for rank in range(ranks)]
        if self.kind == "partial":
            return [whole, *(np.zeros_like(whole) for _ in range(ranks - 1))]
        return [self.part(whole, rank) for rank in range(ranks)]

    def part_shape(self, shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
        """The shape of what a rank holds of a tensor of this shape."""
        if self.kind == "sharded":
            return (*shape[: self.dim], self.positions[rank].size, *shape[self.dim + 1 :])
        return (*shape[: self.dim], 1, *shape[self.dim + 1 :]) if self.kind == "replicated" and self.dim >= 0 else shape

    def held_along(self, dim: int, size: int, rank: int) -> NDArray[np.intp]:
        """Which places of a dimension of the logical tensor, which has `size` of them, a rank holds."""
        if self.outer is not None and self.inner is not None:
            group, own = self._at[rank]
            outer = self.outer.held_along(dim, size, group)
            return outer[self.inner.held_along(dim, outer.size, own)]
        return self.positions[rank] if self.kind == "sharded" and self.dim == dim else np.arange(size, dtype=np.intp)

    @property
    def _is_other(self) -> bool:
        return self.turned or self.form is not None

    @cached_property
    def _plain(self) -> Placement:
        """Of parts that lie as the logical tensor does."""
        return replace(self, turned=False, form=None)

    def _as_held(self, part: Array) -> Array:
        """A part that lies as the logical tensor does, as a rank has it."""
        return turned(part) if self.form is None else part.reshape(self.form)

    @property
    def dim_of_parts(self) -> int:
        """The dimension of a rank's part that is `dim` of the logical tensor."""
        return 1 - self.dim if self.turned and self.dim in (0, 1) else self.dim

    @cached_property
    def _at(self) -> dict[int, tuple[int, int]]:
        """By rank its group, and its number inside."""
        return {rank: (i, j) for i, group in enumerate(self.groups) for j, rank in enumerate(group)}

    def places_of_rank(self, rank: int) -> tuple[bytes, ...]:
        """Names the places that a rank holds: of ranks that hold the same ones it is the same."""
        if self.outer is not None and self.inner is not None:
            group, own = self._at[rank]
            return *self.outer.places_of_rank(group), *self.inner.places_of_rank(own)
        if self.numbers:
            return (b"numbers", self.numbers[rank].tobytes())
        return (self.positions[rank].tobytes(),) if self.positions else (b"",)

    @property
    def adds_up(self) -> bool:
        """Whether ranks hold parts of a sum: then no part is known by itself."""
        return self.kind == "partial" or (self.inner is not None and self.inner.adds_up)

    @property
    def is_filled(self) -> bool:
        """Whether some rank holds places that are none of the logical tensor."""
        return any(np.any(at == PAD) for at in self.positions) or (self.inner is not None and self.inner.is_filled)

    @property
    def is_sure(self) -> bool:
        """Whether it is a sharding that other values of the same sizes are likely to have."""
        return self.kind == "sharded" and self.fits and not self.also and (bool(self.reading) or self.error < SURELY)

    @property
    def twice(self) -> bool:
        """Whether a rank holds a place more than once: parts that were matched by their numbers, and not one by one."""
        held = [at[at != PAD] for at in self.positions]
        return any(np.unique(at).size < at.size for at in held)

    def covers(self, shape: tuple[int, ...]) -> bool:
        """Whether every place of a logical tensor of this shape is on some rank."""
        if self.outer is not None and self.inner is not None:
            inside = (self.outer.part_shape(shape, group) for group in range(len(self.groups)))
            return self.outer.covers(shape) and all(self.inner.covers(part) for part in inside)
        if self.kind != "sharded":
            return True
        held = np.unique(np.concatenate(self.positions))
        return int(np.count_nonzero(held != PAD)) == shape[self.dim]


def turned(x: Array) -> Array:
    """A value with its first two dimensions in the other order."""
    return np.swapaxes(x, 0, 1)


def _counted(parts: Sequence[Array], numbers: Sequence[NDArray[np.intp]]) -> Array:
    whole = np.full(parts[0].shape, PAD, np.int64)
    apart = np.zeros(whole.shape, bool)
    for part, own in zip(parts, numbers, strict=True):
        mine = (part >= 0) & (part < own.size)
        meant = own[np.where(mine, part, 0)]
        apart |= mine & (whole != PAD) & (whole != meant)
        whole = np.where(mine, meant, whole)
    found = np.where(apart, PAD, whole)
    return found if np.any(found == PAD) else found.astype(parts[0].dtype)


def wide(x: Array) -> Array:
    """Numbers in float64, complex ones in complex128."""
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def places_of(x: Array, at: NDArray[np.intp], dim: int) -> Array:
    """The slices of `x` at these places of a dimension; a view where they lie in a row."""
    if at.size and at[-1] - at[0] == at.size - 1 and np.all(np.diff(at) == 1):
        return x[(slice(None),) * dim + (slice(int(at[0]), int(at[-1]) + 1),)]
    return np.asarray(np.take(x, at, axis=dim))


def _along(mask: NDArray[np.bool_], dim: int, dims: int) -> NDArray[np.bool_]:
    return mask.reshape((1,) * dim + (-1,) + (1,) * (dims - dim - 1))
