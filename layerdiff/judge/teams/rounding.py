"""What rounding may make of the programs of teams: decisions that hang by it, and recorded values that lie beyond it.

The reference's programs are run once more with rounding as noise, at the dtypes that the ranks are expected to use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.formats import rounding_of
from layerdiff.judge.local import Local
from layerdiff.judge.meaning.decisions import allowed_margin, flip_of
from layerdiff.judge.meaning.precision import ratio_to_spread
from layerdiff.judge.programs.jumps import takes_other_ends
from layerdiff.judge.programs.noise import Noise, Rounding
from layerdiff.judge.programs.padding import without_padding
from layerdiff.judge.programs.setting import RATIO
from layerdiff.judge.tables import BEYOND, Verdict
from layerdiff.judge.teams.crossings import Crossing, Held, TeamCall
from layerdiff.judge.teams.running import TeamPrograms, TeamRan
from layerdiff.replay.recorded import Recorded
from layerdiff.sides import Both
from layerdiff.trace.dtypes import dtype_named

Array = NDArray[Any]


@dataclass(frozen=True)
class TeamRounding:
    """Noise for the programs of both sides, by file."""

    runs: Both[Sequence[Recorded]]
    expected_dtype: Mapping[str, str]
    reference: Mapping[int, Rounding]
    target: Mapping[int, Rounding]

    @classmethod
    def of(cls, runs: Both[Sequence[Recorded]], calls: Iterable[TeamCall]) -> TeamRounding:
        """By the dtypes in which modules hand on, and matrix products are kept."""
        votes: dict[str, Counter[str]] = {}
        for call in calls:
            for crossing in call.outputs:
                names = [team[held.parts[0][0]].file.dtype_name(held.parts[0][1]) for team, held in zip(runs, crossing.held, strict=True)]
                if all((known := dtype_named(name)) is not None and known.kind == "float" for name in names):
                    votes.setdefault(names[0], Counter())[names[1]] += 1
        expected = {name: one.most_common(1)[0][0] for name, one in votes.items()}
        product = runs.target[0].product_dtype
        sides = [{file: Rounding(Both(runs.reference[0], run), expected, product) for file, run in enumerate(runs.target)}]
        sides.append({file: Rounding(Both(run, runs.target[0]), expected, product) for file, run in enumerate(runs.reference)})
        return cls(runs, expected, sides[1], sides[0])

    def as_expected(self) -> dict[int, Noise]:
        """Noise for the reference's programs at the dtypes that the ranks are expected to use."""
        return {file: one.as_expected for file, one in self.reference.items()}

    def as_recorded(self) -> dict[int, Noise]:
        """Noise for the ranks' programs at their own dtypes."""
        return {file: one.as_recorded for file, one in self.target.items()}


def decisions(programs: TeamPrograms, rounding: TeamRounding, ours: TeamRan) -> Iterator[tuple[tuple[int, int], Local]]:
    """(file and call of the target, what is said) of the decisions that the reference's program would have made otherwise."""
    if not ours.decisions:
        return
    noisy = programs.run("reference", rounding.as_expected())
    for at, decision in ours.decisions.items():
        step = programs.steps[programs.partner[at]]
        there = next(iter(step.items()))
        allowed = allowed_margin(rounding.reference[at[0]], decision, ours.operands.get(at), noisy.operands.get(at))
        if takes_other_ends(decision.operation, programs.runs.target[there[0]].operation(there[1])):
            decision.margin = np.where(decision.differs, np.inf, decision.margin)
        flip = flip_of(decision, (at[1], there[1]), allowed, wrong=bool(np.any(decision.margin > allowed)))
        yield there, flip if flip.notice else replace(flip, verdict=Verdict.UNEXPLAINED)


def beyond_rounding(
    programs: TeamPrograms, rounding: TeamRounding, ours: TeamRan, theirs: TeamRan, padded: NDArray[np.bool_] | None
) -> tuple[TeamCall, Local] | None:
    """What the ranks recorded lies further from what their programs make than rounding explains: the worst; None where it does not.

    `padded`: as `judge.programs.padding` has it. Where all is hidden, a rounding of what hides it makes anything: that is left out.
    """
    noisy = programs.run("reference", rounding.as_expected())
    worst: tuple[float, TeamCall, Crossing] | None = None
    for call, crossing in _floats(programs):
        ratio = _ratio(programs, crossing, theirs, _spread(ours, noisy, crossing, "reference", padded), padded)
        if worst is None or ratio > worst[0]:
            worst = ratio, call, crossing
    if worst is None or worst[0] <= RATIO:
        return None
    ratio, call, crossing = worst
    own_noise = programs.run("target", rounding.as_recorded())
    own = _ratio(programs, crossing, theirs, _spread(theirs, own_noise, crossing, "target", padded), padded)
    calls = next(iter(programs.body.call.calls.reference.values())), next(iter(programs.body.call.calls.target.values()))
    evidence = {"cut": crossing.position, "against_own_spread": own}
    if own <= RATIO:
        said = f"{ratio:.3g} times the error that the reference's way makes; the ranks round more often on the way"
        return call, Local(
            calls, crossing.position, Verdict.PRECISION, said, ratio, RATIO, BEYOND, "lower-precision", "accumulator", evidence
        )
    said = f"lies {ratio:.3g} times further from what its programs say than their rounding explains"
    return call, Local(calls, crossing.position, Verdict.UNEXPLAINED, said, ratio, RATIO, BEYOND, evidence=evidence)


def _floats(programs: TeamPrograms) -> Iterator[tuple[TeamCall, Crossing]]:
    """The known floats that cross, on both sides."""

    def is_float(team: Sequence[Recorded], held: Held) -> bool:
        known = [dtype_named(team[file].file.dtype_name(value)) for file, value in held.parts]
        return all(dtype is not None and dtype.kind == "float" for dtype in known)

    for call, handed in programs.body.crossing():
        for crossing in call.inputs if handed else call.outputs:
            if crossing.known and all(map(is_float, programs.runs, crossing.held)):
                yield call, crossing


def _spread(exact: TeamRan, noisy: TeamRan, crossing: Crossing, side: str, padded: NDArray[np.bool_] | None) -> tuple[Array, Array]:
    """What noise makes of a logical value, and its exact size."""
    held: Held = getattr(crossing.held, side)
    right, other = (held.joined([ran.cuts[file][crossing.key] for file, _ in held.parts]) for ran in (exact, noisy))
    with np.errstate(invalid="ignore"):
        return without_padding(other, right, padded) - right, np.abs(right)


def _ratio(
    programs: TeamPrograms, crossing: Crossing, theirs: TeamRan, spread: tuple[Array, Array], padded: NDArray[np.bool_] | None
) -> float:
    """How far the recorded logical value is from what the programs make, over its spread."""
    held = crossing.held.target
    recorded = [programs.contents(programs.runs.target[file], value) for file, value in held.parts]
    made = held.joined([theirs.cuts[file][crossing.key] for file, _ in held.parts])
    dtype = programs.runs.target[held.parts[0][0]].file.dtype_name(held.parts[0][1])
    with np.errstate(invalid="ignore"):  # of what is hidden by -inf on both sides there is no difference
        error = without_padding(held.joined(recorded), made, padded) - made
    return ratio_to_spread(error, spread[0].reshape(error.shape), rounding_of(dtype, spread[1]).reshape(error.shape))
