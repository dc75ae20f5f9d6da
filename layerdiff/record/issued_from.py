"""`IssuedFrom`: the Python code that an operator of communication is issued from, by the frames around it.

What is known of a piece of code is kept: a collective walks dozens of frames of torch.
"""

from __future__ import annotations

from types import CodeType, FrameType
from typing import Final

from layerdiff.record.source_line import SourceLines, is_own

_SET_UP: Final = frozenset({"init_process_group", "new_group", "_new_group_with_tag", "split_group", "new_subgroups", "monitored_barrier"})
_SET_UP_MODULES: Final = frozenset({"torch.distributed.device_mesh", "torch.distributed.utils", "torch.distributed.elastic"})
_ISSUERS: Final = ("torch.distributed", "torch.autograd.graph", "torch.nn.parallel")
"""Of the Python code around an operator, the innermost of these issued it: the last two by C++ that waits for it."""
_About = tuple[bool, bool, bool, bool]
"""Whether code of torch or of ours issues operators, for Python code; sends or receives, and waits itself; does what is of no interest."""
_USER: Final[_About] = (False, True, False, False)
_OTHER: Final[_About] = (False, False, False, False)
_abouts: dict[int, _About] = {}
"""By the address of the code, which is held."""
_held: list[CodeType] = []
_lines = SourceLines()


class IssuedFrom:
    """The Python code that an operator is issued from."""

    __slots__ = ("blocking", "from_python", "of_no_interest", "stack")

    def __init__(self, frame: FrameType | None) -> None:
        self.blocking = self.of_no_interest = self.from_python = False
        self.stack: str | None = None
        known = False
        while frame is not None:
            about = _abouts.get(id(frame.f_code)) or _about(frame)
            if about is _USER:
                self.from_python = self.from_python or not known
                self.stack = _lines.of(frame)
                return
            if about is not _OTHER:
                issuer, python, blocking, of_no_interest = about
                if issuer and not known:
                    self.from_python, known = python, True
                self.blocking = self.blocking or blocking
                self.of_no_interest = self.of_no_interest or of_no_interest
            frame = frame.f_back


def _about(frame: FrameType) -> _About:
    code, module = frame.f_code, str(frame.f_globals.get("__name__", ""))
    about = _USER if not is_own(module) else _about_own(code.co_name, module)
    _held.append(code)
    _abouts[id(code)] = about
    return about


def _about_own(name: str, module: str) -> _About:
    in_functions = module == "torch.distributed.distributed_c10d"
    of_no_interest = "object" in name or name in _SET_UP if in_functions else module in _SET_UP_MODULES
    found = module.startswith(_ISSUERS), module.startswith("torch.distributed"), in_functions and name in ("send", "recv"), of_no_interest
    return found if any(found) else _OTHER
