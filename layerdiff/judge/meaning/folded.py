"""`Folding`: weights that one run keeps folded into others: a gain into the projections behind it, a scale into queries, LoRA merged.

Each body by itself computes something else then. The smallest module around is taken whole, each program with its own weights, and what
they return must lie no further apart than one rounding of each of those weights makes. That alone would let a fault below it through: so
what a body was blamed for is let go only where undoing it is told from rounding, and does not explain what is left of the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.local import Local
from layerdiff.judge.meaning.changes import UNCHANGED
from layerdiff.judge.meaning.homes import Homes, is_meaning
from layerdiff.judge.meaning.region import Base, Region
from layerdiff.judge.meaning.scales import other_scale
from layerdiff.judge.meaning.stored import PRODUCTS, Stored
from layerdiff.judge.programs.bodies import Body, Interface, Pair, interface, whole_body
from layerdiff.judge.programs.constants import Constants
from layerdiff.judge.programs.leaving import leaves_state
from layerdiff.judge.programs.running import Programs
from layerdiff.judge.programs.setting import Setting
from layerdiff.judge.programs.states import with_states
from layerdiff.judge.tables import Verdict
from layerdiff.replay.recorded import Recorded
from layerdiff.replay.refusal import CannotReplay
from layerdiff.sides import Both
from layerdiff.trace.schema import CallKind

Array = NDArray[Any]
_AROUND: Final = 3
"""How many modules, the body's own and those around it, are tried as a whole."""
_Blamed = tuple[str, frozenset[tuple[str, str, str]]]
"""The site of a module, and site, value and static difference of what is blamed in it."""
_MOST_FORWARDS: Final = 64
"""As many calls as so many forwards have are run, in all, to see whether one fault among folded weights is what keeps a module from
meeting. A decoder each of whose layers has one takes 20."""


