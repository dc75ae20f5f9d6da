"""How far apart what came into a module was, in this step and those before: state that a run keeps is made of nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.programs.bodies import Body, Pair
from layerdiff.measure.rows import row_difference
from layerdiff.replay.recorded import Recorded
from layerdiff.replay.refusal import CannotReplay
from layerdiff.sides import Both
from layerdiff.trace.schema import CallKind, Role

_LOOKED_AT: Final = 64
"""Calls of the module, the last ones."""


def came_in_apart(runs: Both[Recorded], contents: Callable[[Recorded, int], NDArray[Any]], body: Body) -> float:
    """The worst figure (`measure.rows`) of the float inputs of the module calls of a body, and of earlier calls, between two runs.

    Positions of one shape are compared; what was not recorded is left out. 0 where nothing differs.
    """
    ours = {runs.reference.file.site(call): call for call in body.dissolved.reference}
    inside = [(ours[site], call) for call in body.dissolved.target if (site := runs.target.file.site(call)) in ours]
    return max(_apart(runs, contents, calls) for calls in [body.calls, *inside])


def _apart(runs: Both[Recorded], contents: Callable[[Recorded, int], NDArray[Any]], calls: Pair) -> float:
    worst = 0.0
    earlier = [_up_to(run, call) for run, call in zip(runs, calls, strict=True)]
    for reference, target in zip(reversed(earlier[0]), reversed(earlier[1]), strict=False):
        ours, theirs = runs.reference.edges(reference, Role.INPUT), runs.target.edges(target, Role.INPUT)
        for position in ours.keys() & theirs.keys():
            try:
                one, other = contents(runs.reference, ours[position]), contents(runs.target, theirs[position])
            except CannotReplay:
                continue
            if one.shape == other.shape and one.dtype.kind == other.dtype.kind == "f":
                worst = max(worst, row_difference(one, other).figure)
    return worst if np.isfinite(worst) else 0.0


def _up_to(run: Recorded, call: int) -> list[int]:
    columns = run.file.calls
    same = (np.asarray(columns.module) == columns.module[call]) & (np.asarray(columns.kind) == CallKind.MODULE)
    found: list[int] = np.flatnonzero(same[: call + 1]).tolist()
    return found[-_LOOKED_AT:]
