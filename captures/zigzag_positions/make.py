"""Two context-parallel ranks hold tokens in zigzag order, and rotate them by the positions of contiguous order. Both fp32."""

from __future__ import annotations

from pathlib import Path

from captures.layouts import Case, Fault
from captures.parallel import make_capture


def make(folder: Path) -> None:
    """Record the reference in one process and the target on two ranks, into `folder`."""
    case = Case("context", faults=(Fault("contiguous_positions"),))
    make_capture(folder, case, 2)
