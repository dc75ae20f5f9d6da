"""How the values of several steps are one: `Along`, and the ways that their shapes allow."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """The tokens of steps that are one.

    Attributes:
        grids: how many requests each step has, and how many tokens of each of them.
        order: of the tokens of all steps, one after the other, the one that stands at each place of the whole, which is a row; empty
            where all steps have the same requests, which go on: then the whole is a batch, as each step is.
        ends: how many tokens of each step are the last ones that it has of a request; what is made of such alone has no dimensions but
            theirs and one more: state of a request has others.
        order_of_ends: the same as `order` of these alone.
        asked: the same as `order` where the other run has last tokens alone, and `ends_of_both` as `order_of_ends`: of those that both
            have there. Empty where such are looked up in what the other run has of all tokens.
        pieces: of each step the places of the whole that it has of each request: the request's first, its own first, the one after; where
            among the keys of the other run the request begins; and how many tokens more it has of the request, which it alone has.
    """

    grids: tuple[tuple[int, int], ...]
    order: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    order_of_ends: tuple[int, ...] = ()
    asked: tuple[int, ...] = ()
    ends_of_both: tuple[int, ...] = ()
    pieces: tuple[tuple[tuple[int, int, int, int, int], ...], ...] = ()

    @property
    def tokens(self) -> tuple[int, ...]:
        """Of each request, that each step has."""
        return tuple(count for _, count in self.grids)

    @property
    def requests(self) -> int:
        """How many the first step has; where the whole is a batch all steps."""
        return self.grids[0][0]


@dataclass(frozen=True)
class Along:
    """How values lie one after the other.

    Attributes:
        axis: the dimension.
        times: requests that lie one after the other along it, each with its own tokens: [2 * 5, 64] and [2 * 7, 64].
        keys: where the last dimension is of all tokens so far, how many each value has of it; the others are filled up to the longest.
        most: how many the other run has, where these are more: then all are filled up.
        lines: how many of each token lie one after the other along the dimension, if shapes are to be believed: experts have as many of
            a token, and in an order of their own.
    """

    axis: int
    times: int = 1
    keys: tuple[int, ...] = ()
    most: int = 0
    lines: int = 1

    def whole(self, parts: Sequence[Array], fill: Any = 0) -> Array:
        """Several values as one; `fill`: what stands where one has no key."""
        made = np.concatenate([self._apart(x) for x in _filled_up(parts, self.keys, self.most, fill)], self.axis + 1)
        return np.ascontiguousarray(made.reshape(*made.shape[: self.axis], -1, *made.shape[self.axis + 2 :]))

    def parts(self, whole: Array, shapes: Sequence[Shape], rest: Sequence[Array] = ()) -> list[Array]:
        """One value as several of these shapes, which may have fewer keys. `rest`: as in `InRow`; here there is none."""
        del rest
        sizes = [shape[self.axis] for shape in shapes]
        ends = np.cumsum([size // self.times for size in sizes])[:-1]
        split = np.split(self._apart(whole), ends, self.axis + 1)
        found = [x.reshape(*x.shape[: self.axis], size, *x.shape[self.axis + 2 :]) for x, size in zip(split, sizes, strict=True)]
        return _with_their_keys(found, shapes, self.keys)

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """That of the whole."""
        found = list(shapes[-1])
        found[self.axis] = sum(shape[self.axis] for shape in shapes)
        return (*found[:-1], max(self.most, *self.keys)) if self.keys else tuple(found)

    def _apart(self, x: Array) -> Array:
        return x.reshape(*x.shape[: self.axis], self.times, x.shape[self.axis] // self.times, *x.shape[self.axis + 1 :])


@dataclass(frozen=True)
class InRow:
    """How values of tokens lie as lines of one, whatever requests each of them has.

    Lines that are not in it are 0 where it is taken apart, or those of `rest`, values of the same shapes.

    Attributes:
        axis: the dimension of tokens.
        batched: whether the first dimension is of requests, [2, 5, 64], or [2, heads, 5, 16].
        order: of the lines of all, one after the other, the one at each place of the whole.
        keys, most: as in `Along`.
    """

    axis: int
    batched: bool
    order: tuple[int, ...]
    keys: tuple[int, ...] = ()
    most: int = 0

    def whole(self, parts: Sequence[Array], fill: Any = 0) -> Array:
        """Several values as one; `fill`: what stands where one has no key."""
        lines = [self._lines(x) for x in _filled_up(parts, self.keys, self.most, fill)]
        return np.ascontiguousarray(np.concatenate(lines)[np.array(self.order, np.intp)])

    def parts(self, whole: Array, shapes: Sequence[Shape], rest: Sequence[Array] = ()) -> list[Array]:
        """One value as several of these shapes, which may have fewer keys."""
        lines = np.zeros((sum(self._count(shape) for shape in shapes), *whole.shape[1:]), whole.dtype)
        if rest:
            lines[...] = np.concatenate([self._lines(x) for x in rest])
        lines[np.array(self.order, np.intp)] = whole
        ends = np.cumsum([self._count(shape) for shape in shapes])[:-1]
        found = []
        for shape, x in zip(shapes, np.split(lines, ends), strict=True):
            grid = (shape[0], shape[self.axis]) if self.batched else (shape[self.axis],)
            found.append(np.moveaxis(x.reshape(*grid, *x.shape[1:]), int(self.batched), self.axis))
        return _with_their_keys(found, shapes, self.keys)

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """That of the whole."""
        rest = [size for dim, size in enumerate(shapes[-1]) if dim != self.axis and not (self.batched and dim == 0)]
        found = (len(self.order), *rest)
        return (*found[:-1], max(self.most, *self.keys)) if self.keys else found

    def is_all(self, shapes: Sequence[Shape]) -> bool:
        """Whether every line of values of these shapes is in it."""
        return len(set(self.order)) == sum(self._count(shape) for shape in shapes)

    def _count(self, shape: Shape) -> int:
        return shape[self.axis] * (shape[0] if self.batched else 1)

    def _lines(self, x: Array) -> Array:
        x = np.moveaxis(x, self.axis, int(self.batched))
        return x.reshape(-1, *x.shape[2:]) if self.batched else x


@dataclass(frozen=True)
class First:
    """The first places of one value: what a cache that holds all tokens held before some of them.

    Attributes:
        axis: the dimension.
        count: how many.
        keys: as in `Along`: none.
    """

    axis: int
    count: int
    keys: tuple[int, ...] = ()

    def whole(self, parts: Sequence[Array], fill: Any = 0) -> Array:
        """Those places. `fill` stands nowhere."""
        del fill
        return np.ascontiguousarray(np.moveaxis(np.moveaxis(parts[0], self.axis, 0)[: self.count], 0, self.axis))

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """That of those places."""
        return (*shapes[0][: self.axis], self.count, *shapes[0][self.axis + 1 :])


How = Along | InRow


def in_json(how: How) -> list[Any]:
    """`how` as a list of numbers and lists."""
    own = [how.times] if isinstance(how, Along) else [how.batched, list(how.order)]
    return [how.axis, list(how.keys), how.most, *own]


def from_json(picture: Sequence[Any]) -> How:
    """What `in_json` gave."""
    axis, keys, most, *own = picture
    return InRow(axis, own[0], tuple(own[1]), tuple(keys), most) if len(own) == 2 else Along(axis, own[0], tuple(keys), most)


def _filled_up(parts: Sequence[Array], keys: Sequence[int], most: int, fill: Any) -> Sequence[Array]:
    if not keys:
        return parts
    most = max(most, *keys)
    return [np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, most - x.shape[-1])], constant_values=fill) for x in parts]


def _with_their_keys(parts: Sequence[Array], shapes: Sequence[Shape], keys: Sequence[int]) -> list[Array]:
    return [x[..., : shape[-1]] for x, shape in zip(parts, shapes, strict=True)] if keys else list(parts)


@dataclass(frozen=True)
class Way:
    """One of the ways.

    Attributes:
        shape: of the whole.
        along: None where one value stands for all.
        grown: whether each has what those before have, and more.
    """

    shape: Shape
    along: How | None = None
    grown: bool = False

    def filled_up(self, others: Collection[Shape]) -> Way:
        """The same with as many keys as the other run has, which has one of these shapes."""
        shape, along = self.shape, self.along
        most = max((other[-1] for other in others if len(other) == len(shape) and other[1:-1] == shape[1:-1]), default=0)
        if along is None or not along.keys or most <= shape[-1] or shape in others:
            return self
        return replace(self, shape=(*shape[:-1], most), along=replace(along, most=most))


def ways(shapes: Sequence[Shape], layout: Layout) -> Iterator[Way]:
    """How values of these shapes, one of each step, may be one; likely ones first."""
    if len({len(shape) for shape in shapes}) != 1 or not shapes[0]:
        return
    if layout.order:
        yield from _in_row(shapes, layout)
    else:
        yield from _in_batch(shapes, layout.tokens, layout.requests)
    if len(set(shapes)) == 1:
        yield Way(shapes[-1])
    if not layout.order:
        yield from _heads_in_batch(shapes, layout)


def _in_batch(shapes: Sequence[Shape], tokens: Sequence[int], requests: int) -> Iterator[Way]:
    so_far, dims, both = np.cumsum(tokens).tolist(), range(len(shapes[0])), list(zip(shapes, tokens, strict=True))
    tried = [(1, 1)] if all(shape[:2] == (requests, count) for shape, count in both) else []
    tried += [(0, requests)] if all(shape[0] == requests * count for shape, count in both) else []
    tried += [(2, 1)] if all(shape[0] == requests and shape[2:3] == (count,) for shape, count in both) else []
    tried += [(axis, 1) for axis in dims if all(shape[axis] == count for shape, count in both)]
    for axis, times in dict.fromkeys(tried):
        keys = _keys(shapes, (axis,))
        if keys is not None and (not keys or _grows(keys, so_far)):
            along = Along(axis, times, keys)
            yield Way(along.shape(shapes), along)
    for axis in dims:
        if len({shape[:axis] + shape[axis + 1 :] for shape in shapes}) == 1 and _grows([shape[axis] for shape in shapes], so_far):
            yield Way(shapes[-1], grown=True)


def _heads_in_batch(shapes: Sequence[Shape], layout: Layout) -> Iterator[Way]:
    """Several lines of each token, one after the other, as a norm of each head is handed them: [2 * 5 * 4, 16]."""
    lines = {divmod(shape[0], requests * count) for shape, (requests, count) in zip(shapes, layout.grids, strict=True)}
    if len(lines) == 1 and min(lines)[0] > 1 and not min(lines)[1] and _keys(shapes, (0,)) == ():
        along = Along(0, layout.requests, lines=min(lines)[0])
        yield Way(along.shape(shapes), along)


def _in_row(shapes: Sequence[Shape], layout: Layout) -> Iterator[Way]:
    both = list(zip(shapes, layout.grids, strict=True))
    lies = [(1, True)] if all(shape[:2] == grid for shape, grid in both) else []
    lies += [(0, False)] if all(shape[0] == requests * count for shape, (requests, count) in both) else []
    lies += [(2, True)] if all((shape[0], *shape[2:3]) == grid for shape, grid in both) else []
    if all(requests == 1 for requests, _ in layout.grids):
        lies += [(axis, False) for axis in range(1, len(shapes[0])) if all(shape[axis] == count for shape, (_, count) in both)]
    tried = [(*way, order) for order in (layout.order, layout.asked) for way in lies if order]
    if tuple(shape[0] for shape in shapes) == layout.ends and all(len(shape) < 3 or shape[1:-1] == (1,) for shape in shapes):
        tried += [(0, False, order) for order in (layout.order_of_ends, layout.ends_of_both) if order]
    elif all(len(shape) == 3 and shape[:2] == (grid[0], end // grid[0]) for (shape, grid), end in zip(both, layout.ends, strict=False)):
        tried += [(1, True, order) for order in (layout.order_of_ends, layout.ends_of_both) if order]
    for axis, batched, order in dict.fromkeys(tried):
        keys = _keys(shapes, (0, axis) if batched else (axis,))
        if keys is not None:
            how = InRow(axis, batched, order, keys)
            yield Way(how.shape(shapes), how)


def _keys(shapes: Sequence[Shape], tokens: tuple[int, ...]) -> tuple[int, ...] | None:
    """The sizes of the last dimension, where shapes differ in it besides those of `tokens`; empty where in none, None where in others."""
    others = {tuple(size for dim, size in enumerate(shape) if dim not in tokens) for shape in shapes}
    if len(others) == 1:
        return ()
    if len(shapes[0]) - 1 in tokens or len({shape[:-1] for shape in others}) > 1:
        return None
    return tuple(shape[-1] for shape in shapes)


def _grows(sizes: Sequence[int], so_far: Sequence[int]) -> bool:
    """Whether sizes are those of all tokens until then, and of as many before."""
    before = {size - count for size, count in zip(sizes, so_far, strict=True)}
    return len(before) == 1 and min(before) >= 0
