"""Rows of padding: what a model makes of tokens that both runs' masks hide means nothing, and two right programs make other things."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.errors import TraceError
from layerdiff.sides import Both
from layerdiff.trace.enclosing import root_of
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import Role, ValueKind

_LONGEST: Final = 1 << 24
"""Bytes of a mask that is read."""
_Hidden = NDArray[np.bool_]


class PaddedRows:
    """Which tokens of each step both runs were told are none, by the `attention_mask` of their roots."""

    def __init__(self, files: Both[tuple[TraceFile, ...]]) -> None:
        self._files = files
        self._known: dict[tuple[str, int, int], _Hidden | None] = {}

    def among(self, numbers: Both[int], calls: Both[int], values: Both[int]) -> NDArray[np.bool_] | None:
        """Which elements of two values of one shape, of these files and calls, are of such tokens; None where none is known to be."""
        files = Both(self._files.reference[numbers.reference], self._files.target[numbers.target])
        shape = files.reference.shape(values.reference)
        if min(calls) < 0 or shape != files.target.shape(values.target):
            return None
        if any(file.values.kind[value] in (ValueKind.PARAMETER, ValueKind.BUFFER) for file, value in zip(files, values, strict=True)):
            return None
        return self.of_shape(shape, numbers, calls)

    def of_shape(self, shape: tuple[int, ...], numbers: Both[int], calls: Both[int]) -> NDArray[np.bool_] | None:
        """Which elements of a value of this shape are of such tokens, in the roots around these calls."""
        hidden = self._of_both(numbers, calls)
        return None if hidden is None else _elements(shape, hidden)

    def _of_both(self, numbers: Both[int], calls: Both[int]) -> _Hidden | None:
        ours, theirs = (self._of(side, getattr(numbers, side), getattr(calls, side)) for side in ("reference", "target"))
        return ours & theirs if ours is not None and theirs is not None and ours.shape == theirs.shape else None

    def _of(self, side: str, number: int, call: int) -> _Hidden | None:
        file: TraceFile = getattr(self._files, side)[number]
        root = root_of(file.calls.parent, call)
        key = side, number, root
        if key not in self._known:
            self._known[key] = hidden_tokens(file, root)
        return self._known[key]


def hidden_tokens(file: TraceFile, root: int) -> _Hidden | None:
    """Shape (batch, tokens): the tokens that a root is given, and told are none; None where it is told of none, or not by a mask.

    All may be none where statistics alone were kept of a mask that hides some.
    """
    given = {edge.position: edge.value for edge in file.edges_of(root) if edge.role == Role.INPUT}
    at = next((at for at in given if at.endswith("attention_mask") and len(file.shape(given[at])) == 2), None)
    if at is None or file.values.nbytes[given[at]] > _LONGEST:
        return None
    batch, keys = file.shape(given[at])
    others = [file.shape(value) for position, value in given.items() if position != at]
    tokens = {shape[1] for shape in others if len(shape) in (2, 3) and shape[0] == batch and shape[1] <= keys}
    if len(tokens) > 1:
        return None
    try:
        hidden = np.asarray(file.read(given[at]) == 0) if file.has_bytes(given[at]) else _some_hidden(file, given[at])
    except TraceError:
        return None
    hidden = hidden[:, keys - min(tokens, default=keys) :]
    return hidden if hidden.any() else None


def _some_hidden(file: TraceFile, mask: int) -> _Hidden:
    known = file.statistics(mask)
    return np.full(file.shape(mask), known is not None and known.minimum == 0)


def _elements(shape: tuple[int, ...], hidden: _Hidden) -> _Hidden | None:
    """Which elements of a value of this shape are of such tokens; None where its shape does not tell."""
    batch, tokens = hidden.shape
    if shape[:2] == (batch, tokens):
        return _along(shape, hidden, 1)
    if len(shape) in (3, 4) and (shape[0], shape[2]) == (batch, tokens):  # behind channels, or heads
        return _along(shape, hidden, 2)
    return np.broadcast_to(hidden.reshape(-1, *(1,) * (len(shape) - 1)), shape) if len(shape) > 1 and shape[0] == batch * tokens else None


def _along(shape: tuple[int, ...], hidden: _Hidden, axis: int) -> _Hidden:
    batch, tokens = hidden.shape
    return np.broadcast_to(hidden.reshape(batch, *(1,) * (axis - 1), tokens, *(1,) * (len(shape) - axis - 1)), shape)
