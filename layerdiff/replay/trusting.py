"""Kernels that trust their arguments: what torch's Python functions check before they call them, checked here.

A trace may name the kernel itself with numbers that no function would pass on, and the kernel would read or write outside its
operands. Each check here stands for a kernel that does; those that check for themselves are not repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from torch import Tensor

from layerdiff.replay.refusal import CannotReplay

_PER_CHANNEL: Final = ("weight", "bias", "running_mean", "running_var")


def _channels(given: dict[str, Any]) -> None:
    x = given.get("input", given.get("self"))
    if not isinstance(x, Tensor) or x.dim() < 2:
        raise CannotReplay("its input has no channels")
    for name in _PER_CHANNEL:
        each = given.get(name)
        if each is not None and (not isinstance(each, Tensor) or tuple(each.shape) != (x.shape[1],)):
            raise CannotReplay(f"its argument {name!r} has not one number for each of {x.shape[1]} channels")


def _scales(given: dict[str, Any]) -> None:
    """A scale other than the one between the two sizes reads outside the input."""
    x, size = given.get("input", given.get("self")), given.get("output_size")
    if not isinstance(x, Tensor) or not isinstance(size, (list, tuple)) or x.dim() != len(size) + 2:
        return  # another overload, which makes its scales from the sizes
    names = ("scales",) if len(size) == 1 else ("scales_d", "scales_h", "scales_w")[-len(size) :]
    for before, after, name in zip(x.shape[2:], size, names, strict=True):
        scale = given.get(name)
        if scale is None:
            continue
        if (
            not isinstance(scale, (int, float))
            or not math.isfinite(scale)
            or scale <= 0
            or abs(before * scale - after) > 1.0 + 1e-6 * after
        ):
            raise CannotReplay(f"its argument {name!r} is not the scale from {before} to {after}")


def _half_spectrum(given: dict[str, Any]) -> None:
    x, dims, size = given["self"], given["dim"], given["last_dim_size"]
    if not dims or not -x.dim() <= dims[-1] < x.dim() or type(size) is not int or not size > 0 or x.shape[dims[-1]] != size // 2 + 1:
        raise CannotReplay("its input is not half the spectrum of its result")


def _one_length_each(given: dict[str, Any]) -> None:
    v, g, dim = given["v"], given["g"], given["dim"]
    if v.dim() == 0 or dim not in (0, v.dim() - 1) or g.dim() != v.dim() or g.numel() != v.shape[dim] or g.shape[dim] != v.shape[dim]:
        raise CannotReplay("its lengths are not one for each slice of its weights")


_CHECKS: Final[dict[str, Callable[[dict[str, Any]], None]]] = {
    **dict.fromkeys(
        (
            "native_batch_norm",
            "cudnn_batch_norm",
            "batch_norm",
            "_batch_norm_no_update",
            "_batch_norm_with_update",
            "_batch_norm_with_update_functional",
            "_native_batch_norm_legit",
            "_native_batch_norm_legit_functional",
            "_native_batch_norm_legit_no_training",
        ),
        _channels,
    ),
    **dict.fromkeys(
        (
            "upsample_nearest1d",
            "upsample_nearest2d",
            "upsample_nearest3d",
            "_upsample_nearest_exact1d",
            "_upsample_nearest_exact2d",
            "_upsample_nearest_exact3d",
            "upsample_linear1d",
            "upsample_bilinear2d",
            "upsample_trilinear3d",
            "upsample_bicubic2d",
            "_upsample_bilinear2d_aa",
            "_upsample_bicubic2d_aa",
        ),
        _scales,
    ),
    "_fft_c2r": _half_spectrum,
    "_weight_norm_interface": _one_length_each,
}


def require_sound(function: str, given: Callable[[], dict[str, Any]]) -> None:
    """Raises CannotReplay where the kernel of `function` would leave its operands. `given` has the arguments by name."""
    check = _CHECKS.get(function)
    if check is not None:
        check(given())
