"""`Delivery`: work for the trace, handed from the threads of the model to the one that owns the writer.

The queue is bounded in bytes: where the disk is slower than the model, the model waits. Where the
writer fails, the queue is emptied, what follows is dropped, and the model never notices. The writer
thread is woken for much work or after a moment, not for every value: each wake-up takes the
interpreter's lock from the model.

Waiting is done on the condition, never by joining the thread: a signal handler may close the trace
while the interrupted frame holds the lock, and only the condition lets go of it.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

Job = tuple[Any, ...]
"""How many bytes the arguments hold in memory, what to call in the writer's thread, and the arguments. One flat
tuple: the fewer objects wait, the less the garbage collector has to look at."""

_PAUSE_SECONDS: Final = 0.05
_WAKE_BYTES: Final = 4 << 20


class Writer(Protocol):
    """What the thread itself asks of the writer."""

    path: Path

    def flush_if_due(self) -> None:
        """Flush what has waited long enough."""

    def close(self, *, reason: str | None = None) -> Path:
        """Finish the file."""


class Delivery:
    """One daemon thread that runs jobs in the order in which they were put."""

    def __init__(self, writer: Writer, capacity_bytes: int) -> None:
        self._writer = writer
        self._capacity = capacity_bytes
        self._condition = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._bytes = 0
        self._closing = False
        self._finished = False
        self._failure: str | None = None
        self.largest_bytes = 0
        """The most that ever waited, in bytes."""
        self._thread = threading.Thread(target=self._run, name="layerdiff-writer", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str | None:
        """Why the trace is incomplete; None while all is well."""
        return self._failure

    def put(self, function: Callable[..., object], *arguments: Any) -> None:
        """Queue a call of `function`, without a lock: appending to a deque is one step."""
        if self._failure is None:
            self._jobs.append((0, function, *arguments))

    def put_bytes(self, nbytes: int, function: Callable[..., object], *arguments: Any) -> None:
        """Queue a call whose arguments hold `nbytes`. Blocks while the queue is full."""
        with self._condition:
            while self._bytes and self._bytes + nbytes > self._capacity and self._failure is None and not self._finished:
                self._condition.notify_all()
                self._condition.wait(_PAUSE_SECONDS)
            if self._failure is not None or self._closing:
                return
            self._jobs.append((nbytes, function, *arguments))
            self._bytes += nbytes
            self.largest_bytes = max(self.largest_bytes, self._bytes)
            if self._bytes >= _WAKE_BYTES:
                self._condition.notify_all()

    def fail(self, reason: str) -> None:
        """Drop what waits and what follows; the trace will say that it is incomplete, and why."""
        with self._condition:
            if self._failure is not None:
                return
            self._failure = reason
            self._jobs.clear()
            self._bytes = 0
            self._condition.notify_all()
        print(f"layerdiff: recording to {self._writer.path} stopped: {reason}. The run goes on; the trace is incomplete.", file=sys.stderr)

    def close(self) -> None:
        """Run what waits, then finish the file. May be called again."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._finished or not self._thread.is_alive())

    def _run(self) -> None:
        try:
            while self._run_waiting():
                pass
            try:
                self._writer.close(reason=self._failure)
            except Exception as error:
                self.fail(_described(error))
                print(f"layerdiff: {error}", file=sys.stderr)
        finally:
            with self._condition:
                self._finished = True
                self._condition.notify_all()

    def _run_waiting(self) -> bool:
        """Run the jobs that wait now. False at the end."""
        with self._condition:
            if not self._closing and self._bytes < _WAKE_BYTES:
                self._condition.wait(_PAUSE_SECONDS)
            ending = self._closing
        try:
            self._drain()
            if self._failure is None:
                self._writer.flush_if_due()
        except Exception as error:
            self.fail(_described(error))
        return not ending

    def _drain(self) -> None:
        jobs = self._jobs
        while jobs and self._failure is None:
            try:
                nbytes, function, *arguments = jobs.popleft()
            except IndexError:  # emptied by `fail` in another thread
                return
            function(*arguments)
            if nbytes:
                del arguments  # counted out next, so nothing may hold the bytes
                self._release(nbytes)

    def _release(self, nbytes: int) -> None:
        with self._condition:
            self._bytes = max(0, self._bytes - nbytes)
            self._condition.notify_all()


def _described(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"{type(error).__name__}: {error}"
