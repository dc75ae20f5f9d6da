"""What kinds of tensor there are, and which of them have bytes that can be recorded.

`plain` turns a tensor into strided, dense ones without changing it, or says why it cannot. A wrapper
subclass (a quantised weight, for one) is recorded as the tensors inside it.
"""

from __future__ import annotations

import json
import weakref
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

_MAX_NESTING: Final = 4
ORDINARY: Final = (Tensor, nn.Parameter, nn.Buffer) if hasattr(nn, "Buffer") else (Tensor, nn.Parameter)
_COMPLEX: Final = frozenset({torch.complex32, torch.complex64, torch.complex128})
_functorch: Any = getattr(torch._C, "_functorch", None)
_is_functorch = getattr(_functorch, "is_functorch_wrapped_tensor", lambda tensor: False)


@dataclass(frozen=True)
class Plain:
    """A tensor ready to be read, or the reason why it cannot be."""

    tensor: Tensor
    suffix: str = ""
    """What the position gains: the name of the inner tensor of a wrapper subclass."""
    reason: str | None = None
    placement: str | None = None
    """JSON, for a tensor that is a part of a logical one."""
    detail: str | None = None
    """JSON, for what the bits alone do not say."""


def is_ordinary(tensor: Tensor) -> bool:
    """Whether `tensor` is dense, strided and has bytes of its own: the common case, decided quickly."""
    return (
        type(tensor) in ORDINARY
        and tensor.layout is torch.strided
        and not tensor.is_meta
        and not tensor.is_quantized
        and not _is_functorch(tensor)
        and not tensor.is_nested
        and not tensor._is_zerotensor()
    )


_keys = torch._C._dispatch_keys
_plain_keys: dict[int, bool] = {}


def is_plain(tensor: Tensor) -> bool:
    """Whether `tensor` is ordinary, and the bits in memory are its own: not lazily conjugated or negated.

    Dispatch keys tell all of it, so that the answer is looked up.
    """
    if type(tensor) not in ORDINARY:
        return False
    keys = _keys(tensor).raw_repr()
    found = _plain_keys.get(keys)
    if found is None:
        found = _plain_keys[keys] = is_ordinary(tensor) and lies_plainly(tensor)
    return found


def lies_plainly(tensor: Tensor) -> bool:
    """Whether the bits in memory are the tensor's own: not lazily conjugated or negated."""
    return not (tensor.is_neg() or (tensor.dtype in _COMPLEX and tensor.is_conj()))


def plain(tensor: Tensor, suffix: str = "", depth: int = 0) -> list[Plain]:
    """The recordable tensors of any tensor. The list is never empty."""
    if is_ordinary(tensor):
        return [Plain(tensor, suffix)]
    if _is_functorch(tensor):
        return [_behind_transforms(tensor, suffix)]
    name = type(tensor).__name__
    if name == "FakeTensor" or name == "FunctionalTensor":
        return [Plain(tensor, suffix, f"a {name} has no bytes")]
    if name == "AsyncCollectiveTensor":  # torch's wrapper of a result that was not waited for
        return plain(tensor.elem, suffix, depth + 1)  # type: ignore[attr-defined]
    local = getattr(tensor, "_local_tensor", None)
    if isinstance(local, Tensor) and hasattr(tensor, "placements"):
        return [_with_placement(part, tensor) for part in plain(local, suffix, depth + 1)]
    if hasattr(tensor, "__tensor_flatten__") and type(tensor) not in ORDINARY:
        return _inner(tensor, suffix, depth)
    if tensor.is_meta:
        return [Plain(tensor, suffix, "on the meta device: no bytes")]
    if tensor.is_nested:
        return [Plain(tensor, suffix, "a nested tensor")]
    if tensor.is_quantized:
        said = json.dumps({"quantized": str(tensor.dtype), "scheme": str(tensor.qscheme())})
        return [Plain(tensor.detach().int_repr(), suffix, detail=said)]
    if tensor._is_zerotensor():  # autograd's zeros, which have a shape and no memory
        return [Plain(torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device), suffix)]
    if tensor.layout is not torch.strided:
        return [Plain(tensor, suffix, f"a sparse or blocked layout ({tensor.layout})")]
    if type(tensor).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
        return [Plain(tensor, suffix, f"the subclass {name} hides its bytes")]
    return [Plain(tensor.as_subclass(Tensor), suffix)]


def _behind_transforms(tensor: Tensor, suffix: str) -> Plain:
    """What vmap and grad wrap: all that is mapped over at once, along leading dimensions, the outermost vmap's first."""
    dims: list[int] = []
    while _is_functorch(tensor):
        if _functorch.is_batchedtensor(tensor):
            dims.append(_functorch.maybe_get_bdim(tensor))
        elif not _functorch.is_gradtrackingtensor(tensor):
            return Plain(tensor, suffix, "inside a functorch transform: a wrapped tensor has no bytes of its own")
        tensor = _functorch.get_unwrapped(tensor)
    if not is_ordinary(tensor):
        return Plain(tensor, suffix, "inside a functorch transform, and no ordinary tensor")
    for depth, dim in enumerate(reversed(dims)):
        tensor = tensor.movedim(dim + depth, depth)
    return Plain(tensor, suffix, detail=json.dumps({"mapped": len(dims)}) if dims else None)


def _inner(tensor: Any, suffix: str, depth: int) -> list[Plain]:
    names, _ = tensor.__tensor_flatten__()
    if not names or depth >= _MAX_NESTING:
        return [Plain(tensor, suffix, f"the subclass {type(tensor).__name__} hides its bytes")]
    return [part for name in names for part in plain(getattr(tensor, name), f"{suffix}.{name}", depth + 1)]


def _with_placement(part: Plain, whole: Any) -> Plain:
    mesh, shape = whole.device_mesh, list(whole.shape)
    coordinate = mesh.get_coordinate()
    placement = {
        "placements": [_placement(placement) for placement in whole.placements],
        "mesh": list(mesh.shape),
        "names": None if mesh.mesh_dim_names is None else list(mesh.mesh_dim_names),
        "ranks": _ranks(mesh),
        "coordinate": None if coordinate is None else list(coordinate),
        "shape": shape,
    }
    return Plain(part.tensor, part.suffix, part.reason, json.dumps(placement), detail_with(part.detail, {"global_shape": shape}))


def detail_with(detail: str | None, more: dict[str, Any]) -> str:
    """The detail of a value (JSON), with more in it."""
    return json.dumps({**({} if detail is None else json.loads(detail)), **more})


def _placement(placement: Any) -> str:
    """`Shard(0)`, `Replicate()`, `Partial(sum)`; other kinds in torch's words."""
    name = type(placement).__name__
    if name == "Shard":
        return f"Shard({placement.dim})"
    if name == "Partial":
        return f"Partial({placement.reduce_op})"
    return repr(placement)


_meshes: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _ranks(mesh: Any) -> Any:
    """The global ranks of a mesh, nested by its dimensions."""
    found = _meshes.get(mesh)
    if found is None:
        found = _meshes[mesh] = mesh.mesh.tolist()
    return found