class Folding:
    """Acquits what is folded. `pairs`: of module calls; `calls`: of operator calls; both by the reference's."""

    def __init__(
        self,
        setting: Setting,
        pairs: Mapping[int, int],
        constants: Constants,
        calls: Mapping[int, int],
        padded: Callable[[int], NDArray[np.bool_] | None],
    ) -> None:
        self._setting, self._pairs, self._constants, self._calls, self._padded = setting, pairs, constants, calls, padded
        self._runs: Both[Recorded] = setting.runs
        self._left = _MOST_FORWARDS * int(np.count_nonzero(self._runs.reference.file.calls.kind == CallKind.OPERATOR))
        self._shown: set[_Blamed] = set()
        """Modules, and what they were blamed for, that were shown to be folded in one call: their weights are the same in all."""
        self._parting: set[_Blamed] = set()
        """Those that do not meet in one call: what two programs are in one, they are in all."""

    def settle(self, all_bodies: Sequence[Body], findings: Sequence[Local]) -> tuple[list[Local], set[Pair]]:
        """The findings without those of weights that are folded, and what is said of these; and the bodies of which nothing is left."""
        homes = Homes(all_bodies)
        blamed = [local for local in findings if is_meaning(local) and homes.of(local) is not None]
        if not blamed:
            return list(findings), set()
        regions = self._around({body for local in blamed if (body := homes.of(local)) is not None})
        said: list[Local] = []
        left = list(blamed)
        for besides in (False, True):
            tried: set[frozenset[int]] = set()
            for pair in regions:
                inside = self._inside(pair, left)
                blame = frozenset(map(id, inside))
                region = self._region(pair, inside) if len(inside) > besides and blame not in tried else None
                if region is None:
                    continue  # what parts in a module and nowhere around it meets in it, or only dilutes
                tried.add(blame)
                if not besides and self._blamed(pair, inside) in self._parting:
                    continue
                freed, notice = self._free(pair, region, inside, besides=besides)
                left = [local for local in left if not any(local is one for one in freed)]
                said += notice
        blamed += (scaled := [one for pair in regions for one in self._other_scales(pair, left)])
        left += scaled
        findings = [*findings, *scaled]
        kept = {id(local) for local in left}
        gone = {body for local in blamed if id(local) not in kept and (body := homes.of(local)) is not None}
        gone -= {body for local in left if (body := homes.of(local)) is not None}
        return [local for local in findings if not is_meaning(local) or id(local) in kept or homes.of(local) is None] + said, gone

    def _other_scales(self, pair: Pair, left: list[Local]) -> list[Local]:
        """A scale of codes that is all that is wrong in a module: said in place of what is `left` of it, which is taken out."""
        inside = self._inside(pair, left)
        region = self._region(pair, inside) if inside else None
        found = other_scale(region) if region is not None and region.stored.has_codes() else None
        if found is None:
            return []
        left[:] = [local for local in left if not any(local is one for one in inside)]
        worst = max(inside, key=lambda local: local.measured)
        back = {t: r for r, t in self._calls.items()}
        calls = back.get(found.call, -1), found.call
        evidence = {"meaning": worst.measured, **found.evidence}
        return [
            replace(
                worst, calls=calls, value="out", verdict=Verdict.DEFECT, statement=found.statement, cause=found.cause, evidence=evidence
            )
        ]

    def _around(self, bodies: Iterable[Pair]) -> list[Pair]:
        """The modules that are tried, the innermost first."""
        found: dict[Pair, int] = {}
        parents = self._runs.map(lambda run: run.file.calls.parent)
        for r, t in bodies:
            for _ in range(_AROUND):
                if r < 0 or t < 0 or self._pairs.get(r) != t:
                    break
                found[r, t] = self._depth(t)
                r, t = int(parents.reference[r]), int(parents.target[t])
        return sorted(found, key=lambda pair: (-found[pair], pair[1]))

    def _depth(self, call: int) -> int:
        depth, parents = 0, self._runs.target.file.calls.parent
        while (call := int(parents[call])) >= 0:
            depth += 1
        return depth

    def _inside(self, pair: Pair, left: Sequence[Local]) -> list[Local]:
        sides = list(zip(self._runs, pair, strict=True))
        return [local for local in left if any(within(run, call, around) for (run, around), call in zip(sides, local.calls, strict=True))]

    def _region(self, pair: Pair, inside: Sequence[Local]) -> Region | None:
        """The module taken whole; None where it cannot be, or no weight in it is another. It is large, and none is kept."""
        whole = whole_body(self._runs, pair, self._setting.forms_at(pair[1]), self._beside(pair, inside))
        if whole is None:
            return None
        whole = with_states(self._runs, [whole], self._calls)[0]
        if leaves_state(self._runs, whole):
            return None
        here = set(whole.items.reference)
        aligned = {one: other for one, other in self._calls.items() if one in here}
        stored = Stored(self._runs, whole, self._constants, self._calls, aligned, self._setting.contents)
        if not any(stored.own_weights):
            return None
        try:
            programs = Programs(self._runs, whole, stored, aligned, self._setting.contents)
            return Region(replace(self._setting, padded=self._padded(pair[1])), programs, stored, inside)
        except CannotReplay:
            return None

    def _beside(self, pair: Pair, inside: Sequence[Local]) -> dict[Pair, Interface]:
        """The calls in a module that are over before what is found in it begins, or begin after it: what folds is none of theirs."""
        ends: list[list[int]] = [[], []]
        for local in inside:
            for side, (run, call) in enumerate(zip(self._runs, local.calls, strict=True)):
                ends[side] += [] if call < 0 else [call, _last_inside(run, call)]
        found: dict[Pair, Interface] = {}

        def apart(side: int, call: int, run: Recorded) -> bool:
            return call > max(ends[side]) or (call < min(ends[side]) and not within(run, min(ends[side]), call))

        def look(call: int) -> None:
            for child in filter(self._runs.reference.is_module, self._runs.reference.children[call]):
                there = self._pairs.get(child)
                if there is None or not all(apart(*one) for one in zip((0, 1), (child, there), self._runs, strict=True)):
                    look(child)
                elif (fits := interface(self._runs, (child, there), self._setting.forms_at(there))) is not None:
                    found[child, there] = fits

        if all(ends):
            look(pair[0])
        return found

    def _free(self, pair: Pair, region: Region, inside: Sequence[Local], *, besides: bool) -> tuple[list[Local], list[Local]]:
        """Those of the findings inside a module that are folded weights, and what is said. `besides`: beside one fault that is none."""
        best: tuple[list[Local], Base] | None = None
        try:
            if not besides and (base := region.base(UNCHANGED)) is not None:
                best = self._folded(pair, region, base, inside), base
            elif not besides:
                self._parting.add(self._blamed(pair, inside))
            if best is not None or besides:
                best = self._beside_a_fault(pair, region, inside, best)
        except CannotReplay:
            return [], []
        if best is None or not best[0]:
            return [], []
        return best[0], [_said(pair, region, best[0], best[1].ratio, everything=len(best[0]) == len(inside))]

    def _beside_a_fault(
        self, pair: Pair, region: Region, inside: Sequence[Local], best: tuple[list[Local], Base] | None
    ) -> tuple[list[Local], Base] | None:
        """What more is folded once one of the findings that are left is taken for a fault: that with which most is."""
        for fault in inside:
            rest = [local for local in inside if local is not fault]
            if not rest or (best is not None and (any(fault is one for one in best[0]) or len(best[0]) >= len(rest))):
                continue
            for changed in region.faulty(fault):
                self._left -= region.calls
                if self._left < 0:
                    return best
                base = region.base(changed)
                freed = [] if base is None else self._folded(pair, region, base, rest)
                if base is not None and len(freed) > (0 if best is None else len(best[0])):
                    best = freed, base
        return best

    def _blamed(self, pair: Pair, found: Sequence[Local]) -> _Blamed:
        file = self._runs.target.file
        sites = [file.site(one.calls[1]) if one.calls[1] >= 0 else "" for one in found]
        static = [str(one.evidence.get("static")) for one in found]
        return file.site(pair[1]), frozenset((site, one.value, text) for site, one, text in zip(sites, found, static, strict=True))

    def _folded(self, pair: Pair, region: Region, base: Base, found: Sequence[Local]) -> list[Local]:
        key = self._blamed(pair, found)
        if key in self._shown and not base.changed:
            return list(found)
        each = {id(one): self._blamed(pair, [one]) for one in found}
        freed = [one for one in found if ("constant" in one.evidence and each[id(one)] in self._shown) or region.is_folded(one, base)]
        self._shown |= {each[id(one)] for one in freed}
        if len(freed) == len(found) and not base.changed:
            self._shown.add(key)
        return freed


