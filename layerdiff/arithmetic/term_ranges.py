"""A range of the sum left out, or counted twice: how much of each term is missing, from the error alone.

c_k = (x^T E w^T)_kk / (|x_k|^2 |w_k|^2) is -1 for a term that is missing, +1 for one counted twice, and noise of the size
sqrt(bad terms / outputs) elsewhere. A range found so is taken out of the error and looked for again until it stays; it is
named only where the recorded result is the sum without it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.folded import Folded
from layerdiff.arithmetic.residual import Explanation, Residual

_ROUNDS: Final = 12
_RANGES: Final = 64
"""More ranges than these are no split that was dropped."""


def term_range(residual: Residual, parts: Folded) -> Explanation | None:
    """Ranges of K that are missing or counted twice, where they explain the result."""
    if parts.terms < 2:
        return None
    for sign, cause, verb in ((-1.0, "k-range-missing", "are missing"), (1.0, "k-range-doubled", "are counted twice")):
        found = _bad_terms(parts, sign)
        if found is None:
            continue
        change = parts.scale * np.matmul(parts.left[..., found], parts.right[:, found])
        if residual.explained_by(residual.exact + sign * parts.unfold(change)):
            ranges = _ranges(found)
            text = ", ".join(f"[{a}, {b})" for a, b in ranges[:4]) + (", ..." if len(ranges) > 4 else "")
            statement = f"Terms {text} of {parts.terms} {verb}: without that, the result is within what arithmetic makes."
            return Explanation("defect", cause, statement, {"ranges": [list(pair) for pair in ranges], "terms_bad": int(found.sum())})
    return None


def _bad_terms(parts: Folded, sign: float) -> NDArray[np.bool_] | None:
    """The terms that are missing (sign -1) or doubled (+1): the best range first, then single terms until nothing changes."""
    weight = np.square(parts.left).sum((0, 1)) * np.square(parts.right).sum((0, 2))
    if not np.any(weight > 0):
        return None
    bad = np.zeros(parts.terms, bool)
    left, right = np.swapaxes(parts.left, -1, -2), np.swapaxes(parts.right, -1, -2)
    for turn in range(_ROUNDS):
        known = sign * parts.scale * np.matmul(parts.left[..., bad], parts.right[:, bad])
        error = (parts.error - known) / parts.scale
        share = np.einsum("bkn,bnk->k", np.matmul(left, error), right) / np.where(weight > 0, weight, 1.0)
        share = sign * np.where(weight > 0, share, 0.0) + bad
        new = _best_range(share - 0.5) if turn == 0 else share > 0.5
        if np.array_equal(new, bad):
            break
        bad = new
    return bad if np.any(bad) and len(_ranges(bad)) <= _RANGES else None


def _best_range(score: NDArray[np.float64]) -> NDArray[np.bool_]:
    """The run with the largest sum of scores."""
    total = np.concatenate([[0.0], np.cumsum(score)])
    lowest = np.minimum.accumulate(total)
    end = int(np.argmax(total - lowest))
    start = int(np.argmin(total[: end + 1]))
    found = np.zeros(score.size, bool)
    found[start:end] = True
    return found


def _ranges(bad: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Half-open ranges of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], bad.astype(np.int8), [0]])))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
