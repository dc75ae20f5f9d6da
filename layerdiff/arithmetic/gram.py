"""Which operand an error came from: its Gram matrix against theirs.

An error x dW (other weights) repeats between rows as the rows of x do, an error dX W (other inputs) between columns as the
columns of W do; rounding does neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from layerdiff.arithmetic.folded import Folded, Matrices
from layerdiff.arithmetic.residual import Explanation

_THRESHOLD: Final = 4.0
_CLEAN: Final = 2.5
"""t of benign errors, of bf16 accumulation and of rounded partial sums stays below 2.5; of int8 and fp8 operands it is 5 to 20."""
_FEW: Final = 128
_MOST: Final = 512


@dataclass(frozen=True)
class Sides:
    """t of the weight side (right operand) and of the input side (left operand); None where under 128 rows or columns."""

    weights: float | None
    inputs: float | None

    @property
    def clean(self) -> bool:
        """Whether both sides were tested and neither stands out."""
        return self.weights is not None and self.inputs is not None and self.largest <= _CLEAN

    @property
    def largest(self) -> float:
        """The larger |t|."""
        return max(abs(self.weights or 0.0), abs(self.inputs or 0.0))

    def evidence(self) -> dict[str, Any]:
        """Both figures by name."""
        return {"t_weights": self.weights, "t_inputs": self.inputs}


def side(parts: Folded) -> Explanation | Sides:
    """The side that an error came from where one side alone stands out (t >= 4), else both figures."""
    if parts.error.shape[0] != 1:
        return Sides(None, None)
    error, left, right = parts.error[0], parts.left[0], parts.right[0]
    found = Sides(_agreement(error, left), _agreement(error.T, right.T))
    for cause, t, other, name in (
        ("weight-side", found.weights, found.inputs, "the right operand (weights)"),
        ("input-side", found.inputs, found.weights, "the left operand (inputs)"),
    ):
        if t is not None and t >= _THRESHOLD and (other is None or t >= 2.0 * abs(other)):
            statement = f"The error comes from {name}: its Gram matrix follows the other operand's, t = {t:.3g} of {_THRESHOLD:g}."
            return Explanation("defect", cause, statement, found.evidence())
    return found


def _agreement(error: Matrices, operand: Matrices) -> float | None:
    """t of the correlation between the off-diagonal elements of E E^T and of X X^T."""
    rows = error.shape[0]
    if rows < _FEW:
        return None
    if rows > _MOST:
        chosen = np.linspace(0, rows - 1, _MOST).astype(int)
        error, operand, rows = error[chosen], operand[chosen], _MOST
    above = np.triu_indices(rows, 1)
    a, b = (error @ error.T)[above], (operand @ operand.T)[above]
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt(np.sum(a * a) * np.sum(b * b)))
    if size == 0.0:
        return 0.0
    r = min(max(float(np.sum(a * b)) / size, -1.0), 1.0)
    return float(r * np.sqrt((a.size - 2) / max(1.0 - r * r, 1e-12)))
