"""Four tensor-parallel ranks, and nothing wrong. Both bfloat16."""

from __future__ import annotations

from pathlib import Path

from captures.layouts import Case
from captures.parallel import make_capture


def make(folder: Path) -> None:
    """Record the reference in one process and the target on four ranks, into `folder`."""
    case = Case(dtype="bfloat16")
    make_capture(folder, case, 4)
