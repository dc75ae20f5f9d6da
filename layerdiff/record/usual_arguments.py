"""What structure.py says of arguments, found quickly where they are tensors, numbers and words, as an operator's nearly always are.

How such arguments are told follows from their types, so that is found once for each row of types.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from layerdiff.record.structure import picture_arguments

_MOST_KNOWN: Final = 10_000
_TENSORS: Final = frozenset({Tensor, nn.Parameter})
_INTS: Final = frozenset({int})
_KEYS: Final = frozenset({int, bool, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})
"""Types of which equal values are told alike. Not float: 0.0 equals -0.0."""


def _told_float(number: float) -> str:
    return repr(number) if math.isfinite(number) else json.dumps({"float": str(number)})


def _told_list(items: list[Any]) -> str | None:
    return str(items) if _INTS.issuperset(map(type, items)) else None


_TOLD: Final[dict[type, Callable[[Any], str | None]]] = {
    int: str,
    bool: {True: "true", False: "false"}.__getitem__,
    type(None): {None: "null"}.__getitem__,
    float: _told_float,
    list: _told_list,
}


class _Form:
    """How arguments of some types are told."""

    __slots__ = ("others", "tensors", "text")

    def __init__(self, types: tuple[type, ...]) -> None:
        self.tensors = [(f"in[{i}]", i) for i, kind in enumerate(types) if kind in _TENSORS]
        self.others = [(i, _TOLD[kind]) for i, kind in enumerate(types) if kind not in _TENSORS]
        self.text = ", ".join(f'{{"tensor": "in[{i}]"}}' if kind in _TENSORS else "%s" for i, kind in enumerate(types))


_forms: dict[tuple[type, ...], _Form] = {}
_named: dict[tuple[Any, ...], str] = {}


def usual_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[tuple[str, Tensor]], str] | None:
    """The tensors of arguments and their picture, as `picture_arguments` finds them; None where it has to be asked."""
    types = tuple(map(type, args))
    form = _forms.get(types)
    if form is None:
        if not all(kind in _TENSORS or kind in _TOLD for kind in types):
            return None
        form = _forms[types] = _Form(types)
    text = form.text
    if form.others:
        told = tuple([tell(args[i]) for i, tell in form.others])
        if None in told:
            return None
        text %= told
    if kwargs:
        named = _told_names(kwargs)
        if named is None:
            return None
        text = f'{{"args": [{text}], "kwargs": {named}}}' if args else f'{{"kwargs": {named}}}'
    else:
        text = f'{{"args": [{text}]}}' if args else "{}"
    return [(position, args[i]) for position, i in form.tensors], text


def _told_names(kwargs: Mapping[str, Any]) -> str | None:
    types = tuple(map(type, kwargs.values()))
    if not _KEYS.issuperset(types):
        return None
    key = types, tuple(kwargs.items())
    found = _named.get(key)
    if found is None:
        if len(_named) >= _MOST_KNOWN:
            _named.clear()
        picture = picture_arguments((), kwargs)[1]
        found = _named[key] = picture[len('{"kwargs": ') : -1]
    return found
