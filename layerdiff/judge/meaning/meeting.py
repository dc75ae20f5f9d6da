"""`Meeting`: differences of a body that cancel again, in the module or in the one around it: the programs taken whole compute the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.beside import Forms
from layerdiff.judge.local import Local
from layerdiff.judge.meaning.parting import cuts_of, figures
from layerdiff.judge.programs.bodies import Body, Interface, Pair, interface, whole_body
from layerdiff.judge.programs.constants import Constants
from layerdiff.judge.programs.incoming import Incoming
from layerdiff.judge.programs.leaving import leaves_state
from layerdiff.judge.programs.running import Programs
from layerdiff.judge.programs.setting import NOTHING, Setting
from layerdiff.judge.tables import Verdict
from layerdiff.replay.operators import CannotReplay
from layerdiff.replay.recorded import Recorded
from layerdiff.sides import Both
from layerdiff.trace.dtypes import dtype_named

Array = NDArray[Any]
_NEAR: Final = 2
"""How many modules, the body's own and those around it, are tried as a whole, where a difference may cancel again."""


class Meeting:
    """The modules of two runs as wholes. `pairs`: the target's module call of each of the reference's."""

    def __init__(
        self, runs: Both[Recorded], pairs: Mapping[int, int], constants: Constants, contents: Callable[[Recorded, int], Array]
    ) -> None:
        self._runs, self._pairs, self._constants, self._contents = runs, pairs, constants, contents
        self._met: dict[Pair, tuple[bool, frozenset[int]]] = {}
        """Of modules: whether they meet, and the target's operator calls inside that were not run for it."""

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
            if met[0] and met[1].isdisjoint(body.items.target):  # a fault that was taken as given shows nowhere
                return self._runs.target.file.site(t)
        return None

    def _meet(self, setting: Setting, pair: Pair, calls: Mapping[int, int]) -> tuple[bool, frozenset[int]]:
        """Whether the programs of a pair of module calls, children and all, compute the same on what the target was given.

        Calls that were handed other choices do not run with those of the other run: what they return is taken from the target, and
        what they are handed must be the same. The target's operators in those are returned too.
        """
        try:
            return self._meet_as(setting, whole_body(self._runs, pair, setting.forms_at(pair[1])), calls), frozenset()
        except CannotReplay:
            routed = self._routed(pair, setting.forms_at(pair[1]))
        given = frozenset(item for _, there in routed for item in self._runs.target.walk(there, set()))
        try:
            return bool(routed) and self._meet_as(setting, whole_body(self._runs, pair, setting.forms_at(pair[1]), routed), calls), given
        except CannotReplay:
            return False, given

    def _routed(self, pair: Pair, forms: Forms) -> dict[Pair, Interface]:
        """The calls inside that were handed other whole numbers, and made values of other shapes of them; none inside another."""
        found: dict[Pair, Interface] = {}
        inside: set[int] = set()
        for call in self._runs.reference.modules_inside(pair[0], set()):
            there = self._pairs.get(call)
            if there is None or call in inside or (fits := interface(self._runs, (call, there), forms)) is None:
                continue
            if self._of_other_shapes((call, there)) and any(self._chosen_otherwise(values, forms) for _, values in fits.inputs):
                found[call, there] = fits
                inside.update(self._runs.reference.modules_inside(call, set()))
        return found

    def _of_other_shapes(self, pair: Pair) -> bool:
        ours, theirs = (
            {run.file.shape(value) for item in run.walk(call, set()) for value in run.operation(item).outputs.values()}
            for run, call in zip(self._runs, pair, strict=True)
        )
        return ours != theirs

    def _chosen_otherwise(self, values: Pair, forms: Forms) -> bool:
        known = dtype_named(self._runs.reference.file.dtype_name(values[0]))
        if known is None or known.kind != "integer":
            return False
        one, other = (self._contents(run, value) for run, value in zip(self._runs, values, strict=True))
        beside = forms.beside(one, other)
        return beside is None or not np.array_equal(*beside)

    def _meet_as(self, setting: Setting, whole: Body | None, calls: Mapping[int, int]) -> bool:
        if whole is None or leaves_state(self._runs, whole):
            return False
        inside = set(whole.items.reference)
        aligned = {one: other for one, other in calls.items() if one in inside}
        incoming = Incoming(self._runs, whole, self._constants, calls, aligned, self._contents)
        found = figures(setting, Programs(self._runs, whole, incoming, aligned, self._contents), cuts_of(whole))
        return found is not None and bool(found) and all(figure <= NOTHING for figure in found.values())
