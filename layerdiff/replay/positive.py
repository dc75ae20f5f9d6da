"""`Positive`: operators whose terms are never negative, asked which two of three terms are added to each other first.

No mask cancels in them. What shows is a last digit: lost or made in a sum just above one (`Denominator`), or just below the largest
number, where one digit more is infinite (`Squares`): that survives a square root and a division.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from layerdiff.arithmetic.orders.probing_scale import ProbeError
from layerdiff.replay.summing import Summing

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LOST: Final = 0.4 * 2.0**-23
"""Beside 1 in float32: lost alone, and a digit with another of its kind."""
_ROUNDED_UP: Final = 0.7 * 2.0**104
"""Beside the two largest numbers of float32: a digit alone, and one digit with another of its kind."""


class Positive(Summing):
    """An operator that normalises along one dimension, whose result has the shape of its operand."""

    note = ""
    """What was probed, for the reader."""

    def __init__(self, run: Callable[..., Any], shape: Sequence[int], dim: int, dtype: torch.dtype, device: torch.device) -> None:
        if not shape or not -len(shape) <= dim < len(shape):
            raise ProbeError(f"An operand of shape {list(shape)} has not the dimension {dim}.")
        at = dim % len(shape)
        self._order = [*(d for d in range(len(shape)) if d != at), at]
        self._sizes = [shape[d] for d in self._order]
        super().__init__(run, dtype, device, shape[at], math.prod(shape) // max(1, shape[at]))

    def together(self, triples: Ints) -> NDArray[np.bool_]:
        """See `arithmetic.orders.triples.Together`. One triple a row, in as many calls as that takes."""
        found = np.zeros(len(triples), np.bool_)
        back = np.argsort(self._order).tolist()
        for begin in range(0, len(triples), self.rows):
            part = triples[begin : begin + self.rows]
            values = np.resize(self.values(part), (self.rows, self.terms))
            result = self.call(self.tensor(values).reshape(self._sizes).permute(back).contiguous())
            if tuple(result.shape) != tuple(self._sizes[i] for i in back):
                raise ProbeError("The operator does not normalise: its result has another shape than its operand.")
            flat = result.permute(self._order).reshape(self.rows, self.terms).cpu().to(torch.float64).numpy()
            found[begin : begin + len(part)] = self.seen(flat[np.arange(len(part)), part[:, 0]])
        return found

    def values(self, triples: Ints) -> Floats:
        """The operand's rows, shape (triples, terms)."""
        raise NotImplementedError

    def seen(self, results: Floats) -> NDArray[np.bool_]:
        """From the result at the first term of each triple: whether the other two met first."""
        raise NotImplementedError


class Denominator(Positive):
    """The denominator of a softmax, in float32; with `log`, of its logarithm, which shows the digit in narrower results too."""

    note = "the order of the denominator, in float32, from which two of three terms meet first"

    def __init__(
        self, run: Callable[..., Any], shape: Sequence[int], dim: int, dtype: torch.dtype, device: torch.device, *, log: bool
    ) -> None:
        if not log and dtype != torch.float32:
            name = str(dtype).removeprefix("torch.")
            raise ProbeError(
                f"A softmax of {name} does not show the last digit of its denominator. Probe float32; or log_softmax, which shows it."
            )
        self._log = log
        super().__init__(run, shape, dim, dtype, device)

    def values(self, triples: Ints) -> Floats:
        """A term of 1, two that are lost beside it, and zeros: as exponents."""
        made = np.full((len(triples), self.terms), -200.0)
        rows = np.arange(len(triples))
        made[rows[:, None], triples[:, 1:]] = math.log(_LOST)
        made[rows, triples[:, 0]] = 0.0
        return made

    def seen(self, results: Floats) -> NDArray[np.bool_]:
        """A digit more in the denominator is one less than 1 in the result."""
        found: NDArray[np.bool_] = results < (0.0 if self._log else 1.0)
        return found


class Squares(Positive):
    """The sum of squares of a norm that divides by its root, in float32."""

    note = "the order of the sum of squares, in float32, from which two of three terms meet first"

    def __init__(self, run: Callable[..., Any], shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        if dtype != torch.float32:
            name = str(dtype).removeprefix("torch.")
            raise ProbeError(f"Squares of {name} do not come near the largest number of float32 as they must: probe the norm in float32.")
        super().__init__(run, shape, -1, dtype, device)

    def values(self, triples: Ints) -> Floats:
        """One digit below the largest number, and two that are each rounded up to a digit: as roots.

        One after the other they make two digits, which is infinite; together they make one.
        """
        made = np.zeros((len(triples), self.terms))
        rows = np.arange(len(triples))
        made[rows[:, None], triples[:, 1:]] = math.sqrt(_ROUNDED_UP)
        made[rows, triples[:, 0]] = 2.0**64 * (1.0 - 2.0**-24)
        return made

    def seen(self, results: Floats) -> NDArray[np.bool_]:
        """Divided by the root of what is infinite, the result is zero."""
        found: NDArray[np.bool_] = results > 0.0
        return found
