"""Norms of x silu(g), g being a gate, each group of channels by itself, as Mamba 2 has them: run as any norm (`judge/norms.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.norms import local_error

Array = NDArray[Any]
_ROWS: Final = 4
"""From which on the reference itself tells which form it has: fewer fit any."""
_NARROWEST: Final = 8
"""Channels of a group."""


def gated_error(
    given: Sequence[Sequence[Array]], outputs: Sequence[Array], epsilon: float, roundoffs: Sequence[float]
) -> tuple[float, float] | None:
    """As `local_error`, the worst of all groups. `given`: two inputs, each the reference's and the target's.

    Which of them is the gate, and how many groups there are, nobody recorded: they are those that make the reference's own result.
    """
    width = outputs[0].shape[-1] if outputs[0].ndim else 0
    if len({x.shape for of in (*given, outputs) for x in of}) > 1 or width < _NARROWEST or outputs[0].size < _ROWS * width:
        return None
    for values, gates in (given, given[::-1]):
        gated = [x.astype(np.float64) * _silu(gate.astype(np.float64)) for x, gate in zip(values, gates, strict=True)]
        for groups in (count for count in range(1, width // _NARROWEST + 1) if width % count == 0):
            found = list(_until_other(gated, outputs, groups, epsilon, roundoffs))
            if len(found) == groups:
                return max(found)
    return None


def _until_other(
    gated: Sequence[Array], outputs: Sequence[Array], groups: int, epsilon: float, roundoffs: Sequence[float]
) -> Iterator[tuple[float, float]]:
    """What is said of each group, as long as one is what the reference makes."""
    apart = [np.split(x, groups, -1) for x in (*gated, *outputs)]
    for x, given, made, own in zip(*apart, strict=True):
        found = local_error((x, given), (made, own), epsilon, roundoffs)
        if found is None:
            return
        yield found


def _silu(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(x / (1.0 + np.exp(-x)))
