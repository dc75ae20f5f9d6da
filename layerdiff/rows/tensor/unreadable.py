"""Why a screen cannot show the numbers of a recorded value, and what would help: a recording that keeps more, where that is the reason."""

from __future__ import annotations

from typing import Final

from layerdiff.rows.cells import visible
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import ValueKind

_BY_POLICY: Final = ("not kept", "by the keep policy", "weight bytes not recorded")
"""What reasons begin with that another recording changes; memory that nothing was written to has no value, however much is kept."""


def why_unreadable(file: TraceFile, value: int, name: str) -> str | None:
    """In words for a user; None where the value can be read. `name`: the reference, the target, or the rank whose value it is."""
    dtype = file.dtype(value)
    if dtype is None:
        return f"{visible(file.dtype_name(value))} of {name} is a type that this version does not know"
    if dtype.kind == "bits":
        return f"{dtype.name} of {name} is a type without numbers: only its bits are compared"
    if file.has_bytes(value):
        return None
    reason = file.why_without_bytes(value)
    if not reason.startswith(_BY_POLICY):
        return f"{name} has no bytes of this value: {visible(reason)}"
    weight = int(file.values.kind[value]) in (ValueKind.PARAMETER, ValueKind.BUFFER)
    option = "--weights used" if weight else "--keep full"
    return f"{name} kept no bytes of this value ({visible(reason)}): record it again with {option}"
