"""Normalisations: layer, RMS, group and batch norm, and the variance they rest on.

The mean and the scale of a row are one draw for the whole row, so their errors count twice over (SHARED), and what is
subtracted may be subtracted before or after it is multiplied: the floor is u times the sizes of both parts.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from layerdiff.arithmetic.contract import Array, Contract, ContractError, Spread, bind, grid_of
from layerdiff.arithmetic.contracts.elementwise import closer
from layerdiff.arithmetic.contracts.reductions import ONE_SIGNED_BIAS, axes_of, count_of
from layerdiff.arithmetic.contracts.softmax import SHARED
from layerdiff.arithmetic.formats import FLOAT32, Format
from layerdiff.arithmetic.sums import ROUNDING_SIGMA, gamma, sum_bound, sum_sigma
from layerdiff.trace.arguments import Arguments

_Batch = tuple[Array, "Array | float", "Array | float", Array, Array, float, bool, tuple[int, ...]]
"""x, weight, bias, mean and variance (shaped to broadcast), epsilon, whether the statistics are of this batch, their axes."""
_EPSILONS: Final = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23}
"""torch.finfo(dtype).eps: what rms_norm takes where no epsilon is given."""


def _scale_error(count: int, ratio: Array, accumulator: Format) -> tuple[Array, Array]:
    """Relative sigma and bound of (m + eps)^-1/2: F12, 0.42 u sqrt(K/12 + 4), half of the bias F11; `ratio` is E[x^2] over m + eps.

    The ratio is 1 where the mean is 0; it grows as the square of mean over deviation for the one-pass variance E[x^2] - mean^2.
    """
    u = accumulator.unit
    draw = np.hypot(ROUNDING_SIGMA * np.sqrt(count / 12.0 + 4.0), ONE_SIGNED_BIAS * min(count, 4096) / 4.0)
    return SHARED * u * draw * ratio, (0.5 * gamma(count + 1, u) + 4.0 * u) * ratio + 8.0 * u


def _normalised_spread(
    x: Array,
    y: Array,
    mean: Array,
    variance: Array,
    epsilon: float,
    weight: Array | float,
    bias: Array | float,
    axes: tuple[int, ...],
    accumulator: Format,
) -> tuple[Spread, Spread, Spread]:
    """Spreads of y = (x - mean) r g + b, of the mean and of r = (variance + eps)^-1/2, statistics taken over `axes` (F12, F13).

    mean and variance keep their axes; y has x's shape; weight and bias broadcast to it.
    """
    u, count = accumulator.unit, max(count_of(x, axes), 1)
    squares, sizes = np.square(x).sum(axes, keepdims=True), np.abs(x).sum(axes, keepdims=True)
    mean_sigma = sum_sigma(mean * count, squares, count, accumulator, products=False) / count + u * np.abs(mean)
    mean_bound = sum_bound(sizes, count, accumulator, products=False) / count + 2.0 * u * np.abs(mean)
    scale = 1.0 / np.sqrt(variance + epsilon)
    ratio = np.maximum((squares / count + epsilon) / (variance + epsilon), 1.0)
    relative_sigma, relative_bound = _scale_error(count, ratio, accumulator)
    factor = scale * np.abs(weight)
    parts = u * (factor * (np.abs(x) + np.abs(mean)) + np.abs(bias) + np.abs(y))
    moved = np.abs(y - bias)
    sigma = np.sqrt(np.square(SHARED * factor * mean_sigma) + np.square(moved * relative_sigma) + np.square(parts))
    bound = factor * mean_bound + moved * relative_bound + 4.0 * parts
    overflow = np.where(squares > accumulator.largest, np.inf, 0.0)
    return (
        Spread(sigma, bound + overflow, count),
        Spread(SHARED * mean_sigma, mean_bound, count),
        Spread(scale * (relative_sigma + 2.0 * u), scale * relative_bound + overflow, count),
    )


def _moments(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    mean = x.mean(axes, keepdims=True)
    return mean, np.square(x - mean).mean(axes, keepdims=True)


def _layer(arguments: Arguments) -> tuple[Array, tuple[int, ...], Array | float, Array | float, float]:
    names = ("input", "normalized_shape", "weight", "bias", "eps", "cudnn_enable")
    x, shape, weight, bias, epsilon, _ = bind(arguments, names, weight=None, bias=None, eps=1e-5, cudnn_enable=True)
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    return x, axes, 1.0 if weight is None else weight, 0.0 if bias is None else bias, epsilon


def _layer_norm(arguments: Arguments) -> tuple[Array, ...]:
    x, axes, weight, bias, epsilon = _layer(arguments)
    mean, variance = _moments(x, axes)
    scale = 1.0 / np.sqrt(variance + epsilon)
    return np.asarray((x - mean) * scale * weight + bias), mean, scale


def _layer_norm_spread(arguments: Arguments, results: tuple[Array, ...], accumulator: Format) -> tuple[Spread, ...]:
    x, axes, weight, bias, epsilon = _layer(arguments)
    mean, variance = _moments(x, axes)
    return _normalised_spread(x, results[0], mean, variance, epsilon, weight, bias, axes, accumulator)[: len(results)]


def _rms(arguments: Arguments) -> tuple[Array, tuple[int, ...], Array | float, float]:
    x, shape, weight, epsilon = bind(arguments, ("input", "normalized_shape", "weight", "eps"), weight=None, eps=None)
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    return x, axes, 1.0 if weight is None else weight, _EPSILONS["float32"] if epsilon is None else epsilon


def _rms_norm(arguments: Arguments) -> tuple[Array, ...]:
    x, axes, weight, epsilon = _rms(arguments)
    scale = 1.0 / np.sqrt(np.square(x).mean(axes, keepdims=True) + epsilon)
    return np.asarray(x * scale * weight), scale


def _rms_norm_settle(arguments: Arguments, results: tuple[Array, ...], recorded: tuple[Array, ...]) -> tuple[Array, ...]:
    """Without an epsilon some kernels take that of the accumulator, others that of the operand's dtype: the recorded scale says which."""
    x, axes, weight, _ = _rms(arguments)
    epsilon, grid = bind(arguments, ("input", "normalized_shape", "weight", "eps"), weight=None, eps=None)[3], grid_of(x)
    if epsilon is not None or grid is FLOAT32 or recorded[0].shape != results[0].shape:
        return results
    scale = 1.0 / np.sqrt(np.square(x).mean(axes, keepdims=True) + _EPSILONS[grid.name])
    other = np.asarray(x * scale * weight)
    return (other, scale)[: len(results)] if closer(recorded[0], results[0], other, grid) is other else results


