"""`Weights`: which weight a value of a run is: a view of one, or what a cast made of one.

Under autocast no product is given a weight, but what one is in another dtype: cast anew for each call, once for many steps, or before
anything was recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from layerdiff.arithmetic.formats import format_named
from layerdiff.trace.schema import ValueKind

if TYPE_CHECKING:
    from layerdiff.replay.recorded import Place, Recorded

_FINGERPRINT: Final = re.compile("[0-9a-f]{32}")
_MOST_CASTS: Final = 4
_MOST_VIEWS: Final = 16
"""One after another, that are followed to a weight."""


class Weight(NamedTuple):
    """Which weight a value is."""

    name: str
    whole: int
    """The value of all of it."""
    place: Place
    """Where in its memory the value lies; of a cast, what it is a cast of."""


class Weights:
    """The weights of one run."""

    def __init__(self, run: Recorded) -> None:
        self._run = run
        self._known: dict[int, Weight | None] = {}

    def of(self, value: int) -> Weight | None:
        """The weight that a value is; None for none."""
        if value not in self._known:
            self._known[value] = self._find(value)
        return self._known[value]

    def trained(self, value: int) -> tuple[int, Place] | None:
        """What a value is a cast of, and where it lies in that, where that is a weight which the run writes to (an optimizer)."""
        for source, place in self._behind_casts(value):
            if source != value and place.memory[0] in self._written:
                return (source, place) if place.memory[0] in self._named else None
        return None

    def _find(self, value: int) -> Weight | None:
        for _, place in self._behind_casts(value):
            found = self._at(place)
            if found is not None or place.memory[0] in self._written:
                return found
        return None

    def _behind_casts(self, value: int) -> Iterator[tuple[int, Place]]:
        """A value and what it is a cast of, one behind the other, each with where the value lies in it."""
        run = self._run
        place = run.place(value)
        for _ in range(_MOST_CASTS):
            yield value, place
            cast = self._behind_views(value)
            source = self._cast_from(cast)
            if source is None or not self._declared(cast, source):
                return
            out, given = run.place(cast), run.place(source)
            if (out.shape, out.strides) != (given.shape, given.strides):
                return
            place = replace(place, memory=given.memory, offset=place.offset - out.offset + given.offset, version=given.version)
            value = source

    def _behind_views(self, value: int) -> int:
        """What a value is a view of, as far as that was recorded."""
        run = self._run
        memory = run.place(value).memory
        for _ in range(_MOST_VIEWS):
            call = int(run.producer[value])
            operation = run.operation(call) if call >= 0 else None
            seen = () if operation is None or not run.is_view(operation) else operation.inputs.values()
            behind = next((one for one in seen if run.place(one).memory == memory), None)
            if behind is None:
                break
            value = behind
        return value

    def _cast_from(self, value: int) -> int | None:
        """What a value is a cast of: what the call that made it was given; a weight, where it was made before anything was recorded."""
        run = self._run
        call = int(run.producer[value])
        if call >= 0:
            return operation.inputs["in[0]"] if run.is_float_cast(operation := run.operation(call)) else None
        fingerprint = run.file.fingerprint(value)
        return None if fingerprint is None else self._rounded.get((run.file.dtype_name(value), *fingerprint))

    def _declared(self, cast: int, source: int) -> bool:
        """Whether a cast is exact, or to the dtype that the run multiplies matrices in: any other makes another weight."""
        names = [self._run.file.dtype_name(value) for value in (cast, source)]
        made, given = (format_named(name) for name in names)
        if made is None or given is None:
            return False
        exact = made.significand_bits >= given.significand_bits and made.largest >= given.largest
        return (exact and made.smallest_subnormal <= given.smallest_subnormal) or names[0] == self._run.product_dtype

    @cached_property
    def _rounded(self) -> dict[tuple[str, int, int], int]:
        """Weights by what they are once rounded to a narrower dtype: its name, and the fingerprint there."""
        run = self._run
        found: dict[tuple[str, int, int], int] = {}
        for row in np.flatnonzero(run.file.values.kind != ValueKind.ACTIVATION).tolist():
            statistics = run.file.statistics(row)
            if statistics is None or statistics.minimum == statistics.maximum:  # zeros and ones are many other things, too
                continue
            detail = run.file.json(int(run.file.values.detail[row]))
            rounded = detail.get("rounded") if isinstance(detail, dict) else None
            for name, text in rounded.items() if isinstance(rounded, dict) else ():
                if isinstance(text, str) and _FINGERPRINT.fullmatch(text):
                    found.setdefault((name, int(text[:16], 16), int(text[16:], 16)), row)
        return found

    def _at(self, place: Place) -> Weight | None:
        inside = self._named.get(place.memory[0], [])
        if not inside or place.memory[0] in self._written:
            return None
        if len(inside) > 1:
            wholes = [(self._run.place(row), row, name) for row, name in inside]
            around = [
                one for one in wholes if one[0].memory == place.memory and one[0].offset <= place.offset and place.extent <= one[0].extent
            ]
            inside = [(row, name) for _, row, name in sorted(around, key=lambda one: one[0].extent - one[0].offset)]
        return Weight(inside[0][1], inside[0][0], place) if inside else None

    @cached_property
    def _written(self) -> set[int]:
        run = self._run
        columns = run.file.values
        return set(columns.memory[np.flatnonzero((columns.version > 0) & (columns.memory >= 0))].tolist())

    @cached_property
    def _named(self) -> dict[int, list[tuple[int, str]]]:
        """Value and name of each weight, by memory."""
        run = self._run
        found: dict[int, list[tuple[int, str]]] = {}
        for row in np.flatnonzero(run.file.values.kind != ValueKind.ACTIVATION).tolist():
            name = run.file.weight_name(row)
            if name is not None:
                found.setdefault(run.place(row).memory[0], []).append((row, name))
        return found
