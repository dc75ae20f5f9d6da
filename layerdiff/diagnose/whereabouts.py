"""Where in a tensor some elements lie, in words: whole rows of a dimension where they are that, else the first one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray


def whereabouts(chosen: NDArray[np.bool_], what: str) -> str:
    """Where the True elements of an array of any shape are: `rows 0..2 of dim 1 are wholly NaN`.

    Only where they are every element of those rows; else `the first at [0, 3, 0]`. Empty where there is none. `what` says
    what they are.
    """
    if not chosen.any():
        return ""
    places = [np.flatnonzero(chosen.any(axis=tuple(d for d in range(chosen.ndim) if d != dim))) for dim in range(chosen.ndim)]
    if int(np.prod([place.size for place in places])) != int(np.count_nonzero(chosen)):
        first = np.unravel_index(int(np.argmax(chosen)), chosen.shape)
        return f"the first at [{', '.join(str(int(index)) for index in first)}]"
    narrow = [(dim, place.tolist()) for dim, place in enumerate(places) if place.size < chosen.shape[dim]]
    if not narrow:
        return f"every element is {what}"
    single = len(narrow) == 1 and len(narrow[0][1]) == 1
    named = " and ".join(f"{ranges(place)} of dim {dim}" for dim, place in narrow)
    return f"{'row' if single else 'rows'} {named} {'is' if single else 'are'} wholly {what}"


def ranges(numbers: Sequence[int], most: int = 8) -> str:
    """`0..2, 7` of sorted whole numbers; says how many runs it leaves out."""
    runs = [[number for _, number in group] for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
    shown = [str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs[:most]]
    left = sum(map(len, runs[most:]))
    return ", ".join(shown) + (f" and {left} more" if left else "")
