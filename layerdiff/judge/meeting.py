"""`Meeting`: differences of a body that cancel again, in the module or in the one around it: the programs taken whole compute the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from numpy.typing import NDArray

from layerdiff.judge.bodies import Body, Pair, whole_body
from layerdiff.judge.constants import Constants
from layerdiff.judge.decisions import with_decisions
from layerdiff.judge.incoming import Incoming
from layerdiff.judge.local import Local
from layerdiff.judge.running import Programs
from layerdiff.judge.setting import NOTHING, BodyVerdict, Setting
from layerdiff.judge.tables import Verdict
from layerdiff.measure.rows import row_difference
from layerdiff.replay.operators import CannotReplay
from layerdiff.replay.recorded import Recorded
from layerdiff.sides import Both

Array = NDArray[Any]
_NEAR: Final = 2
"""How many modules, the body's own and those around it, are tried as a whole, where a difference may cancel again."""


class Meeting:
    """The modules of two runs as wholes. `pairs`: the target's module call of each of the reference's."""

    def __init__(
        self, runs: Both[Recorded], pairs: Mapping[int, int], constants: Constants, contents: Callable[[Recorded, int], Array]
    ) -> None:
        self._runs, self._pairs, self._constants, self._contents = runs, pairs, constants, contents
        self._met: dict[Pair, bool] = {}

    def reconverging(self, setting: Setting, body: Body, findings: list[Local], calls: Mapping[int, int]) -> list[Local]:
        """The findings, with those of meaning marked where the programs of a module around meet again in all that it hands on."""
        if not any("meaning" in local.evidence and not local.notice for local in findings):
            return findings
        where = self._meets_in(setting, body, calls)
        if where is None:
            return findings
        return [
            replace(local, verdict=Verdict.RECONVERGES, evidence={**local.evidence, "meets_at": where})
            if "meaning" in local.evidence and not local.notice
            else local
            for local in findings
        ]

    def _meets_in(self, setting: Setting, body: Body, calls: Mapping[int, int]) -> str | None:
        """The nearest module around a body whose programs, taken as a whole, compute the same; None where there is none near."""
        r, t = body.calls
        for step in range(_NEAR):
            if step:
                r, t = (int(run.file.calls.parent[call]) for run, call in zip(self._runs, (r, t), strict=True))
            if r < 0 or t < 0 or self._pairs.get(r) != t:
                return None
            met = self._met.get((r, t))
            if met is None:
                met = self._met[r, t] = self._meet(setting, (r, t), calls)
            if met:
                return self._runs.target.file.site(t)
        return None

    def _meet(self, setting: Setting, pair: Pair, calls: Mapping[int, int]) -> bool:
        """Whether the programs of a pair of module calls, children and all, compute the same on what the target was given."""
        r, t = pair
        whole = whole_body(self._runs, pair)
        if whole is None or leaves_state(self._runs, whole):
            return False
        inside = set(whole.items.reference)
        aligned = {one: other for one, other in calls.items() if one in inside}
        incoming = Incoming(self._runs, whole, self._constants, calls, aligned, self._contents)
        programs = Programs(self._runs, whole, incoming, aligned, self._contents)
        try:
            theirs = programs.run("target")
            ours, _ = with_decisions(setting, programs, theirs, BodyVerdict())  # a choice of its own does not meet
        except CannotReplay:
            return False
        if ours.opaque or theirs.opaque or not ours.cuts:
            return False
        made = [(ours.cuts[r, at], theirs.cuts[t, at]) for at, _ in whole.interface.outputs]
        return all(row_difference(one, other.reshape(one.shape)).figure <= NOTHING for one, other in made)


def leaves_state(runs: Both[Recorded], body: Body) -> bool:
    """Whether a body writes to memory that it did not make, or makes something that is read after it besides what it returns."""
    for run, items, here in zip(runs, body.items, (0, 1), strict=True):
        made: set[int] = set()
        inside = set(items)
        for item in items:
            operation = run.operation(item)
            made |= {run.place(value).memory[0] for position, value in operation.outputs.items() if not run.is_view(operation)}
            written = {run.place(operation.inputs[position]).memory[0] for position in operation.writes if position in operation.inputs}
            if written - made:
                return True
        returned = {run.place(values[here]).memory[0] for _, values in body.interface.outputs}
        given = {run.place(values[here]).memory[0] for _, values in body.interface.inputs}
        if run.read_elsewhere(made - returned - given, inside):
            return True
    return False
