"""A recording whose writer died, made a trace again from its journal.

HDF5's own metadata of the unfinished file is not trusted, and not needed: the journal says where the
bytes are. They are copied, so recovering needs room for them once more.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from layerdiff.errors import NotATraceError, RecorderError, UnfinishedTraceError
from layerdiff.trace import journal
from layerdiff.trace.claim import is_locked, journal_path, part_path
from layerdiff.trace.schema import CALLS, VALUES, CallKind, CallRow, CallStatus, Known, Role, Statistics, Storage, ValueKind, ValueRow
from layerdiff.trace.writer import TraceWriter

Texts = Callable[[int], str | None]


def recover(part: Path) -> Path:
    """Build `NAME.h5` from `NAME.h5.part` and `NAME.h5.journal`, then remove the two. Returns its path.

    Everything journaled is back: at most the last batch is lost.

    Raises:
        UnfinishedTraceError: a living process still writes it.
        NotATraceError: `part` or its journal is missing or is no trace's.
        RecorderError: `NAME.h5` exists, or cannot be written.
    """
    if part.suffix != ".part":
        part = part_path(part)
    target = part.with_suffix("")
    lines = journal_path(target)
    if not part.exists():
        raise NotATraceError(
            f"{part} does not exist. A recording that was killed leaves NAME.h5.part and NAME.h5.journal; name the .part file."
        )
    if not lines.exists():
        raise NotATraceError(f"{lines} is missing: without the journal nothing of {part} can be found again.")
    if is_locked(lines):
        raise UnfinishedTraceError(f"{part} is still being written. Wait until its process ends, or stop it.")
    if target.exists():
        raise RecorderError(f"{target} exists already: move it away, then recover again.")
    scratch = target.with_name(f"{target.stem}.recovering{target.suffix}")
    for leftover in (part_path(scratch), journal_path(scratch)):  # of a recovery that was itself killed
        leftover.unlink(missing_ok=True)
    writer = TraceWriter(scratch, meta={})
    try:
        _replay(lines, part, writer)
        writer.close(reason="recovered: the recording process was killed before it closed the trace")
    except BaseException:
        writer.discard()
        raise
    os.replace(scratch, target)
    part.unlink()
    lines.unlink()
    return target


def _replay(lines: Path, part: Path, writer: TraceWriter) -> None:
    texts: list[str] = []
    containers = {"d": int(Storage.DATASET), "s": int(Storage.SLAB)}
    addresses = {(containers[row[0]], row[1]): row[2] for row in journal.rows(lines) if row[0] in containers}  # the last word counts

    def text(index: int) -> str | None:
        return None if index < 0 else texts[index]

    with part.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        for row in journal.rows(lines):
            kind, fields = row[0], row[1:]
            if kind == "t":
                texts.append(fields[0])
            elif kind == "m":
                writer.set_meta(fields[0], fields[1])
            elif kind == "r":
                writer.add_root(fields[0], fields[1])
            elif kind == "c":
                writer.begin_call(_call(fields, text))
            elif kind == "x":
                writer.end_call(fields[0], CallStatus(fields[1]), text(fields[3]))
            elif kind == "e":
                writer.add_edge(fields[0], Role(fields[1]), texts[fields[2]], fields[3])
            elif kind == "v":
                value, place = _value(fields, text)
                data = None
                if place is not None:
                    storage, container, offset, nbytes = place
                    address = addresses.get((storage, container), 0) + offset
                    if address + nbytes > size:
                        raise NotATraceError(f"{part} is shorter than its journal says: byte {address + nbytes} of {size}. Is it a copy?")
                    data = np.frombuffer(os.pread(file.fileno(), nbytes, address), np.uint8)
                writer.add_value(value, data)


def _call(fields: list[Any], text: Texts) -> CallRow:
    row = dict(zip(CALLS, fields, strict=True))
    return CallRow(
        CallKind(row["kind"]),
        text(row["module"]) or "",
        type=text(row["type"]),
        operator=text(row["operator"]),
        number=row["number"],
        root=row["root"],
        parent=row["parent"],
        step=row["step"],
        occurrence=row["occurrence"],
        stack=text(row["stack"]),
        detail=text(row["detail"]),
    )


def _value(fields: list[Any], text: Texts) -> tuple[ValueRow, tuple[int, int, int, int] | None]:
    row = dict(zip(VALUES, journal.padded(fields, len(VALUES)), strict=True))
    known = Known(row["known"])
    statistics = None
    if known & Known.STATISTICS:
        minimum, maximum, mean, rms = (float(row[name]) for name in ("minimum", "maximum", "mean", "rms"))
        statistics = Statistics(minimum, maximum, mean, rms, row["nan"], row["posinf"], row["neginf"])
    value = ValueRow(
        text(row["dtype"]) or "",
        _dimensions(text(row["shape"])),
        kind=ValueKind(row["kind"]),
        name=text(row["name"]),
        device=text(row["device"]),
        strides=None if row["strides"] < 0 else _dimensions(text(row["strides"])),
        base=row["base"],
        view=text(row["view"]),
        patched=row["storage"] == Storage.PATCHED,
        version=row["version"],
        reason=text(row["reason"]),
        statistics=statistics,
        fingerprint=(row["fingerprint_high"], row["fingerprint_low"]) if known & Known.FINGERPRINT else None,
        placement=text(row["placement"]),
        detail=text(row["detail"]),
        memory=row["memory"],
        memory_offset=row["memory_offset"],
    )
    if row["storage"] not in (Storage.DATASET, Storage.SLAB):
        return value, None
    return value, (row["storage"], row["container"], row["offset"], row["nbytes"])


def _dimensions(text: str | None) -> tuple[int, ...]:
    return tuple(int(number) for number in (text or "[]")[1:-1].split(",") if number)
