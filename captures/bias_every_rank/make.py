"""Layer 0's down projection adds its bias on both tensor-parallel ranks before their parts are added up. Both fp32."""

from __future__ import annotations

from pathlib import Path

from captures.layouts import Case, Fault
from captures.parallel import make_capture


def make(folder: Path) -> None:
    """Record the reference in one process and the target on two ranks, into `folder`."""
    case = Case(bias=True, faults=(Fault("inner_bias_every_rank"),))
    make_capture(folder, case, 2)
