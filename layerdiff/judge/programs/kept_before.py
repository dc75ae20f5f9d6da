"""Bodies that read what a cache held before anything was recorded: what such tokens were made of is not known.

One run reads their keys, the other makes them of tokens that the first never had. So their programs start from other numbers, and what the
cache holds was rounded before: thresholds judge such a module, with what the cache is off.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from layerdiff.judge.programs.bodies import Body
from layerdiff.replay.recorded import Recorded
from layerdiff.sides import Both
from layerdiff.trace.enclosing import root_of
from layerdiff.trace.joined import Joined
from layerdiff.trace.schema import Role

KEPT_BEFORE: Final = "it reads {}, which held tokens before anything was recorded"


def reads_kept(runs: Both[Recorded], body: Body) -> str:
    """The position of the state, among the inputs of the root, that the body reads in one of the two runs; empty where it reads none."""
    for run, call, items in zip(runs, Both(*body.calls), body.items, strict=True):
        memories = {run.place(value).memory[0]: position for value, position in _kept(run, call)}
        for item in items if memories else ():
            for value in () if run.is_module(item) else run.operation(item).inputs.values():
                if run.place(value).memory[0] in memories:
                    return memories[run.place(value).memory[0]]
    return ""


def _kept(run: Recorded, call: int) -> Iterator[tuple[int, str]]:
    """What the root around a call is handed of tokens before, where they are of requests that had begun before anything was recorded."""
    call = root_of(run.file.calls.parent, call)
    chunks = run.file.roots.get(call) if isinstance(run.file, Joined) else None
    for edge in run.file.edges_of(call) if chunks is not None and chunks.begun else ():
        dtype = run.file.dtype(edge.value)
        if edge.role == Role.INPUT and dtype is not None and dtype.kind == "float":
            yield edge.value, edge.position
