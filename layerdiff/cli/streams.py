"""stdout is data, stderr is talk. Nothing else in the package writes to either for a command.

A reader that goes away early (`| head`) does not change the exit code: the answer was still found.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import NoReturn, TextIO

from layerdiff.rows.cells import visible


def stand_in() -> None:
    """Put something in the place of streams that the caller closed (`>&-`).

    Else the first trace that is opened gets the number of stdout, and what is said goes into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # it stays open


def out(text: str) -> None:
    """Write data to stdout as it is, and flush. The caller has made names safe for its format.

    Raises OSError where that cannot be done, but for a reader that has gone away.
    """
    try:
        _write(sys.stdout, text)
    except BrokenPipeError:
        _forget(sys.stdout.fileno())
    except OSError as error:
        _forget(sys.stdout.fileno())  # or it fails once more, at exit
        raise OSError(error.errno, f"{error.strerror}, so what was found could not be written", "stdout") from None


def talk(message: str) -> None:
    """Say something on stderr; control characters are shown, not obeyed."""
    write_talk("".join(f"{visible(line)}\n" for line in message.split("\n")))


def write_talk(text: str) -> None:
    """Write text that is already safe to stderr, and flush."""
    try:
        _write(sys.stderr, text)
    except BrokenPipeError:
        _forget(sys.stderr.fileno())


def is_terminal() -> bool:
    """Whether somebody can use a full screen: both ends are terminals, and not the dumb one."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def leave(code: int) -> NoReturn:
    """End the process now, after the terminal: threads that still compute are not waited for, and there is nothing they could lose.

    An interpreter that ends in its own way joins them, which may take as long as a forward of the model.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _write(stream: TextIO, text: str) -> None:
    """A stream that lacks a character gets its escape, and nobody a traceback.

    The stream itself is not reconfigured: a recorded script writes to it too.
    """
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def _forget(descriptor: int) -> None:
    """Point a closed stream nowhere, or the interpreter complains about it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
