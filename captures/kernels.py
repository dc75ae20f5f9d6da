"""Kernels that compute something else than they should: what they return is changed below the recorder, which sees only that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = ("aten.mm.default", "aten.addmm.default", "aten.bmm.default")

Result = Any
Change = Callable[[Any, tuple[Any, ...], dict[str, Any], Result], Result]
"""What a call really returns: of the operator, its arguments, and the right result."""


class Kernel(TorchDispatchMode):
    """Changes what operators of some names return inside one module, and not inside its children.

    Entered before the recorder is, so it lies below it. `call` chooses one call of each forward, None all.
    """

    def __init__(self, module: torch.nn.Module, names: tuple[str, ...], change: Change, *, call: int | None = None) -> None:
        super().__init__()
        self.names, self.change, self.call = names, change, call
        self.effect = False
        """Whether any result got other bits: a small change may be none in a coarse dtype."""
        self._inside: list[bool] = []
        self._count = 0
        inner = set(module.modules()) - {module}
        for part in module.modules():
            self._watch(part, part not in inner)

    def _watch(self, module: torch.nn.Module, chosen: bool) -> None:
        forward = module.forward

        def watched(*args: Any, **kwargs: Any) -> Any:
            self._inside.append(chosen)
            if chosen:
                self._count = 0
            try:
                return forward(*args, **kwargs)
            finally:
                self._inside.pop()

        module.forward = watched

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not (self._inside and self._inside[-1] and str(func) in self.names):
            return result
        number, self._count = self._count, self._count + 1
        if self.call is not None and number != self.call:
            return result
        changed = self.change(func, args, kwargs or {}, result)
        # Into the memory that the right kernel wrote, so that layout and aliasing stay as they were.
        for wrong, right in zip(_tensors(changed), _tensors(result), strict=True):
            if wrong is not right:
                self.effect = self.effect or not torch.equal(wrong.nan_to_num(), right.nan_to_num()) or bool(wrong.isnan().any())
                with torch.autograd._unsafe_preserve_version_counter(right):
                    right.copy_(wrong)
        return result


def _tensors(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else [part for part in result if isinstance(part, Tensor)]


def product(change: Callable[[Tensor, Tensor], Tensor]) -> Change:
    """A product computed anew from its operands, in float64 but for what `change` does; a bias is added after."""

    def changed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Tensor:
        bias, a, b = args if str(func) == "aten.addmm.default" else (None, *args[:2])
        y = change(a.double(), b.double())
        return (y if bias is None else y + bias.double()).to(result.dtype)

    return changed


def bf16_partial_sums(a: Tensor, b: Tensor) -> Tensor:
    """A product whose sum is cut into four, each part rounded to bfloat16."""
    pieces = zip(a.chunk(4, -1), b.chunk(4, -2), strict=True)
    return torch.stack([(x @ y).bfloat16().double() for x, y in pieces]).sum(0)


def split_dropped(a: Tensor, b: Tensor) -> Tensor:
    """A product that lacks the last quarter of its sum."""
    kept = a.shape[-1] * 3 // 4
    return a[..., :kept] @ b[..., :kept, :]


def ring_of_four(a: Tensor, b: Tensor) -> Tensor:
    """A product of which four ranks make a quarter each, in bfloat16, added in a ring: chunk c of the result begins at rank c + 1."""
    pieces = zip(a.chunk(4, -1), b.chunk(4, -2), strict=True)
    parts = torch.stack([(x @ y).bfloat16() for x, y in pieces])
    chunks = []
    for number, chunk in enumerate(parts.flatten(1).chunk(4, -1)):
        first, *others = chunk.roll(-(number + 1), 0)
        for other in others:
            first = first + other
        chunks.append(first)
    return torch.cat(chunks).double().view(parts.shape[1:])
