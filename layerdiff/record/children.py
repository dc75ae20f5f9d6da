"""Child processes of a recorded script: each records into a file of its own, from its first call of a module on.

Forked children inherit this module's state; spawned ones and subprocesses find it in the variable
`LAYERDIFF_RECORD`, read by `startup/sitecustomize.py`, which is on their PYTHONPATH. Neither imports torch
in a process that would not.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

VARIABLE: Final = "LAYERDIFF_RECORD"
STARTUP: Final = Path(__file__).parent / "startup"
_MODULE: Final = "torch.nn.modules.module"
_TRACE_NAME: Final = re.compile(r"rank\d{5}(-pid\d+)?\.h5")


@dataclass(frozen=True)
class Target:
    """Where the processes of one run record, and how."""

    folder: Path
    """Holds a trace a process, once there is more than one."""
    options: Mapping[str, Any]

    def encoded(self) -> str:
        """For the environment variable."""
        return json.dumps({"folder": str(self.folder.absolute()), "options": dict(self.options)})

    @classmethod
    def decoded(cls, text: str) -> Target:
        """From the environment variable."""
        said = json.loads(text)
        return cls(Path(said["folder"]), said["options"])


def rank_name(rank: int | None, *, child: bool) -> str:
    """The file of a process in the folder of its run."""
    return f"rank{rank or 0:05d}{f'-pid{os.getpid()}' if child else ''}.h5"


def is_rank_name(name: str) -> bool:
    """Whether a file was named by `rank_name`."""
    return _TRACE_NAME.fullmatch(name) is not None


_target: Target | None = None
_waiting: Any = None


def record_children(target: Target | None) -> None:
    """Let processes that start from now on record to `target`; None ends that."""
    global _target
    _target = target
    if target is None:
        os.environ.pop(VARIABLE, None)
        return
    os.environ[VARIABLE] = target.encoded()


def arm(target: Target) -> None:
    """Record this process to `target` from its first call of a module on; torch may come later."""
    record_children(target)
    if _MODULE in sys.modules:
        _wait_for_call(sys.modules[_MODULE], target)
    else:
        sys.meta_path.insert(0, _WhenImported(_MODULE, lambda module: _wait_for_call(module, target)))


def _arm_after_fork() -> None:
    if _target is not None:
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _WhenImported)]
        arm(_target)


def _wait_for_call(module: Any, target: Target) -> None:
    global _waiting

    def first_call(called: Any, args: Any) -> None:
        handle.remove()
        frame = sys._getframe(1)
        try:
            _start(target).hooks_discover(called, args, frame)
        except Exception as error:
            print(f"layerdiff: process {os.getpid()} is not recorded: {error}", file=sys.stderr)

    if _waiting is not None:  # the parent's, copied by a fork
        _waiting.remove()
    handle = _waiting = module.register_module_forward_pre_hook(first_call)


def _start(target: Target) -> Any:
    from layerdiff.record.environment import rank_of_process
    from layerdiff.record.recorder import Recorder

    rank, world = rank_of_process()
    target.folder.mkdir(parents=True, exist_ok=True)
    first = target.folder / rank_name(rank, child=False)
    taken = world == 1 or first.exists() or first.with_name(first.name + ".journal").exists()
    recorder = Recorder(target.folder / rank_name(rank, child=taken), **target.options)
    recorder.start()
    return recorder


class _WhenImported(importlib.abc.MetaPathFinder):
    """Calls `then` with a module as soon as it was imported, and steps aside."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenLoader(spec.loader, self._then)
        return spec


class _ThenLoader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, then: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._then = then

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        module.__loader__ = self._loader
        self._then(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


os.register_at_fork(after_in_child=_arm_after_fork)
