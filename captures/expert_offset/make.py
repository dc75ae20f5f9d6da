"""Two ranks hold four experts each, and both take theirs to be the first four. Both fp32."""

from __future__ import annotations

from pathlib import Path

from captures.layouts import Case, Fault
from captures.parallel import make_capture


def make(folder: Path) -> None:
    """Record the reference in one process and the target on two ranks, into `folder`."""
    case = Case("experts", experts=8, faults=(Fault("expert_offset", layer=1),))
    make_capture(folder, case, 2)
