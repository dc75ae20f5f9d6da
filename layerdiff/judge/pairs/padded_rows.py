"""Rows of padding: what a model makes of tokens that both runs' masks hide means nothing, and two right programs make other things."""

from __future__ import annotations

from dataclasses import dataclass
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


class PaddedRows:
    """Which tokens of each step both runs were told are none, by the `attention_mask` of their roots."""

    def __init__(self, files: Both[tuple[TraceFile, ...]]) -> None:
        self._files = files
        self._known: dict[tuple[str, int, int], Hidden | None] = {}

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
        return None if hidden is None else hidden.among(shape)

    def _of_both(self, numbers: Both[int], calls: Both[int]) -> Hidden | None:
        ours, theirs = (self._of(side, getattr(numbers, side), getattr(calls, side)) for side in ("reference", "target"))
        if ours is None or theirs is None or (ours.keys.shape, ours.tokens) != (theirs.keys.shape, theirs.tokens):
            return None
        return Hidden(ours.keys & theirs.keys, ours.tokens)

    def _of(self, side: str, number: int, call: int) -> Hidden | None:
        file: TraceFile = getattr(self._files, side)[number]
        root = root_of(file.calls.parent, call)
        key = side, number, root
        if key not in self._known:
            self._known[key] = hidden_by(file, root)
        return self._known[key]


@dataclass(frozen=True)
class Hidden:
    """What a root was told is no token.

    Attributes:
        keys: shape (batch, keys), of what is seen from this step on: cached tokens, and behind them those that the root is given.
        tokens: how many of these it is given.
    """

    keys: NDArray[np.bool_]
    tokens: int

    def among(self, shape: tuple[int, ...]) -> NDArray[np.bool_] | None:
        """Which elements of a value of this shape are of such tokens; None where its shape does not tell, or none is."""
        batch, keys = self.keys.shape
        given, before = self.keys[:, keys - self.tokens :], self.keys[:, : keys - self.tokens]
        for axis in (1, 2):
            if len(shape) <= axis or shape[0] != batch or (axis == 2 and len(shape) > 4):  # behind channels, or heads
                continue
            if shape[axis] == self.tokens:
                return _along(given, shape, axis) if given.any() else None
            if len(shape) == 4 and axis == 2 and shape[axis] >= keys - self.tokens:  # a cache, before the step or after it, or with room
                whole = before if shape[axis] == keys - self.tokens else self.keys
                rest = np.zeros((batch, shape[axis] - whole.shape[1]), np.bool_) if shape[axis] >= whole.shape[1] else None
                return None if rest is None or not whole.any() else _along(np.concatenate([whole, rest], 1), shape, axis)
        if len(shape) > 1 and self.tokens > 1 and shape[0] == batch * self.tokens and given.any():
            return np.broadcast_to(given.reshape(-1, *(1,) * (len(shape) - 1)), shape)
        return None


def hidden_by(file: TraceFile, root: int) -> Hidden | None:
    """What a root was told is no token by its mask; None where it is told of none.

    All may be none where statistics alone were kept of a mask that hides some.
    """
    mask = mask_given(file, root)
    if mask is None or file.values.nbytes[mask] > _LONGEST:
        return None
    batch, keys = file.shape(mask)
    others = [file.shape(edge.value) for edge in file.edges_of(root) if edge.role == Role.INPUT and edge.value != mask]
    tokens = {shape[1] for shape in others if len(shape) in (2, 3) and shape[0] == batch and shape[1] <= keys}
    if len(tokens) > 1:
        return None
    try:
        hidden = np.asarray(file.read(mask) == 0) if file.has_bytes(mask) else _some_hidden(file, mask)
    except TraceError:
        return None
    return Hidden(hidden, min(tokens, default=keys)) if hidden.any() else None


def mask_given(file: TraceFile, root: int) -> int | None:
    """The mask of tokens, (batch, keys), that a root is given; None where it is given none."""
    given = (edge for edge in file.edges_of(root) if edge.role == Role.INPUT and edge.position.endswith("attention_mask"))
    return next((edge.value for edge in given if len(file.shape(edge.value)) == 2), None)


def _some_hidden(file: TraceFile, mask: int) -> NDArray[np.bool_]:
    known = file.statistics(mask)
    return np.full(file.shape(mask), known is not None and known.minimum == 0)


def _along(hidden: NDArray[np.bool_], shape: tuple[int, ...], axis: int) -> NDArray[np.bool_]:
    """`hidden`, (batch, length), along an axis of a value of this shape."""
    batch, length = hidden.shape
    return np.broadcast_to(hidden.reshape(batch, *(1,) * (axis - 1), length, *(1,) * (len(shape) - axis - 1)), shape)
