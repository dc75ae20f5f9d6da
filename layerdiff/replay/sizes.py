"""How large the results of a call will be, before it is made.

A trace is a stranger's file: `full([2**40], 1)` is one line in it. Cheap bounds first, for the calls that models are made of;
then the same call on tensors without memory (torch's meta device), which is exact and takes a millisecond.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from layerdiff.replay.allowed import CREATING, ELEMENTWISE, VIEWS, OperatorName, listed
from layerdiff.replay.refusal import CannotReplay

_PARTS_LIMIT: Final = 65536
# Results that are no larger than the operands broadcast against each other, beside the elementwise ones.
_WITHIN: Final = listed("""
    all amax amin any argmax argmin cumsum cumprod logsumexp max mean median min norm prod std sum var var_mean _softmax
    _log_softmax softmax log_softmax _safe_softmax argsort sort topk clone _to_copy to tril triu nonzero_static masked_fill
    where native_layer_norm native_group_norm native_batch_norm layer_norm group_norm rms_norm flip roll _local_scalar_dense
    item _unique _unique2 unique_consecutive unique_dim unique_dim_consecutive equal allclose linalg_vector_norm _fused_rms_norm
    cudnn_batch_norm gelu glu silu relu
""")
_PARTS: Final = listed("""
    split chunk unbind tensor_split split_with_sizes unsafe_split unsafe_chunk unsafe_split_with_sizes meshgrid
""")
_INDEXED: Final = frozenset({"index", "index_put", "_unsafe_index", "_unsafe_index_put", "_index_put_impl"})
_PRODUCTS: Final = frozenset({"mm", "bmm", "addmm", "baddbmm", "_int_mm"})


def require_room(
    name: OperatorName, overload: Any, positional: Sequence[Any], named: dict[str, Any], limit: int, *, known: bool = True
) -> None:
    """Raises CannotReplay where a result would have more than `limit` elements, or where that cannot be told.

    `known` is false for an operator of a trusted namespace: one that cannot run without memory is run all the same.
    """
    tensors = list(tensors_of([*positional, *named.values()]))
    for tensor in tensors:
        require_within(extent(tensor.shape), limit)
    if known:
        _require_place(name, positional, named)
        if name.function in VIEWS:
            _require_parts(name, tensors, positional, named)
            return  # nothing is allocated; the caller looks at the result
        cheap = _cheap(name, overload, tensors)
        if cheap is not None:
            require_within(cheap, limit)
            return
        counted = _counted(name, tensors, named)
        if counted is not None:
            require_within(counted, limit)
            return
    if name.in_place and name.function not in CREATING and known:
        return
    try:
        masked = name.function in _INDEXED
        hollow = {key: _hollow(thing, masked) for key, thing in named.items()}
        if any(argument.name == "device" and argument.kwarg_only for argument in overload._schema.arguments):
            hollow["device"] = torch.device("meta")  # or a tensor out of nothing but a shape would be made in earnest
        made = overload(*[_hollow(thing, masked) for thing in positional], **hollow)
    except Exception as error:
        if known:
            raise CannotReplay(f"how large its result is cannot be told before it is made ({first_line(error)})") from None
        return
    for tensor in tensors_of([made]):
        held = tensor.untyped_storage().nbytes() // max(1, tensor.element_size())
        require_within(max(extent(tensor.shape), held), limit)


def extent(shape: Sequence[int]) -> int:
    """Elements, with empty dimensions counted as 1: kernels walk the others even where nothing is there."""
    return math.prod(max(1, size) for size in shape)


def require_within(elements: int, limit: int) -> None:
    """Raises CannotReplay above the limit."""
    if elements > limit:
        raise CannotReplay(f"a tensor of it would have {elements:,} elements; the limit is {limit:,}")


def tensors_of(things: Any) -> Iterator[Tensor]:
    """All tensors in nested lists and tuples."""
    for thing in things:
        if isinstance(thing, Tensor):
            yield thing
        elif isinstance(thing, (list, tuple)):
            yield from tensors_of(thing)


def first_line(error: BaseException) -> str:
    """The first line of what an exception says, or its type where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0][:300].rstrip(".") if lines else type(error).__name__


