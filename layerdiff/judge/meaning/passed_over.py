"""`passed_over`: the target's program without a call that it adds: what that was given goes on in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from layerdiff.judge.meaning.parting import figure_at
from layerdiff.judge.meaning.wording import shown
from layerdiff.judge.programs.running import Programs, Ran, Redone
from layerdiff.judge.programs.setting import Cut, Setting
from layerdiff.replay.once import operands_by_position
from layerdiff.replay.recorded import Recorded
from layerdiff.replay.refusal import CannotReplay

NEARER: Final = 0.9
"""Of how far the programs were apart: what is no nearer than that was not the reason."""


@dataclass(frozen=True)
class Over:
    """The target's program without what it adds."""

    ways: Mapping[int, Redone]
    ran: Ran
    off: float
    """How far it is from the reference's then."""


def passed_over(
    setting: Setting, programs: Programs, ours: Ran, cuts: list[Cut], call: int, passed: Mapping[int, Redone], figure: float
) -> Over | None:
    """The target's program without a call that it adds, or without all that are alike, one a request of a batch.

    What each was given goes on in its place. None where that is no nearer.
    """
    run, partnered = setting.runs.target, set(programs.aligned.values())
    items = [item for item in programs.body.items.target if not run.is_module(item) and item not in partnered]
    alike = [item for item in items if shown(run, item) == shown(run, call)]
    found: Over | None = None
    for calls in ([call], alike)[: 1 + (len(alike) > 1)]:
        ways = {one: way for one in calls if (way := _handing_on(run, one)) is not None}
        try:
            ran = programs.run("target", redone={**passed, **ways}) if len(ways) == len(calls) else None
        except CannotReplay:
            ran = None
        off = np.inf if ran is None else figure_at(setting, programs, ours, ran, cuts)
        if ran is not None and off < min(NEARER * figure, np.inf if found is None else found.off):
            found = Over({**passed, **ways}, ran, off)
    return found


def _handing_on(run: Recorded, call: int) -> Redone | None:
    """A call that hands on the first operand that has the shape of its result; None where it has none."""
    operation = run.operation(call)
    if operation.writes or set(operation.outputs) != {"out"}:
        return None
    shape = run.file.shape(operation.outputs["out"])
    for position, value in operation.inputs.items():
        if run.file.shape(value) == shape and "float" in run.file.dtype_name(value):
            return lambda given, _: {"out": operands_by_position(operation, given)[position]}
    return None
