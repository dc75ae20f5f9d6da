"""The fused query, key and value weight of layer 0 is cut over two ranks as if it were one block. Both fp32."""

from __future__ import annotations

from pathlib import Path

from captures.layouts import Case, Fault
from captures.parallel import make_capture


def make(folder: Path) -> None:
    """Record the reference in one process and the target on two ranks, into `folder`."""
    case = Case(separate=True, kv_heads=4, faults=(Fault("fused_one_block"),))
    make_capture(folder, case, 2)
