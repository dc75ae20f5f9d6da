"""Computing on a model's tensors without the model, or whoever watches it, noticing.

Gradients, autocast, the transforms of functorch (vmap, grad), and the modes that users push (operator counters, default devices) are
off inside.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._python_dispatch import _pop_mode, _push_mode

function_modes: Callable[[], int] = getattr(torch._C, "_len_torch_function_stack", lambda: 0)
"""How many modes see whatever is asked of a tensor, its shape too."""
_dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
_autocast: Callable[[], bool] | None = getattr(torch._C, "_is_any_autocast_enabled", None)
_transforms: Callable[[], int | None] = getattr(getattr(torch._C, "_functorch", None), "maybe_current_level", lambda: None)
"""How deep inside transforms of functorch: what is computed there is theirs, of plain tensors too."""
_gradients = torch.is_grad_enabled
_NOTHING_TO_DO = contextlib.nullcontext()


def _is_quiet() -> bool:
    """Whether there is nothing to switch off, as where inference runs without gradients."""
    return not (_gradients() or (_autocast() if _autocast is not None else _autocast_devices()) or function_modes() or _dispatch_modes())


def quiet() -> AbstractContextManager[Any]:
    """A context in which the recorder may compute."""
    if _transforms() is not None:
        return _OutsideTransforms()
    if _is_quiet():
        return _NOTHING_TO_DO
    if not (_any_autocast() or function_modes() or _dispatch_modes()):
        return torch.no_grad()
    if _dispatch_modes() == 1 and not (function_modes() or _any_autocast()):
        return _OneModeOff()  # most often the recorder's own
    stack = contextlib.ExitStack()
    if _dispatch_modes():
        from torch.utils._python_dispatch import _disable_current_modes

        stack.enter_context(_disable_current_modes())
    if function_modes():
        stack.enter_context(torch._C.DisableTorchFunction())
    stack.enter_context(torch.no_grad())
    for device in _autocast_devices():
        stack.enter_context(torch.autocast(device, enabled=False))
    return stack


class _OutsideTransforms(contextlib.ExitStack):
    """What `quiet` does inside a transform."""

    def __enter__(self) -> _OutsideTransforms:
        from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

        super().__enter__()
        self.enter_context(temporarily_clear_interpreter_stack())
        self.enter_context(quiet())
        return self


class _OneModeOff:
    """What the rest of `quiet` does, for a stack of one mode, in a tenth of the time."""

    __slots__ = ("_gradients", "_mode")

    def __enter__(self) -> None:
        self._gradients = torch.is_grad_enabled()
        self._mode = _pop_mode()
        torch._C._set_grad_enabled(False)

    def __exit__(self, *_: object) -> None:
        torch._C._set_grad_enabled(self._gradients)
        _push_mode(self._mode)


def _autocast_devices() -> list[str]:
    devices = ["cpu"]
    if hasattr(torch, "accelerator") and torch.accelerator.is_available():
        devices.append(torch.accelerator.current_accelerator().type)  # type: ignore[union-attr]  # there is one
    elif torch.cuda.is_available():
        devices.append("cuda")
    return [device for device in devices if torch.is_autocast_enabled(device)]


def _any_autocast() -> bool:
    return bool(_autocast()) if _autocast is not None else bool(_autocast_devices())
