"""Norm kernels emulated in fp32 (numpy's own order of summation), with what is rounded on the way chosen."""

from __future__ import annotations

import numpy as np

from layerdiff.arithmetic.formats import Format, round_to

Array = np.ndarray


def moments(x: Array, how: str) -> tuple[Array, Array]:
    """Mean and variance of rows, fp32: "two" passes, "one" pass (E[x^2] - mean^2), "welford" one element after another."""
    narrow = x.astype(np.float32)
    if how == "welford":
        mean, squares = np.zeros(x.shape[0], np.float32), np.zeros(x.shape[0], np.float32)
        for index, column in enumerate(narrow.T):
            off = column - mean
            mean = mean + off / np.float32(index + 1)
            squares = squares + off * (column - mean)
        return mean[:, None], (squares / np.float32(x.shape[1]))[:, None]
    mean = narrow.mean(1, keepdims=True, dtype=np.float32)
    if how == "one":
        return mean, np.square(narrow).mean(1, keepdims=True, dtype=np.float32) - mean * mean
    return mean, np.square(narrow - mean).mean(1, keepdims=True, dtype=np.float32)


def layer_norm(
    x: Array, weight: Array, bias: Array, epsilon: float, format: Format, *, how: str = "two", cast: bool = False, kept: bool = False
) -> tuple[Array, Array, Array]:
    """y rounded to `format`, mean and scale [r, 1]; `cast`: the normalised value is rounded before the weight, `kept`: mean and scale."""
    mean, variance = moments(x, how)
    with np.errstate(all="ignore"):
        scale = (np.float32(1.0) / np.sqrt(variance + np.float32(epsilon))).astype(np.float32)
    if kept:
        mean, scale = (round_to(one, format).astype(np.float32) for one in (mean, scale))
    normalised = (x.astype(np.float32) - mean) * scale
    if cast:
        normalised = round_to(normalised, format).astype(np.float32)
    y = normalised * weight.astype(np.float32) + bias.astype(np.float32)
    return round_to(y, format), mean.astype(np.float64), scale.astype(np.float64)


def rms_norm(
    x: Array, weight: Array, epsilon: float, format: Format, *, cast: bool = False, narrow_sum: bool = False
) -> tuple[Array, Array]:
    """y rounded to `format` and the scale [r, 1]; `cast` as in layer_norm; `narrow_sum`: squares are summed one by one in `format`."""
    narrow = x.astype(np.float32)
    if narrow_sum:
        total = np.zeros(x.shape[0])
        for column in np.square(x).T:
            total = round_to(total + column, format)
        mean = (total[:, None] / x.shape[1]).astype(np.float32)
    else:
        mean = np.square(narrow).mean(1, keepdims=True, dtype=np.float32)
    scale = (np.float32(1.0) / np.sqrt(mean + np.float32(epsilon))).astype(np.float32)
    normalised = narrow * scale
    if cast:
        normalised = round_to(normalised, format).astype(np.float32)
    return round_to(normalised * weight.astype(np.float32), format), scale.astype(np.float64)


def softmax(x: Array, format: Format, *, total: Format | None = None, log: bool = False) -> Array:
    """softmax or log-softmax of rows, rounded to `format`; `total`: what the denominator (or its logarithm) is rounded to."""
    moved = x.astype(np.float32) - x.max(-1, keepdims=True).astype(np.float32)
    weights = np.exp(moved)
    summed = weights.sum(-1, keepdims=True, dtype=np.float32)
    if log:
        summed = np.log(summed)
        return round_to(moved - (summed if total is None else round_to(summed, total).astype(np.float32)), format)
    return round_to(weights / (summed if total is None else round_to(summed, total).astype(np.float32)), format)
