"""`Joined`: a trace file in which several steps of a root stand as one, with the values of their tokens put together.

A server runs a prompt in chunks, and a cache carries from each to the next. What the chunks make together is what one forward makes:
each module call of theirs is one call here, given and handing on what they were, one after the other along the tokens. Inside it stand the
operators of all chunks; where a value of all of them crosses from module to module, two operators of this file's own say how it is made
of theirs, `joined.whole` and `joined.part`: so what is read is a program like any other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from layerdiff.trace.along import First, InRow
from layerdiff.trace.chunks import Chunks
from layerdiff.trace.columns import Index
from layerdiff.trace.derived import Derived
from layerdiff.trace.dtypes import Dtype
from layerdiff.trace.joining import Joining, Whole
from layerdiff.trace.places import Place
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import Statistics

Array = NDArray[Any]


class Joined(TraceFile):
    """A trace file with some steps as one; `base` is the file itself."""

    def __init__(self, file: TraceFile, chunks: Sequence[Chunks], refused: frozenset[int] = frozenset()) -> None:
        """`refused`: as in `Joining`."""
        self.__dict__.update(file.__dict__)
        self.base, self.chunks = file, tuple(chunks)
        made = Joining(file, chunks, refused).tables()
        self._index = cast(Index, MadeIndex(file, made.texts, made.calls, made.values, made.edges))
        self.wholes, self.lasts, self.own, self.pieces, self.roots = made.wholes, made.lasts, made.own, made.pieces, made.roots
        self._moved = made.moved
        self._shapes = {}
        self._derived = Derived(self, self.path.stat().st_size, self._stored_bytes)

    def new_root(self, call: int) -> int:
        """Which call here is a root call of the file, or stands for several of which it is the last."""
        return self._moved[call]

    def whole(self, value: int) -> Whole | None:
        """What a value is made of; None of one that was recorded."""
        return self.wholes.get(value)

    def ends(self, value: int) -> tuple[int, ...]:
        """What a value of last tokens alone is made of, where steps have other requests; nothing of another."""
        whole = self.wholes.get(value)
        if whole is None or not isinstance(whole.how, InRow):
            return ()
        order, layouts = whole.how.order, [one.layout for one in self.chunks]
        are_ends = any(order != of.order and order in (of.order_of_ends, of.ends_of_both) for of in layouts)
        return whole.parts if are_ends else ()

    def has_bytes(self, value: int) -> bool:
        """Whether the bits of all of it were kept."""
        whole = self.wholes.get(value)
        return super().has_bytes(value) if whole is None else all(self.base.has_bytes(part) for part in whole.parts)

    def raw(self, value: int) -> Array:
        """The bits of a value."""
        whole = self.wholes.get(value)
        if whole is None:
            return super().raw(value)
        return whole.how.whole([self.base.raw(part) for part in whole.parts], whole.fill)

    def read(self, value: int) -> Array:
        """A value as numbers."""
        dtype = self.dtype(value)
        return super().read(value) if value not in self.wholes or dtype is None else dtype.decode(self.raw(value))

    def statistics(self, value: int) -> Statistics | None:
        """Those of the parts together."""
        whole = self.wholes.get(value)
        if whole is None:
            return super().statistics(value)
        each = [self.base.statistics(part) for part in whole.parts]
        if whole.how.keys or isinstance(whole.how, First) or any(one is None for one in each):
            return None
        known = [one for one in each if one is not None]
        odd = [one.nan + one.posinf + one.neginf for one in known]
        counts = np.array([self.base.count(part) for part in whole.parts], np.float64) - odd
        shares = counts / max(counts.sum(), 1.0)
        finite = [one for one, count in zip(known, counts, strict=True) if count] or known
        mean = float(np.nansum(shares * [one.mean for one in known]))
        rms = math.sqrt(float(np.nansum(shares * np.square([one.rms for one in known]))))
        ends = min(one.minimum for one in finite), max(one.maximum for one in finite)
        return Statistics(*ends, mean, rms, *(sum(getattr(one, name) for one in known) for name in ("nan", "posinf", "neginf")))

    def _place(self, value: int, dtype: Dtype) -> Place | None:
        return None if value in self.wholes else super()._place(value, dtype)

    def _stored_bytes(self, value: int) -> NDArray[np.uint8]:
        return self.raw(value).reshape(-1).view(np.uint8) if value in self.wholes else super()._stored_bytes(value)


def own_of(file: TraceFile) -> frozenset[int]:
    """The calls of a file that nobody made: how values are put together and taken apart."""
    return file.own if isinstance(file, Joined) else frozenset()


def goes_on(file: TraceFile) -> bool:
    """Whether steps that are one go on with tokens that the run had before anything was recorded."""
    return isinstance(file, Joined) and any(one.begun for one in file.chunks)


def in_row(file: TraceFile, call: int) -> bool:
    """Whether a call is one of steps that are one, and have other requests."""
    return isinstance(file, Joined) and call in file.pieces and bool(file.pieces[call][0].layout.order)


class _Texts:
    def __init__(self, file: TraceFile, more: Sequence[str]) -> None:
        self._file, self._count, self._more = file, file.text_count, more

    def __len__(self) -> int:
        return self._count + len(self._more)

    def __getitem__(self, index: int) -> str:
        return self._more[index - self._count] if index >= self._count else self._file.text(index) or ""


class _Table:
    def __init__(self, columns: Mapping[str, Array]) -> None:
        self.__dict__.update(columns)
        self._rows = len(next(iter(columns.values())))

    def __len__(self) -> int:
        return self._rows


class MadeIndex:
    """As `columns.Index`."""

    def __init__(self, file: TraceFile, texts: Sequence[str], *tables: Mapping[str, Array]) -> None:
        self.texts = _Texts(file, texts)
        self.calls, self.values, self.edges = (_Table(columns) for columns in tables)

    @cached_property
    def edge_start(self) -> NDArray[np.int64]:
        """As there."""
        start = np.zeros(len(self.calls) + 1, np.int64)
        np.cumsum(np.bincount(self.edges.call, minlength=len(self.calls)), out=start[1:])  # type: ignore[attr-defined]
        return start

    @cached_property
    def edge_order(self) -> NDArray[np.int64]:
        """As there."""
        return np.argsort(self.edges.call, kind="stable").astype(np.int64)  # type: ignore[attr-defined]
