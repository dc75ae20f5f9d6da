"""The journal: the index of a trace as it grows, in JSON lines. The index itself is built from it.

One line is one row, written after the bytes that it speaks of, whole batches at a time. Because
closing a trace and recovering one both read the journal, there is one way to make an index, and it is
tested with every trace. A line that the end of the file cuts is no row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.errors import NotATraceError, TraceVersionError
from layerdiff.trace.growing import GrowingTable
from layerdiff.trace.schema import ABSENT, CALLS, EDGES, JOURNAL_FORMAT, TABLES, VALUES, VERSION

Row = list[Any]
_CHUNK_BYTES = 1 << 20


def rows(path: Path) -> Iterator[Row]:
    """The rows of a journal, header first, up to the last whole line.

    Raises NotATraceError and TraceVersionError where the header is not a journal's.
    """
    with path.open("rb") as file:
        header = file.readline()
        parsed, _whole = _parse([header])
        _check_header(parsed[0] if parsed else None, path)
        yield from parsed
        while lines := file.readlines(_CHUNK_BYTES):
            parsed, whole = _parse(lines)
            yield from parsed
            if not whole:
                return  # the tail of a file whose writer was killed


def _parse(lines: list[bytes]) -> tuple[list[Row], bool]:
    """Many lines at once, which is twice as fast; one at a time where one of them is cut."""
    try:
        if not lines[-1].endswith(b"\n"):
            raise ValueError
        return json.loads(b"[" + b",".join(lines) + b"]"), True
    except ValueError:
        parsed: list[Row] = []
        for line in lines:
            if not line.endswith(b"\n"):
                break
            try:
                parsed.append(json.loads(line))
            except ValueError:
                break
        return parsed, False


def _check_header(row: Any, path: Path) -> None:
    if not (isinstance(row, list) and len(row) >= 4 and row[:2] == ["h", JOURNAL_FORMAT]):
        raise NotATraceError(f"{path} is not a journal of a trace.")
    if row[2] != VERSION[0]:
        raise TraceVersionError(
            f"{path} was written by version {row[2]}.{row[3]} of the format; this layerdiff reads version {VERSION[0]}."
        )


@dataclass
class Index:
    """The tables of a trace, in memory."""

    meta: dict[str, Any] = field(default_factory=dict)
    roots: list[dict[str, Any]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    columns: dict[str, dict[str, NDArray[Any]]] = field(default_factory=dict)


def build_index(path: Path) -> Index:
    """The index that a journal describes. Calls without an end are `UNFINISHED`."""
    index = Index()
    tables = {name: GrowingTable(columns) for name, columns in TABLES.items()}
    ends: list[tuple[int, int, int, int]] = []
    for row in rows(path):
        match row[0]:
            case "v":
                tables["values"].append(padded(row[1:], len(VALUES)))
            case "e":
                tables["edges"].append(row[1:])
            case "c":
                tables["calls"].append(row[1:])
            case "x":
                ends.append((row[1], row[2], row[3], row[4]))
            case "t":
                index.texts.append(row[1])
            case "m":
                index.meta[row[1]] = row[2]
            case "r":
                index.roots.append({"name": row[1], "type": row[2]})
    index.columns = {name: table.finish() for name, table in tables.items()}
    if ends:
        call, status, end, detail = (np.array(column) for column in zip(*ends, strict=True))
        calls = index.columns["calls"]
        calls["status"][call] = status
        calls["end"][call] = end
        calls["detail"][call[detail >= 0]] = detail[detail >= 0]
    return index


def padded(fields: Row, columns: int) -> Row:
    """The fields of a row that an earlier minor version wrote, with -1 for the columns that it did not know."""
    return fields + [ABSENT] * (columns - len(fields))


def _format(tag: str, columns: dict[str, np.dtype[Any]]) -> str:
    """How a line of a table is written, its real numbers as `number` does."""
    return f'["{tag}",' + ",".join("%s" if dtype.kind == "f" else "%d" for dtype in columns.values()) + "]\n"


CALL_LINE: Final = _format("c", CALLS)
VALUE_LINE: Final = _format("v", VALUES)
EDGE_LINE: Final = _format("e", EDGES)
"""Lines of the three tables, to be filled with a row; texts by their numbers."""


def number(x: float) -> str:
    """A real number in JSON: with every digit; a string where it is not finite."""
    return repr(float(x)) if isfinite(x) else f'"{float(x)}"'


def line(*row: Any) -> str:
    """Any other line."""
    return json.dumps(row, ensure_ascii=True, separators=(",", ":")) + "\n"
