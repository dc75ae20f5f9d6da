"""The ways in which attention may be computed: what is rounded, to what, and against which maximum.

Rounding is done where a way does it, everything else in float64: what fp32 leaves undetermined is far below what 16 bits show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, Protocol

import numpy as np

from layerdiff.arithmetic.formats import BFLOAT16, FLOAT16, FLOAT32, TF32, Format, round_to, truncate_to
from layerdiff.arithmetic.orders.candidates import SHORT
from layerdiff.arithmetic.orders.variants.exponentials import Exponential, exact_exp, fast_exp
from layerdiff.arithmetic.orders.variants.ranking import Array

TILES: Final = (16, 32, 48, 64, 80, 96, 112, 128, 160, 176, 192, 224, 256, 384, 512)
PARTS: Final = (2, 3, 4, 8, 16, 32)
_TILES_OF_PARTS: Final = (64, 128)
_TILES_OF_ACCUMULATOR: Final = (16, 32, 64, 128)
Scores = Literal["", "after the product", "after the product and the scale", "query scaled first", "query and key scaled first"]


class Operands(Protocol):
    """What a way reads: query [g, r, E], key [g, S, E], value [g, S, D], mask [g, r, S] or None."""

    @property
    def query(self) -> Array: ...  # noqa: D102
    @property
    def key(self) -> Array: ...  # noqa: D102
    @property
    def value(self) -> Array: ...  # noqa: D102
    @property
    def mask(self) -> Array | None: ...  # noqa: D102
    @property
    def scale(self) -> float: ...  # noqa: D102


@dataclass(frozen=True)
class Way:
    """One way: `run` gives outputs [g, r, D] before they are rounded."""

    name: str
    arithmetic: str
    run: Callable[[], Array]


def ways_of(rows: Operands, format: Format) -> Iterator[Way]:
    """The ways for results of `format`: of 16 bits in that format, of fp32 in the narrower ones too."""
    shared = _Shared(rows)
    if format.unit > FLOAT32.unit:
        yield Way("probabilities kept in fp32, in any tiles", "", partial(_whole, rows, shared.scores, None))
        yield from _rounded(rows, shared, format, exact_exp, "")
        yield from _rounded(rows, shared, format, fast_exp, "fast exponential of torch's CPU")
        yield from _in_steps(rows, format)
        yield from _narrow_output(rows, shared, format)
        return
    yield Way("fp32 throughout, in any tiles", "", partial(_whole, rows, shared.scores, None))
    yield from _tf32(rows, "rounded", partial(round_to, format=TF32))
    yield from _tf32(rows, "cut", partial(truncate_to, format=TF32))
    for narrow in (BFLOAT16, FLOAT16):
        yield from _rounded(rows, shared, narrow, exact_exp, "")
        yield from _in_steps(rows, narrow)
        yield from _narrow_output(rows, shared, narrow)


class _Shared:
    """The exact scores with the mask, made once."""

    def __init__(self, rows: Operands) -> None:
        dots = np.matmul(rows.query, np.swapaxes(rows.key, -1, -2))
        self.scores = _with_mask(rows, rows.scale * dots)
        self.top = _top(self.scores)


def _with_mask(rows: Operands, scores: Array) -> Array:
    return scores if rows.mask is None else scores + rows.mask


def _top(scores: Array) -> Array:
    top = np.max(scores, axis=-1, keepdims=True)
    return np.where(np.isfinite(top), top, 0.0)


def _whole(rows: Operands, scores: Array, narrow: Format | None) -> Array:
    """Softmax over whole rows, normalised, rounded to `narrow`, times the values."""
    weights = np.exp(scores - _top(scores))
    weights /= weights.sum(-1, keepdims=True)
    if narrow is not None:
        weights = round_to(weights, narrow)
    return np.asarray(np.matmul(weights, rows.value))


def _against(scores: Array, top: Array, local: Array, value: Array, narrow: Format, exponential: Exponential, *, of_rounded: bool) -> Array:
    """Probabilities against the maximum `local` of each key's time, rounded, brought to the row's, divided at the end."""
    with np.errstate(all="ignore"):
        weights = exponential(np.where(np.isfinite(local), scores - local, -np.inf))
        factor = np.where(np.isfinite(local), np.exp(local - top), 0.0)
    rounded = round_to(weights, narrow)
    total = ((rounded if of_rounded else weights) * factor).sum(-1, keepdims=True)
    return np.asarray(np.matmul(rounded * factor, value) / np.where(total > 0, total, 1.0))


def running_top(scores: Array, tile: int, *, backwards: bool, parts: int = 1) -> Array:
    """For each key the maximum of its row that is known when its tile is done: [g, r, S], -inf while nothing was seen.

    Args:
        tile: keys of a tile.
        backwards: whether the last tile comes first.
        parts: how many equal ranges of keys, of whole tiles where there are several tiles, begin anew.
    """
    keys = scores.shape[-1]
    size = -(-keys // parts)
    if parts > 1 and tile < size:
        size = -(-size // tile) * tile
    found = np.empty_like(scores)
    for begin in range(0, keys, size):
        here = scores[..., begin : begin + size]
        edges = np.arange(0, here.shape[-1], tile)
        tops = np.maximum.reduceat(here, edges, axis=-1)
        tops = np.maximum.accumulate(tops[..., ::-1], axis=-1)[..., ::-1] if backwards else np.maximum.accumulate(tops, axis=-1)
        found[..., begin : begin + size] = np.repeat(tops, np.diff([*edges, here.shape[-1]]), axis=-1)
    return found


def _rounded(rows: Operands, shared: _Shared, narrow: Format, exponential: Exponential, more: str) -> Iterator[Way]:
    """Scores in fp32, probabilities rounded to `narrow`."""
    short, scores, keys = SHORT[narrow.name], shared.scores, shared.scores.shape[-1]
    running = partial(running_top, scores)
    said = f"probabilities rounded to {short}" + (f", {more}" if more else "")

    def way(name: str, local: Callable[[], Array], *, of_rounded: bool = False) -> Way:
        return Way(name, said, lambda: _against(scores, shared.top, local(), rows.value, narrow, exponential, of_rounded=of_rounded))

    if exponential is exact_exp:
        yield Way("softmax of whole rows, divided before it is rounded", said, partial(_whole, rows, scores, narrow))
    yield way("softmax of whole rows, divided at the end", lambda: shared.top)
    yield way("softmax of whole rows, divided at the end by the sum of the rounded", lambda: shared.top, of_rounded=True)
    yield way("softmax without subtracting the maximum, divided at the end", lambda: np.zeros(()))
    for tile in TILES:
        if tile < keys:
            yield way(f"online softmax, tiles of {tile} keys", partial(running, tile, backwards=False))
            yield way(f"online softmax, tiles of {tile} keys, the last first", partial(running, tile, backwards=True))
    for parts in PARTS:
        if 2 * parts > keys:
            continue
        yield way(f"{parts} ranges of keys, merged", partial(running, keys, backwards=False, parts=parts))
        for tile in _TILES_OF_PARTS:
            if tile * parts < keys:
                name = f"{parts} ranges of keys in tiles of {tile}, merged"
                yield way(name, partial(running, tile, backwards=False, parts=parts))


def _in_steps(rows: Operands, narrow: Format) -> Iterator[Way]:
    """Scores rounded to `narrow`, as separate operators do."""
    short = SHORT[narrow.name]
    kinds: tuple[Scores, ...] = (
        "after the product",
        "after the product and the scale",
        "query scaled first",
        "query and key scaled first",
    )
    for kind in kinds:
        said = f"scores rounded to {short} {kind}" if kind.startswith("after") else f"scores rounded to {short}, {kind}"
        scores = stepped(rows, narrow, kind)
        yield Way("softmax in fp32 rounded", said, partial(_whole, rows, scores, narrow))
        yield Way("softmax kept in fp32", said, partial(_whole, rows, scores, None))
        yield Way(f"softmax in {short}", said, partial(_narrow_softmax, rows, scores, narrow))
    said = f"query scaled in {short}, scores in fp32"

    def scaled(*, divided: bool) -> Array:
        query = round_to(rows.query * rows.scale, narrow)
        scores = _with_mask(rows, np.matmul(query, np.swapaxes(rows.key, -1, -2)))
        top = _top(scores)
        return _whole(rows, scores, narrow) if divided else _against(scores, top, top, rows.value, narrow, exact_exp, of_rounded=False)

    yield Way("softmax of whole rows, divided before it is rounded", said, partial(scaled, divided=True))
    yield Way("softmax of whole rows, divided at the end", said, partial(scaled, divided=False))


def stepped(rows: Operands, narrow: Format, kind: Scores) -> Array:
    """Scores with the mask, rounded after each step."""
    key, query = np.swapaxes(rows.key, -1, -2), rows.query
    if kind == "after the product and the scale":
        scores = round_to(rows.scale * round_to(np.matmul(query, key), narrow), narrow)
    elif kind == "after the product":
        scores = round_to(rows.scale * np.matmul(query, key), narrow)
    elif kind == "query scaled first":
        scores = round_to(np.matmul(round_to(query * rows.scale, narrow), key), narrow)
    else:
        root = float(np.sqrt(abs(rows.scale)))
        scores = round_to(np.matmul(round_to(query * np.copysign(root, rows.scale), narrow), round_to(key * root, narrow)), narrow)
    return scores if rows.mask is None else round_to(scores + rows.mask, narrow)


def _narrow_softmax(rows: Operands, scores: Array, narrow: Format) -> Array:
    """Every step of the softmax rounded."""
    weights = round_to(np.exp(round_to(scores - _top(scores), narrow)), narrow)
    total = round_to(weights.sum(-1, keepdims=True), narrow)
    return np.asarray(np.matmul(round_to(weights / total, narrow), rows.value))


def _narrow_output(rows: Operands, shared: _Shared, narrow: Format) -> Iterator[Way]:
    """The output's running sum in `narrow`, tile by tile."""
    short = SHORT[narrow.name]
    for tile in _TILES_OF_ACCUMULATOR:
        if tile < shared.scores.shape[-1]:
            name = f"online softmax, tiles of {tile} keys"
            yield Way(name, f"running output in {short}", partial(accumulated, shared.scores, rows.value, tile, narrow))


