"""Layer 1 of two tensor-parallel ranks never adds up its attention: each rank goes on with its own part. Both fp32."""

from __future__ import annotations

from pathlib import Path

from captures.layouts import Case, Fault
from captures.parallel import make_capture


def make(folder: Path) -> None:
    """Record the reference in one process and the target on two ranks, into `folder`."""
    case = Case(faults=(Fault("sum_missing", layer=1),))
    make_capture(folder, case, 2)
