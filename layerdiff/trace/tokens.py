"""`Tokens`: which token of both runs stands at each place of what a step has, or of what several have that are one (`trace/joined.py`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Tokens:
    """Those of one run.

    Attributes:
        batch: (requests, positions) that its values lead with; a row is one request.
        numbers: shape (requests * positions,), the number of the token at each place; -1 of what the other run has nothing of.
        ends: the same of each piece's last token, of which logits may be made alone.
    """

    batch: tuple[int, int]
    numbers: NDArray[np.int64]
    ends: NDArray[np.int64]

    def line(self, shape: tuple[int, ...], number: int) -> int | None:
        """Which line of a value of that shape is of a token, its leading dimensions taken as one; None of none."""
        leading = shape[:2] if shape[:2] == self.batch else shape[:1]
        of = next((x for x in (self.numbers, self.ends) if x.size == math.prod(leading)), None)
        found = [] if of is None else np.flatnonzero(of == number).tolist()
        return found[0] if found else None
