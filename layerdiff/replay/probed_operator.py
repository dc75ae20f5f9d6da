"""`resolved` and `summing_of`: which callable is probed, and which of its operands hold the terms of its sums.

A callable of the user's is imported by the name that the user typed; nothing that comes out of a trace gets here but numbers.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from layerdiff.arithmetic.formats import format_named
from layerdiff.arithmetic.orders.probing_scale import ProbeError
from layerdiff.replay.positive import Denominator, Squares
from layerdiff.replay.sizes import first_line
from layerdiff.replay.summing import Convolved, Multiplied, Reduced, Summing

Shape = Sequence[int]

OPERATORS: Final = (
    "sum", "mean", "dot", "mv", "mm", "matmul", "bmm", "linear", "addmm", "baddbmm", "conv1d", "conv2d", "conv3d", "softmax",
    "log_softmax", "layer_norm", "rms_norm",
)  # fmt: skip
"""What can be probed by name; also what a callable of the user's can be said to be (`form`). `all_reduce` has a probe of its own."""


@dataclass(frozen=True)
class Given:
    """An operator as it is to be run."""

    run: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...] | None, ...]
    dims: tuple[int, ...] | None
    dtype: torch.dtype
    device: torch.device


def dtype_of(name: str) -> torch.dtype:
    """The float dtype of that name. Raises ProbeError."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point or format_named(name) is None:
        raise ProbeError(f"{name[:40]!r} is no dtype of floats in torch {torch.__version__}. Give float32, bfloat16, float16 or float64.")
    return found


def device_of(name: str) -> torch.device:
    """The device of that name, where this machine has it. Raises ProbeError."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except Exception as error:
        raise ProbeError(f"The device {name[:40]!r} cannot be used: {first_line(error)}. Probe where the device is.") from None
    return device


def device_name(device: torch.device) -> str:
    """What the device calls itself."""
    if device.type == "cpu":
        return f"{platform.machine() or 'cpu'} {torch.backends.cpu.get_cpu_capability()}"
    try:
        return str(getattr(torch, device.type).get_device_name(device))[:200]
    except Exception:
        return device.type


def callable_named(text: str) -> Callable[..., Any]:
    """The callable `module:function` (or `module:a.b`), imported. Only for a name that the user typed. Raises ProbeError."""
    module, _, path = text.partition(":")
    try:
        found: Any = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise ProbeError(f"{text} cannot be imported: {first_line(error)}. Give module:function, importable from here.") from None
    if not callable(found):
        raise ProbeError(f"{text} is not callable.")
    return found  # type: ignore[no-any-return]  # whatever the user's module holds


def resolved(operator: str | Callable[..., Any], form: str | None, operands: int) -> tuple[Callable[..., Any], str, str]:
    """The callable, the form that it has, and its name."""
    if isinstance(operator, str) and ":" not in operator:
        if operator not in OPERATORS:
            raise ProbeError(
                f"{operator[:60]!r} cannot be probed by name; these can: {', '.join(OPERATORS)}, all_reduce, or module:function."
            )
        return _BUILT_IN.get(operator, partial(_missing, operator)), operator, operator
    form = form or ("sum" if operands == 1 else "matmul")
    if form not in OPERATORS:
        raise ProbeError(f"A callable cannot be probed as {form[:60]!r}; these can be named: {', '.join(OPERATORS)}.")
    if isinstance(operator, str):
        return callable_named(operator), form, operator
    return operator, form, getattr(operator, "__qualname__", type(operator).__name__)[:200]


def _missing(name: str, *_: Any) -> Any:
    raise ProbeError(f"{name} has no built-in form.")


_BUILT_IN: Final[dict[str, Callable[..., Any]]] = {
    "dot": torch.dot,
    "mv": torch.mv,
    "mm": torch.mm,
    "matmul": torch.matmul,
    "bmm": torch.bmm,
    "linear": functional.linear,
    "addmm": torch.addmm,
    "baddbmm": torch.baddbmm,
    "conv1d": functional.conv1d,
    "conv2d": functional.conv2d,
    "conv3d": functional.conv3d,
}
_OPERANDS: Final = {
    "sum": (1,),
    "mean": (1,),
    "softmax": (1,),
    "log_softmax": (1,),
    "rms_norm": (1,),
    "layer_norm": (1,),
    "linear": (2, 3),
    "addmm": (3,),
    "baddbmm": (3,),
}


def summing_of(form: str, given: Given) -> Summing:
    """The operator as a sum of terms that can be chosen."""
    allowed = _OPERANDS.get(form, (2,))
    if len(given.shapes) not in allowed:
        raise ProbeError(f"{form} has {' or '.join(map(str, allowed))} operands; {len(given.shapes)} shapes were given.")
    built_in = isinstance(given.run, partial) and given.run.func is _missing
    dtype, device = given.dtype, given.device
    if form in ("sum", "mean"):
        function = torch.sum if form == "sum" else torch.mean
        dims = given.dims
        run = (function if dims is None else partial(function, dim=dims)) if built_in else given.run
        return Reduced(run, given.shapes[0], dims, dtype, device, mean=form == "mean")
    if form == "layer_norm":
        run = partial(_mean_of_layer_norm, given.shapes[0][-1:]) if built_in else given.run
        return Reduced(run, given.shapes[0], (-1,), dtype, device, mean=True)
    if form in ("softmax", "log_softmax"):
        dim = (given.dims or (-1,))[0]
        run = partial(torch.softmax if form == "softmax" else torch.log_softmax, dim=dim) if built_in else given.run
        return Denominator(run, given.shapes[0], dim, dtype, device, log=form == "log_softmax")
    if form == "rms_norm":
        run = partial(_rms_norm, given.shapes[0][-1:]) if built_in else given.run
        return Squares(run, given.shapes[0], dtype, device)
    if form.startswith("conv"):
        return Convolved(given.run, given.shapes[0], given.shapes[1], dtype, device)
    if form in ("addmm", "baddbmm"):
        bias, left, right = given.shapes
        run = given.run
        return Multiplied(
            lambda a, b, c: run(c, a, b), left, right, -2, dtype, device, bias=bias, strides=(given.strides[1], given.strides[2])
        )
    left, right, *rest = given.shapes
    across = -1 if form == "linear" or len(right) == 1 else -2
    return Multiplied(given.run, left, right, across, dtype, device, bias=rest[0] if rest else None, strides=given.strides[:2])


def _rms_norm(normalised: Shape, x: Tensor) -> Tensor:
    return functional.rms_norm(x, list(normalised), None, 1e-5)


def _mean_of_layer_norm(normalised: Shape, x: Tensor) -> Tensor:
    return torch.native_layer_norm(x, list(normalised), None, None, 1e-5)[1]
