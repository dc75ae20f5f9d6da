"""The arguments of a recorded operator call, from their picture: tensors by whoever asks, all else as plain Python.

Nothing of a picture is evaluated or looked up here: a dtype, a device or a layout becomes a `Token`, and whoever
runs the call decides which tokens it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from layerdiff.errors import TraceError

_TOKENS: Final = ("dtype", "device", "layout", "memory_format")
_MAX_DEPTH: Final = 16


class Token(NamedTuple):
    """A dtype, device, layout or memory format, by name without `torch.`: `Token("dtype", "bfloat16")`."""

    kind: str
    text: str


class Arguments(NamedTuple):
    """What an operator was called with. Tensors are whatever the caller of `decode` made of them."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def mapped(self, change: Callable[[Any], Any]) -> Arguments:
        """The same with each argument changed, inside lists and tuples too."""
        return Arguments(_mapped(self.args, change), _mapped(self.kwargs, change))


def _mapped(thing: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(thing, dict):
        return {name: _mapped(item, change) for name, item in thing.items()}
    if isinstance(thing, list):
        return [_mapped(item, change) for item in thing]
    if isinstance(thing, tuple) and not hasattr(thing, "_fields"):
        return tuple(_mapped(item, change) for item in thing)
    return change(thing)


def decode(picture: Any, tensor: Callable[[str], Any]) -> Arguments:
    """The arguments that `picture` (the `arguments` of a call's detail) shows; `tensor` is asked for the tensor at each position.

    Raises TraceError where the picture is none, or shows what cannot be an operator's argument.
    """
    if (
        not isinstance(picture, Mapping)
        or not isinstance(picture.get("args", []), list)
        or not isinstance(picture.get("kwargs", {}), Mapping)
    ):
        raise TraceError("The arguments of a call cannot be read: the recorded picture is no list and mapping. Record the run again.")
    args = tuple(_decode(item, tensor, 0) for item in picture.get("args", []))
    return Arguments(args, {str(name): _decode(item, tensor, 0) for name, item in picture.get("kwargs", {}).items()})


def _decode(thing: Any, tensor: Callable[[str], Any], depth: int) -> Any:
    if thing is None or isinstance(thing, (bool, int, float, str)):
        return thing
    if depth < _MAX_DEPTH:
        if isinstance(thing, list):
            return [_decode(item, tensor, depth + 1) for item in thing]
        if isinstance(thing, Mapping) and len(thing) == 1:
            kind, content = next(iter(thing.items()))
            if kind == "tensor" and isinstance(content, str):
                return tensor(content)
            if kind == "float" and content in ("nan", "inf", "-inf"):
                return float(content)
            if kind == "complex" and isinstance(content, list) and len(content) == 2:
                parts = [_decode(part, tensor, depth + 1) for part in content]
                if all(type(part) is float for part in parts):
                    return complex(*parts)
            if kind in _TOKENS and isinstance(content, str):
                return Token(kind, content.removeprefix("torch."))
            if kind == "tuple" and isinstance(content, list):
                return tuple(_decode(item, tensor, depth + 1) for item in content)
    raise TraceError(f"An argument of a call cannot be read: {str(thing)[:100]!r}. Its type is none that operators take.")
