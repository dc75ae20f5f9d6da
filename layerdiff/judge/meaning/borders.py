"""`Borders`: work that one run does inside a module, and the other around it: embeddings that are scaled, a weight plus one.

Each of the two modules computes something else by itself, in opposite ways. Taken as one, their programs meet wherever that work reaches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from layerdiff.judge.local import Local
from layerdiff.judge.meaning.homes import Homes, is_meaning
from layerdiff.judge.meaning.parting import cuts_of, figures
from layerdiff.judge.meaning.reach import cone, reaching
from layerdiff.judge.meaning.suspects import nearly
from layerdiff.judge.programs.bodies import Body, Pair, body_of, both_ways
from layerdiff.judge.programs.calls import align_calls
from layerdiff.judge.programs.constants import Constants
from layerdiff.judge.programs.incoming import Incoming
from layerdiff.judge.programs.leaving import left_behind
from layerdiff.judge.programs.running import Programs
from layerdiff.judge.programs.setting import Setting
from layerdiff.judge.programs.states import with_states
from layerdiff.judge.tables import Verdict
from layerdiff.replay.refusal import CannotReplay

_MOST: Final = 8
"""Children of a module that are tried one by one."""


class Borders:
    """`pairs`: of module calls; `calls`: of operator calls; both by the reference's."""

    def __init__(self, setting: Setting, pairs: Mapping[int, int], constants: Constants, calls: Mapping[int, int]) -> None:
        self._setting, self._runs, self._constants, self._calls = setting, setting.runs, constants, calls
        self._paired = both_ways(pairs)

    def settle(self, all_bodies: Sequence[Body], findings: Sequence[Local]) -> list[Local]:
        """The findings, those marked that a module and the one around it have for work that is done on two sides of a border."""
        homes = Homes(all_bodies)
        blamed: dict[Pair, list[Local]] = {}
        for local in findings:
            if is_meaning(local) and local.verdict != Verdict.RECONVERGES and (pair := homes.of(local)) is not None:
                blamed.setdefault(pair, []).append(local)
        meets_at: dict[int, str] = {}
        for body in all_bodies:
            inside = [child for child in body.children if child in blamed]
            if inside and body.calls in blamed:
                site = self._runs.target.file.site(body.calls[1])
                for group in ([child] for child in inside[:_MOST]):
                    meets_at |= {id(local): site for local in self._right(body, group, blamed)}
                if len(inside) > 1 and not all(id(local) in meets_at for local in blamed[body.calls]):
                    meets_at |= {id(local): site for local in self._right(body, inside, blamed)}
        return [
            replace(local, verdict=Verdict.RECONVERGES, evidence={**local.evidence, "meets_at": meets_at[id(local)]})
            if id(local) in meets_at
            else local
            for local in findings
        ]

    def _right(self, body: Body, inside: Sequence[Pair], blamed: Mapping[Pair, Sequence[Local]]) -> list[Local]:
        """The findings of a body and of children that reach only cuts where the programs meet once these are taken as one."""
        try:
            wider = body_of(self._runs, body.calls, self._paired, body.forms, inside)
            figure = min(local.measured for pair in (body.calls, *inside) for local in blamed[pair])
            reach = self._reach(with_states(self._runs, [wider], self._calls)[0], nearly(figure))
        except CannotReplay:
            return []
        apart = [calls for calls, met in reach if not met]
        met = [calls for calls, met in reach if met]

        def right(calls: Iterable[tuple[int, int]]) -> list[int]:
            """The cuts that calls of the two sides reach, where the programs meet at all of them."""
            own = {(side, call) for both in calls for side, call in enumerate(both)}
            return [] if any(own & there for there in apart) else [cut for cut, there in enumerate(met) if own & there]

        children = {child: right(self._operators(child)) for child in inside}
        reached = {cut for cuts in children.values() for cut in cuts}
        mine = [local for local in blamed[body.calls] if not reached.isdisjoint(right([local.calls]))]
        return [*mine, *(local for child, cuts in children.items() if mine and cuts for local in blamed[child])]

    def _operators(self, pair: Pair) -> list[tuple[int, int]]:
        reference, target = (run.walk(call, set()) for run, call in zip(self._runs, pair, strict=True))
        return [*((call, -1) for call in reference), *((-1, call) for call in target)]

    def _reach(self, wider: Body, near: float) -> list[tuple[set[tuple[int, int]], bool]]:
        """For each cut the calls of both sides that reach it, by side and call, and whether the programs meet there, to within `near`.

        What is left in memory for others is a cut at which nobody knows. Raises CannotReplay.
        """
        aligned = align_calls(self._runs, wider)
        incoming = Incoming(self._runs, wider, self._constants, self._calls, aligned, self._setting.contents)
        programs = Programs(self._runs, wider, incoming, aligned, self._setting.contents)
        apart = figures(self._setting, programs, cuts_of(wider))
        if apart is None:
            raise CannotReplay("a call of it cannot be run")
        sides = ("reference", "target")
        found = [
            ({(side, call) for side, name in enumerate(sides) for call in cone(programs, name, cut)}, figure <= near)
            for cut, figure in apart.items()
        ]
        left = enumerate(zip(self._runs, wider.items, left_behind(self._runs, wider), strict=True))
        return [*found, ({(side, call) for side, one in left for call in reaching(*one)}, False)]
