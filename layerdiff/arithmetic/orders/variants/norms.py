"""Some rows of one normalisation, and how it was computed: what was rounded on the way, how the variance was summed, which epsilon.

How the variance was summed shows in one factor per row, and only where the mean is large: E[x^2] - mean^2 loses what both have in
common. The order of that sum is not replayed; the size of the factors tells the two formulas apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.contracts.norms import _batch, _group, _layer, _rms
from layerdiff.arithmetic.contracts.reductions import ONE_SIGNED_BIAS
from layerdiff.arithmetic.formats import BFLOAT16, FLOAT16, FLOAT32, Format, format_named, round_to
from layerdiff.arithmetic.orders.analysis import Fit, Hypothesis
from layerdiff.arithmetic.orders.candidates import SHORT
from layerdiff.arithmetic.orders.variants.last_bits import Last
from layerdiff.arithmetic.orders.variants.ranking import Array, Made, Variants, fit, rank
from layerdiff.arithmetic.orders.variants.softmax import MOST_TERMS, chain
from layerdiff.arithmetic.sums import ROUNDING_SIGMA
from layerdiff.trace.arguments import Arguments

ROWS: Final = 256
_MOST: Final = 1 << 19
"""Elements looked at."""
_FEW_ROWS: Final = 4
_FEW_TERMS: Final = 8
_LIKE: Final = 8.0
"""Roundings by which elements may differ from a multiple of what was normalised (median over rows): beyond, no factor is fitted."""
_CLEAR: Final = 6.0
"""How many times what two passes leave one pass has to leave before the two are told apart."""
_LAYER: Final = ("native_layer_norm", "layer_norm")
_ROOT: Final = ("_fused_rms_norm", "rms_norm")
_BATCH: Final = {"native_batch_norm": None, "_native_batch_norm_legit": None, "_batch_norm_with_update": True, "batch_norm": None}


class Rows(NamedTuple):
    """x and the recorded y [r, K]; weight and bias broadcast to them; `means` and `scales` as recorded [r], or None."""

    x: Array
    y: Array
    weight: Array
    bias: Array
    epsilon: float
    centred: bool
    means: Array | None
    scales: Array | None
    total: int


def norm_variants(name: str, arguments: Arguments, recorded: Sequence[NDArray[Any]], dtypes: Sequence[str]) -> Variants | None:
    """How the call `aten.<name>` was computed; None where it is no norm with statistics of its own.

    Raises ContractError for arguments that the contract of the norm does not know.
    """
    format = format_named(dtypes[0])
    if format is None or format.unit < FLOAT32.unit:
        return None
    rows = sampled(name, arguments, recorded)
    if rows is None:
        return None
    parts = _Parts.of(rows)
    exact = _plain(rows, None, Last())
    terms = rows.x.shape[1]
    shared = ROUNDING_SIGMA * math.sqrt(terms / 12.0 + 4.0) * parts.ratio
    moved = np.abs(rows.weight) * parts.scale * (np.abs(rows.x) + np.abs(parts.mean)) + np.abs(rows.bias)
    sigma = FLOAT32.unit * np.hypot(2.0 * shared * np.abs(exact - rows.bias), moved)
    made = [Made(way.name, "", way.run(Last()).reshape(-1), _again(way)) for way in ways_of(rows, format)]
    found = rank(made, rows.y.reshape(-1), sigma.reshape(-1), format)
    where = f"{rows.x.shape[0]} of {rows.total} rows"
    fits = tuple(one for one in epsilons(rows, parts, format) if one is not None)
    statement = found.statement
    hypotheses, zrms = found.hypotheses, found.zrms
    if rows.centred:
        of_variance, said = _variance(rows, parts, format)
        hypotheses += tuple(one for one, _ in of_variance)
        zrms += tuple(z for _, z in of_variance)
        statement += f" {said}"
    for one in fits:
        statement += "" if one.inside else f" The {one.text}."
    return Variants(hypotheses, zrms, statement, fits, where)


def sampled(name: str, arguments: Arguments, recorded: Sequence[NDArray[Any]]) -> Rows | None:
    """At most ROWS rows, evenly spaced; a channel of a batch norm and a group of a group norm are rows."""
    if name in _LAYER:
        x, axes, weight, bias, epsilon = _layer(arguments)
        return _of_rows(x, math.prod(x.shape[axis] for axis in axes), weight, bias, epsilon, recorded, centred=True)
    if name in _ROOT:
        x, axes, weight, epsilon = _rms(arguments)
        return _of_rows(x, math.prod(x.shape[axis] for axis in axes), weight, 0.0, epsilon, recorded, centred=False)
    if name == "native_group_norm":
        x, weight, bias, epsilon, _ = _group(arguments)
        n, groups, channels, inner = x.shape
        chosen = _chosen(n * groups, channels * inner)

        def of_group(values: Any) -> Array:
            whole = np.broadcast_to(np.asarray(values, np.float64), (1, groups, channels, 1))[0, chosen % groups]
            return np.repeat(whole[..., 0], inner, axis=1)

        few = [np.asarray(one, np.float64).reshape(n * groups, -1)[chosen] for one in (x, recorded[0])]
        means, scales = (_of_row(recorded, i, n * groups, chosen) for i in (1, 2))
        return Rows(few[0], few[1], of_group(weight), of_group(bias), epsilon, True, means, scales, n * groups)
    if name in _BATCH:
        x, weight, bias, _, _, epsilon, trained, _ = _batch(arguments, _BATCH[name])
        if not trained:
            return None
        channels = x.shape[1]
        chosen = _chosen(channels, x.size // max(channels, 1))
        both = (x, recorded[0].reshape(x.shape))
        few = [np.moveaxis(np.asarray(one[:, chosen], np.float64), 1, 0).reshape(chosen.size, -1) for one in both]
        weights, biases = (np.broadcast_to(np.asarray(one, np.float64).reshape(-1), channels)[chosen][:, None] for one in (weight, bias))
        means, scales = (_of_row(recorded, i, channels, chosen) for i in (1, 2))
        return Rows(few[0], few[1], weights, biases, epsilon, True, means, scales, channels)
    return None


def _chosen(rows: int, terms: int) -> NDArray[np.intp]:
    few = max(1, min(rows, ROWS, _MOST // max(terms, 1)))
    return np.unique(np.linspace(0, max(rows - 1, 0), few).astype(np.intp))


def _of_rows(
    x: Array, terms: int, weight: Any, bias: Any, epsilon: float, recorded: Sequence[NDArray[Any]], *, centred: bool
) -> Rows | None:
    if not x.size or recorded[0].size != x.size:
        return None
    count = x.size // terms
    chosen = _chosen(count, terms)
    few = [np.asarray(one.reshape(count, terms)[chosen], np.float64) for one in (x, recorded[0])]
    weights, biases = (np.broadcast_to(np.asarray(one, np.float64).reshape(1, -1), (1, terms)) for one in (weight, bias))
    means = _of_row(recorded, 1, count, chosen) if centred else None
    return Rows(few[0], few[1], weights, biases, epsilon, centred, means, _of_row(recorded, 2 if centred else 1, count, chosen), count)


def _of_row(recorded: Sequence[NDArray[Any]], index: int, count: int, chosen: NDArray[np.intp]) -> Array | None:
    if len(recorded) <= index or recorded[index].size != count:
        return None
    return np.asarray(recorded[index].reshape(-1)[chosen], np.float64)


@dataclass(frozen=True)
class _Parts:
    """Exact mean, variance and scale of each row [r, 1], and E[x^2] + epsilon over variance + epsilon."""

    mean: Array
    variance: Array
    scale: Array
    ratio: Array

    @staticmethod
    def of(rows: Rows) -> _Parts:
        mean = rows.x.mean(1, keepdims=True) if rows.centred else np.zeros((rows.x.shape[0], 1))
        variance = np.square(rows.x - mean).mean(1, keepdims=True)
        whole = variance + rows.epsilon
        return _Parts(mean, variance, 1.0 / np.sqrt(whole), np.maximum((np.square(mean) + whole) / whole, 1.0))


@dataclass(frozen=True)
class _Way:
    name: str
    run: Callable[[Last], Array]


def _again(way: _Way) -> Callable[[int], Array]:
    return lambda draw: way.run(Last(np.random.default_rng(draw))).reshape(-1)


def ways_of(rows: Rows, format: Format) -> Iterator[_Way]:
    """What may be rounded on the way; the first rounds nothing but the result."""
    name = "statistics and products in fp32, rounded once" if format.unit > FLOAT32.unit else "fp32 throughout"
    yield _Way(name, partial(_plain, rows, None))
    if rows.scales is not None and not _finer(rows.scales) and (rows.means is not None or not rows.centred):
        means = np.zeros(len(rows.x)) if rows.means is None else rows.means
        scales = rows.scales
        name = "mean and scale as recorded, in 16 bits" if rows.centred else "scale as recorded, in 16 bits"
        yield _Way(name, partial(_finished, rows, None, means[:, None], scales[:, None]))
    for narrow in (format,) if format.unit > FLOAT32.unit else (BFLOAT16, FLOAT16):
        short = SHORT[narrow.name]
        yield _Way(f"normalised value rounded to {short} before the weight", partial(_plain, rows, narrow))
        if np.any(rows.bias != 0):
            name = f"normalised value and its product with the weight rounded to {short}"
            yield _Way(name, partial(_product_rounded, rows, narrow))
        yield _Way(f"mean and scale rounded to {short}", partial(_kept, rows, narrow))
        if rows.centred:
            yield _Way(f"scale rounded to {short}", partial(_kept, rows, narrow, mean=False))
        name = f"mean, variance and scale rounded to {short}"
        yield _Way(name, partial(_kept, rows, narrow, variance=True))
        yield _Way(f"every step rounded to {short}", partial(_stepped, rows, narrow))
        if rows.x.shape[1] > MOST_TERMS:
            continue
        yield _Way(f"sums one after another in {short}", partial(_running, rows, narrow))
        name = f"sums one after another in {short}, normalised value rounded before the weight"
        yield _Way(name, partial(_running, rows, narrow, cast=True))


def _plain(rows: Rows, narrow: Format | None, last: Last, *, bias: bool = True) -> Array:
    parts = _Parts.of(rows)
    return _finished(rows, narrow, last.bits(parts.mean, _units(rows)), last.bits(parts.scale, 2.0 + parts.ratio), last, bias=bias)


def _units(rows: Rows) -> float:
    """Units of fp32 by which a mean may be off, NOISE times: a third of what a sum from the first to the last leaves (F11)."""
    return 2.0 + ROUNDING_SIGMA * math.sqrt(rows.x.shape[1] / 3.0) / 3.0


def _product_rounded(rows: Rows, narrow: Format, last: Last) -> Array:
    return round_to(_plain(rows, narrow, last, bias=False), narrow) + rows.bias


def _finished(rows: Rows, narrow: Format | None, mean: Array, scale: Array, last: Last, *, bias: bool = True) -> Array:
    normalised = (last.bits(rows.x, 0.5) - mean) * scale
    if narrow is not None:
        normalised = round_to(normalised, narrow)
    return np.asarray(normalised * rows.weight + (rows.bias if bias else 0.0))


def _kept(rows: Rows, narrow: Format, last: Last, *, mean: bool = True, variance: bool = False) -> Array:
    parts = _Parts.of(rows)
    means = last.bits(parts.mean, _units(rows))
    if variance:
        scale = 1.0 / np.sqrt(round_to(last.bits(parts.variance, 4.0), narrow) + rows.epsilon)
    else:
        scale = last.bits(parts.scale, 2.0 + parts.ratio)
    return _finished(rows, None, round_to(means, narrow) if mean else means, round_to(scale, narrow), last)


def _stepped(rows: Rows, narrow: Format, last: Last) -> Array:
    """As separate operators do: each result rounded."""
    moved = round_to(rows.x - round_to(last.bits(rows.x.mean(1, keepdims=True), 2.0), narrow), narrow) if rows.centred else rows.x
    variance = round_to(last.bits(round_to(np.square(moved), narrow).mean(1, keepdims=True), 2.0), narrow)
    scale = round_to(1.0 / np.sqrt(round_to(variance + rows.epsilon, narrow)), narrow)
    return np.asarray(round_to(round_to(moved * scale, narrow) * rows.weight, narrow) + rows.bias)


def _running(rows: Rows, narrow: Format, last: Last, *, cast: bool = False) -> Array:
    """Mean and variance from running sums in `narrow`."""
    terms = rows.x.shape[1]
    mean = chain(rows.x, narrow) / terms if rows.centred else np.zeros((rows.x.shape[0], 1))
    variance = chain(np.square(rows.x - mean), narrow) / terms
    return _finished(rows, narrow if cast else None, mean, last.bits(1.0 / np.sqrt(variance + rows.epsilon), 1.0), last)


def _factors(rows: Rows, parts: _Parts, format: Format) -> tuple[Array, Array, Array]:
    """The scale that each row was multiplied by, by least squares over its elements, its standard error,
    and the scatter of its elements about it over their rounding; each [r]."""
    part = (rows.x - parts.mean) * rows.weight
    units = max(format.unit, FLOAT32.unit)
    floor = 2.0 * FLOAT32.unit * (parts.scale * np.abs(rows.weight) * (np.abs(rows.x) + np.abs(parts.mean)) + np.abs(rows.bias))
    error = np.hypot(ROUNDING_SIGMA * units * np.abs(rows.y), floor) + 1e-30
    live = np.isfinite(rows.y) & (part != 0)
    weight = np.where(live, np.square(part / error), 0.0)
    total = weight.sum(1)
    with np.errstate(all="ignore"):
        ratio = np.where(live, (rows.y - rows.bias) / np.where(live, part, 1.0), 0.0)
        found = (weight * ratio).sum(1) / total
        spread = np.sqrt((weight * np.square(np.where(live, ratio - found[:, None], 0.0))).sum(1) / np.maximum(live.sum(1) - 1, 1))
    apart = np.array([np.unique(np.abs(row)).size for row in rows.y])
    alike = np.sqrt(live.sum(1) / np.maximum(apart, 1))  # equal results were rounded by the same error
    return found, alike * np.maximum(spread, 1.0) / np.sqrt(np.where(total > 0, total, np.nan)), spread


def epsilons(rows: Rows, parts: _Parts, format: Format) -> Iterator[Fit | None]:
    """Epsilon (F12) from the results, and from the scales where those were recorded in fp32.

    Nothing is fitted to few rows, nor to results that are no multiple of what was normalised.
    """
    if rows.x.shape[0] < _FEW_ROWS or rows.x.shape[1] < _FEW_TERMS:
        return
    factor, error, spread = _factors(rows, parts, format)
    if np.median(spread) <= _LIKE:
        yield _epsilon("epsilon", rows, parts, factor, error)
    if rows.scales is not None and _finer(rows.scales):
        yield _epsilon("epsilon of the recorded scale", rows, parts, rows.scales, ROUNDING_SIGMA * FLOAT32.unit * np.abs(rows.scales))


def _finer(scales: Array) -> bool:
    """Whether recorded scales are finer than 16 bits."""
    return bool(np.any(round_to(scales, BFLOAT16) != scales) and np.any(round_to(scales, FLOAT16) != scales))


def _epsilon(name: str, rows: Rows, parts: _Parts, factor: Array, error: Array) -> Fit | None:
    """1 / factor^2 - variance, over rows; the error from their scatter, what each leaves, and the bias of one-signed sums (F11)."""
    whole = parts.variance[:, 0] + rows.epsilon
    with np.errstate(all="ignore"):
        each = 1.0 / np.square(factor) - parts.variance[:, 0]
        sigma = 2.0 * error / np.abs(factor) ** 3
    terms = rows.x.shape[1]
    drawn = 2.0 * whole * FLOAT32.unit * ROUNDING_SIGMA * np.sqrt(math.log2(terms + 1) / 6.0 + 4.0) * parts.ratio[:, 0]
    sigma = np.hypot(sigma, drawn)
    live = np.isfinite(each) & np.isfinite(sigma) & (sigma > 0)
    if not np.any(live):
        return None
    weight = 1.0 / np.square(sigma[live])
    total = float(weight.sum())
    value = float((weight * each[live]).sum()) / total
    scatter = math.sqrt(float((np.square(weight * (each[live] - value))).sum())) / total if live.sum() > 1 else 0.0
    mean = float((weight * whole[live] * parts.ratio[live, 0]).sum()) / total
    bias = FLOAT32.unit * (ONE_SIGNED_BIAS * min(terms, 4096) / 2.0 + 1.0) * mean
    return fit(name, value, math.hypot(max(scatter, total**-0.5), bias), rows.epsilon)


def _variance(rows: Rows, parts: _Parts, format: Format) -> tuple[list[tuple[Hypothesis, float]], str]:
    """Two passes (or Welford's) against E[x^2] - mean^2, by the size of the error of each row's scale."""
    if rows.scales is not None and _finer(rows.scales):
        factor, error = rows.scales, ROUNDING_SIGMA * FLOAT32.unit * np.abs(rows.scales)
    else:
        factor, error, _ = _factors(rows, parts, format)
    scale, ratio = parts.scale[:, 0], parts.ratio[:, 0]
    with np.errstate(all="ignore"):
        off, noise = factor / scale - 1.0, error / scale
    live = np.isfinite(off) & np.isfinite(noise)
    off, noise, ratio = off[live], noise[live], ratio[live]
    if not off.size:
        return [], "No row tells how the variance was summed."
    u, terms = FLOAT32.unit, rows.x.shape[1]
    drawn = ROUNDING_SIGMA * math.sqrt(terms / 12.0 + 4.0)
    two = np.hypot(u * (drawn + np.sqrt(ratio)), noise)
    least, one = np.hypot(0.3 * u * ratio, noise), np.hypot(u * drawn * ratio, noise)
    telling = least > _CLEAR * two
    names = ("variance in two passes, or Welford's", "variance in one pass, E[x^2] - mean^2")
    count = int(telling.sum())
    if count < 1:
        size = float(np.sqrt(np.median(ratio - 1.0)))
        said = f"Two passes and one pass of the variance are not told apart: a row's mean is {size:.2g} deviations, too few."
        return [(Hypothesis(name, (), "", "variant", 0, 0, False), float("nan")) for name in names], said
    off, two, one, least = off[telling], two[telling], one[telling], least[telling]
    zs = tuple(float(np.sqrt(np.mean(np.square(off / size)))) for size in (two, one))
    within = tuple(int(np.count_nonzero(np.abs(off) <= 4.0 * size)) for size in (two, one))
    twice = zs[0] <= _CLEAR / 2.0
    once = not twice and zs[1] <= 2.0
    whole = [
        (Hypothesis(names[0], (), "", "variant", within[0], count, twice), zs[0]),
        (Hypothesis(names[1], (), "", "variant", within[1], count, once), zs[1]),
    ]
    figures = f"its rows' scales are off by {zs[0]:.3g} sigma of two passes and {zs[1]:.3g} of one, over {count} rows"
    if twice:
        return whole, f"The variance was summed in two passes or by Welford's, not as E[x^2] - mean^2: {figures}."
    if once:
        return whole[::-1], f"The variance was taken as E[x^2] - mean^2 in one pass: {figures}."
    return whole, f"Neither two passes nor one in fp32 make this variance: {figures}."