def _cheap(name: OperatorName, overload: Any, tensors: Sequence[Tensor]) -> int | None:
    if name.function in _PRODUCTS and len(tensors) >= 2 and all(tensor.dim() >= 2 for tensor in tensors[-2:]):
        left, right = tensors[-2:]
        return math.prod(left.shape[:-1]) * right.shape[-1]
    if name.function == "linear" and len(tensors) >= 2 and tensors[1].dim() == 2:
        return math.prod(tensors[0].shape[:-1]) * tensors[1].shape[0]
    if name.function == "embedding" and len(tensors) == 2 and tensors[0].dim() == 2:
        return int(tensors[1].numel() * tensors[0].shape[1])
    if name.function == "cat":
        return sum(tensor.numel() for tensor in tensors)
    if name.function not in _WITHIN and name.function not in ELEMENTWISE and torch.Tag.pointwise not in overload.tags:
        return None
    most: list[int] = []
    for tensor in tensors:
        shape = tensor.shape
        most = [1] * (len(shape) - len(most)) + most
        for d in range(1, len(shape) + 1):
            most[-d] = max(most[-d], shape[-d])
    return math.prod(most) if tensors else None


def _counted(name: OperatorName, tensors: Sequence[Tensor], named: dict[str, Any]) -> int | None:
    """Bounds for results whose size is in the operands' contents, by looking at them."""
    function = name.function
    if function in ("nonzero", "argwhere") and tensors:
        return tensors[0].numel() * max(1, tensors[0].dim())
    if function == "masked_select" and len(tensors) >= 2:
        return int(math.prod(torch.broadcast_shapes(tensors[0].shape, tensors[1].shape)))
    if function == "repeat_interleave" and tensors and tensors[-1].dtype in (torch.int32, torch.int64):
        repeats = tensors[-1]
        total = int(repeats.to(torch.float64).abs().sum().item()) if repeats.numel() else 0
        if len(tensors) == 1:
            return total
        return total * max(1, tensors[0].numel() // max(1, repeats.numel())) if repeats.numel() > 1 else total * tensors[0].numel()
    if function == "bincount" and tensors and tensors[0].numel():
        return int(tensors[0].max().item()) + 1 + int(named.get("minlength") or 0)
    if function == "one_hot" and tensors and tensors[0].numel():
        return tensors[0].numel() * (abs(int(tensors[0].max().item())) + 1)
    return None


def _hollow(thing: Any, masked: bool) -> Any:
    """The same argument without memory. `masked`: a mask in a list becomes the places it selects, whose number is the size."""
    if isinstance(thing, Tensor):
        return torch.empty_strided(thing.shape, thing.stride(), dtype=thing.dtype, device="meta")
    if isinstance(thing, torch.device):
        return torch.device("meta")
    if isinstance(thing, (list, tuple)):
        hollow: list[Any] = []
        for item in thing:
            if masked and isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8):
                hollow += [_hollow(where, False) for where in item.nonzero().unbind(1)]
            else:
                hollow.append(_hollow(item, masked))
        return type(thing)(hollow)
    return thing


def _require_parts(name: OperatorName, tensors: Sequence[Tensor], positional: Sequence[Any], named: dict[str, Any]) -> None:
    if name.function not in _PARTS or not tensors:
        return
    given = positional[1] if len(positional) > 1 else named.get("split_size", named.get("chunks", named.get("sections", 1)))
    longest = max(tensors[0].shape, default=1)
    parts = longest
    if name.function in ("split", "unsafe_split") and isinstance(given, int) and given > 0:
        parts = -(-longest // given)
    elif isinstance(given, int) and "chunk" in name.function:
        parts = min(longest, given)
    elif isinstance(given, int) and name.function == "tensor_split":
        parts = given
    elif isinstance(given, (list, tuple)):
        parts = len(given) + 1
    if parts > _PARTS_LIMIT:
        raise CannotReplay(f"it would make up to {parts:,} tensors; the limit is {_PARTS_LIMIT:,}")


def _require_place(name: OperatorName, positional: Sequence[Any], named: dict[str, Any]) -> None:
    """A view by numbers alone must lie inside its memory; not every torch checks that."""
    if name.function.removesuffix("_copy") not in ("as_strided", "_reshape_alias", "as_strided_scatter"):
        return
    first = 2 if name.function == "as_strided_scatter" else 1
    arguments = list(positional)
    shape, strides = [*arguments[first:], named.get("size"), named.get("stride")][:2]
    given = arguments[first + 2] if len(arguments) > first + 2 else named.get("storage_offset")
    tensor = arguments[0] if arguments else named.get("self")
    if (
        not isinstance(tensor, Tensor)
        or not isinstance(shape, (list, tuple))
        or not isinstance(strides, (list, tuple))
        or len(shape) != len(strides)
    ):
        raise CannotReplay("its shape and strides cannot be read")
    if any(type(n) is not int or n < 0 for n in [*shape, *strides]):
        raise CannotReplay("its shape and strides are no natural numbers")
    offset = tensor.storage_offset() if given is None else given
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    held = tensor.untyped_storage().nbytes() // tensor.element_size()
    if 0 not in shape and not 0 <= offset <= last < held:
        raise CannotReplay(f"it reaches element {last:,} of a memory of {held:,}")