def _said(pair: Pair, region: Region, freed: Sequence[Local], ratio: float, *, everything: bool) -> Local:
    names = region.weights(None if everything else freed)
    some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    evidence = {"folded": names, "findings": len(freed)}
    rule = "folded weights: both programs of the module whole"
    codes = region.stored.dtype_of_codes()
    if codes is not None:
        statement = f"weights are kept as {codes} ({some}): {ratio:.2g} of what half a step of each makes"
        evidence |= {"constant": names[0] if names else "", "dtype": codes}
        calls, cause = _multiplying(region) or freed[0].calls, "quantised-weight"
        return Local(calls, "out", Verdict.PRECISION, statement, ratio, region.limit, rule, cause, "quantised", evidence)
    statement = f"weights are folded ({some}): the functions are equal, within {ratio:.2g} of what one rounding of each weight makes"
    return Local(
        pair, "out", Verdict.INHERITED, statement, ratio, region.limit, rule, kind="weight-differs", evidence=evidence, notice=True
    )


def _multiplying(region: Region) -> Pair | None:
    """The first call of the target's that multiplies by codes as they are."""
    run = region.setting.runs.target
    call = min((one for one in region.stored.codes.target if run.operation(one).base in PRODUCTS), default=None)
    return None if call is None else (region.programs.partners.get(call, -1), call)


def _last_inside(run: Recorded, call: int) -> int:
    """The call that begins last of those inside a call, or itself."""
    while run.children[call]:
        call = run.children[call][-1]
    return call


def within(run: Recorded, call: int, around: int) -> bool:
    """Whether a call is another one, or inside it."""
    parents = run.file.calls.parent
    while call >= 0 and call != around:
        call = int(parents[call])
    return call >= 0
