"""The numbers and texts that a module holds: epsilons, sizes, flags. Evidence that needs no arithmetic.

Only plain values in the module's own `__dict__` count: a property may compute.
"""

from __future__ import annotations

import json
import math
from operator import is_
from typing import Any, Final
from weakref import WeakKeyDictionary

from torch import nn

_SIMPLE: Final = frozenset({int, bool, str, float})
_MAX_ATTRIBUTES: Final = 64
_MAX_ITEMS: Final = 16
_MAX_TEXT: Final = 200

_Known = tuple[int, tuple[str, ...], tuple[Any, ...], str]


class Attributes:
    """Attributes as JSON, made again only where one of them is another object than before."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[nn.Module, _Known] = WeakKeyDictionary()

    def json(self, module: nn.Module) -> str:
        """The attributes of `module` as a JSON object."""
        held = module.__dict__
        known = self._known.get(module)
        if known is not None and known[0] == len(held) and all(map(is_, map(held.get, known[1]), known[2])):
            return known[3]
        found = simple_attributes(module)
        text = json.dumps(found)
        self._known[module] = (len(held), tuple(found), tuple(map(held.get, found)), text)
        return text


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
