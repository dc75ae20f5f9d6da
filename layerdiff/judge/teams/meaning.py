"""Whether the ranks' programs, run together, compute what the reference's does; and where they do not, from which call on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.errors import TraceError
from layerdiff.judge.found import Found
from layerdiff.judge.local import Local
from layerdiff.judge.pairs.placed import Placed
from layerdiff.judge.pairs.ranked import RankedTables
from layerdiff.judge.programs.coverage import covered_in
from layerdiff.judge.programs.padding import dead_tokens, padded_positions
from layerdiff.judge.programs.reading import Reading
from layerdiff.judge.programs.setting import BELOW_ROUNDING, NOTHING
from layerdiff.judge.tables import Columns, Verdict
from layerdiff.judge.teams.bodies import TeamBody, team_bodies, team_body
from layerdiff.judge.teams.crossings import Crossings
from layerdiff.judge.teams.exchange import Exchange
from layerdiff.judge.teams.given import argument, module_around
from layerdiff.judge.teams.naming import Named, first_other, may_follow
from layerdiff.judge.teams.parting import Apart, parted
from layerdiff.judge.teams.rounding import TeamRounding, beyond_rounding, decisions
from layerdiff.judge.teams.running import TeamPrograms, TeamRan
from layerdiff.judge.teams.weights import Weights
from layerdiff.replay.recorded import Recorded
from layerdiff.replay.refusal import CannotReplay
from layerdiff.sides import Both
from layerdiff.trace.reader import TraceFile

Array = NDArray[Any]
RULE: Final = "meaning: the ranks' programs together and the reference's on the ranks' values"
_APART: Final = 10.0
"""How many times further off one rank must be than the others, to be named alone."""
_KEPT: Final = 64
"""Bodies whose exact values are kept, for who looks for a cause."""
_MOST_APART: Final = 16
"""Values that cross a body differently and are looked at, the worst first; of a fault in what is beyond these another one is said."""
_NEAR: Final = 2
"""How many modules, the body's own and those around it, are tried as a whole, where a difference may cancel again."""


@dataclass(frozen=True)
class Said:
    """What is said of one body."""

    found: Found
    concerns: frozenset[int]
    """The rows of the module calls that it may be the fault of: the body's, and the one that is handed something else."""
    exact: Mapping[int, tuple[Array, list[Array]]] = field(default_factory=dict)
    """By pair that crosses: the logical value that the reference's program makes, or is given; and what each rank's makes, or is."""
    inside: frozenset[int] = frozenset()
    """The rows of the module calls that are a part of the body."""
    left_out: NDArray[np.bool_] | None = None
    """Shape (tokens,): those that say nothing; None where all do."""


@dataclass
class Meant:
    """What is known of the meaning of the ranks' programs."""

    same: set[int]
    """Rows of the module calls whose bodies compute the same."""
    said: list[Said]
    meets: set[int]
    """Rows of those whose bodies compute something else, which cancels again in a module around them."""
    other: set[int]
    """Rows of those whose bodies compute something else."""
    unjudged: dict[int, str]
    """By row of a module call why its programs could not be run."""


def judge_meaning(
    tables: RankedTables,
    sites: Columns,
    pairs: Columns,
    files: Both[tuple[TraceFile, ...]],
    placed: Mapping[int, Placed],
    trust: Collection[str] = (),
) -> Iterator[tuple[int, int, Meant]]:
    """Hold the programs of every module call of all ranks against the reference's; hands out (done, all, what is known so far)."""
    judge = _Judge(tables, sites, pairs, files, placed, trust)
    meant = Meant(set(), [], set(), set(), {})
    bodies = [body for body in team_bodies(judge.runs, judge.crossings) if judge.is_covered(body)]
    for done, body in enumerate(bodies, 1):
        judge.judge(body, meant)
        yield done, len(bodies), meant
    yield len(bodies), len(bodies), meant


