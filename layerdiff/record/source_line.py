"""How a trace tells the source files of a run."""

from __future__ import annotations

import os


def told(path: str) -> str:
    """The path of a source file as a trace tells it: from the working directory or the packages on, and not where those lie."""
    inside = path.rpartition("site-packages/")[2]
    here = os.getcwd() + os.sep
    return inside.removeprefix(here)
