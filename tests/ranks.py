"""Traces of many ranks for tests, written without torch: collectives and modules with the values that a test chooses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.trace.schema import CallKind, CallRow, CallStatus, Role, ValueKind, ValueRow
from layerdiff.trace.writer import TraceWriter
from tests.trace.writing import raw, value_row

Array = NDArray[Any]


def bf16(x: Array) -> Array:
    """Rounded to bfloat16, to nearest with ties to even, as float32."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
    return bits.astype(np.uint32).view(np.float32)


class Rank:
    """The file of one rank, growing. Collectives lie in the module `layers.0` unless a test says otherwise."""

    def __init__(self, folder: Path, rank: int, world: int, **meta: Any) -> None:
        folder.mkdir(exist_ok=True)
        random = meta.pop("random", None)
        detail = None if random is None else json.dumps({"random": {"before": random[0], "after": random[1]}})
        environment = {"seed": 1, "torch": "2.9", **meta.pop("environment", {})}
        described = {"rank": rank, "world_size": world, "environment": environment, **meta}
        self.rank, self.world = rank, world
        self.writer = TraceWriter(folder / f"rank{rank:05d}.h5", meta=described)
        self.root = self.writer.add_root("model", "Root")
        self._sequence: dict[Any, int] = {}
        self._numbers: dict[Any, int] = {}
        self.top = self.writer.begin_call(CallRow(CallKind.MODULE, "", type="Root", root=self.root, detail=detail))

    def value(self, array: Array, dtype: str | None = None, *, kept: bool = True, kind: ValueKind = ValueKind.ACTIVATION) -> int:
        """A value; `bfloat16` numbers must be such already, as float32."""
        bits: Array = (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else array
        row = value_row(bits if dtype == "bfloat16" else array, dtype, kind=kind)
        return self.writer.add_value(row, raw(bits) if kept else None)

    def module(
        self,
        path: str,
        type: str,
        given: Array,
        made: Array,
        weights: dict[str, Array] | None = None,
        *,
        detail: str | None = None,
        dtype: str | None = None,
        inside: bool = False,
        kept: bool = True,
    ) -> int:
        """A call of a leaf module. `inside`: a barrier lies in it."""
        call = self.writer.begin_call(CallRow(CallKind.MODULE, path, type=type, root=self.root, parent=self.top, detail=detail))
        self.writer.add_edge(call, Role.INPUT, "in[0]", self.value(given, dtype, kept=kept))
        for name, weight in (weights or {}).items():
            self.writer.add_edge(call, Role.WEIGHT, name, self.value(weight, dtype, kind=ValueKind.PARAMETER, kept=kept))
        if inside:
            self.issue("barrier", parent=call, module=path)
        self.writer.add_edge(call, Role.OUTPUT, "out", self.value(made, dtype, kept=kept))
        self.writer.end_call(call, CallStatus.RETURNED)
        return call

    def issue(
        self,
        name: str,
        inputs: Sequence[Array] = (),
        outputs: Sequence[Array] = (),
        *,
        op: str | None = None,
        dtype: str | None = None,
        module: str = "layers.0",
        group: str = "0",
        ranks: Sequence[int] | None = None,
        parent: int | None = None,
        kept: bool = True,
        **detail: Any,
    ) -> int:
        """A collective that this rank issued: what it put in, and what came out."""
        members = list(range(self.world)) if ranks is None else list(ranks)
        key = (
            (group, self.rank if name == "send" else detail.get("source"), detail.get("destination")) if name in ("send", "recv") else group
        )
        sequence = self._sequence.get(key, 0)
        self._sequence[key] = sequence + 1
        number = self._numbers.get((module, name), 0)
        self._numbers[module, name] = number + 1
        said = {"group": {"name": group, "ranks": members, "backend": "gloo"}, "op": op, "sequence": sequence, "async": False, **detail}
        said = {"finished": True, **said}
        row = CallRow(
            CallKind.COLLECTIVE,
            module,
            operator=f"c10d.{name}",
            number=number,
            root=self.root,
            parent=self.top if parent is None else parent,
            detail=json.dumps(said),
        )
        call = self.writer.begin_call(row)
        for i, array in enumerate(inputs):
            self.writer.add_edge(call, Role.INPUT, f"in[{i}]", self.value(array, dtype, kept=kept))
        for i, array in enumerate(outputs):
            self.writer.add_edge(call, Role.OUTPUT, f"out[{i}]", self.value(array, dtype, kept=kept))
        self.writer.end_call(call, CallStatus.RETURNED if said["finished"] else CallStatus.UNFINISHED)
        return call

    def close(self, incomplete: str | None = None) -> None:
        self.writer.end_call(self.top, CallStatus.RETURNED)
        self.writer.end_step()
        self.writer.close(reason=incomplete)


__all__ = ["Array", "Rank", "ValueRow", "bf16"]
