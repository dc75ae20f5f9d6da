"""How values of several steps are one, and one is those of several (`trace/joined.py`): nothing is computed."""

from __future__ import annotations

from typing import Final

import numpy as np

from layerdiff.arithmetic.contract import EXACT, Array, Contract, ContractError, Spread, bind
from layerdiff.arithmetic.formats import Format
from layerdiff.trace.along import from_json
from layerdiff.trace.arguments import Arguments

_HIDES: Final = -1e4


def _whole(arguments: Arguments) -> tuple[Array, ...]:
    parts, how, fill = bind(arguments, ("parts", "how", "fill"))
    return (from_json(how).whole(parts, fill),)


def _parts(arguments: Arguments) -> tuple[Array, ...]:
    whole, listed, fill, shapes = bind(arguments, ("whole", "how", "fill", "shapes"))
    how, lengths = from_json(listed), [shape[-1] for shape in shapes]
    parts = how.parts(whole, [(*shape[:-1], whole.shape[-1]) if how.keys else tuple(shape) for shape in shapes])
    for part, count in zip(parts, lengths, strict=True) if how.keys else ():
        if np.any(part[..., count:] > _HIDES if fill <= _HIDES else part[..., count:] != 0):
            raise ContractError("it is to see tokens that are not there yet")
    return tuple(part[..., :count] for part, count in zip(parts, lengths, strict=True)) if how.keys else tuple(parts)


def _spread(arguments: Arguments, results: tuple[Array, ...], _: Format) -> tuple[Spread, ...]:
    return (EXACT,) * len(results)


CONTRACTS: Final[dict[str, Contract]] = {"joined.whole": Contract(_whole, _spread), "joined.part": Contract(_parts, _spread)}
