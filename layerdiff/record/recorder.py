"""`Recorder`: a context manager that writes what a model's modules consume and make into a trace.

Entering raises what can be known before the first forward; afterwards nothing of ours reaches the run:
an error stops the recording, the trace says that it is incomplete, and the model goes on.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing.util
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final

from torch import nn

from layerdiff.errors import RecorderError
from layerdiff.record.calls import Calls
from layerdiff.record.children import rank_name
from layerdiff.record.collectives import Collectives
from layerdiff.record.delivery import Delivery
from layerdiff.record.environment import describe, rank_of_process
from layerdiff.record.hooks import ModuleHooks
from layerdiff.record.options import DEFAULT_QUEUE_BYTES, Options
from layerdiff.record.sink import TraceSink
from layerdiff.record.sites import COMPILED, attribute_that_holds
from layerdiff.trace.writer import TraceWriter

if TYPE_CHECKING:
    from layerdiff.record.operators import OperatorMode

UNSEEN: Final = "code was compiled in this process: set TORCHDYNAMO_DISABLE=1 to record the modules that run in it"
_recording: weakref.WeakSet[Recorder] = weakref.WeakSet()


class Recorder:
    """Records every forward inside a `with` block.

    Args:
        path: The trace to make, such as `reference.h5`. Of a run of several ranks a folder, such as `target/`, in which each makes its own.
        model: The model whose calls are recorded; None for every model that is called.
        modules: Globs of module paths to record, such as `*.self_attn`; None for all. The root is always
            recorded, by its numbers alone where no glob matches it.
        types: Globs of class names to record; None for all.
        steps: Which forwards of the root, as `0,3:5` (end exclusive); None for all.
        ranks: Which processes of a distributed run record; None for all.
        keep: `full`, `statistics` or `full:2GB`, for some modules as `GLOB=POLICY`; see `keep.py`.
        weights: Whose bytes are kept: `none`, `used` (by a recorded call), `all`, or `checkpoint`: of buffers alone, since the checkpoint
            that was loaded has the parameters (`diff --checkpoint`). Their statistics and fingerprints are recorded in any case.
            None: `used` where operators are recorded, else `none`.
        operators: Whether every operator that runs inside a module is recorded, with its operands; or globs of the module
            paths where. Such a trace can be judged exactly.
        fingerprints: Whether values get fingerprints. Without them equal bits cannot be told unless bytes are kept.
        queue_bytes: The most memory that copies waiting for the disk may take.

    Raises:
        RecorderError: on making or entering it, where the recording cannot start.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        model: nn.Module | None = None,
        *,
        modules: str | Iterable[str] | None = None,
        types: str | Iterable[str] | None = None,
        steps: str | int | Iterable[int] | None = None,
        ranks: int | Iterable[int] | None = None,
        keep: str | Mapping[str, str] | None = None,
        weights: str | None = None,
        operators: bool | str | Iterable[str] = False,
        fingerprints: bool = True,
        queue_bytes: int = DEFAULT_QUEUE_BYTES,
    ) -> None:
        if model is not None and not isinstance(model, nn.Module):
            raise RecorderError(
                f"Cannot record a {type(model).__name__}: it is no torch.nn.Module. Pass the module itself "
                f"(a pipeline's or an engine's `.model`), or leave it out to record every module that is called."
            )
        self.path = Path(path)
        self._model = model
        self._options = Options.checked(
            modules=modules,
            types=types,
            steps=steps,
            ranks=ranks,
            keep=keep,
            weights=weights,
            operators=operators,
            fingerprints=fingerprints,
            queue_bytes=queue_bytes,
        )
        self._skipped: dict[str, str] = {}
        self._writer: TraceWriter | None = None
        self._delivery: Delivery | None = None
        self._hooks: ModuleHooks | None = None
        self._calls: Calls | None = None
        self._mode: OperatorMode | None = None
        self._collectives: Collectives | None = None
        self._compiled_before = 0
        self._handles_sigterm = False
        self._closing = self._terminated_meanwhile = False

    def __enter__(self) -> Recorder:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        """Begin to record. Raises RecorderError."""
        if self._hooks is not None:
            raise RecorderError(f"The recording to {self.path} was started already. Make a new Recorder for another one.")
        rank, world = rank_of_process()
        if self._options.ranks is not None and (rank or 0) not in self._options.ranks:
            return
        meta = {
            "rank": rank,
            "world_size": world,
            "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "options": self._options.described(),
            "environment": describe([] if self._model is None else [self._model]),
        }
        try:
            if world > 1 and (self.path.is_dir() or not self.path.suffix):
                self.path.mkdir(parents=True, exist_ok=True)
                self.path /= rank_name(rank, child=False)
            self._writer = TraceWriter(self.path, meta=meta)
        except OSError as error:
            raise RecorderError(f"Cannot record to {self.path}: {error.strerror or error}. Make room, or choose another disk.") from None
        self._compiled_before = _compiled_frames()
        self._delivery = Delivery(self._writer, self._options.queue_bytes)
        sink = TraceSink(self._writer, self._delivery)
        name_root = attribute_that_holds if self._model is None else lambda module: None
        self._calls = Calls(sink, self._options, skipped=self._skipped, name_root=name_root)
        self._hooks = ModuleHooks(self._calls, self._options, model=self._model, skipped=self._skipped, failed=self._fail)
        self._hooks.install()
        delivery, writer = self._delivery, self._writer
        self._collectives = Collectives(self._calls, sink, self._fail, lambda key, value: delivery.put(writer.set_meta, key, value))
        self._collectives.start()
        if self._options.operators is not None:
            from layerdiff.record.operators import OperatorMode

            self._mode = self._hooks.mode = OperatorMode(self._calls, sink, self._fail)
            self._mode.__enter__()  # type: ignore[no-untyped-call]
        _recording.add(self)
        atexit.register(self.close)
        if multiprocessing.parent_process() is not None:  # such a process ends without its exit handlers
            multiprocessing.util.Finalize(None, self.close, exitpriority=100)
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminated)
            self._handles_sigterm = True

    @property
    def calls(self) -> int:
        """How many calls were recorded."""
        return 0 if self._calls is None else self._calls.count

    @property
    def steps(self) -> int:
        """How many forwards of roots were recorded."""
        roots, chosen = ([] if self._hooks is None else self._hooks.roots), self._options.steps
        return sum(1 for root in roots for step in range(root.next_step) if chosen is None or step in chosen)

    def unmatched(self) -> dict[str, list[str]]:
        """Globs that matched no module of the models that ran, by the name of their option; empty where none ran."""
        sites = [site for root in ([] if self._hooks is None else self._hooks.roots) for site in root.sites.values()]
        paths, types = [site.path for site in sites], [site.type for site in sites]
        options = self._options
        found: dict[str, list[str]] = {}
        for name, globs, texts in (
            ("modules", options.modules, paths),
            ("types", options.types, types),
            ("operators", options.operators, paths),
        ):
            idle = [glob for glob in globs or () if not any(fnmatchcase(text, glob) for text in texts)]
            if sites and idle:
                found[name] = idle
        return found

    def hooks_discover(self, module: nn.Module, args: tuple[Any, ...], frame: FrameType) -> None:
        """Record a call that began before the recording did: `frame` is torch's, about to run `module`."""
        if self._hooks is not None:
            self._hooks.discover(module, args, frame)

    def close(self, *, quiet: bool = False) -> None:
        """Stop recording and finish the trace. May be called again. `quiet`: no word about a trace without calls."""
        hooks, delivery, writer = self._hooks, self._delivery, self._writer
        if hooks is None or delivery is None or writer is None:
            return
        self._delivery = None
        self._closing = True
        try:
            self._close(hooks, delivery, writer, quiet=quiet)
        finally:
            self._closing = False
            self._let_sigterm_go()

    def _close(self, hooks: ModuleHooks, delivery: Delivery, writer: TraceWriter, *, quiet: bool) -> None:
        if self._mode is not None:
            self._mode.stop()
        if self._collectives is not None:
            self._collectives.stop()
        hooks.remove()
        _recording.discard(self)
        atexit.unregister(self.close)
        if self.calls and _compiled_frames() > self._compiled_before and COMPILED not in self._skipped.values():
            self._skipped["(compiled code)"] = UNSEEN
        described = [root.module for root in hooks.roots if root.index is not None]
        remarks: dict[str, Any] = {"environment": describe(described or ([] if self._model is None else [self._model]))}
        if self._skipped:
            remarks["skipped"] = dict(sorted(self._skipped.items())[:1000])
        if not self.calls and delivery.failure is None:
            remarks["empty_reason"] = self._why_empty(hooks)
        for key, value in remarks.items():
            delivery.put(writer.set_meta, key, value)
        delivery.close()
        if "empty_reason" in remarks and not quiet:
            print(f"layerdiff: {self.path} is a trace without calls: {remarks['empty_reason']}", file=sys.stderr)

    def _fail(self, error: Exception) -> None:
        if self._delivery is not None:
            self._delivery.fail(f"{type(error).__name__}: {error}")

    def _why_empty(self, hooks: ModuleHooks) -> str:
        if self._skipped:
            path, reason = next(iter(self._skipped.items()))
            return f"{path or 'the model'} is {reason}"
        if any(root.next_step for root in hooks.roots):
            return "the options (steps, modules, types) select none of the forwards that ran."
        if _compiled_frames() > self._compiled_before:
            return f"no forward was seen, and {UNSEEN}"
        what = "no module was called" if self._model is None else f"no forward of the {type(self._model).__name__} ran"
        return f"{what} while recording. A forward called directly (model.forward(...)) or replayed from a captured graph is not seen."

    def _let_sigterm_go(self) -> None:
        """Leave the signal as it was; one that came while the trace was being closed is sent again."""
        if self._handles_sigterm and signal.getsignal(signal.SIGTERM) == self._terminated:
            with contextlib.suppress(ValueError):  # not in the main thread any more
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self._terminated_meanwhile:
            self._terminated_meanwhile = False
            os.kill(os.getpid(), signal.SIGTERM)

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        if self._closing:  # a launcher ends its other processes just when their scripts end by themselves
            self._terminated_meanwhile = True
            return
        self.close()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    def forget_after_fork(self) -> None:
        """In a forked child: the recording is the parent's."""
        if self._hooks is not None:
            self._hooks.remove()
        if self._collectives is not None:
            self._collectives.forget()
        if self._writer is not None:
            self._writer.abandon_after_fork()
        self._delivery = None
        atexit.unregister(self.close)
        if self._handles_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _compiled_frames() -> int:
    """How many frames torch has compiled in this process. Does not import the compiler."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["frames"]["total"])


def _forget_all() -> None:
    for recorder in list(_recording):
        recorder.forget_after_fork()
    _recording.clear()


os.register_at_fork(after_in_child=_forget_all)
