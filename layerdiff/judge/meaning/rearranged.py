"""`Rearranged`: modules that hand on other values for weights whose elements lie otherwise, as rows of a fused projection by heads.

What they make is in another order then, and the module around them reads it so: taken as one with it, the two programs meet, or come
nearer where something else parts them too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from layerdiff.judge.meaning.constants import shown_in
from layerdiff.judge.meaning.parting import cuts_of, figures
from layerdiff.judge.programs.bodies import Body, Pair, bodies, body_of, both_ways
from layerdiff.judge.programs.calls import align_calls
from layerdiff.judge.programs.constants import Constants
from layerdiff.judge.programs.incoming import Incoming
from layerdiff.judge.programs.running import Programs
from layerdiff.judge.programs.setting import NOTHING, Cut, Setting
from layerdiff.judge.programs.wiring import Wiring
from layerdiff.replay.refusal import CannotReplay

_NEARER: Final = 0.5
"""Of the difference at a cut, where the order of what is handed there was a part of it."""
_NO_FURTHER: Final = 1.01


class Rearranged:
    """Looks for them among the pairs of module calls of two runs."""

    def __init__(self, setting: Setting, pairs: Mapping[int, int], constants: Constants) -> None:
        self._setting, self._runs, self._paired, self._constants = setting, setting.runs, both_ways(pairs), constants
        self._names = constants.rearranged

    def dissolved(self, all_bodies: Sequence[Body], roots: list[Pair]) -> set[Pair]:
        """The pairs to be judged as one with the module around them: those that part by themselves, where all of the weight shows."""
        owners: dict[str, set[str]] = {}
        for name in self._names:
            owners.setdefault(name.rpartition(".")[0], set()).add(name)
        sites = {body.calls: self._runs.target.file.site(body.calls[1]) for body in all_bodies if owners}
        tried = {body.calls for body in all_bodies if sites.get(body.calls) in owners and self._apart(body)}
        known = {body.calls for body in all_bodies}
        found: set[Pair] = set()
        for body in bodies(self._runs, self._paired, roots, self._setting.forms_at, tried) if tried else ():
            inside = {pair for pair in tried if pair[1] in body.dissolved.target}
            shown = shown_in(self._runs.target, body, self._names) if inside and body.calls in known else set()
            inside = {pair for pair in inside if owners[sites[pair]] <= shown}
            if inside and self._nearer(body.calls, inside):
                found |= inside
                continue
            around: dict[str, set[Pair]] = {}
            for pair in inside:
                around.setdefault(sites[pair].rpartition(".")[0], set()).add(pair)
            for some in around.values() if len(around) > 1 else ():  # one of several modules in the body does it wrong
                found |= some if self._nearer(body.calls, some) else set()
        return found

    def _nearer(self, calls: Pair, inside: Collection[Pair]) -> bool:
        """Whether the programs of a body meet with some children taken as one with it, or come nearer and nowhere part further."""
        before, after = (
            self._apart(body_of(self._runs, calls, self._paired, self._setting.forms_at(calls[1]), some)) for some in ((), inside)
        )
        if before is None or after is None:
            return False
        worse = any(figure > _NO_FURTHER * before.get(cut, 0.0) for cut, figure in after.items())
        return not worse and (not after or any(after.get(cut, 0.0) < _NEARER * figure for cut, figure in before.items()))

    def _apart(self, body: Body) -> dict[Cut, float] | None:
        """How far the two programs of a body part, at the cuts where they do; None where a call cannot be run."""
        aligned = align_calls(self._runs, body)
        incoming = Incoming(self._runs, body, self._constants, {}, aligned, self._setting.contents)
        wiring = Wiring(self._runs, body, incoming)
        differing = [cut for cut in cuts_of(body) if not wiring.same(*cut)]
        programs = Programs(self._runs, body, incoming, aligned, self._setting.contents)
        try:
            found = figures(self._setting, programs, differing) if differing else {}
        except CannotReplay:
            return None
        return None if found is None else {cut: figure for cut, figure in found.items() if figure > NOTHING}
