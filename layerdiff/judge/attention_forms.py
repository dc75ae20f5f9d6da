"""Whether attention makes of its queries, keys and values what the reference's makes, told from recorded values alone.

Rounding moves a score by its own size, and what a softmax makes of that has no bound: with scores of hundreds (large biases of queries
and keys, products that are not scaled) two right runs in bf16 lie far apart, and with small ones a wrong scale lies within any threshold.
What is allowed is told by running it. A form (how positions are turned, what is seen, how heads share keys, the scale) is one that makes
the reference's own result of its own inputs. The same form of the target's inputs is what the target should have made, and how far its
result may lie from that is told by drawing the roundings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Reals = NDArray[np.float64]
Turns = Literal["halves", "pairs", "back", "queries", "keys", "none"]
"""How positions turn queries and keys: halves of a head's channels, pairs of neighbours, halves the other way, of one of them only, not."""
MOST: Final = 1 << 24
"""Scores that are computed."""
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
_MANY: Final = 0.05
"""The share of rows from which on it is another. Measured on 305 right ones of 41 architectures in bf16 and fp16: no row
beyond, and errors of 0.12 to 0.46 of what is allowed."""
_CODES: Final = 2.0**-4
"""Unit roundoff of 8-bit floats with three bits of fraction."""
_COARSE_FITS: Final = 256.0
"""Roundoffs of the reference beyond which a form is not even tried with its draws: with large scores they make much."""
_HALF: Final = 0.5
"""The share of what roundings allow up to which a form makes the result of a reference that is coarse itself."""
_CLEARLY: Final = 1.5
"""Times its error that every other form must have, for the nearest to be named."""
_SEARCH: Final = 8
"""Times fewer scores that a form is looked for with."""
_GOLDEN: Final = (5**0.5 - 1) / 2
_NARROW: Final = 1e-3
"""Of the binary logarithm of a scale that is fitted."""


@dataclass(frozen=True)
class Given:
    """What attention was given in one run, and what it made.

    Attributes:
        queries, keys, values: (batch, tokens, heads * dim).
        made: (batch, tokens, heads * dim).
        cosines, sines: (batch or 1, tokens, dims that are turned); None where no positions were given.
        mask: additive, or True where a key is seen, (batch or 1, 1, tokens, keys); None where none was given.
        chosen: the queries that are looked at; None for all.
    """

    queries: Reals
    keys: Reals
    values: Reals
    made: Reals
    cosines: Reals | None = None
    sines: Reals | None = None
    mask: Array | None = None
    chosen: NDArray[np.int64] | None = None

    def sampled(self, dim: int, most: int) -> Given | None:
        """With as many queries, evenly apart and the last one, as make `most` scores; None where a single one makes more."""
        batch, tokens, width = self.queries.shape
        count = most // max(batch * (width // dim) * self.keys.shape[1], 1)
        if count >= tokens:
            return self
        return replace(self, chosen=np.unique(np.linspace(tokens - 1, 0, count).astype(np.int64))) if count else None

    @property
    def rows(self) -> NDArray[np.int64]:
        """The queries that are looked at."""
        return np.arange(self.queries.shape[1]) if self.chosen is None else self.chosen

    @property
    def seen(self) -> Reals:
        """What was made of the queries that are looked at."""
        return self.made[:, self.rows]

    @property
    def counted(self) -> NDArray[np.bool_]:
        """(batch, queries): those that see themselves; what padding makes of others is read by nobody."""
        batch, rows = len(self.queries), self.rows
        if self.mask is None or self.mask.shape[-1] != self.queries.shape[1]:
            return np.ones((batch, len(rows)), np.bool_)
        own = self.mask[:, 0, rows, rows]
        return np.broadcast_to(own if own.dtype == bool else own > _HIDDEN, (batch, len(rows)))


_HIDDEN: Final = -1e4
"""What is added to the score of a key that is not seen lies below."""


