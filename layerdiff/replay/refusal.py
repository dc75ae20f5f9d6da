"""Why a recorded call cannot be run again.

A refusal is an answer and never a fault of the traces: the caller treats the call as opaque and shows `reason` to the reader.
"""

from __future__ import annotations

from layerdiff.errors import LayerdiffError


class CannotReplay(LayerdiffError):
    """A call that is not run, or that failed while it ran. `reason` is one line, without a full stop."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NotRecorded(CannotReplay):
    """The bytes of a value that is needed were not kept."""
