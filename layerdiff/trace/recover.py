"""A recording whose writer died, made a trace again from its journal.

HDF5's own metadata of the unfinished file is not trusted, and not needed: the journal says where the
bytes are. They are copied, so recovering needs room for them once more.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from layerdiff.errors import NotATraceError, RecorderError, UnfinishedTraceError
from layerdiff.trace import journal
from layerdiff.trace.schema import CALLS, VALUES, CallKind, CallRow, CallStatus, Known, Role, Statistics, Storage, ValueKind, ValueRow
from layerdiff.trace.writer import TraceWriter, is_locked, journal_path, part_path

_VALUE = {name: i for i, name in enumerate(VALUES)}
_CALL = {name: i for i, name in enumerate(CALLS)}


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
        raise NotATraceError(f"{part} does not exist. A recording that was killed leaves NAME.h5.part and NAME.h5.journal; name the .part file.")
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
    containers = {"d": Storage.DATASET, "s": Storage.SLAB}
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


def _call(fields: list[Any], text: Any) -> CallRow:
    get = lambda name: fields[_CALL[name]]  # noqa: E731  # a row read by column name, five times
    return CallRow(
        CallKind(get("kind")),
        text(get("module")) or "",
        type=text(get("type")),
        operator=text(get("operator")),
        number=get("number"),
        root=get("root"),
        parent=get("parent"),
        step=get("step"),
        occurrence=get("occurrence"),
        stack=text(get("stack")),
        detail=text(get("detail")),
    )


def _value(fields: list[Any], text: Any) -> tuple[ValueRow, tuple[int, int, int, int] | None]:
    get = lambda name: fields[_VALUE[name]]  # noqa: E731  # as above
    numbers = ("minimum", "maximum", "mean", "rms")
    statistics = None
    if get("known") & Known.STATISTICS:
        statistics = Statistics(*(float(get(name)) for name in numbers), get("nan"), get("posinf"), get("neginf"))
    row = ValueRow(
        text(get("dtype")) or "",
        _dimensions(text(get("shape"))),
        kind=ValueKind(get("kind")),
        name=text(get("name")),
        device=text(get("device")),
        strides=None if get("strides") < 0 else _dimensions(text(get("strides"))),
        base=get("base"),
        view=text(get("view")),
        version=get("version"),
        reason=text(get("reason")),
        statistics=statistics,
        fingerprint=(get("fingerprint_high"), get("fingerprint_low")) if get("known") & Known.FINGERPRINT else None,
        placement=text(get("placement")),
        detail=text(get("detail")),
    )
    storage = get("storage")
    if storage not in (Storage.DATASET, Storage.SLAB):
        return row, None
    return row, (storage, get("container"), get("offset"), get("nbytes"))


def _dimensions(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text[1:-1].split(",") if number)
