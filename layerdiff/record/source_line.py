"""How a trace tells the source lines of a run: `file:line function`.

Code is known by its address, because hashing a code object takes a microsecond; it is held, so that the address stays its own.
"""

from __future__ import annotations

import os
from types import CodeType, FrameType
from typing import Final

_OWN: Final = frozenset({"torch", "layerdiff"})


class SourceLines:
    """The lines that were asked for before."""

    def __init__(self) -> None:
        self._own: set[int] = set()
        self._lines: dict[tuple[int, int], str] = {}
        self._held: list[CodeType] = []

    def of_caller(self, frame: FrameType | None) -> str | None:
        """The innermost line, from `frame` outwards, of code that is neither torch's nor ours."""
        own = self._own
        while frame is not None:
            code = frame.f_code
            if id(code) not in own:
                if (line := self._lines.get((id(code), frame.f_lasti))) is not None:
                    return line
                if not is_own(str(frame.f_globals.get("__name__", ""))):
                    return self.of(frame)
                self._held.append(code)
                own.add(id(code))
            frame = frame.f_back
        return None

    def of(self, frame: FrameType) -> str:
        """The line of a frame."""
        code = frame.f_code
        key = (id(code), frame.f_lasti)
        line = self._lines.get(key)
        if line is None:
            self._held.append(code)
            line = self._lines[key] = f"{_told(code.co_filename)}:{frame.f_lineno} {code.co_name}"
        return line


def is_own(module: str) -> bool:
    """Whether a module is torch's or ours."""
    return module.partition(".")[0] in _OWN


def _told(path: str) -> str:
    """The path of a source file: from the working directory or the packages on, and not where those lie."""
    inside = path.rpartition("site-packages/")[2]
    here = os.getcwd() + os.sep
    return inside.removeprefix(here)
