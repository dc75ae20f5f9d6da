"""The numbers and texts that a module holds: epsilons, sizes, flags. Evidence that needs no arithmetic.

Only plain values in the module's own `__dict__` count: a property may compute.
"""

from __future__ import annotations

import json
import math
from operator import is_
from typing import Any, Final

from torch import nn

_SIMPLE: Final = frozenset({int, bool, str, float})
_MAX_ATTRIBUTES: Final = 64
_MAX_ITEMS: Final = 16
_MAX_TEXT: Final = 200


class KnownAttributes:
    """The attributes of a module as JSON, and the objects that they were made from."""

    __slots__ = ("_count", "_names", "_objects", "json")

    def __init__(self, module: nn.Module) -> None:
        found = simple_attributes(module)
        held = module.__dict__
        self._count = len(held)
        self._names = tuple(found)
        self._objects = tuple(map(held.get, found))
        self.json = json.dumps(found)

    def are_those_of(self, module: nn.Module) -> bool:
        """Whether the module still holds the same objects."""
        held = module.__dict__
        return self._count == len(held) and all(map(is_, map(held.get, self._names), self._objects))


def simple_attributes(module: nn.Module) -> dict[str, Any]:
    """Numbers, texts and short tuples of them, by name; `training` and private names left out."""
    held: dict[str, Any] = {}
    for name, value in module.__dict__.items():
        kind = type(value)
        if name[0] == "_" or name == "training":
            continue
        if kind in _SIMPLE:
            held[name] = _strict(value)
        elif kind is tuple and 0 < len(value) <= _MAX_ITEMS and all(type(item) in _SIMPLE for item in value):
            held[name] = [_strict(item) for item in value]
        if len(held) >= _MAX_ATTRIBUTES:
            break
    return held


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value[:_MAX_TEXT] if isinstance(value, str) else value
