"""How far the two programs of a body part at its cuts: where a child is handed something, and where the body returns."""

from __future__ import annotations

import math
from collections.abc import Iterable

from layerdiff.judge.meaning.decisions import with_decisions
from layerdiff.judge.programs.bodies import Body
from layerdiff.judge.programs.running import Programs, Ran
from layerdiff.judge.programs.setting import NOTHING, BodyVerdict, Cut, Setting
from layerdiff.measure.rows import RowDifference, row_difference


def cuts_of(body: Body) -> list[Cut]:
    """All cuts of a body."""
    found = [(pair, position) for pair, interface in body.children.items() for position, _ in interface.inputs]
    return found + [(body.calls, position) for position, _ in body.interface.outputs]


def difference_at(setting: Setting, programs: Programs, ours: Ran, theirs: Ran, cut: Cut) -> RowDifference | None:
    """How two runs of the programs part at a cut; None where what they have there is in no common form."""
    (r, t), position = cut
    one, other = ours.cuts.get((r, position)), theirs.cuts.get((t, position))
    beside = None if one is None or other is None else setting.beside(programs.body.forms, one, other)
    return None if beside is None else row_difference(*beside)


def worst_cut(setting: Setting, programs: Programs, ours: Ran, theirs: Ran, cuts: Iterable[Cut]) -> tuple[Cut, RowDifference] | None:
    """The cut at which two runs of the programs part most; None where they do at none."""
    found: tuple[Cut, RowDifference] | None = None
    for cut in cuts:
        difference = difference_at(setting, programs, ours, theirs, cut)
        if difference is not None and difference.figure > NOTHING and (found is None or difference.figure > found[1].figure):
            found = cut, difference
    return found


def figure_at(setting: Setting, programs: Programs, ours: Ran, theirs: Ran, cuts: Iterable[Cut]) -> float:
    """How far they part at most; 0 where they do not."""
    worst = worst_cut(setting, programs, ours, theirs, cuts)
    return 0.0 if worst is None else worst[1].figure


def cuts_met(setting: Setting, programs: Programs, ours: Ran, theirs: Ran, cuts: Iterable[Cut], near: float = NOTHING) -> list[Cut]:
    """The cuts at which they part by no more than that."""
    return [cut for cut in cuts if figure_at(setting, programs, ours, theirs, [cut]) <= near]


def figures(setting: Setting, programs: Programs, cuts: Iterable[Cut]) -> dict[Cut, float] | None:
    """How far the programs part at each of some cuts, once run: inf where nothing is common. None where a call of theirs could not be run.

    Raises CannotReplay where something that is needed was not recorded, and where the reference's program decides otherwise.
    """
    theirs = programs.run("target")
    ours, _ = with_decisions(setting, programs, theirs, BodyVerdict())
    if ours.opaque or theirs.opaque:
        return None
    differences = {cut: difference_at(setting, programs, ours, theirs, cut) for cut in cuts}
    return {cut: math.inf if difference is None else difference.figure for cut, difference in differences.items()}
