"""Which module calls have all their operators recorded, in both runs.

A run that was asked for a part of its modules (`--modules`, `--types`, globs of `--operators`) has holes where the other has
operators: what was not recorded is no operator that is missing. So has one that ran compiled, or in another thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

import numpy as np

from layerdiff.judge.programs.bodies import Body
from layerdiff.sides import Both
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind, CallStatus


def recorded_operators(file: TraceFile) -> tuple[str, ...]:
    """The globs of module paths inside which a run recorded operators; none where it recorded none."""
    return _globs(file, "operators") or ()


def covered_calls(files: Both[TraceFile]) -> Both[set[int]]:
    """The module calls of each run that returned, and inside which both runs would have recorded operators."""
    return files.map(lambda file: covered_in(file, files))


def covered_in(file: TraceFile, files: Iterable[TraceFile]) -> set[int]:
    """The module calls of a file that returned, and inside which all of `files` would have recorded operators."""
    calls = file.calls
    modules = np.flatnonzero((calls.kind == CallKind.MODULE) & (calls.status == CallStatus.RETURNED)).tolist()
    each = list(files)
    return {
        call
        for call in modules
        if _sees(file, call)
        and all(_records(one, file.text(int(calls.module[call])) or "", file.text(int(calls.type[call])) or "") for one in each)
    }


def is_covered(body: Body, covered: Both[set[int]]) -> bool:
    """Whether a body, with the modules that were dissolved into it, was recorded whole."""
    both = zip(body.calls, body.dissolved, covered, strict=True)
    return all(call in known and known.issuperset(dissolved) for call, dissolved, known in both)


def _sees(file: TraceFile, call: int) -> bool:
    """Whether operators inside a module call were seen where they were asked for."""
    detail = int(file.calls.detail[call])
    if '"operators": false' not in (file.text(detail) or ""):
        return True
    said = file.json(detail)
    return not isinstance(said, dict) or said.get("operators") is not False


def _records(file: TraceFile, path: str, type_name: str) -> bool:
    for name, text in (("operators", path), ("modules", path), ("types", type_name)):
        globs = _globs(file, name)
        if globs is None and name == "operators":
            return False
        if globs is not None and not any(fnmatchcase(text, glob) for glob in globs):
            return False
    return True


def _globs(file: TraceFile, name: str) -> tuple[str, ...] | None:
    options = file.meta.get("options")
    globs = options.get(name) if isinstance(options, dict) else None
    return tuple(glob for glob in globs if isinstance(glob, str)) if isinstance(globs, list) else None