def _rms_norm_spread(arguments: Arguments, results: tuple[Array, ...], accumulator: Format) -> tuple[Spread, ...]:
    x, axes, weight, epsilon = _rms(arguments)
    zero = np.zeros_like(results[0][..., :1])
    y, _, scale = _normalised_spread(x, results[0], zero, np.square(x).mean(axes, keepdims=True), epsilon, weight, 0.0, axes, accumulator)
    return (y, scale)[: len(results)]


def _group(arguments: Arguments) -> tuple[Array, Array | float, Array | float, float, tuple[int, ...]]:
    """The input as [N, group, C/group, HxW], weight and bias to match, epsilon, the shape."""
    x, weight, bias, n, channels, inner, group, epsilon = bind(arguments, ("input", "weight", "bias", "N", "C", "HxW", "group", "eps"))
    shape = (1, group, channels // group, 1)
    return (
        x.reshape(n, group, channels // group, inner),
        1.0 if weight is None else weight.reshape(shape),
        0.0 if bias is None else bias.reshape(shape),
        epsilon,
        x.shape,
    )


def _group_norm(arguments: Arguments) -> tuple[Array, ...]:
    x, weight, bias, epsilon, shape = _group(arguments)
    mean, variance = _moments(x, (2, 3))
    scale = 1.0 / np.sqrt(variance + epsilon)
    y = (x - mean) * scale * weight + bias
    return y.reshape(shape), mean[:, :, 0, 0], scale[:, :, 0, 0]


def _group_norm_spread(arguments: Arguments, results: tuple[Array, ...], accumulator: Format) -> tuple[Spread, ...]:
    x, weight, bias, epsilon, shape = _group(arguments)
    mean, variance = _moments(x, (2, 3))
    y, mean_spread, scale = _normalised_spread(x, results[0].reshape(x.shape), mean, variance, epsilon, weight, bias, (2, 3), accumulator)
    whole = Spread(y.sigma.reshape(shape), np.broadcast_to(y.bound, x.shape).reshape(shape), y.terms)
    return (whole, *(Spread(s.sigma[:, :, 0, 0], s.bound[:, :, 0, 0], s.terms) for s in (mean_spread, scale)))[: len(results)]


_BATCH: Final = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps", "cudnn_enabled")


def _batch(arguments: Arguments, training: bool | None) -> _Batch:
    names = _BATCH if training is None else tuple(name for name in _BATCH if name != "training")
    found = dict(zip(names, bind(arguments, names, cudnn_enabled=False, weight=None, bias=None), strict=True))
    x = found["input"]
    if x.ndim < 2:
        raise ContractError("A batch norm of a tensor without channels.")
    shape, axes = (1, x.shape[1]) + (1,) * (x.ndim - 2), (0, *range(2, x.ndim))
    trained = bool(found["training"]) if training is None else training
    if trained or found["running_mean"] is None:
        mean, variance = _moments(x, axes)
        trained = True
    else:
        mean, variance = found["running_mean"].reshape(shape), found["running_var"].reshape(shape)
    weight, bias = (default if found[name] is None else found[name].reshape(shape) for name, default in (("weight", 1.0), ("bias", 0.0)))
    return x, weight, bias, mean, variance, found["eps"], trained, axes


def _batch_contract(training: bool | None) -> Contract:
    def exact(arguments: Arguments) -> tuple[Array, ...]:
        x, weight, bias, mean, variance, epsilon, trained, _ = _batch(arguments, training)
        scale = 1.0 / np.sqrt(variance + epsilon)
        y = np.asarray((x - mean) * scale * weight + bias)
        return (y, mean.reshape(-1), scale.reshape(-1)) if trained else (y,)

    def spread(arguments: Arguments, results: tuple[Array, ...], accumulator: Format) -> tuple[Spread, ...]:
        x, weight, bias, mean, variance, epsilon, trained, axes = _batch(arguments, training)
        if trained:
            y, mean_spread, scale_spread = _normalised_spread(x, results[0], mean, variance, epsilon, weight, bias, axes, accumulator)
            grid = grid_of(x)  # in 16 bits the scale is made of a variance that is rounded itself (torch's CPU)
            narrow = 0.0 if grid is FLOAT32 else grid.unit / np.sqrt(variance.reshape(-1) + epsilon)
            scale = Spread(scale_spread.sigma.reshape(-1) + narrow / 2.0, scale_spread.bound.reshape(-1) + narrow, scale_spread.terms)
            return (y, Spread(mean_spread.sigma.reshape(-1), mean_spread.bound.reshape(-1), mean_spread.terms), scale)[: len(results)]
        factor = np.abs(weight) / np.sqrt(variance + epsilon)
        bound = 8.0 * accumulator.unit * (factor * (np.abs(x) + np.abs(mean)) + np.abs(bias))
        return (Spread(bound / 2.0, bound, 4),)

    def settle(arguments: Arguments, results: tuple[Array, ...], recorded: tuple[Array, ...]) -> tuple[Array, ...]:
        """Statistics that are kept in 16 bits are used as kept: then the result follows from the recorded ones, themselves compared."""
        if len(results) < 3 or len(recorded) < 3 or any(a.shape != b.shape for a, b in zip(results, recorded, strict=False)):
            return results[:1]
        x, weight, bias, mean, _, _, _, _ = _batch(arguments, training)
        grid = grid_of(recorded[1], recorded[2])
        if grid is FLOAT32:
            return results
        other = np.asarray((x - recorded[1].reshape(mean.shape)) * recorded[2].reshape(mean.shape) * weight + bias)
        return (closer(recorded[0], results[0], other, grid), *results[1:])

    return Contract(exact, spread, settle)


def _variance(overload: str, root: bool, with_mean: bool) -> Contract:
    def values(arguments: Arguments) -> tuple[Array, tuple[int, ...], float, bool]:
        dim: Any
        correction: Any
        if overload == "correction":
            x, dim, correction, keepdim = bind(
                arguments, ("self", "dim", "correction", "keepdim"), dim=None, correction=None, keepdim=False
            )
            correction = 1 if correction is None else correction
        elif overload == "dim":
            x, dim, unbiased, keepdim = bind(arguments, ("self", "dim", "unbiased", "keepdim"), unbiased=True, keepdim=False)
            correction = int(unbiased)
        else:
            x, unbiased = bind(arguments, ("self", "unbiased"), unbiased=True)
            dim, correction, keepdim = None, int(unbiased), False
        return x, axes_of(x, dim), correction, keepdim

    def exact(arguments: Arguments) -> tuple[Array, ...]:
        x, axes, correction, keepdim = values(arguments)
        count = count_of(x, axes)
        with np.errstate(all="ignore"):
            mean = x.mean(axes, keepdims=True)
            found = np.square(x - mean).sum(axes, keepdims=keepdim) / np.maximum(count - correction, 0)
        return (np.asarray(np.sqrt(found) if root else found),) + ((np.asarray(x.mean(axes, keepdims=keepdim)),) if with_mean else ())

    def spread(arguments: Arguments, results: tuple[Array, ...], accumulator: Format) -> tuple[Spread, ...]:
        x, axes, _, keepdim = values(arguments)
        count, u = max(count_of(x, axes), 1), accumulator.unit
        mean, squares = x.mean(axes, keepdims=keepdim), np.square(x).sum(axes, keepdims=keepdim)
        deviation = results[0] if root else np.sqrt(results[0])
        size = deviation * (deviation + np.abs(mean))  # the mean is subtracted before squares are summed
        draw = np.hypot(ROUNDING_SIGMA * np.sqrt(count / 3.0 + 4.0), ONE_SIGNED_BIAS * min(count, 4096) / 2.0) + 2.0
        sigma, bound = SHARED * u * draw * size, (gamma(2 * count + 8, u)) * size
        if root:
            half = np.where(deviation > 0, 0.5 / np.where(deviation > 0, deviation, 1.0), 0.0)
            sigma, bound = sigma * half, bound * half + 2.0 * u * deviation
        means = Spread(
            SHARED * sum_sigma(mean * count, squares, count, accumulator, products=False) / count + u * np.abs(mean),
            sum_bound(np.abs(x).sum(axes, keepdims=keepdim), count, accumulator, products=False) / count + 2.0 * u * np.abs(mean),
            count,
        )
        return (Spread(sigma, bound, count), means)[: len(results)]

    return Contract(exact, spread)


def _cumsum(arguments: Arguments) -> tuple[Array, ...]:
    x, dim, _ = bind(arguments, ("self", "dim", "dtype"), dtype=None)
    x = x.astype(np.int64) if x.dtype.kind == "b" else x
    return (np.cumsum(x, axis=dim) if x.ndim else x,)


def _cumsum_spread(arguments: Arguments, results: tuple[Array, ...], accumulator: Format) -> tuple[Spread, ...]:
    """F3 along the row: the partial sums are the results themselves; a scan over blocks is held by F4 of every prefix."""
    x, dim, _ = bind(arguments, ("self", "dim", "dtype"), dtype=None)
    if results[0].dtype.kind != "f" or not x.ndim:
        return (Spread(np.zeros(()), np.zeros(()), 1),)
    x = x.astype(np.float64)
    u, count = accumulator.unit, x.shape[dim]
    shape = [1] * x.ndim
    shape[dim] = count
    index = np.arange(1, count + 1, dtype=np.float64).reshape(shape)
    squares = np.cumsum(np.square(x), axis=dim)
    variance = np.maximum(np.cumsum(np.square(results[0]), axis=dim), index * (np.square(results[0]) / 3.0 + squares / 6.0))
    bound = np.cumsum(np.abs(x), axis=dim) * (index * u) * 1.5
    return (Spread(np.asarray(SHARED * ROUNDING_SIGMA * u * np.sqrt(variance)), bound, count),)


def _without_statistics(contract: Contract) -> Contract:
    """The composite form: the normalised result alone."""
    exact = contract.exact
    assert exact is not None
    return Contract(lambda arguments: exact(arguments)[:1], contract.spread, contract.settle)


_LAYER: Final = Contract(_layer_norm, _layer_norm_spread)
_RMS: Final = Contract(_rms_norm, _rms_norm_spread, _rms_norm_settle)

CONTRACTS: Final[dict[str, Any]] = {
    "aten.native_layer_norm": _LAYER,
    "aten.layer_norm": _without_statistics(_LAYER),
    "aten._fused_rms_norm": _RMS,
    "aten.rms_norm": _without_statistics(_RMS),
    "aten.native_group_norm": Contract(_group_norm, _group_norm_spread),
    "aten.native_batch_norm": _batch_contract(None),
    "aten._native_batch_norm_legit": _batch_contract(None),
    "aten._native_batch_norm_legit_no_training": _batch_contract(False),
    "aten._batch_norm_with_update": _batch_contract(True),
    "aten.cudnn_batch_norm": _batch_contract(None),
    "aten.batch_norm": _without_statistics(_batch_contract(None)),
    "aten.cumsum": Contract(_cumsum, _cumsum_spread),
    **{
        f"aten.{name}.{overload}": _variance(overload, name.startswith("std"), name.endswith("mean"))
        for name in ("var", "std", "var_mean", "std_mean")
        for overload in ("default", "dim", "correction")
    },
}
