"""Attention kernels emulated step by step in fp32, with an exponential that is off by up to two units in the last place."""

from __future__ import annotations

import numpy as np

from layerdiff.arithmetic.formats import Format, round_to

Array = np.ndarray


class Case:
    """Operands on the grid of `format`: query [n, L, D], key and value [n, S, D]; `add` [L, S] is what a mask adds."""

    def __init__(self, format: Format, length: int, width: int, *, causal: bool = False, kind: str = "gauss", seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        sizes = {"gauss": 1.0, "peaked": 2.0, "flat": 0.3}
        draw = self.random.standard_normal
        self.format = format
        self.query = round_to(draw((2, length, width)) * sizes.get(kind, 1.0), format)
        self.key = round_to(draw((2, length, width)), format)
        value = draw((2, length, width))
        self.value = round_to(np.abs(value) if kind == "positive" else value, format)
        self.scale = float(1.0 / np.sqrt(width))
        self.causal = causal
        self.add = np.zeros((length, length), np.float32)
        if causal:
            self.add[~np.tri(length, dtype=bool)] = -np.inf

    def exp(self, x: Array) -> Array:
        """exp in fp32, off by up to two units."""
        made = np.exp(x.astype(np.float64)).astype(np.float32)
        return np.asarray(made * (1.0 + self.random.integers(-2, 3, made.shape) * 2.0**-24), np.float32)

    def scores(self) -> Array:
        return self.dots() * np.float32(self.scale) + self.add

    def dots(self) -> Array:
        return np.matmul(self.query.astype(np.float32), self.key.astype(np.float32).swapaxes(-1, -2))

    def narrow(self, x: Array, format: Format | None = None) -> Array:
        return round_to(x, format or self.format).astype(np.float32)

    def made(self, output: Array) -> Array:
        """What is recorded."""
        return round_to(output, self.format)


def whole(case: Case, *, weights: Format | None, before: bool = True, shift: bool = True, scores: Array | None = None) -> Array:
    """Softmax of whole rows; `before`: divided before the probabilities are rounded to `weights`."""
    s = case.scores() if scores is None else scores
    p = case.exp(s - s.max(-1, keepdims=True)) if shift else case.exp(s)
    total = p.sum(-1, keepdims=True, dtype=np.float32)
    if before:
        p = p / total
    if weights is not None:
        p = case.narrow(p, weights)
    output = np.matmul(p, case.value.astype(np.float32))
    return case.made(output if before else output / total)


def online(case: Case, tile: int, *, weights: Format | None, backwards: bool = False, output: Format | None = None) -> Array:
    """Online softmax tile by tile, the output rescaled by exp(old maximum - new maximum), divided at the end."""
    o, total, _ = _tiles(case, 0, case.key.shape[1], tile, weights, backwards=backwards, output=output)
    return case.made(o / total)


def split(case: Case, parts: int, tile: int, *, weights: Format | None) -> Array:
    """Flash decoding: ranges of keys by themselves, merged by their log-sum-exp."""
    keys = case.key.shape[1]
    size = -(-keys // parts)
    size = -(-size // tile) * tile if tile < size else size
    done = [_tiles(case, begin, min(begin + size, keys), tile, weights) for begin in range(0, keys, size)]
    with np.errstate(all="ignore"):
        sums = [np.where(total > 0, top + np.log(total), np.float32(-np.inf)) for _, total, top in done]
        highest = np.max(sums, axis=0)
        shares = [case.exp(one - highest) for one in sums]
        parts_made = [np.where(total > 0, o / total, np.float32(0.0)) for o, total, _ in done]
    return case.made(sum(share * made for share, made in zip(shares, parts_made, strict=True)) / sum(shares))


def _tiles(
    case: Case, first: int, past: int, tile: int, weights: Format | None, *, backwards: bool = False, output: Format | None = None
) -> tuple[Array, Array, Array]:
    s, value = case.scores(), case.value.astype(np.float32)
    shape = s.shape[:2]
    o = np.zeros((*shape, value.shape[-1]), np.float32)
    total, top = np.zeros((*shape, 1), np.float32), np.full((*shape, 1), -np.inf, np.float32)
    begins = range(first, past, tile)
    for begin in reversed(begins) if backwards else begins:
        here = slice(begin, min(begin + tile, past))
        new = np.maximum(top, s[..., here].max(-1, keepdims=True))
        against = np.where(np.isfinite(new), new, np.float32(0.0))
        factor, p = case.exp(top - against), case.exp(s[..., here] - against)
        total = total * factor + p.sum(-1, keepdims=True, dtype=np.float32)
        o = o * factor + np.matmul(p if weights is None else case.narrow(p, weights), value[:, here])
        if output is not None:
            o = case.narrow(o, output)
        top = new
    return o, total, top


def eager(case: Case, *, softmax: Format | None) -> Array:
    """One operator after another in the operands' dtype: product, scale, mask, softmax (rounded to `softmax`), product."""
    s = case.narrow(case.narrow(case.dots()) * np.float32(case.scale))
    return whole(case, weights=softmax, scores=case.narrow(s + case.add))
