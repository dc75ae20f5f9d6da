"""The generic contract: how far one result may lie from the exact one, for an operator that nobody has described.

The operator is run a few times in float64 with its float operands moved by one unit roundoff of the accumulator, up or down at
random. How far the results move is their condition; how many operand elements a result depends on (found by following a
nan through the operator) is the length of the sums inside. Then, as for a sum of K terms in sequence,

    sigma^2 = 0.18 K (s^2 + u^2 y^2)        bound = 8 K (sqrt(K) s + u |y|)

with s the root mean square move; u |y| is the smallest normal number more, and operands that are nearly zero are moved by it. It is
wider than a contract written for the operator, and says so.

An operator that is a layer of many steps rounds each of them to the dtype of its results: it is run a few times more with its steps
rounded at random, and how far the results move then is added.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerdiff.arithmetic.contract import Spread
from layerdiff.arithmetic.formats import Format
from layerdiff.arithmetic.residual import ZMAX_LIMIT
from layerdiff.replay.discrete import is_float
from layerdiff.replay.inner import InnerRounding, is_layer
from layerdiff.replay.operators import run64
from layerdiff.replay.refusal import CannotReplay
from layerdiff.replay.sizes import tensors_of
from layerdiff.trace.arguments import Arguments, Token

_DRAWS: Final = 8
_FOLLOWED: Final = 2
_WIDE: Final = -126
"""The smallest exponent of float32 and bfloat16; formats of a smaller range have no numbers to spare for zero."""
_LENT: Final = 2.0  # how many draws the row's mean counts for: a few draws of one element can all be small


class Generic(NamedTuple):
    """What perturbation says of one call."""

    spreads: tuple[Spread, ...]
    """One a result. Elements whose moves are no numbers, and whole numbers that moved, have an infinite spread."""
    rule: str
    """How they were found, for the reader."""


def generic_spread(
    name: str,
    args: Arguments,
    exact: tuple[Tensor, ...],
    accumulator: Format,
    *,
    inner: Format | None = None,
    draws: int = _DRAWS,
    seed: int = 0,
    trust: Collection[str] = frozenset(),
) -> Generic:
    """The spread of each of the `exact` results of `run64(name, args)` at the declared accumulator. Changes none of them.

    `inner`: the format that the steps of a layer may be rounded to.

    Draws come from a generator of its own: the same seed gives the same spread. Raises CannotReplay where run64 does.
    """
    generator = torch.Generator().manual_seed(seed)
    moves = [np.zeros(tuple(result.shape)) for result in exact]
    for _ in range(draws):
        moved = run64(name, _perturbed(args, accumulator, generator), trust=trust)
        for total, before, after in zip(moves, exact, moved, strict=True):
            total += _squared(before, after)
    rounded = _of_steps(name, args, exact, inner, draws, generator, trust)
    spreads = []
    terms = _terms(name, args, exact, generator, trust)
    for total, steps, before in zip(moves, rounded, exact, strict=True):
        if not is_float(before):
            allowed = np.where(total > 0, np.inf, 0.0)
            spreads.append(Spread(allowed, allowed, 1))
            continue
        square = _mean_square(total, draws)
        size = accumulator.unit * np.nan_to_num(np.abs(before.numpy()), nan=0.0, posinf=0.0, neginf=0.0)
        size = size + np.where(total > 0, _least(accumulator), 0.0)
        inside = _mean_square(steps, draws)
        sigma = np.sqrt(0.18 * terms * (square + size**2) + inside)
        bound = 8.0 * terms * (np.sqrt(terms * square) + size) + accumulator.smallest_normal + ZMAX_LIMIT * np.sqrt(inside)
        spreads.append(Spread(sigma, bound, terms))
    rule = f"generic contract: {draws} runs with operands moved by 2^{int(np.log2(accumulator.unit))}, sums of {terms} terms"
    if inner is not None and is_layer(name):
        rule += f", its steps by 2^{int(np.log2(inner.unit))}"
    return Generic(tuple(spreads), rule)


def _mean_square(total: NDArray[np.float64], draws: int) -> NDArray[np.float64]:
    row = total.mean(-1, keepdims=True) / draws if total.size > 1 else total / draws
    return np.where(total > 0, (total + _LENT * row) / (draws + _LENT), 0.0)


def _of_steps(
    name: str,
    args: Arguments,
    exact: tuple[Tensor, ...],
    inner: Format | None,
    draws: int,
    generator: torch.Generator,
    trust: Collection[str],
) -> list[NDArray[np.float64]]:
    """Squared moves of the results of a layer whose steps are rounded, summed over draws; zeros of any other operator."""
    moves = [np.zeros(tuple(result.shape)) for result in exact]
    if inner is not None and is_layer(name):
        for _ in range(draws):
            moved = run64(name, args, trust=trust, inner=InnerRounding(inner.unit, generator))
            for total, before, after in zip(moves, exact, moved, strict=True):
                total += _squared(before, after)
    return moves


def _squared(before: Tensor, after: Tensor) -> NDArray[np.float64]:
    """Squared moves; inf where a number became none or the other way round, and where the shape changed."""
    if before.shape != after.shape:
        return np.full(tuple(before.shape), np.inf)
    first, second = before.numpy(), after.numpy()
    same = (first == second) | (np.isnan(first) & np.isnan(second)) if is_float(before) else first == second
    with np.errstate(invalid="ignore", over="ignore"):
        square = np.square(np.abs(np.where(same, 0.0, second.astype(np.float64 if first.dtype.kind != "c" else first.dtype) - first)))
    return np.where(same, 0.0, np.where(np.isfinite(square), square, np.inf))


def _perturbed(args: Arguments, accumulator: Format, generator: torch.Generator) -> Arguments:
    least = _least(accumulator)

    def moved(tensor: Tensor) -> Tensor:
        signs = torch.randint(0, 2, tensor.shape, generator=generator, dtype=torch.int64) * 2 - 1
        small = (tensor != 0) & (tensor.abs() * accumulator.unit < least)
        return tensor * (1.0 + accumulator.unit * signs) + small * (least * signs)

    return _mapped(args, moved)


def _least(accumulator: Format) -> float:
    """How far a number that is nearly zero may be off: devices take what lies below the normal numbers for zero, as they like."""
    return accumulator.smallest_normal if accumulator.smallest_exponent <= _WIDE else accumulator.smallest_subnormal


def _terms(name: str, args: Arguments, exact: tuple[Tensor, ...], generator: torch.Generator, trust: Collection[str]) -> int:
    """The number of operand elements that a result depends on: those that one element reaches, times elements over results."""
    most = 1
    floats = list(_floats(args))
    for which, operand in enumerate(floats):
        for _ in range(_FOLLOWED if operand.numel() > 1 else min(1, operand.numel())):
            place = int(torch.randint(0, operand.numel(), (), generator=generator))
            try:
                followed = run64(name, _poisoned(args, which, place), trust=trust)
            except CannotReplay:
                return max(most, *(tensor.numel() for tensor in floats))
            for before, after in zip(exact, followed, strict=True):
                if is_float(before) and before.numel() and before.shape == after.shape:
                    reached = int((after.isnan() & ~before.isnan()).sum())
                    most = max(most, -(-reached * operand.numel() // before.numel()))
    return most


def _poisoned(args: Arguments, which: int, place: int) -> Arguments:
    seen = 0

    def poisoned(tensor: Tensor) -> Tensor:
        nonlocal seen
        seen += 1
        copied = tensor.clone(memory_format=torch.contiguous_format)
        if seen - 1 == which:
            copied.view(-1)[place] = torch.nan
        return copied

    return _mapped(args, poisoned)


def _floats(args: Arguments) -> Iterator[Tensor]:
    return (tensor for tensor in tensors_of([*args.args, *args.kwargs.values()]) if is_float(tensor))


def _mapped(args: Arguments, change: Any) -> Arguments:
    """Fresh operands: floats through `change`, all others copied, since the operator may write to them."""

    def mapped(thing: Any) -> Any:
        if isinstance(thing, Tensor):
            return change(thing) if is_float(thing) else thing.clone()
        if isinstance(thing, (list, tuple)) and not isinstance(thing, Token):
            return type(thing)(mapped(item) for item in thing)
        return thing

    return Arguments(tuple(mapped(thing) for thing in args.args), {name: mapped(thing) for name, thing in args.kwargs.items()})
