"""`Issued`: a collective as one rank recorded it, read from a trace with every field checked.

A trace is a stranger's file: what is no collective as the recorder writes it is left out here, and nothing behind this asks again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind, Role

_MOST_RANKS: Final = 1 << 20
_REDUCING: Final = ("c10d.all_reduce", "c10d.reduce", "c10d.reduce_scatter")


@dataclass(frozen=True)
class Group:
    """A process group: its name and global ranks, in the order of their numbers inside it."""

    name: str
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        return f"group {self.name} (ranks {listed(self.ranks)})"


@dataclass(frozen=True)
class Issued:
    """One collective call of one rank. `inputs` and `outputs` are values of its file, in the order of their positions."""

    file: int
    rank: int
    call: int
    operator: str
    site: str
    step: int
    occurrence: int
    group: Group
    sequence: int
    op: str | None
    layout: str | None
    coalesced: bool
    source: int | None
    destination: int | None
    sizes: tuple[tuple[int, ...], tuple[int, ...]]
    """Rows to each rank, rows from each rank; empty where they are equal."""
    tag: int
    ended: str
    """`finished`, `raised`, `unfinished`."""
    why: str | None
    """What it raised."""
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    said: tuple[tuple[str, int], ...]
    """(dtype, elements) of what it says of itself on every rank alike: the inputs, or the outputs where it has none."""
    counts: tuple[int, ...]
    """Elements of each output."""

    @property
    def name(self) -> str:
        """`all_reduce`."""
        return self.operator.removeprefix("c10d.")

    @property
    def place(self) -> tuple[str, int, int]:
        """Site, step and occurrence: the same on ranks that run the same program."""
        return self.site, self.step, self.occurrence

    @property
    def signature(self) -> tuple[Any, ...]:
        """What all ranks of the group must say alike. Element counts are part of it where no rank may have another."""
        dtypes = tuple(dtype for dtype, _ in self.said)
        alike: Any = dtypes[:1]
        if self.operator in (*_REDUCING, "c10d.broadcast") and not (self.operator == "c10d.reduce_scatter" and self.layout == "list"):
            alike = self.said
        return self.operator, self.op, self.source, self.destination, alike

    def __str__(self) -> str:
        count = sum(elements for _, elements in self.said)
        what = f" of {count} {self.said[0][0]}" if self.said else ""
        return f"{self.name}{f' {self.op}' if self.op else ''}{what} at {self.site}"


def listed(numbers: tuple[int, ...] | list[int]) -> str:
    """`0 to 3`, `0, 2, 5`."""
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{numbers[0]} to {numbers[-1]}"
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown} and {len(numbers) - 8} more" if len(numbers) > 8 else shown


def issued(file: TraceFile, number: int) -> Iterator[Issued]:
    """The collectives of a file, in the order in which they were issued; `number`: the file's place in the trace."""
    for call in np.flatnonzero(np.asarray(file.calls.kind) == CallKind.COLLECTIVE).tolist():
        found = _issued(file, number, call)
        if found is not None:
            yield found


def _issued(file: TraceFile, number: int, call: int) -> Issued | None:
    calls = file.calls
    operator, detail = file.text(int(calls.operator[call])), file.json(int(calls.detail[call]))
    if operator is None or not isinstance(detail, dict):
        return None
    group, sequence = _group(detail.get("group")), _whole(detail.get("sequence"))
    if group is None or sequence is None:
        return None
    at: dict[int, list[int]] = {Role.INPUT: [], Role.OUTPUT: []}
    for edge in file.edges_of(call):
        at.setdefault(edge.role, []).append(edge.value)
    inputs, outputs = tuple(at[Role.INPUT]), tuple(at[Role.OUTPUT])
    raised = detail.get("raised")
    sizes = detail.get("sizes") if isinstance(detail.get("sizes"), dict) else {}
    told = outputs if operator == "c10d.broadcast" else inputs or outputs
    return Issued(
        file=number,
        rank=file.rank or 0,
        call=call,
        operator=operator,
        site=file.site(call),
        step=int(calls.step[call]),
        occurrence=int(calls.occurrence[call]),
        group=group,
        sequence=sequence,
        op=_text(detail.get("op")),
        layout=_text(detail.get("layout")),
        coalesced=detail.get("coalesced") is True,
        source=_whole(detail.get("source")),
        destination=_whole(detail.get("destination")),
        sizes=(_wholes(sizes.get("input")), _wholes(sizes.get("output"))) if isinstance(sizes, dict) else ((), ()),
        tag=_whole(detail.get("tag")) or 0,
        ended="raised" if isinstance(raised, str) else "finished" if detail.get("finished") is True else "unfinished",
        why=_text(raised),
        inputs=inputs,
        outputs=outputs,
        said=tuple((file.dtype_name(value), file.count(value)) for value in told),
        counts=tuple(file.count(value) for value in outputs),
    )


def _group(value: Any) -> Group | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    return Group(value["name"], _wholes(value.get("ranks")))


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 62 else None


def _wholes(value: Any) -> tuple[int, ...]:
    fine = isinstance(value, list) and len(value) <= _MOST_RANKS and all(_whole(one) is not None for one in value)
    return tuple(value) if fine else ()


def _text(value: Any) -> str | None:
    return value[:200] if isinstance(value, str) else None


def bits(file: TraceFile, value: int) -> NDArray[Any]:
    """The bits of a value as whole numbers, so that NaN is itself; shape (elements,). Raises TraceError where they were not kept."""
    raw = file.raw(value).reshape(-1)
    return raw.view(f"u{raw.itemsize}") if raw.itemsize <= 8 else raw
