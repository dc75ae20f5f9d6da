"""A contract: what an operator computes exactly, and how far one result may lie from that before it is rounded.

The spread leaves the last rounding out, because what is compared is the distance of the exact result to the
*interval* of reals that round to the recorded one; a spread that includes it counts that rounding twice and
hides small faults in bf16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.formats import BFLOAT16, FLOAT16, FLOAT32, Format, round_to
from layerdiff.arithmetic.orders.summing import Product, Summing
from layerdiff.errors import LayerdiffError
from layerdiff.trace.arguments import Arguments

Array = NDArray[Any]


class ContractError(LayerdiffError):
    """The arguments of a call are none that its contract knows."""


@dataclass(frozen=True)
class Spread:
    """The error that one result may carry BEFORE it is rounded to its dtype, absolute, of the result's shape (or broadcastable).

    Attributes:
        sigma: standard deviation (float64); 0 where the result must be exact, inf where nothing may be said.
        bound: deterministic bound (float64) over all orders of summation; inf where even an infinite result would be arithmetic.
        terms: K, how many terms a result sums. Below 16 the bound decides; from 16 on sigma acquits and the bound convicts.
        refine: sigma of the results at the given flat indices from the actual prefix sums (F3), where the closed form
            may be too small because the terms are in no exchangeable order; None where the closed form is all there is.
    """

    sigma: NDArray[np.float64]
    bound: NDArray[np.float64]
    terms: int = 1
    refine: Callable[[NDArray[np.intp]], NDArray[np.float64]] | None = None


EXACT = Spread(np.zeros(()), np.zeros(()), 1)
"""The spread of copies, comparisons and choices: none."""


@dataclass(frozen=True)
class Contract:
    """What is known of an operator. Operands are float64 for every float dtype (widened exactly), native integers and bools otherwise.

    Attributes:
        exact: the results in exact arithmetic (float64; native types for integers and bools), one for each result that
            is compared. Raises ContractError for arguments it does not know. None where only torch can compute them.
        spread: from the arguments, the exact results and the format of the declared accumulator, a Spread a result.
        settle: for results that are choices (indices of equal values): the exact results again, with the recorded
            choice wherever that is as right as the exact one.
        product: the matrix product inside, for the tests that name a fault in one.
        summing: from the arguments and the shape of the first result, what each of its elements adds up, where that is all it does.
    """

    exact: Callable[[Arguments], tuple[Array, ...]] | None
    spread: Callable[[Arguments, tuple[Array, ...], Format], tuple[Spread, ...]]
    settle: Callable[[Arguments, tuple[Array, ...], tuple[Array, ...]], tuple[Array, ...]] | None = None
    product: Callable[[Arguments], Product | None] | None = None
    summing: Callable[[Arguments, tuple[int, ...]], Summing | None] | None = None


def bind(arguments: Arguments, names: tuple[str, ...], **defaults: Any) -> tuple[Any, ...]:
    """The arguments in the order of `names`, whether given by place or by name; a name with a default may be absent.

    Raises ContractError for a missing argument, one too many, and a name that is not listed (`out` is ignored).
    """
    args, kwargs = arguments
    if len(args) > len(names):
        raise ContractError(
            f"An operator was called with {len(args)} arguments by place; its contract knows {len(names)}: {', '.join(names)}."
        )
    known = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name in names:
            known[name] = value
        elif name != "out":
            raise ContractError(f"An operator was called with {name}=, which its contract does not know ({', '.join(names)}).")
    missing = [name for name in names if name not in known and name not in defaults]
    if missing:
        raise ContractError(f"An operator was called without {', '.join(missing)}.")
    return tuple(known[name] if name in known else defaults[name] for name in names)


MOST_ELEMENTS: Final = 1 << 30
"""Elements of an array that a contract makes at most; a recorded shape may claim anything."""


def bounded(*sizes: int) -> None:
    """Raises ContractError where an array of these dimensions would have more than MOST_ELEMENTS."""
    count = 1
    for size in sizes:
        count *= max(int(size), 0)
    if count > MOST_ELEMENTS:
        raise ContractError(f"The call would make {count} elements; at most {MOST_ELEMENTS} are replayed.")


def is_scalar(value: Any) -> bool:
    """Whether `value` is a plain number and no operand."""
    return isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.ndarray)


def is_float(value: Any) -> bool:
    """Whether `value` is a float operand or a float number."""
    return isinstance(value, float) or (isinstance(value, np.ndarray) and value.dtype.kind == "f")


def grid_of(*operands: Any) -> Format:
    """The narrowest of bf16, fp16 and fp32 whose numbers hold every finite element of the float operands; fp32 where none does.

    Operands come widened to float64, so the grid they lie on is what is left of their dtype. Numbers that happen to lie
    on a narrower grid than their dtype's give a wider allowance, never a narrower one.
    """
    arrays = [np.asarray(x) for x in operands if isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.size]
    for format in (BFLOAT16, FLOAT16):
        if arrays and all(_fits(x, format) for x in arrays):
            return format
    return FLOAT32


def _fits(x: Array, format: Format) -> bool:
    head = x.reshape(-1)[:64]
    if not np.array_equal(round_to(head, format), head, equal_nan=True):
        return False
    return np.array_equal(round_to(x, format), x, equal_nan=True)


def dtype_kind(token: Any) -> str | None:
    """The numpy kind ("f", "i", "b") of a dtype argument, None where there is none."""
    text = getattr(token, "text", None)
    if text is None or getattr(token, "kind", "") != "dtype":
        return None
    if text == "bool":
        return "b"
    return "i" if "int" in text else "f"