class _Judge:
    def __init__(
        self,
        tables: RankedTables,
        sites: Columns,
        pairs: Columns,
        files: Both[tuple[TraceFile, ...]],
        placed: Mapping[int, Placed],
        trust: Collection[str],
    ) -> None:
        self._sites = sites
        self.runs: Both[Sequence[Recorded]] = files.map(lambda side: tuple(Recorded(file, trust) for file in side))
        self.crossings = Crossings(tables, sites, pairs, files, placed)
        self._contents = Reading([*self.runs.reference, *self.runs.target])
        self._weights = Weights(self.runs, self.crossings.weights, self._contents)
        self._exchange = files.map(Exchange)
        every = [*files.reference, *files.target]
        self._covered = files.map(lambda side: [covered_in(file, every) for file in side])
        self._rounding = TeamRounding.of(self.runs, self.crossings.calls.values())
        self._arithmetic = len(files.reference) > 1  # else the reference's program alone is held against what the ranks recorded
        self._met: dict[int, bool] = {}

    def is_covered(self, body: TeamBody) -> bool:
        """Whether all operators of a body were recorded, by all processes."""
        return all(
            known[file].issuperset(calls)
            for known, modules in zip(self._covered, body.modules, strict=True)
            for file, calls in modules.items()
        )

    def judge(self, body: TeamBody, meant: Meant) -> None:
        row = body.call.row
        inside = self._rows_inside(body, row)
        if inside & meant.other:
            return  # what it makes is off by that
        try:
            programs, ours, theirs = self._run(body)
            every = self._parted(body, ours, theirs)
            decided = [(self.crossings.row_of.get(at, row), local) for at, local in decisions(programs, self._rounding, ours)]
            unexplained = not every and self._arithmetic
            beyond = beyond_rounding(programs, self._rounding, ours, theirs, self._padded(body)) if unexplained else None
        except (CannotReplay, TraceError) as refusal:
            self._judge_tokens(body, str(refusal), meant)
            return
        if every:  # a choice beyond rounding follows from what is off, or is followed by it: the one fault is said
            decided = [(where, local) for where, local in decided if local.notice]
        meant.said += [Said(Found(where, local), frozenset({row})) for where, local in decided]
        if beyond is not None:
            meant.said.append(Said(Found(row, beyond[1]), frozenset({row, beyond[0].row})))
        (meant.other if every else meant.same).add(row)
        if every and self._meets(row):
            meant.meets.add(row)
            return
        said: list[tuple[Apart, Named | None]] = []
        for apart in every[:_MOST_APART]:
            if any(may_follow(programs, apart, *one) for one in said):
                continue
            named = self._named(programs, ours, theirs, apart)
            said.append((apart, named))
            concerns = frozenset({row, apart.call.row, self._hands(body, apart)} | inside)
            exact = self._exact(body, ours, theirs) if len(meant.said) < _KEPT else {}
            meant.said.append(Said(self._found(body, apart, named), concerns, exact, frozenset(inside)))

    def _judge_tokens(self, body: TeamBody, refusal: str, meant: Meant) -> None:
        """What is run may depend on choices: where some are not the reference's, the tokens for which all chose alike are judged."""
        row, whole = body.call.row, team_body(self.runs, body.call)  # the calls inside stand for other experts, token by token
        try:
            apart = TeamPrograms(self.runs, whole, self._exchange, self._weights, self._contents).chosen_otherwise()
            if apart is None:
                meant.unjudged[row] = refusal
                return
            _, ours, theirs = self._run(whole, own_choices=True)
            dead = dead_tokens(apart, self._padded(body))
            every = parted(whole, ours, theirs, dead)
        except (CannotReplay, TraceError) as again:
            meant.unjudged[row] = str(again)
            return
        (meant.other if every else meant.same).add(row)
        if every:
            found = self._found(whole, every[0], None)  # what follows from other choices is no fault
            inside = frozenset(self._rows_inside(whole, row))
            exact = self._exact(whole, ours, theirs) if len(meant.said) < _KEPT else {}
            meant.said.append(Said(found, inside | {row}, exact, inside, dead))

    def _rows_inside(self, body: TeamBody, row: int) -> set[int]:
        inside = {self.crossings.row_of.get((file, call)) for file, calls in body.modules.target.items() for call in calls}
        return {one for one in inside if one is not None and one != row}

    def _run(self, body: TeamBody, *, own_choices: bool = False) -> tuple[TeamPrograms, TeamRan, TeamRan]:
        programs = TeamPrograms(self.runs, body, self._exchange, self._weights, self._contents, own_choices)
        theirs = programs.run("target")
        return programs, programs.run("reference"), theirs

    def _parted(self, body: TeamBody, ours: TeamRan, theirs: TeamRan) -> list[Apart]:
        return parted(body, ours, theirs, self._padded(body))

    def _padded(self, body: TeamBody) -> NDArray[np.bool_] | None:
        file, call = next(iter(body.call.calls.target.items()))
        return padded_positions(self.runs.target[file], call, self._contents)

    def _meets(self, row: int) -> bool:
        """Whether the programs of the module, or of one around it, compute the same when they are run whole."""
        for _ in range(_NEAR):
            while row >= 0 and row not in self.crossings.calls:
                row = int(self.crossings.parent[row])
            if row < 0:
                return False
            if row not in self._met:
                self._met[row] = self._same_whole(row)
            if self._met[row]:
                return True
            row = int(self.crossings.parent[row])
        return False

    def _same_whole(self, row: int) -> bool:
        body = team_body(self.runs, self.crossings.calls[row])
        if not self.is_covered(body):
            return False
        try:
            _, ours, theirs = self._run(body)
            return not self._parted(body, ours, theirs)
        except (CannotReplay, TraceError):
            return False

    def _exact(self, body: TeamBody, ours: TeamRan, theirs: TeamRan) -> dict[int, tuple[Array, list[Array]]]:
        found: dict[int, tuple[Array, list[Array]]] = {}
        given = [*body.call.inputs, *(one for child in body.children for one in child.outputs)]
        made = [*body.call.outputs, *(one for child in body.children for one in child.inputs)]
        for crossing in given:
            parts = [self._contents(self.runs.target[file], value) for file, value in crossing.held.target.parts]
            found[int(crossing.key)] = crossing.held.target.joined(parts), parts
        for crossing in made:
            whole = crossing.held.reference.joined([ours.cuts[file][crossing.key] for file, _ in crossing.held.reference.parts])
            found[int(crossing.key)] = whole, [theirs.cuts[file][crossing.key] for file, _ in crossing.held.target.parts]
        return found

    def _named(self, programs: TeamPrograms, ours: TeamRan, theirs: TeamRan, apart: Apart) -> Named | None:
        if _counts_for_itself(programs.body):  # what follows from other ids is no fault
            return None
        alone = _alone(apart.figures)
        return first_other(programs, ours, theirs, apart, alone, lambda ran: self._parted(programs.body, ours, ran))

    def _found(self, body: TeamBody, apart: Apart, named: Named | None) -> Found:
        difference = apart.difference
        cause, says = None, "the ranks together compute something else"
        row, value, evidence = self._hands(body, apart), apart.crossing.position, dict[str, Any]()
        calls = self._calls(row)
        alone = _alone(apart.figures)
        if named is not None and named.given is not None:
            row = self._around(named.at, named.given, row)
            calls = self._calls(row)
            says = f"the ranks together hand something else to {named.makes}"
        elif named is not None:
            row = self.crossings.row_of.get(named.at, row)
            calls, value = (named.reference, named.at[1]), "out"
            evidence |= {} if named.static is None else {"static": named.static}
            says = f"the ranks together do not make what {named.makes} makes"
            says += f", and run no {named.lacking}, which the reference hands it to" if named.lacking else ""
            if named.summed is not None:
                cause, row, value = "allreduce-missing", named.summed.row, named.summed.outputs[0].position
                calls = self._calls(row)
                says = f"each rank used its own part as if it were the sum, in {named.makes}: the ranks' parts add up to the reference's"
            if named.unreduced is not None:
                cause = "allreduce-missing"
                says = (
                    f"each rank goes on with its own result of {named.makes}: the {named.unreduced} of all ranks' is the reference's, and "
                )
                says += "no rank has it"
        if apart.handed:
            evidence["handed_to"] = {"site": self.runs.target[0].file.site(next(iter(apart.call.calls.target.values())))}
        if alone is not None:
            evidence["rank"] = self.runs.target[alone].file.rank
        evidence |= {"meaning": difference.figure, "cut": apart.crossing.position, "worst": difference.worst, "rows": difference.rows}
        statement = evidence.get("static", says)
        small = difference.figure <= BELOW_ROUNDING and "static" not in evidence
        verdict = Verdict.INHERITED if small else Verdict.UNEXPLAINED if cause is None else Verdict.DEFECT
        kind = "below-rounding" if small else ""
        allowed = BELOW_ROUNDING if small else NOTHING
        said = f"{statement}, below rounding" if small else statement
        local = Local(calls, value, verdict, said, difference.figure, allowed, RULE, cause, kind, evidence, small)
        return Found(row, local)

    def _hands(self, body: TeamBody, apart: Apart) -> int:
        """The row of the innermost module call, of both runs, that hands on what parts: it may be none that is judged by itself."""
        row = int(self.crossings.parent[apart.call.row]) if apart.handed else body.call.row
        while row >= 0 and row != body.call.row and min(self._calls(row)) < 0:
            row = int(self.crossings.parent[row])
        return row if row >= 0 else body.call.row

    def _around(self, at: tuple[int, int], given: int, otherwise: int) -> int:
        """The row of the innermost module call, of both runs, in which a rank's operator call and what makes an argument of it are."""
        file, call = at
        run = self.runs.target[file]
        value = argument(run, call, given)
        module = -1 if value is None else module_around(run, call, value)
        while module >= 0:
            row = self.crossings.row_of.get((file, module), -1)
            if row >= 0 and min(self._calls(row)) >= 0:
                return row
            module = int(run.file.calls.parent[module])
        return otherwise

    def _calls(self, row: int) -> tuple[int, int]:
        return int(self._sites["reference_call"][row]), int(self._sites["target_call"][row])


def _counts_for_itself(body: TeamBody) -> bool:
    """Whether ids that each rank counts for itself go into it: its calls stand for other experts than the reference's then."""
    return any(held.placement.numbers for crossing in body.call.inputs for held in crossing.held)


def _alone(figures: Sequence[tuple[int, float]]) -> int | None:
    """The file of the one process that is off, or is by far the furthest."""
    if len(figures) < 2:
        return None
    (first, most), (_, next_most), *_ = sorted(figures, key=lambda one: -one[1])
    return first if most > _APART * next_most and most > NOTHING else None
