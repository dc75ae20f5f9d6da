"""The memory of this process, read as it is: for a small tensor, torch's own ways to copy bytes take ten times as long."""

from __future__ import annotations

import sys
from ctypes import c_char
from typing import Any, Final

_MEMORY: Final[Any] = (c_char * sys.maxsize).from_address(0)
"""All of it. A slice is a copy, made in a fifth of the time of `ctypes.string_at`."""


def read(address: int, nbytes: int) -> bytes:
    """A copy of what lies there. The address must be that of memory which somebody holds."""
    copied: bytes = _MEMORY[address : address + nbytes]
    return copied
