"""A range of the sum left out, or counted twice: how much of each term is missing, from the error alone.

c_k = (x^T E w^T)_kk / (|x_k|^2 |w_k|^2) is -1 for a term that is missing, +1 for one counted twice, and noise of the size
sqrt(bad terms / outputs) elsewhere. A range found so is taken out of the error and looked for again until it stays; it is
named only where the recorded result is the sum without it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.folded import Folded
from layerdiff.arithmetic.residual import Explanation, Residual

_SPLITS: Final = (2, 3, 4, 6, 8, 16, 32)
"""Equal parts of K of which one may be taken with a factor of its own."""
_CENTRED: Final = 8
_ROUNDS: Final = 12
_RANGES: Final = 64
"""More ranges than these are no split that was dropped."""


def term_range(residual: Residual, parts: Folded) -> Explanation | None:
    """Ranges of K that are missing, counted twice, or taken with another factor, where they explain the result."""
    if parts.terms < 2:
        return None
    for sign, cause, verb in ((-1.0, "k-range-missing", "are missing"), (1.0, "k-range-doubled", "are counted twice")):
        found = _bad_terms(parts, sign)
        if found is not None and residual.explained_by(residual.exact + sign * parts.unfold(_product_over(parts, found))):
            said = f"Terms {_said(found)} of {parts.terms} {verb}{_as_part(found)}"
            return Explanation("defect", cause, f"{said}: without that, the result is within what arithmetic makes.", _evidence(found))
    return _scaled_range(residual, parts)


def _scaled_range(residual: Residual, parts: Folded) -> Explanation | None:
    """One of equal parts of K that is taken with a factor of its own: the part that takes most of the error away."""
    for splits in _SPLITS:
        if parts.terms % splits:
            continue
        edges = np.arange(splits + 1) * (parts.terms // splits)
        best, power, factor, change = -1, 0.0, 0.0, np.zeros(())
        for part in range(splits):
            here = slice(int(edges[part]), int(edges[part + 1]))
            made = parts.scale * np.matmul(parts.left[..., here], parts.right[:, here])
            size, along = float(np.sum(np.square(made))), float(np.sum(parts.error * made))
            if size > 0 and along * along / size > power:
                best, power, factor, change = part, along * along / size, along / size, made
        if best < 0:
            continue
        found = np.zeros(parts.terms, bool)
        found[edges[best] : edges[best + 1]] = True
        for whole, cause, said in (
            (-1.0, "k-range-missing", "are missing"),
            (1.0, "k-range-doubled", "are counted twice"),
            (factor, "k-range-scaled", f"are taken {1.0 + factor:.9g} times"),
        ):
            if residual.explained_by(residual.exact + whole * parts.unfold(change)):
                statement = (
                    f"Terms {_said(found)} of {parts.terms} {said}{_as_part(found)}: with that, the result is within what arithmetic makes."
                )
                evidence = _evidence(found) | ({"factor": 1.0 + factor} if cause == "k-range-scaled" else {})
                return Explanation("defect", cause, statement, evidence)
    return None


def _product_over(parts: Folded, terms: NDArray[np.bool_]) -> NDArray[np.float64]:
    made: NDArray[np.float64] = parts.scale * np.matmul(parts.left[..., terms], parts.right[:, terms])
    return made


def _said(bad: NDArray[np.bool_]) -> str:
    ranges = _ranges(bad)
    return ", ".join(f"[{a}, {b})" for a, b in ranges[:4]) + (", ..." if len(ranges) > 4 else "")


def _evidence(bad: NDArray[np.bool_]) -> dict[str, Any]:
    ranges = _ranges(bad)
    evidence: dict[str, Any] = {"ranges": [list(pair) for pair in ranges], "terms_bad": int(bad.sum())}
    part = _part(bad)
    return evidence if part is None else {**evidence, "part": part[0], "parts": part[1]}


def _part(bad: NDArray[np.bool_]) -> tuple[int, int] | None:
    """(i, n) where the bad terms are just part i of n equal parts of K: a split, or a rank's shard."""
    ranges = _ranges(bad)
    if len(ranges) != 1:
        return None
    first, last = ranges[0]
    size = last - first
    parts = -(-bad.size // size)
    return (first // size, parts) if parts > 1 and first % size == 0 and bad.size % size == 0 else None


def _as_part(bad: NDArray[np.bool_]) -> str:
    part = _part(bad)
    return "" if part is None else f" (part {part[0]} of {part[1]}, counted from 0: a split, or a rank's shard)"


def _bad_terms(parts: Folded, sign: float) -> NDArray[np.bool_] | None:
    """The terms that are missing (sign -1) or doubled (+1): the best range first, then single terms until nothing changes."""
    bad = np.zeros(parts.terms, bool)
    for turn in range(_ROUNDS):
        share, weight = shares_of_terms(parts, (parts.error - sign * _product_over(parts, bad)) / parts.scale)
        if not np.any(weight > 0):
            return None
        share = sign * share + bad
        new = _best_range(share - 0.5) if turn == 0 else share > 0.5
        if np.array_equal(new, bad):
            break
        bad = new
    return bad if np.any(bad) and len(_ranges(bad)) <= _RANGES else None


def shares_of_terms(parts: Folded, error: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """c_k of an error, and the weight |x_k|^2 |w_k|^2 of each term.

    Operands and error are centred along rows and columns first, where there are enough: the terms of one-signed operands all resemble
    their mean, and a missing term would show in every other.
    """
    weight, share = np.zeros(parts.terms), np.zeros(parts.terms)
    for left, right, off in zip(parts.left, parts.right, error, strict=True):
        if left.shape[0] >= _CENTRED:
            left, off = left - left.mean(0), off - off.mean(0)
        if right.shape[1] >= _CENTRED:
            right, off = right - right.mean(1, keepdims=True), off - off.mean(1, keepdims=True)
        weight += np.square(left).sum(0) * np.square(right).sum(1)
        share += np.einsum("kn,kn->k", left.T @ off, right)
    return np.where(weight > 0, share / np.where(weight > 0, weight, 1.0), 0.0), weight


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
