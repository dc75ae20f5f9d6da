"""The terminal on a pty: from the start of the process to the first painted row, and from a key to its paint.

A bare Textual app is measured beside it in the same run, because the machine decides most of both.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import statistics
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SITES = 100_000
REPEATS = 5
KEYS = 40
QUIET_S = 0.15

PAINTED = b"next origin"
"""Stands in the last line of the screen."""
CACHE = tempfile.TemporaryDirectory(prefix="layerdiff-bench-")
Row = tuple[str, float, Any, str]

BARE = """
from textual.app import App
from textual.widgets import Static
class Bare(App):
    BINDINGS = [("j", "step", ""), ("q", "quit", "")]
    def compose(self):
        yield Static("layers.0")
    def action_step(self):
        self.count = getattr(self, "count", 0) + 1
        self.query_one(Static).update(f"layers.{self.count}")
Bare().run()
"""
SHOW = """
import sys
from layerdiff.cli.exits import main
sys.argv = ["layerdiff", "show", {path!r}]
main()
"""


class Terminal:
    """A child process on a pty of 120x40."""

    def __init__(self, code: str) -> None:
        self.began = time.perf_counter()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONPATH": str(ROOT)}
            # As installed: with compiled modules, wherever the machine lets them be written.
            environment.pop("PYTHONDONTWRITEBYTECODE", None)
            environment["PYTHONPYCACHEPREFIX"] = CACHE.name
            os.execve(sys.executable, [sys.executable, "-c", code], environment)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))

    def read(self, seconds: float) -> bytes:
        """What is written within some seconds, or nothing."""
        ready, _, _ = select.select([self.fd], [], [], seconds)
        if not ready:
            return b""
        try:
            return os.read(self.fd, 1 << 20)
        except OSError:
            return b""

    def wait_for(self, text: bytes, seconds: float = 20) -> float:
        """Seconds from the start of the process until a text was written."""
        seen = b""
        while time.perf_counter() - self.began < seconds:
            seen = seen[-200_000:] + self.read(0.5)
            if text in seen:
                return time.perf_counter() - self.began
        raise TimeoutError(f"{text!r} was not painted within {seconds} s; the end of what was: {seen[-400:]!r}")

    def settle(self) -> None:
        """Until nothing more is written."""
        while self.read(QUIET_S):
            pass

    def press(self, key: bytes) -> float:
        """Seconds from a key to the first byte of its paint."""
        began = time.perf_counter()
        os.write(self.fd, key)
        self.read(2)
        took = time.perf_counter() - began
        self.settle()
        return took

    def close(self) -> None:
        """End the child."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


def started(code: str, text: bytes) -> float:
    """Seconds until a text is painted."""
    terminal = Terminal(code)
    try:
        return terminal.wait_for(text)
    finally:
        terminal.close()


def keyed(code: str, text: bytes, keys: bytes) -> float:
    """Milliseconds of two keys in turns, the median of many."""
    terminal = Terminal(code)
    try:
        terminal.wait_for(text)
        terminal.settle()
        return statistics.median(terminal.press(keys[i % 2 : i % 2 + 1]) for i in range(KEYS)) * 1000
    finally:
        terminal.close()


def interleaved(*measures: Callable[[], float]) -> list[float]:
    """The medians of several measures, taken in turns."""
    taken = [[measure() for measure in measures] for _ in range(REPEATS)]
    return [statistics.median(column) for column in zip(*taken, strict=True)]


def rows() -> list[Row]:
    """(what, measured, floor, note); times in seconds and milliseconds as named."""
    from tests.comparisons import of_size

    with tempfile.TemporaryDirectory() as folder:
        path = str(of_size(SITES).save(Path(folder) / "run.ldiff"))
        show = SHOW.format(path=path)
        for code, text in ((BARE, b"layers.0"), (show, PAINTED)):
            started(code, text)
        bare, own = interleaved(lambda: started(BARE, b"layers.0"), lambda: started(show, PAINTED))
        bare_key, own_key = keyed(BARE, b"layers.0", b"jj"), keyed(show, PAINTED, b"jk")
    return [
        ("bare Textual app with one widget: first paint, s", bare, "", "for comparison"),
        ("`layerdiff show` of a saved comparison of 100 000 sites: painted, s", own, 0.35, f"{own / bare:.2f} x the bare app"),
        ("bare Textual app: a key, ms", bare_key, "", "for comparison"),
        ("100 000 sites: cursor down and up, ms", own_key, 5, f"{own_key / bare_key:.2f} x the bare app"),
    ]
