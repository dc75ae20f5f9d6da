"""The matrix product of a failing call as stacks of matrices, with the error of each of its elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.orders.summing import Product
from layerdiff.arithmetic.residual import Residual

Matrices = NDArray[np.float64]
_AT_ONCE: Final = 1 << 27
"""Products B*M*N*K up to which every row is tested; beyond, evenly spaced rows stand for all."""


@dataclass(frozen=True)
class Folded:
    """The product scale * left @ right of left [B, M, K] and right [B, K, N].

    error [B, M, N] is recorded minus exact, 0 where an element is not compared; `shape` is the result's.
    """

    left: Matrices
    right: Matrices
    error: Matrices
    scale: float
    shape: tuple[int, ...]

    @property
    def terms(self) -> int:
        """K."""
        return int(self.left.shape[-1])

    def unfold(self, stacked: Matrices) -> Matrices:
        """[B, M, N] in the shape of the result."""
        return stacked.reshape(self.shape)

    def product(self, left: Matrices | None = None, right: Matrices | None = None) -> Matrices:
        """The product, with another left or right where given."""
        made: Matrices = self.scale * np.matmul(self.left if left is None else left, self.right if right is None else right)
        return made


def folded(residual: Residual, product: Product) -> Folded | None:
    """The product of `residual`'s call, stacked."""
    left, right = (np.asarray(x, np.float64) for x in product.stacked())
    shape = (*left.shape[:2], right.shape[-1])
    if residual.exact.size != int(np.prod(shape)) or not (np.all(np.isfinite(left)) and np.all(np.isfinite(right))):
        return None
    error = np.where(residual.live, residual.recorded - residual.exact, 0.0).reshape(shape)
    return Folded(left, right, error, product.scale, residual.exact.shape)


def sampled(residual: Residual, parts: Folded, at_once: int = _AT_ONCE, at_least: int = 128) -> tuple[Residual, Folded]:
    """Evenly spaced rows of a product too large to try every explanation on; the same where it is small."""
    batches, rows, terms = parts.left.shape
    chosen_rows = max(at_least, at_once // max(1, batches * terms * parts.right.shape[-1]))
    if rows <= chosen_rows:
        return residual, parts
    chosen = np.linspace(0, rows - 1, chosen_rows).astype(int)

    def some(x: NDArray[Any]) -> NDArray[Any]:
        return np.broadcast_to(x, parts.shape).reshape(parts.error.shape)[:, chosen]

    fewer = Residual(
        some(residual.recorded),
        some(residual.exact),
        some(residual.sigma),
        some(residual.bound),
        some(residual.live),
        residual.format,
        residual.accumulator,
        residual.terms,
    )
    return fewer, Folded(parts.left[:, chosen], parts.right, parts.error[:, chosen], parts.scale, fewer.exact.shape)
