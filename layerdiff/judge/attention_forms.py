"""Whether attention makes of its queries, keys and values what the reference's makes, told from recorded values alone.

Rounding moves a score by its own size, and what a softmax makes of that has no bound: with scores of hundreds (large biases of queries
and keys, products that are not scaled) two right runs in bf16 lie far apart. What is allowed is told by running it. A form (how positions
are turned, what is hidden, how heads share keys, the scale) is one that makes the reference's own result of its own inputs. The same form
of the target's inputs is what the target should have made, and how far its result may lie from that is told by drawing the roundings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Reals = NDArray[np.float64]
_FITS: Final = 1e-4
"""Relative L2 error up to which a form makes the reference's own result; measured in float32, up to 1.2e-5 with scores of thousands."""
_DRAWS: Final = 8
_WITHIN: Final = 3.0
"""Times the largest relative L2 of the draws."""
_BEYOND: Final = 4.0
"""Times the largest draw of a row, and its own rounding. Measured in bf16 and fp16, scores up to thousands: at most 1 of 192 rows of a
right run beyond twice of it, none beyond four times; of a wrong mask or rotation 15 to 96 % of the rows.
"""
_FEW: Final = 0.02
"""The share of rows that may lie beyond."""
_MOST: Final = 1 << 24
"""Scores that are computed."""


@dataclass(frozen=True)
class Given:
    """What attention was given in one run, and what it made.

    Attributes:
        queries, keys, values: (batch, tokens, heads * dim).
        made: (batch, tokens, heads * dim).
        cosines, sines: (batch or 1, tokens, dims that are turned); None where no positions were given.
        mask: additive, or True where a key is seen, (batch, 1 or heads, tokens, keys); None where none was given.
    """

    queries: Reals
    keys: Reals
    values: Reals
    made: Reals
    cosines: Reals | None = None
    sines: Reals | None = None
    mask: Array | None = None


@dataclass(frozen=True)
class Form:
    """How attention computes."""

    dim: int
    scale: float
    interleaved: bool = False
    causal: bool = False
    tiled: bool = False

    @np.errstate(all="ignore")  # a query that sees nothing makes NaN, which fits nothing
    def run(self, given: Given, roundoff: float = 0.0, random: np.random.Generator | None = None) -> Reals:
        """What it makes. `roundoff`, `random`: each step is moved by a rounding of this size."""

        def rounded(x: Reals) -> Reals:
            return x if random is None else x * (1 + roundoff * random.uniform(-1, 1, x.shape))

        heads = [self._heads(x) for x in (given.queries, given.keys, given.values)]
        q, k = (rounded(self._turned(x, given, rounded)) for x in heads[:2])
        groups = q.shape[1] // k.shape[1]
        k, v = ((np.tile(x, (1, groups, 1, 1)) if self.tiled else np.repeat(x, groups, 1)) for x in (k, heads[2]))
        scores = rounded(rounded(q @ np.swapaxes(k, -1, -2)) * self.scale)
        if given.mask is not None:
            scores = np.where(given.mask, scores, -np.inf) if given.mask.dtype == bool else scores + given.mask
        elif self.causal:
            scores = np.where(np.tril(np.ones(scores.shape[-2:], bool), scores.shape[-1] - scores.shape[-2]), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = rounded(weights / weights.sum(-1, keepdims=True))
        made = rounded(weights @ v)
        return np.asarray(np.moveaxis(made, 1, 2).reshape(given.made.shape))

    def lengths(self, x: Reals) -> Reals:
        """Of each row, a query in a head, the L2 norm."""
        return np.asarray(np.linalg.norm(x.reshape(-1, self.dim), axis=1))

    def _heads(self, x: Reals) -> Reals:
        return np.moveaxis(x.reshape(*x.shape[:2], -1, self.dim), 2, 1)

    def _turned(self, x: Reals, given: Given, rounded: Any) -> Reals:
        if given.cosines is None or given.sines is None:
            return x
        cos, sin = given.cosines[:, None], given.sines[:, None]
        turned, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
        if self.interleaved:
            other = np.stack([-turned[..., 1::2], turned[..., ::2]], -1).reshape(turned.shape)
        else:
            half = turned.shape[-1] // 2
            other = np.concatenate([-turned[..., half:], turned[..., :half]], -1)
        return np.concatenate([rounded(turned * cos) + rounded(other * sin), rest], -1)


@dataclass(frozen=True)
class Told:
    """How the target's result lies to the reference's form of the target's inputs.

    Attributes:
        error: relative L2.
        allowed: what roundings make of it.
        beyond: how many rows (a query in a head) lie further off than roundings move them.
        rows: how many there are.
    """

    error: float
    allowed: float
    beyond: int
    rows: int

    @property
    def right(self) -> bool:
        """Whether it is what the form makes, but for rounding."""
        return self.error <= self.allowed and self.beyond <= _FEW * self.rows


def held_against_form(reference: Given, target: Given, dims: Sequence[int], scales: Sequence[float], roundoff: float) -> Told | None:
    """None where no form is known that makes the reference's own result.

    `dims`: sizes of a head that may be. `scales`: the reference's, where it is known. `roundoff`: of the coarser run.
    """
    form = next((form for form in _forms(reference, dims, scales) if _relative(form.run(reference), reference.made) <= _FITS), None)
    if form is None:
        return None
    meant, random = form.run(target), np.random.default_rng(0)
    draws = [form.run(target, roundoff, random) for _ in range(_DRAWS)]
    spread = np.max([form.lengths(draw - meant) for draw in draws], axis=0)
    off = form.lengths(target.made - meant)
    beyond = ~(off <= _BEYOND * (spread + roundoff * form.lengths(meant)))
    allowed = _WITHIN * max(_relative(meant, draw) for draw in draws)
    return Told(_relative(meant, target.made), allowed, int(beyond.sum()), beyond.size)


def _forms(given: Given, dims: Sequence[int], scales: Sequence[float]) -> Iterator[Form]:
    batch, tokens, width = given.queries.shape
    for dim in dims:
        sizes = width, given.keys.shape[-1], given.values.shape[-1]
        turned = 0 if given.cosines is None else given.cosines.shape[-1]
        if any(size % dim for size in sizes) or sizes[1] != sizes[2] or sizes[0] % sizes[1] or turned > dim or turned % 2:
            continue
        if batch * (width // dim) * tokens * given.keys.shape[1] > _MOST:
            continue
        factors = scales or (dim**-0.5, 1.0)
        turns = [False, True] if given.cosines is not None else [False]
        causal = [True, False] if given.mask is None and tokens > 1 else [False]
        tiled = [False, True] if sizes[0] > sizes[1] > dim else [False]
        for one, turn, seen, tile in product(factors, turns, causal, tiled):
            yield Form(dim, one, turn, seen, tile)


def _relative(meant: Reals, own: Reals) -> float:
    size = float(np.linalg.norm(meant))
    return float(np.linalg.norm(own - meant)) / size if size > 0 and np.isfinite(own).all() else float("inf")
