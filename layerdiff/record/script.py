"""`run_script`: a Python script run in this process as if by `python SCRIPT`, and recorded.

Its exit code is the script's own, whatever becomes of the recording. Where the run has more than one
process that records, OUT is a folder with a trace for each (children.py).
"""

from __future__ import annotations

import os
import runpy
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from layerdiff.errors import RecorderError
from layerdiff.record.children import STARTUP, Target, is_rank_name, rank_name, record_children
from layerdiff.record.environment import rank_of_process
from layerdiff.record.plan import Plan, PlanFinished, Planner
from layerdiff.record.recorder import Recorder


@dataclass(frozen=True)
class Recorded:
    """What a run of one process left behind."""

    path: Path
    calls: int
    steps: int
    unmatched: Mapping[str, Sequence[str]]
    """Globs that matched nothing, by the name of their option."""


def run_script(
    out: Path,
    argv: Sequence[str],
    *,
    module: bool = False,
    options: Mapping[str, Any] | None = None,
    told: Callable[[Recorded], None] | None = None,
) -> int:
    """Run `argv` (a script, or with `module` a module's name, and its arguments) and record it to `out`.

    Returns the script's exit code. `options` are the Recorder's keyword arguments, JSON-ready. `told` is called at the end
    where this process alone recorded, and recorded something.

    Raises:
        RecorderError: before anything runs, where there is no such script or the recording cannot start.
    """
    name = argv[0] if module else str(_script(argv[0]))
    options = dict(options or {})
    rank, world = rank_of_process()
    folder = out.with_suffix("")
    if folder == out:
        folder = out.with_name(out.name + ".ranks") if world == 1 else out
    if folder.is_file():
        raise RecorderError(f"Cannot record to {folder}: it is a file, and the traces of several processes need a folder of that name.")
    path = out if world == 1 else folder / rank_name(rank, child=False)
    if world > 1:
        folder.mkdir(parents=True, exist_ok=True)
    argv_before, python_path = sys.argv, os.environ.get("PYTHONPATH")
    sys.argv = [name, *argv[1:]]
    try:
        recorder = Recorder(path, **options)
        recorder.start()
        _forget_earlier(folder, None if world == 1 else rank)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(STARTUP), *([python_path] if python_path else [])])
        record_children(Target(folder, options))
        process = os.getpid()
        try:
            return _run(name, argv[1:], module)
        finally:
            if os.getpid() == process:  # a forked child that falls out of its script ends here, too
                record_children(None)
                _finish(recorder, folder, alone=world == 1, told=told)
    finally:
        sys.argv = argv_before
        if python_path is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = python_path


def plan_script(out: Path, argv: Sequence[str], *, module: bool = False, options: Mapping[str, Any] | None = None) -> tuple[Plan, int]:
    """Run `argv` until its first forward ended, and count what a recording of that would hold.

    Returns the plan and the exit code of a script that ended before; 0 otherwise. Nothing is written.

    Raises:
        RecorderError: where there is no such script, or an option is wrong.
    """
    name = argv[0] if module else str(_script(argv[0]))
    with Planner(out, stop=True, **(options or {})) as planner:
        code = _run(name, argv[1:], module)
    return planner.plan(), code


def _script(name: str) -> Path:
    path = Path(name)
    if path.is_file() or (path / "__main__.py").is_file():
        return path
    found = None if os.sep in name else shutil.which(name)
    if found is None:
        raise RecorderError(f"There is no script {name}. Give the path of a Python script after --, or a module with -m.")
    with open(found, "rb") as file:
        if b"python" not in file.readline(256):
            raise RecorderError(f"{found} is no Python script, so its modules cannot be recorded. Record the Python script that it starts.")
    return Path(found)


def _run(name: str, arguments: Sequence[str], module: bool) -> int:
    argv, path = sys.argv[:], sys.path[:]
    sys.argv = [name, *arguments]
    try:
        if module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            if not Path(name).is_dir():  # run_path puts a folder there itself
                sys.path.insert(0, str(Path(name).resolve().parent))
            runpy.run_path(name, run_name="__main__")
    except SystemExit as ending:
        return _code(ending.code)
    except PlanFinished:
        return 0
    except KeyboardInterrupt:
        return 130
    except BaseException as error:
        sys.excepthook(type(error), error.with_traceback(_own_frames(error.__traceback__)), error.__traceback__)
        return 1
    finally:
        sys.argv, sys.path[:] = argv, path
    return 0


def _code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback from the script on: neither our frames nor runpy's."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        traceback = traceback.tb_next
    return traceback


def _forget_earlier(folder: Path, rank: int | None) -> None:
    """Remove the traces of an earlier run to the same place: of `rank`, or all of them for None."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if is_rank_name(path.name) and (rank is None or path.name.startswith(f"rank{rank:05d}")):
            path.unlink()
    if rank is None and not any(folder.iterdir()):
        folder.rmdir()


def _finish(recorder: Recorder, folder: Path, *, alone: bool, told: Callable[[Recorded], None] | None) -> None:
    others = folder.is_dir() and any(folder.iterdir())
    recorder.close(quiet=others)
    if not (alone and others):
        if alone and told is not None and recorder.calls and recorder.path.exists():
            told(Recorded(recorder.path, recorder.calls, recorder.steps, recorder.unmatched()))
        return
    if not recorder.calls:
        recorder.path.unlink(missing_ok=True)  # a launcher that runs no model itself
    elif recorder.path.exists():
        os.replace(recorder.path, folder / rank_name(None, child=False))
    print(f"layerdiff: more than one process was recorded: {folder}{os.sep} holds a trace for each, and is read as one.", file=sys.stderr)
