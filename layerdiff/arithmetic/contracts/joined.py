"""How values of several steps are one, and one is those of several (`trace/joined.py`): nothing is computed."""

from __future__ import annotations

from typing import Final

import numpy as np

from layerdiff.arithmetic.contract import EXACT, Array, Contract, ContractError, Spread, bind
from layerdiff.arithmetic.formats import Format
from layerdiff.trace.along import Along
from layerdiff.trace.arguments import Arguments

_HIDES: Final = -1e4


def _whole(arguments: Arguments) -> tuple[Array, ...]:
    parts, axis, times, keys, fill = bind(arguments, ("parts", "axis", "times", "keys", "fill"))
    return (Along(axis, times, tuple(keys)).whole(parts, fill),)


def _parts(arguments: Arguments) -> tuple[Array, ...]:
    whole, axis, times, keys, fill, sizes = bind(arguments, ("whole", "axis", "times", "keys", "fill", "sizes"))
    for part, count in zip(Along(axis, times).parts(whole, sizes), keys, strict=False):
        later = part[..., count:]
        if np.any(later > _HIDES if fill <= _HIDES else later != 0):
            raise ContractError("it is to see tokens that are not there yet")
    return tuple(Along(axis, times, tuple(keys)).parts(whole, sizes))


def _spread(arguments: Arguments, results: tuple[Array, ...], _: Format) -> tuple[Spread, ...]:
    return (EXACT,) * len(results)


CONTRACTS: Final[dict[str, Contract]] = {"joined.whole": Contract(_whole, _spread), "joined.part": Contract(_parts, _spread)}
