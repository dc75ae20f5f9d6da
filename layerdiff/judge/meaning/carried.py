"""Decisions that both runs made rightly and otherwise: what came in differed, or values tied.

Where the wiring of a body is the same nothing of it is run, and each call's own replay finds its choice right for its own
operands. That the two recorded choices differ is said all the same: what follows of another expert looks like a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.errors import TraceError
from layerdiff.judge.local import Local
from layerdiff.judge.programs.choices import apart
from layerdiff.judge.tables import Verdict
from layerdiff.replay.discrete import is_discrete
from layerdiff.replay.recorded import Operation, Recorded
from layerdiff.replay.refusal import CannotReplay
from layerdiff.sides import Both

Array = NDArray[Any]


def carried_flip(runs: Both[Recorded], calls: tuple[int, int], contents: Callable[[Recorded, int], Array]) -> Local | None:
    """Whether a choice of two calls of one operator differs, each of them being right for its own operands; None where not."""
    operations = Both(runs.reference.operation(calls[0]), runs.target.operation(calls[1]))
    if operations.reference.name != operations.target.name or not is_discrete(operations.target.name):
        return None
    try:
        chosen = [_choice(run, operation, contents) for run, operation in zip(runs, operations, strict=True)]
        if chosen[0] is None or chosen[1] is None or chosen[0].shape != chosen[1].shape or np.array_equal(chosen[0], chosen[1]):
            return None
        deciding = [_deciding(run, operation, contents) for run, operation in zip(runs, operations, strict=True)]
    except (CannotReplay, TraceError):
        return None
    if not deciding[0] or [one.shape for one in deciding[0]] != [one.shape for one in deciding[1]]:
        return None
    incoming = max(float(np.max(apart(one, other), initial=0.0)) for one, other in zip(*deciding, strict=True))
    count = int(np.count_nonzero(chosen[0] != chosen[1]))
    name = operations.target.name.removeprefix("aten.")
    if incoming == 0.0:
        if operations.reference.picture != operations.target.picture:  # something else is asked: values need not tie
            return None
        statement = f"{name}: {count} of {chosen[0].size} choices among values that tie are ordered otherwise"
        return Local(calls, "out", Verdict.FLIP, statement, 0.0, 0.0, "equal operands, both right", kind="tie-order", notice=True)
    since = f"what came in differs by up to {incoming:.2g}" if np.isfinite(incoming) else "what came in is masked otherwise"
    statement = f"{name}: {count} of {chosen[0].size} choices differ, since {since}; each is right"
    rule = "both choices right for their operands"
    return Local(calls, "out", Verdict.FLIP, statement, incoming, incoming, rule, kind="carried-flip", notice=True)


def _choice(run: Recorded, operation: Operation, contents: Callable[[Recorded, int], Array]) -> Array | None:
    """The first whole or boolean result."""
    for value in operation.outputs.values():
        if run.file.dtype_name(value) == "bool" or "int" in run.file.dtype_name(value):
            return contents(run, value)
    return None


def _deciding(run: Recorded, operation: Operation, contents: Callable[[Recorded, int], Array]) -> list[Array]:
    """The float operands."""
    return [contents(run, value) for value in operation.inputs.values() if "float" in run.file.dtype_name(value)]
