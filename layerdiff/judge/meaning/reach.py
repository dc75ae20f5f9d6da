"""Which operator calls of a body reach which: by the parts of memory that they share.

A view has the memory of what it is a view of, so views need no following. Of a memory only the elements from the first to the last
one of a value count: the caches of all layers may lie in one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.programs.running import Programs, Ran
from layerdiff.judge.programs.setting import Cut
from layerdiff.replay.allowed import listed
from layerdiff.replay.recorded import Place, Recorded

TELLING: Final = listed("""
    add sub rsub mul div neg reciprocal cat stack mm bmm addmm baddbmm matmul linear dot mv convolution _to_copy clone exp log sin cos
    tanh sigmoid silu gelu sqrt rsqrt pow square sum mean var var_mean _softmax softmax logsumexp native_layer_norm _fused_rms_norm
""")
"""Operators whose results are others, as a rule, if any element of an operand is."""


class _Parts:
    """Runs of elements, by memory."""

    def __init__(self, places: Iterable[Place] = ()) -> None:
        self._runs: dict[tuple[int, str], list[tuple[int, int]]] = {}
        self.add(places)

    def add(self, places: Iterable[Place]) -> None:
        for place in places:
            runs = self._runs.setdefault(place.memory, [])
            if not any(first <= place.offset and place.extent <= end for first, end in runs):
                runs.append((place.offset, place.extent))

    def meet(self, places: Iterable[Place]) -> bool:
        """Whether any of the places has an element of them; what holds nothing lies where it begins."""
        return any(
            first < max(place.extent, place.offset + 1) and place.offset < max(end, first + 1)
            for place in places
            for first, end in self._runs.get(place.memory, ())
        )


Read = tuple[int, str]
"""What a call is given: the call, and the position."""


def cone(programs: Programs, side: str, cut: Cut, held: Set[int] = frozenset(), read: Set[Read] = frozenset()) -> set[int]:
    """The operator calls of the body whose results reach a cut.

    What only reaches it through one of the calls `held`, whose results are right, or as what is `read` there, is left out.
    """
    run: Recorded = getattr(programs.runs, side)
    body, (pair, position) = programs.body, cut
    here = 0 if side == "reference" else 1
    crossing = body.interface.outputs if pair == body.calls else body.children[pair].inputs
    needed = [run.place(values[here]) for at, values in crossing if at == position]
    items: tuple[int, ...] = getattr(body.items, side)
    stop = items.index(pair[here]) if pair != body.calls else len(items)
    return reaching(run, items[:stop], needed, held, read)


def reaching(
    run: Recorded, items: Sequence[int], places: Iterable[Place], held: Set[int] = frozenset(), read: Set[Read] = frozenset()
) -> set[int]:
    """The operator calls among `items` whose results reach one of the places, not through the calls `held`, nor as what is `read`."""
    found: set[int] = set()
    needed = _Parts(places)
    for item in reversed(items):
        if run.is_module(item) or item in held or run.is_view(run.operation(item)):
            continue
        if needed.meet(_made(run, item)):
            found.add(item)
            needed.add(_given(run, item, read))
    return found


def behind(programs: Programs, side: str, ran: Ran, held: Set[int], read: Set[Read] = frozenset()) -> set[int]:
    """The calls of the body whose results are right: what is `read` is all of them, or the calls `held` were made of every element.

    From a call that hands on no more than some elements (a gather, a maximum, a mask), nothing follows of what it was given.
    """
    run: Recorded = getattr(programs.runs, side)
    found: set[int] = set()
    vouched = Elements()
    for item in reversed(getattr(programs.body.items, side)):
        if run.is_module(item):
            continue
        for position, value in run.operation(item).inputs.items():
            if (item, position) in read:
                vouched.add(run.place(value))
        if not (ran.results.get(item) or run.is_float_cast(run.operation(item))):
            continue
        if item not in held:
            if run.operation(item).writes or not all(vouched.has(place) for place in _made(run, item)):
                continue
            found.add(item)
        if run.operation(item).base in TELLING:
            for place in _given(run, item):
                vouched.add(place)
    return found


class Elements:
    """Elements of memories."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], NDArray[np.bool_]] = {}

    def add(self, place: Place) -> None:
        """Add those of a place."""
        self._of(place)[...] = True

    def has(self, place: Place) -> bool:
        """Whether all elements of a place are among them."""
        return place.memory in self._known and bool(self._of(place).all())

    def _of(self, place: Place) -> NDArray[np.bool_]:
        known = self._known.get(place.memory, np.zeros(0, np.bool_))
        if known.size < place.extent:
            known = self._known[place.memory] = np.concatenate([known, np.zeros(place.extent - known.size, np.bool_)])
        found: NDArray[np.bool_] = np.lib.stride_tricks.as_strided(known[place.offset :], place.shape, place.strides)
        return found


def _given(run: Recorded, call: int, but: Set[Read] = frozenset()) -> list[Place]:
    return [run.place(value) for position, value in run.operation(call).inputs.items() if (call, position) not in but]


def _made(run: Recorded, call: int) -> list[Place]:
    operation = run.operation(call)
    written = [operation.inputs[position] for position in operation.writes if position in operation.inputs]
    return [run.place(value) for value in (*operation.outputs.values(), *written)]