@dataclass(frozen=True)
class Form:
    """How attention computes. `later`: how many keys after itself a query sees where no mask is given, None for all."""

    dim: int
    scale: float
    turns: Turns = "halves"
    later: int | None = None
    tiled: bool = False

    @np.errstate(all="ignore")  # a query that sees nothing makes NaN, which fits nothing
    def run(self, given: Given, roundoff: float = 0.0, random: np.random.Generator | None = None) -> Reals:
        """What it makes. `roundoff`, `random`: each step is moved by a rounding of this size."""

        def rounded(x: Reals) -> Reals:
            return x if random is None else _moved(x, roundoff, random)

        rows, before = given.rows, given.keys.shape[1] - given.queries.shape[1]
        q, k, v = (self._heads(x) for x in (given.queries, given.keys, given.values))
        q = rounded(self._turned(q[:, :, rows], given, rows, rounded) if self.turns != "keys" else q[:, :, rows])
        k = rounded(self._turned(k, given, None, rounded) if self.turns != "queries" else k)
        q = self._beside_keys(q, k.shape[1])
        scores = rounded(rounded(q @ np.swapaxes(k, -1, -2)[:, :, None]) * self.scale)
        if given.mask is not None:
            mask = given.mask[:, :, None][..., rows, :]
            scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
        elif self.later is not None:
            scores = np.where(np.arange(scores.shape[-1]) <= rows[:, None] + before + self.later, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = rounded(weights / weights.sum(-1, keepdims=True))
        made = rounded(weights @ v[:, :, None])
        made = (np.swapaxes(made, 1, 2) if self.tiled else made).reshape(len(made), -1, *made.shape[-2:])
        return np.asarray(np.moveaxis(made, 1, 2).reshape(given.seen.shape))

    def lengths(self, x: Reals, counted: NDArray[np.bool_]) -> Reals:
        """Of each row, a query that counts in a head, the L2 norm."""
        return np.asarray(np.linalg.norm(x[counted].reshape(-1, self.dim), axis=1))

    def _beside_keys(self, queries: Reals, heads: int) -> Reals:
        """(batch, heads of keys, those that share one, queries, dim)."""
        batch, _, *rest = queries.shape
        return np.swapaxes(queries.reshape(batch, -1, heads, *rest), 1, 2) if self.tiled else queries.reshape(batch, heads, -1, *rest)

    def _heads(self, x: Reals) -> Reals:
        return np.moveaxis(x.reshape(*x.shape[:2], -1, self.dim), 2, 1)

    def _turned(self, x: Reals, given: Given, rows: NDArray[np.int64] | None, rounded: Callable[[Reals], Reals]) -> Reals:
        if given.cosines is None or given.sines is None or self.turns == "none":
            return x
        at = slice(None) if rows is None else rows
        cos, sin = given.cosines[:, None, at], given.sines[:, None, at] * (-1.0 if self.turns == "back" else 1.0)
        turned, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
        if self.turns == "pairs":
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
        whole: whether all queries were looked at.
        form: the reference's.
        other: of a wrong one a form that differs from the reference's in one thing and makes the target's result; None where none does.
        coded: whether keys and values that are kept in 8 bits, as caches keep them, would make it.
    """

    error: float
    allowed: float
    beyond: int
    rows: int
    whole: bool
    form: Form
    other: Form | None
    coded: bool

    @property
    def right(self) -> bool:
        """Whether all is what the form makes, but for rounding."""
        return self.whole and self.error <= self.allowed and self.beyond <= _FEW * self.rows

    @property
    def wrong(self) -> bool:
        """Whether it is something else: off by more than rounding, in many rows."""
        return self.error > self.allowed and self.beyond > _MANY * self.rows and not self.coded


def held_against_form(
    reference: Given,
    target: Given,
    dims: Sequence[int],
    scales: Sequence[float],
    roundoffs: Sequence[float],
    most: int = MOST,
    likely: Form | None = None,
) -> Told | None:
    """None where no form is known that makes the reference's own result.

    `dims`: sizes of a head that may be. `scales`: the reference's, where it is known. `roundoffs`: of the two runs. `most`: how many
    scores are computed; of more, some queries are looked at. `likely`: the form of modules like this one.
    """
    form = _form_of(reference, dims, scales, roundoffs[0], most, likely)
    if form is None:
        return None
    if target.mask is None and reference.mask is not None:  # a kernel may know by itself what the reference is told
        target = replace(target, mask=reference.mask)
    sampled = target.sampled(form.dim, most)
    if sampled is None:
        return None
    counted = sampled.counted & replace(reference, chosen=sampled.chosen).counted
    near = _near(form, sampled, counted, max(roundoffs))
    off = near.error > max(near.allowed, _FITS)
    other = _other(form, sampled, counted, max(near.allowed, _FITS)) if off else None
    coded = off and other is None and not _near(form, sampled, counted, max(roundoffs), coded=True).is_far
    return Told(near.error, near.allowed, near.beyond, near.rows, sampled.chosen is None, form, other, coded)


@dataclass(frozen=True)
class _Near:
    """How a result lies to what a form makes, beside what roundings make of it."""

    error: float
    allowed: float
    beyond: int
    rows: int

    @property
    def is_far(self) -> bool:
        return self.error > self.allowed or self.beyond > _MANY * self.rows


def _near(form: Form, given: Given, counted: NDArray[np.bool_], roundoff: float, *, coded: bool = False) -> _Near:
    """`coded`: keys and values alone are moved, as by codes of 8 bits."""
    meant, random = form.run(given), np.random.default_rng(0)
    drawn = (_with_codes(given, random) if coded else given for _ in range(_DRAWS))
    draws = [form.run(one) if coded else form.run(one, roundoff, random) for one in drawn]
    spread = np.max([form.lengths(draw - meant, counted) for draw in draws], axis=0)
    off = form.lengths(given.seen - meant, counted)
    beyond = ~(off <= _BEYOND * (spread + roundoff * form.lengths(meant, counted)))
    allowed = _WITHIN * max(_relative(meant, draw, counted) for draw in draws)
    return _Near(_relative(meant, given.seen, counted), allowed, int(beyond.sum()), beyond.size)


def _with_codes(given: Given, random: np.random.Generator) -> Given:
    keys, values = (_moved(x, _CODES, random) for x in (given.keys, given.values))
    return replace(given, keys=keys, values=values)


def _moved(x: Reals, roundoff: float, random: np.random.Generator) -> Reals:
    """Each number moved by up to a roundoff."""
    return np.asarray(x * (1 + roundoff * (2 * random.random(x.shape, np.float32) - 1)))


def _form_of(
    reference: Given, dims: Sequence[int], scales: Sequence[float], roundoff: float, most: int, likely: Form | None
) -> Form | None:
    """The form that makes the reference's own result: the likely one, else the nearest of all, sought with few queries."""
    if likely is not None and likely in _forms(reference, dims, scales) and _makes(likely, reference.sampled(likely.dim, most), roundoff):
        return likely
    errors: list[tuple[float, Form]] = []
    for form in _forms(reference, dims, scales):
        few = reference.sampled(form.dim, most // _SEARCH)
        if few is not None:
            errors.append((_error(form, few), form))
    if not errors:
        return None
    error, form = min(errors, key=lambda one: one[0])
    if error > max(_FITS, _COARSE_FITS * roundoff):
        return None
    return form if _makes(form, reference.sampled(form.dim, most), roundoff) else None


def _makes(form: Form, reference: Given | None, roundoff: float) -> bool:
    """Whether it makes the reference's own result; of one in 16 bits, as far as roundings tell."""
    if reference is None:
        return False
    error = _error(form, reference)
    if error <= _FITS or error > _COARSE_FITS * roundoff:
        return error <= _FITS
    near = _near(form, reference, reference.counted, roundoff)
    return near.error <= _HALF * near.allowed and near.beyond <= _FEW * near.rows


def _error(form: Form, given: Given) -> float:
    return _relative(form.run(given), given.seen, given.counted)


def _other(form: Form, target: Given, counted: NDArray[np.bool_], allowed: float) -> Form | None:
    """The form that differs in one thing and makes the target's result; None where none does, or several as well."""
    turns: tuple[Turns, ...] = ("halves", "pairs", "back", "queries", "keys", "none") if target.cosines is not None else ()
    others = [replace(form, turns=turn) for turn in turns if turn != form.turns]
    others += [replace(form, tiled=not form.tiled)] if target.queries.shape[-1] > target.keys.shape[-1] > form.dim else []
    tried = [(one, target, counted) for one in [*others, replace(form, scale=_nearest_scale(form, target, counted))]]
    if target.mask is None or _is_causal(target.mask):
        unmasked, later = replace(target, mask=None), 0 if target.mask is not None else form.later
        before = target.rows + target.keys.shape[1] - target.queries.shape[1]
        shown = [(one, counted & (before + (one or 0) >= 0)) for one in (None, -1, 0, 1) if one != later]
        tried += [(replace(form, later=one), unmasked, rows) for one, rows in shown]
    errors = sorted(((_relative(one.run(given), given.seen, rows), i) for i, (one, given, rows) in enumerate(tried)))
    (error, best), (second, _) = errors[0], errors[1]
    return tried[best][0] if error <= allowed and second > _CLEARLY * error else None


def _is_causal(mask: Array) -> bool:
    seen = mask if mask.dtype == bool else mask > _HIDDEN
    return seen.shape[-1] == seen.shape[-2] and bool((seen == np.tril(np.ones(seen.shape[-2:], np.bool_))).all())


def _nearest_scale(form: Form, target: Given, counted: NDArray[np.bool_]) -> float:
    """The scale whose result lies nearest to the target's, within a factor of 16; by golden sections of its logarithm."""

    def error(exponent: float) -> float:
        return _relative(replace(form, scale=form.scale * 2.0**exponent).run(target), target.seen, counted)

    low, high = -4.0, 4.0
    first, second = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    errors = [error(first), error(second)]
    while high - low > _NARROW:
        if errors[0] < errors[1]:
            high, second, first = second, first, second - _GOLDEN * (second - low)
            errors = [error(first), errors[0]]
        else:
            low, first, second = first, second, first + _GOLDEN * (high - first)
            errors = [errors[1], error(second)]
    return float(form.scale * 2.0 ** ((low + high) / 2))


def _forms(given: Given, dims: Sequence[int], scales: Sequence[float]) -> Iterator[Form]:
    tokens, width = given.queries.shape[1:]
    for dim in dims:
        sizes = width, given.keys.shape[-1], given.values.shape[-1]
        turned = 0 if given.cosines is None else given.cosines.shape[-1]
        if any(size % dim for size in sizes) or sizes[1] != sizes[2] or sizes[0] % sizes[1] or turned > dim or turned % 2:
            continue
        factors = scales or (dim**-0.5, 1.0)
        turns: tuple[Turns, ...] = ("halves", "pairs", "none") if given.cosines is not None else ("none",)
        later = [0, None] if given.mask is None and tokens > 1 else [None]
        tiled = [False, True] if sizes[0] > sizes[1] > dim else [False]
        for one, turn, seen, tile in product(factors, turns, later, tiled):
            yield Form(dim, one, turn, seen, tile)


def _relative(meant: Reals, own: Reals, counted: NDArray[np.bool_]) -> float:
    """The relative L2 of the rows that count; infinite where there is nothing, or a number is not finite."""
    meant, own = meant[counted], own[counted]
    size = float(np.linalg.norm(meant))
    return float(np.linalg.norm(own - meant)) / size if size > 0 and np.isfinite(own).all() else float("inf")
