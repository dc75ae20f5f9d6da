"""Operator calls of ranks that are one call in pieces, each of a step of several that stand as one: known by the last of them, as what they
make together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.programs.together import Together
from layerdiff.judge.teams.bodies import TeamBody
from layerdiff.replay.recorded import Operation, Recorded

Array = NDArray[Any]
Results = dict[tuple[int, int], dict[str, Array]]
"""By file, call and position."""


@dataclass(frozen=True)
class InPieces:
    """Those of one side of a body, by file."""

    of: Mapping[int, Together]
    contents: Callable[[Recorded, int], Array]

    @classmethod
    def in_body(cls, body: TeamBody, side: str, contents: Callable[[Recorded, int], Array]) -> InPieces:
        """Of the calls that the processes of a side run."""
        parts = getattr(body.parts, side)
        items = {file: [item for item in part.items if item not in part.children] for file, part in parts.items()}
        return cls({file: Together(part.run, items[file]) for file, part in parts.items()}, contents)

    def stands(self, file: int, call: int) -> bool:
        """Whether a call stands for itself, or for all of its pieces."""
        return self.of[file].stands(call)

    def calls(self, file: int, call: int) -> tuple[int, ...]:
        """The pieces that a call is one of, the last one of which stands for them; itself alone where it is in none."""
        return self.of[file].calls(call)

    def counts_a_step(self, file: int, call: int) -> bool:
        """As `Together` has it."""
        return self.of[file].counts_a_step(call)

    def put_together(self, results: Results) -> None:
        """What pieces made, as what they made together; where that is not one thing, nothing."""
        for file, call in [(file, call) for file, call in results if self.of[file].is_one(call) and self.stands(file, call)]:
            pieces = self.calls(file, call)
            each = [results.get((file, one), {}) for one in pieces]
            made = {position: self._joined(file, call, [one.get(position) for one in each]) for position in each[-1]}
            results[file, call] = {position: whole for position, whole in made.items() if whole is not None}
        for at in [at for at in results if not self.stands(*at)]:
            del results[at]

    def recorded(self, run: Recorded, file: int, call: int, position: str) -> Array | None:
        """What a call, or its pieces together, were recorded to make."""
        values = [run.operation(one).outputs.get(position) for one in self.calls(file, call)]
        parts = [None if value is None else self.contents(run, value) for value in values]
        return self.as_one(file, call, parts)

    def as_one(self, file: int, call: int, parts: Sequence[Array | None]) -> Array | None:
        """What the pieces of a call made, or were given, together."""
        return self._joined(file, call, parts) if self.of[file].is_one(call) else parts[0]

    def whole(self, run: Recorded, file: int, call: int, position: str, own: Array) -> Array | None:
        """What a call makes, where it is no piece `own`; else what its pieces were recorded to make together."""
        return self.recorded(run, file, call, position) if self.of[file].is_one(call) else own

    def own_of(self, file: int, operation: Operation, position: str, whole: Array) -> Array | None:
        """Of what pieces make together what one of them makes."""
        if not self.of[file].is_one(operation.call):
            return whole
        pieces = self.calls(file, operation.call)
        apart = self.of[file].apart(operation.call, position, whole)
        return apart[pieces.index(operation.call)] if len(apart) == len(pieces) else None

    def _joined(self, file: int, call: int, parts: Sequence[Array | None]) -> Array | None:
        known = [part for part in parts if part is not None]
        found = self.of[file].joined(call, known) if len(known) == len(parts) else None
        return None if found is None else np.asarray(found[0])
