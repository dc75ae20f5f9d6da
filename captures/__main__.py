"""Make captures anew: `python -m captures [NAME ...] [--into FOLDER]`."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from captures.recording import HOME


def names() -> list[str]:
    """Every capture: a folder with a make.py."""
    return sorted(path.parent.name for path in HOME.glob("*/make.py"))


def make(name: str, into: Path) -> Path:
    """Record the capture `name` into its folder below `into`; returns that folder."""
    importlib.import_module(f"captures.{name}.make").make(into / name)
    return into / name


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names()))
    parser.add_argument("--into", type=Path, default=HOME)
    arguments = parser.parse_args()
    for name in arguments.names or names():
        print(make(name, arguments.into))
