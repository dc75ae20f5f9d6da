"""What fp32 leaves open: the last bits of sums and functions, drawn anew to see how many results a way misses of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from layerdiff.arithmetic.formats import FLOAT32
from layerdiff.arithmetic.orders.variants.ranking import NOISE, Array


@dataclass(frozen=True)
class Last:
    """`bits(x, size)` is x, each element off by NOISE times `size` units of fp32; x itself where nothing is drawn."""

    random: np.random.Generator | None = None

    def bits(self, x: Array, size: float | Array) -> Array:
        """x with its last bits drawn anew."""
        if self.random is None:
            return x
        return np.asarray(x * (1.0 + NOISE * FLOAT32.unit * size * self.random.standard_normal(x.shape)))
