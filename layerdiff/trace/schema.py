"""The columns of a trace, once: writer, journal, reader and docs/format.md all follow this file.

A trace is a dataflow graph in three tables. `calls` are executions of modules, operators and
collectives; `values` are tensors; `edges` say which call consumed or made which value. Each
column is one fixed-width, one-dimensional dataset `/<table>/<column>`. A column marked TEXT holds
indices into the text table (`/text/bytes`, `/text/offset`), -1 for absent. Columns are only ever
added, with a new minor version; a change of meaning is a new major version.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Any, Final, NamedTuple

import numpy as np

FORMAT: Final = "layerdiff.trace"
VERSION: Final = (1, 1)
JOURNAL_FORMAT: Final = "layerdiff.journal"

LARGE_VALUE_BYTES: Final = 64 * 1024
"""Values of this size and more are one dataset each; smaller ones share slabs."""
FIRST_SLAB_BYTES: Final = 64 * 1024
LAST_SLAB_BYTES: Final = 16 * 1024 * 1024
"""Slabs double from the first size up to the last, so that a small trace stays a small file."""

ABSENT: Final = -1

POINT_TO_POINT: Final = ("c10d.send", "c10d.recv")
"""Operators of messages from one rank to another."""


class CallKind(IntEnum):
    """What was executed."""

    MODULE = 0
    OPERATOR = 1
    COLLECTIVE = 2


class CallStatus(IntEnum):
    """How a call ended."""

    RETURNED = 0
    RAISED = 1
    UNFINISHED = 2


class ValueKind(IntEnum):
    """Where a value comes from."""

    ACTIVATION = 0
    PARAMETER = 1
    BUFFER = 2
    SOURCE = 3


class Role(IntEnum):
    """What a value is to a call."""

    INPUT = 0
    OUTPUT = 1
    WEIGHT = 2
    """A parameter or buffer that the called module itself holds."""


class Storage(IntEnum):
    """Where the bytes of a value are."""

    NONE = 0
    DATASET = 1
    """`/data/<container>`, the whole dataset."""
    SLAB = 2
    """`/slabs/<container>`, `nbytes` bytes at `offset`."""
    VIEW = 3
    """Elements of the value `base`, as the column `view` says."""
    CHECKPOINT = 4
    """In a safetensors file, as the column `detail` says."""
    PATCHED = 5
    """The value `base`, written to where the column `view` says."""


class Known(IntFlag):
    """Which numbers of a value were computed."""

    NOTHING = 0
    STATISTICS = 1
    FINGERPRINT = 2


TEXT: Final = np.dtype("<i4")
"""An index into the text table, -1 for absent."""
_ROW: Final = np.dtype("<i8")
_SMALL: Final = np.dtype("<i4")
_CODE: Final = np.dtype("u1")
_REAL: Final = np.dtype("<f8")

CALLS: Final[dict[str, np.dtype[Any]]] = {
    "kind": _CODE,
    "status": _CODE,
    "root": _SMALL,
    "module": TEXT,
    "type": TEXT,
    "operator": TEXT,
    "number": _SMALL,
    "parent": _ROW,
    "step": _SMALL,
    "occurrence": _SMALL,
    "end": _ROW,
    "stack": TEXT,
    "detail": TEXT,
}

VALUES: Final[dict[str, np.dtype[Any]]] = {
    "kind": _CODE,
    "name": TEXT,
    "dtype": TEXT,
    "device": TEXT,
    "shape": TEXT,
    "strides": TEXT,
    "base": _ROW,
    "view": TEXT,
    "version": _SMALL,
    "storage": _CODE,
    "container": _SMALL,
    "offset": _ROW,
    "nbytes": _ROW,
    "reason": TEXT,
    "known": _CODE,
    "minimum": _REAL,
    "maximum": _REAL,
    "mean": _REAL,
    "rms": _REAL,
    "nan": _ROW,
    "posinf": _ROW,
    "neginf": _ROW,
    "fingerprint_high": np.dtype("<u8"),
    "fingerprint_low": np.dtype("<u8"),
    "placement": TEXT,
    "detail": TEXT,
    "memory": _ROW,
    "memory_offset": _ROW,
}
ADDED: Final = {("values", "memory"): (1, 1), ("values", "memory_offset"): (1, 1)}
"""Columns that earlier minor versions lack, and the version that brought each. They read as -1 there."""

EDGES: Final[dict[str, np.dtype[Any]]] = {
    "call": _ROW,
    "role": _CODE,
    "position": TEXT,
    "value": _ROW,
}

TABLES: Final = {"calls": CALLS, "values": VALUES, "edges": EDGES}

TEXT_COLUMNS: Final = frozenset(
    {
        *(("calls", name) for name in ("module", "type", "operator", "stack", "detail")),
        *(("values", name) for name in ("name", "dtype", "device", "shape", "strides", "view", "reason", "placement", "detail")),
        ("edges", "position"),
    }
)
"""(table, column) of the columns that hold indices into the text table."""


class CallRow(NamedTuple):
    """A call as it begins. Texts are plain strings; the writer interns them."""

    kind: CallKind
    module: str
    """Module path under its root; empty for the root itself; `(outside)` outside every root."""
    type: str | None = None
    """Class name of the module."""
    operator: str | None = None
    number: int = 0
    """How many calls of this operator preceded it in the same module call."""
    root: int = 0
    """Index into the roots of the metadata, -1 outside every root."""
    parent: int = ABSENT
    step: int = 0
    """Which forward of the root, from 0."""
    occurrence: int = 0
    """Which call of this module in the step, from 0."""
    stack: str | None = None
    """The caller's source line, `file:line function`."""
    detail: str | None = None
    """JSON: structure of the arguments and results, scalars, attributes of the module."""


class Statistics(NamedTuple):
    """Numbers of one value, over its finite elements; nan where it has none."""

    minimum: float
    maximum: float
    mean: float
    rms: float
    nan: int = 0
    posinf: int = 0
    neginf: int = 0


class ValueRow(NamedTuple):
    """A value without its bytes."""

    dtype: str
    """torch's name without the prefix: `bfloat16`, `float8_e4m3fn`, `int64`."""
    shape: tuple[int, ...]
    kind: ValueKind = ValueKind.ACTIVATION
    name: str | None = None
    """Qualified name of a parameter or buffer, from the root."""
    device: str | None = None
    strides: tuple[int, ...] | None = None
    """In elements, as the tensor lay in memory; None for row-major. Stored bytes are row-major."""
    base: int = ABSENT
    view: str | None = None
    """JSON `{"offset": o, "strides": [...]}`, in elements of this value's dtype, of the base's row-major bytes; of a patched value
    a list of such, each with the `value` that was written there."""
    patched: bool = False
    """Whether this is `base` after a write, and not a view of it."""
    version: int = 0
    reason: str | None = None
    """Why no bytes were kept."""
    statistics: Statistics | None = None
    fingerprint: tuple[int, int] | None = None
    placement: str | None = None
    detail: str | None = None
    memory: int = ABSENT
    """Number of the storage in this process, never reused; -1 where it is unknown."""
    memory_offset: int = ABSENT
    """Where the value begins in it, in elements. With `shape` and `strides` that is where it lay exactly."""
