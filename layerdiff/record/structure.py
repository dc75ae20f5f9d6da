"""The tensors of nested arguments and results, with their positions, and a JSON picture of the rest.

Positions: `out`, `out[1]`, `out.last_hidden_state`, `in[0]`, `in.attention_mask`, nested at will. In the
picture a tensor is `{"tensor": POSITION}`, an object that holds some is `{"object": TYPE, "fields": ...}`;
None, numbers and texts are themselves; what is not looked into is `{"skipped": TYPE}`.

Objects that are no container are walked by `vars()` alone: a property may compute, and a recorder
must not. One that an enclosing call's inputs already showed is `{"seen": TYPE}`, or a KV cache would
be recorded once a layer and layer.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Collection, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch
from torch import Tensor, nn

MAX_DEPTH: Final = 12
MAX_ITEMS: Final = 20_000
_MAX_TEXT: Final = 200
_PLAIN: Final = frozenset({bool, int, type(None)})
_NOT_WALKED: Final = (nn.Module, type, FunctionType, MethodType, ModuleType, torch.Generator, enum.Enum)


class Found:
    """The tensors found in some arguments or results, in order, and the objects walked by `vars()`."""

    __slots__ = ("_left", "_path", "_seen", "opaque", "tensors")

    def __init__(self, seen: Collection[int] = ()) -> None:
        self.tensors: list[tuple[str, Tensor]] = []
        self.opaque: list[object] = []
        self._seen = seen
        self._path: set[int] = set()
        self._left = MAX_ITEMS

    def walk(self, thing: Any, position: str, depth: int = 0) -> Any:
        """The picture of `thing` at `position`; its tensors are appended to `tensors`."""
        kind = type(thing)
        if kind in _PLAIN:
            return thing
        if isinstance(thing, Tensor):
            self.tensors.append((position, thing))
            return {"tensor": position}
        if kind is float:
            return thing if math.isfinite(thing) else {"float": str(thing)}
        if kind is complex:
            return {"complex": [self.walk(part, position, depth + 1) for part in (thing.real, thing.imag)]}
        if kind is str:
            return thing if len(thing) <= _MAX_TEXT else thing[:_MAX_TEXT] + "…"
        if kind in (torch.dtype, torch.device, torch.layout, torch.memory_format):
            return {kind.__name__: str(thing)}
        if kind is slice:
            return {"slice": [self.walk(part, position, depth + 1) for part in (thing.start, thing.stop, thing.step)]}
        if isinstance(thing, _NOT_WALKED):
            return {"skipped": kind.__name__, **({"value": str(thing)} if isinstance(thing, enum.Enum) else {})}
        self._left -= 1
        if depth >= MAX_DEPTH or self._left < 0:
            return {"skipped": kind.__name__, "reason": "nested too deeply" if depth >= MAX_DEPTH else "too many items"}
        if id(thing) in self._path:
            return {"skipped": kind.__name__, "reason": "contains itself"}
        self._path.add(id(thing))
        try:
            return self._walk_container(thing, kind, position, depth + 1)
        finally:
            self._path.discard(id(thing))

    def _walk_container(self, thing: Any, kind: type, position: str, depth: int) -> Any:
        if isinstance(thing, (tuple, list)):
            names = getattr(kind, "_fields", None) if isinstance(thing, tuple) else None
            if names is not None and len(names) == len(thing):
                fields = {name: self.walk(item, f"{position}.{name}", depth) for name, item in zip(names, thing, strict=True)}
                return {"type": kind.__name__, "fields": fields}
            items = [self.walk(item, f"{position}[{i}]", depth) for i, item in enumerate(thing)]
            return items if isinstance(thing, list) else {"tuple": items}
        if isinstance(thing, Mapping):
            fields = {str(key): self.walk(item, position + key_suffix(key), depth) for key, item in dict(thing).items()}
            return {"dict": fields} if kind is dict else {"type": kind.__name__, "fields": fields}
        if dataclasses.is_dataclass(thing):
            names = [field.name for field in dataclasses.fields(thing)]
            held = {name: getattr(thing, name) for name in names if name in getattr(thing, "__dict__", names)}
            fields = {name: self.walk(item, f"{position}.{name}", depth) for name, item in held.items()}
            return {"type": kind.__name__, "fields": fields}
        if isinstance(thing, (str, int, float)):
            return {"type": kind.__name__, "value": str(thing)[:_MAX_TEXT]}
        return self._walk_object(thing, kind, position, depth)

    def _walk_object(self, thing: Any, kind: type, position: str, depth: int) -> Any:
        if id(thing) in self._seen:
            return {"seen": kind.__name__}
        try:
            held = vars(thing)
        except TypeError:
            return {"skipped": kind.__name__}
        before = len(self.tensors)
        fields = {}
        for name, item in list(held.items()):
            count = len(self.tensors)
            picture = self.walk(item, position + key_suffix(name), depth)
            if len(self.tensors) > count:  # the rest of an object is its own business
                fields[name] = picture
        if len(self.tensors) == before:
            return {"skipped": kind.__name__}
        self.opaque.append(thing)
        return {"object": kind.__name__, "fields": fields}


def key_suffix(key: object) -> str:
    """How a key continues a position: `.name`, `[3]`, or `["any text"]`."""
    if isinstance(key, str):
        return f".{key}" if key.isidentifier() else f"[{json.dumps(key[:_MAX_TEXT])}]"
    return f"[{key!r}]" if isinstance(key, int) else f"[{json.dumps(str(key)[:_MAX_TEXT])}]"


ONE_RESULT: Final = '{"tensor": "out"}'


def picture_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], seen: Collection[int] = ()
) -> tuple[list[tuple[str, Tensor]], str, list[object]]:
    """The tensors of a call's arguments, their picture (JSON), and the objects walked by `vars()`."""
    found = Found(seen)
    picture: dict[str, Any] = {}
    if args:
        picture["args"] = [found.walk(item, f"in[{i}]") for i, item in enumerate(args)]
    if kwargs:
        picture["kwargs"] = {name: found.walk(item, "in" + key_suffix(name)) for name, item in kwargs.items()}
    return found.tensors, json.dumps(picture), found.opaque


def picture_result(result: Any, seen: Collection[int] = ()) -> tuple[list[tuple[str, Tensor]], str]:
    """The tensors of a call's result and their picture (JSON)."""
    if isinstance(result, Tensor):
        return [("out", result)], ONE_RESULT
    found = Found(seen)
    picture = found.walk(result, "out")
    return found.tensors, json.dumps(picture)