def accumulated(scores: Array, value: Array, tile: int, narrow: Format) -> Array:
    """Online softmax whose output is rounded to `narrow` after every tile."""
    output = np.zeros((*scores.shape[:-1], value.shape[-1]))
    total, top = np.zeros((*scores.shape[:-1], 1)), np.full((*scores.shape[:-1], 1), -np.inf)
    for begin in range(0, scores.shape[-1], tile):
        here = scores[..., begin : begin + tile]
        new = np.maximum(top, here.max(-1, keepdims=True))
        against = np.where(np.isfinite(new), new, 0.0)
        factor, weights = np.exp(top - against), np.exp(here - against)
        total = total * factor + weights.sum(-1, keepdims=True)
        output = round_to(output * factor + np.matmul(round_to(weights, narrow), value[..., begin : begin + tile, :]), narrow)
        top = new
    return np.asarray(output / np.where(total > 0, total, 1.0))


def _tf32(rows: Operands, said: str, cut: Callable[[Array], Array]) -> Iterator[Way]:
    """Operands of the products in tf32."""

    def scores() -> Array:
        return _with_mask(rows, rows.scale * np.matmul(cut(rows.query), np.swapaxes(cut(rows.key), -1, -2)))

    def divided(both: Array) -> Array:
        weights = np.exp(both - _top(both))
        return np.asarray(np.matmul(cut(weights / weights.sum(-1, keepdims=True)), cut(rows.value)))

    def tiled(both: Array, tile: int) -> Array:
        top, local = _top(both), running_top(both, tile, backwards=False)
        with np.errstate(all="ignore"):
            weights = np.where(np.isfinite(local), np.exp(both - local), 0.0)
            factor = np.where(np.isfinite(local), np.exp(local - top), 0.0)
        total = (weights * factor).sum(-1, keepdims=True)
        return np.asarray(np.matmul(cut(weights) * factor, cut(rows.value)) / np.where(total > 0, total, 1.0))

    def in_tiles(tile: int) -> Array:
        return tiled(scores(), tile)

    exact = _Shared(rows).scores
    keys = exact.shape[-1]
    yield Way("scores alone", f"operands {said} to tf32", lambda: _whole(rows, scores(), None))
    yield Way("softmax of whole rows, values alone", f"operands {said} to tf32", partial(divided, exact))
    yield Way("softmax of whole rows, divided before it is rounded", f"operands {said} to tf32", lambda: divided(scores()))
    yield Way("softmax of whole rows, divided at the end", f"operands {said} to tf32", partial(in_tiles, keys))
    for tile in (32, 64, 128, 256):
        if tile < keys:
            yield Way(f"online softmax, tiles of {tile} keys", f"operands {said} to tf32", partial(in_tiles, tile))
