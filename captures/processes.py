"""Processes of one gloo group over loopback, started once: many recordings run in them, one after another.

A group of fewer processes than there are is made anew on the first of them, so that the world that a trace notes is the one that ran.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

_LEAVE = "leave the group"

Task = Callable[..., Any]
"""A function of a module, called as task(rank, size, *arguments) on every process of the group."""


class Processes:
    """`size` processes that wait for tasks; a context manager. `run` raises RuntimeError with the traceback of the first that failed."""

    def __init__(self, size: int, *, patience: float = 120.0) -> None:
        self.size, self.patience = size, patience
        self._stores = tempfile.TemporaryDirectory()
        self._groups, self._joined = 0, 0
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []

    def __enter__(self) -> Processes:
        context = mp.get_context("spawn")
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self._processes:
            process.join(5 if error is None else 0)
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in self._pipes:
            pipe.close()
        self._stores.cleanup()

    def run(self, task: Task, *arguments: Any, size: int | None = None) -> list[Any]:
        """What `task` returns on each rank of a group of `size`, all by default."""
        ranks = self.size if size is None else size
        if ranks != self._joined:
            self._groups, self._joined = self._groups + 1, ranks
            for pipe in self._pipes:
                pipe.send(_LEAVE)
        store = str(Path(self._stores.name) / str(self._groups))
        for pipe in self._pipes[:ranks]:
            pipe.send((task, ranks, store, arguments))
        results: dict[int, Any] = {}
        while len(results) < ranks:
            left = {self._pipes[rank]: rank for rank in range(ranks) if rank not in results}
            ready = wait(list(left), self.patience)
            if not ready:
                raise RuntimeError(f"ranks {sorted(left.values())} of {ranks} did not answer for {self.patience:.0f} s")
            for pipe in ready:
                rank = left[pipe]  # type: ignore[index]  # only what was waited for is ready
                failed, results[rank] = pipe.recv()  # type: ignore[union-attr]
                if failed:
                    raise RuntimeError(f"rank {rank} of {ranks}: {results[rank]}")
        return [results[rank] for rank in range(ranks)]


def _serve(rank: int, pipe: Connection) -> None:
    """One process: a group for each change of size, and tasks in it."""
    torch.set_num_threads(1)
    joined = False
    while True:
        try:
            asked = pipe.recv()
        except EOFError:
            return
        if joined and asked in (None, _LEAVE):
            dist.destroy_process_group()
            joined = False
        if asked is None:
            return
        if asked == _LEAVE:
            continue
        task, size, store, arguments = asked
        try:
            if not joined:
                with contextlib.redirect_stdout(io.StringIO()):
                    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
                joined = True
            pipe.send((False, task(rank, size, *arguments)))
        except Exception:
            pipe.send((True, traceback.format_exc()))
