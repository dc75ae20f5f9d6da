"""`Acquitted`: calls all of whose results show at cuts where the programs meet, though the other program never makes them.

Angles that are counted from another token turn queries and keys alike: what is made of both is right, and so are they. No rewriting is
recognised: each part of a result is changed, and must change what is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.meaning.reach import cone
from layerdiff.judge.programs.running import Programs, Ran, Redone
from layerdiff.judge.programs.setting import Cut
from layerdiff.measure.rows import row_difference
from layerdiff.replay.refusal import CannotReplay
from layerdiff.trace.arguments import Arguments

Array = NDArray[Any]
_BY: Final = 2.0**-6
"""By what share of itself a part is changed."""
_PARTS: Final = 8
"""Parts of a result along each dimension: what q, k and v are made of at once is told apart."""
_PARTS_OF_MASKS: Final = 2
_MOST_RUNS: Final = 48
"""Runs of the program, one for each part, in all: two or three calls."""


class Acquitted:
    """In the target's program, as run, `theirs`.

    `met`: the cuts where the programs meet, to within `near`; `passed`: what calls do that are passed over.
    """

    def __init__(self, programs: Programs, theirs: Ran, met: Sequence[Cut], near: float, passed: Mapping[int, Redone]) -> None:
        self._programs, self._theirs, self._near, self._passed = programs, theirs, near, passed
        self._reach = {cut: cone(programs, "target", cut) for cut in met}
        self._known: dict[int, bool] = {}
        self._runs = 0

    def add(self, calls: Iterable[int]) -> None:
        """Acquit calls for another reason."""
        self._known |= dict.fromkeys(calls, True)

    def has(self, call: int) -> bool:
        """Whether a call of the target's is one."""
        if call not in self._known:
            met = [cut for cut, reach in self._reach.items() if call in reach]
            self._known[call] = bool(met) and self._shows(call, met)
        return self._known[call]

    def _shows(self, call: int, met: Sequence[Cut]) -> bool:
        results = self._theirs.results.get(call, {})
        if not results or any(made.dtype.kind not in "fb" or not made.size for made in results.values()):
            return False
        parts = [(), *(part for made in results.values() for part in _parts(made.shape, _parts_of(made)))]  # all of it first
        return self._runs + len(parts) <= _MOST_RUNS and all(self._changes(met, call, part) for part in parts)

    def _changes(self, met: Sequence[Cut], call: int, part: tuple[slice, ...]) -> bool:
        """Whether any of the cuts changes where a part of each result of that shape does."""

        def way(_: Arguments, made: Mapping[str, Array]) -> Mapping[str, Array]:
            return {at: _changed(one, part) for at, one in made.items()}

        self._runs += 1
        try:
            ran = self._programs.run("target", redone={**self._passed, call: way})
        except CannotReplay:
            return False
        return any(self._is_other(ran, pair[1], at) for pair, at in met)

    def _is_other(self, ran: Ran, call: int, position: str) -> bool:
        was, now = self._theirs.cuts[call, position], ran.cuts.get((call, position))
        return now is not None and was.dtype.kind == "f" and row_difference(was, now).figure > self._near


def _parts_of(made: Array) -> int:
    """Truth values hide scores, and those of all layers alike: nothing is made of q, k and v at once."""
    return _PARTS_OF_MASKS if made.dtype.kind == "b" else _PARTS


def _parts(shape: tuple[int, ...], count: int) -> Iterator[tuple[slice, ...]]:
    """Runs of indices of each dimension, of all others all."""
    for dim, size in enumerate(shape):
        step = -(-size // count)
        for begin in range(0, size, step) if size > 1 or dim == len(shape) - 1 else ():
            yield (slice(None),) * dim + (slice(begin, begin + step),)


def _changed(made: Array, part: tuple[slice, ...]) -> Array:
    found = np.array(made)
    changed = found[part] if len(part) <= found.ndim else found[:0]
    if made.dtype.kind == "b":
        np.logical_not(changed, out=changed)
        return found
    shares = np.random.default_rng(0).uniform(0.5, 1.0, changed.shape)
    changed *= 1.0 + _BY * shares
    return found
