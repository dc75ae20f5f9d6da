"""Real ATen calls of small models, with their operands as they were before the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from layerdiff.replay.sizes import tensors_of
from layerdiff.trace.arguments import Arguments, Token


class Call(NamedTuple):
    name: str
    args: Arguments
    results: tuple[Any, ...]
    floats: frozenset[torch.dtype]
    """Of its operands, as they were."""


class Recording(TorchDispatchMode):
    """Keeps every call: floats of `args` as float64, dtypes and devices as tokens, results as they came."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        shown = Arguments(tuple(pictured(thing) for thing in args), {name: pictured(thing) for name, thing in kwargs.items()})
        floats = frozenset(thing.dtype for thing in tensors_of([*args, *kwargs.values()]) if thing.is_floating_point())
        results = func(*args, **kwargs)
        flat = results if isinstance(results, (list, tuple)) else (results,)
        name = str(func)
        self.calls.append(Call(name, shown, tuple(result.clone() if isinstance(result, Tensor) else result for result in flat), floats))
        return results


def pictured(thing: Any) -> Any:
    if isinstance(thing, Tensor):
        return widened(thing)
    if isinstance(thing, (list, tuple)):
        return type(thing)(pictured(item) for item in thing)
    if isinstance(thing, torch.dtype):
        return Token("dtype", str(thing).removeprefix("torch."))
    if isinstance(thing, torch.device):
        return Token("device", str(thing))
    if isinstance(thing, torch.layout):
        return Token("layout", str(thing).removeprefix("torch."))
    if isinstance(thing, torch.memory_format):
        return Token("memory_format", str(thing).removeprefix("torch."))
    return thing


def widened(tensor: Tensor) -> Tensor:
    """A copy with the same strides; float64 for floats."""
    kept = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype) if tensor.dim() else torch.empty((), dtype=tensor.dtype)
    if 0 in tensor.stride():
        kept = tensor.detach().clone()
    else:
        kept.copy_(tensor.detach())
    if tensor.is_floating_point():
        return kept.to(torch.float64)
    return kept.to(torch.complex128) if tensor.is_complex() else kept


def record(run: Callable[[], Any]) -> list[Call]:
    mode = Recording()
    with torch.no_grad(), mode:
        run()
    return mode.calls
