"""`Sent`: what is made of tokens that were sent to experts, which each run has in an order of its own.

An engine sorts tokens by the expert that they chose; a model goes from expert to expert and lists who chose it. Neither makes the other's
lists, nor its rows in that order. So the lists say nothing, and of what is made of the tokens the rows are looked for, wherever they lie.
What puts them back at a wrong place shows in the sum over a token's experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.programs.bodies import Interface
from layerdiff.judge.programs.running import Programs, Ran
from layerdiff.replay.allowed import listed
from layerdiff.replay.recorded import Operation, Recorded
from layerdiff.trace.dtypes import dtype_named

Array = NDArray[Any]
_CHOOSE: Final = frozenset({"topk", "sort", "argsort", "argmax", "max"})
_LIST: Final = listed("sort argsort nonzero where eq ne one_hot scatter bincount histc unique _unique2")
"""Operators that make lists of tokens of chosen experts: arithmetic with their numbers, which may be wrong, is none."""


class Sent:
    """In one program of a body, as run, `ran`. `other`: the other program's, in which rows are looked for, to within `near`."""

    def __init__(self, programs: Programs, side: str, ran: Ran, other: Ran, near: float) -> None:
        self._near, self._results = near, ran.results
        self._other = [made for results in other.results.values() for made in results.values()]
        self._other += [*other.read.values(), *other.came_in.values(), *(made for each in other.inside.values() for made in each)]
        self._rows: dict[int, Array] = {}
        self._known: dict[int, bool] = {}
        self.lists: set[int] = set()
        self.calls: set[int] = set()
        """Those that are given tokens by such a list, or what is made of these."""
        _Found(programs, side, ran, self.lists, self.calls)

    def has(self, call: int) -> bool:
        """Whether a call makes a list of tokens, or rows all of which the other program makes."""
        if call not in self._known:
            results = self._results.get(call, {}).values()
            self._known[call] = call in self.lists or (call in self.calls and all(self._has_rows(made) for made in results))
        return self._known[call]

    def _has_rows(self, made: Array) -> bool:
        if made.dtype.kind != "f" or not made.ndim or not np.isfinite(made).all():
            return False
        rows = _in_rows(made)
        rows = rows[rows.any(axis=1)]
        known = self._projected(rows.shape[1])
        if not len(rows) or not known.shape[1]:
            return not len(rows)
        mine, limit = _by(rows.shape[1]) @ rows.T, self._near * np.linalg.norm(rows, axis=1)
        at = np.searchsorted(known[0], mine[0])
        near = [np.clip(at + step, 0, known.shape[1] - 1) for step in (-1, 0)]
        return bool(np.all(np.any([np.all(np.abs(known[:, one] - mine) <= limit, axis=0) for one in near], axis=0)))

    def _projected(self, width: int) -> Array:
        """Two projections of each row of that width, by the first. Shape (2, rows)."""
        if width not in self._rows:
            wide = [_in_rows(one) for one in self._other if one.dtype.kind == "f" and one.size and _width(one) == width]
            rows = np.concatenate([np.zeros((0, width)), *wide])
            projected = _by(width) @ rows[np.isfinite(rows).all(axis=1)].T
            self._rows[width] = projected[:, np.argsort(projected[0], kind="stable")]
        return self._rows[width]


def _width(x: Array) -> int:
    return x.shape[-1] if x.ndim > 1 else 1


def _in_rows(x: Array) -> Array:
    return x.reshape(-1, _width(x)).astype(np.float64)


def _by(width: int) -> NDArray[np.float64]:
    return np.random.default_rng(0).standard_normal((2, width))


class _Found:
    """Goes through a program, and says of each memory whether it holds chosen experts, a list of tokens, or tokens that were sent."""

    def __init__(self, programs: Programs, side: str, ran: Ran, lists: set[int], calls: set[int]) -> None:
        run: Recorded = getattr(programs.runs, side)
        self._run, self._here = run, 0 if side == "reference" else 1
        chosen, listed_in, sent = ({run.place(value).memory[0] for value in self._coming(programs.body.interface)}, set[int](), set[int]())
        for item in getattr(programs.body.items, side):
            if run.is_module(item) or run.is_view(operation := run.operation(item)):
                continue
            given = {run.place(value).memory[0] for value in operation.inputs.values()}
            whole, floats = self._made(operation)
            if item in ran.operands and operation.base in _CHOOSE:
                chosen |= whole
            elif given & listed_in or (given & chosen and operation.base.rstrip("_") in _LIST):
                listed_in |= whole
            elif given & chosen:
                chosen |= whole
            if given & (listed_in | sent):
                sent |= floats
            if whole & listed_in:
                lists.add(item)
            elif floats & sent:
                calls.add(item)

    def _made(self, operation: Operation) -> tuple[set[int], set[int]]:
        """The memories to which whole numbers and truth values are written, and those of floats."""
        values = [*operation.outputs.values(), *(operation.inputs[at] for at in operation.writes if at in operation.inputs)]
        both: tuple[set[int], set[int]] = set(), set()
        for value in values:
            both[self._is_float(value)].add(self._run.place(value).memory[0])
        return both

    def _is_float(self, value: int) -> bool:
        kind = dtype_named(self._run.file.dtype_name(value))
        return kind is None or kind.kind not in ("integer", "boolean")

    def _coming(self, interface: Interface) -> Iterator[int]:
        """Chosen experts that come in: a row of whole numbers for each token."""
        inputs = [values[self._here] for _, values in interface.inputs]
        shapes = [self._run.file.shape(value) for value in inputs if self._is_float(value)]
        counts = {int(np.prod(shape[:-1])) for shape in shapes if len(shape) >= 2}
        for value in inputs:
            shape = self._run.file.shape(value)
            if not self._is_float(value) and len(shape) == 2 and shape[0] in counts:
                yield value
