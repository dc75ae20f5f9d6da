"""Files that a command is to write: whether they can be is asked before it works for minutes."""

from __future__ import annotations

import os
from pathlib import Path

from layerdiff.cli.parameters import UsageError


def check_output(path: Path | str | None, option: str = "-o") -> None:
    """Raise UsageError where a file could not be written to `path`; nothing is asked of None, nor of `-`, which is stdout."""
    if path is None or str(path) == "-":
        return
    path = Path(path)
    folder = path.absolute().parent
    if path.is_dir():
        raise UsageError(f"{option} {path}: that is a folder. Name a file in it.")
    if not folder.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {folder}. Make it, or choose another place.")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"{option} {path}: you may not write there. Choose another place.")
