"""`judge_programs`: the exact judge of two traces with operators: bodies, meaning, arithmetic, and each call's own replay.

It needs torch. What it says is independent of any profile; `judge/exact.py` turns it into verdicts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.beside import FormsAt, as_they_are
from layerdiff.arithmetic.verdict import Own
from layerdiff.judge.local import Local
from layerdiff.judge.meaning.borders import Borders
from layerdiff.judge.meaning.carried import carried_flip
from layerdiff.judge.meaning.constants import ConstantsRead
from layerdiff.judge.meaning.folded import Folding
from layerdiff.judge.meaning.judging import judge_body, precision_beside_folded
from layerdiff.judge.meaning.meeting import Meeting
from layerdiff.judge.meaning.rearranged import Rearranged
from layerdiff.judge.meaning.routed import routed_otherwise
from layerdiff.judge.meaning.unreached import returns_nothing_compared, unreached
from layerdiff.judge.own_calls import local_of
from layerdiff.judge.programs.bodies import Body, Pair, bodies, both_ways, whole_body
from layerdiff.judge.programs.calls import align_calls
from layerdiff.judge.programs.constants import NARROW, Constants, rounded_once, within_rounding
from layerdiff.judge.programs.coverage import is_covered
from layerdiff.judge.programs.incoming import Incoming
from layerdiff.judge.programs.kept_before import KEPT_BEFORE, reads_kept
from layerdiff.judge.programs.noise import Rounding
from layerdiff.judge.programs.padding import dead_tokens, padded_positions
from layerdiff.judge.programs.reading import Reading
from layerdiff.judge.programs.running import Programs
from layerdiff.judge.programs.setting import Setting
from layerdiff.judge.programs.states import with_states
from layerdiff.judge.programs.wiring import Wiring
from layerdiff.judge.tables import Verdict
from layerdiff.replay.operators import CannotReplay
from layerdiff.replay.overlaid import Overlaid
from layerdiff.replay.own import CONVICTING, excused, leaves_unwritten, replay_own
from layerdiff.replay.recorded import Recorded
from layerdiff.replay.refusal import NotRecorded
from layerdiff.sides import Both
from layerdiff.trace.dtypes import dtype_named
from layerdiff.trace.joined import own_of
from layerdiff.trace.reader import TraceFile

Array = NDArray[Any]
NOTHING_IN_COMMON: Final = "what it returns has no value of the same form in both runs"
"""Why a body without a single cut is not judged: two programs that hand on nothing comparable may compute anything."""


@dataclass
class Judgement:
    """What exact arithmetic says of two traces of one process each."""

    findings: list[Local] = field(default_factory=list)
    own: dict[int, Own] = field(default_factory=dict)
    """By operator call of the target: its own replay."""
    excused: dict[int, str] = field(default_factory=dict)
    unjudged: dict[int, str] = field(default_factory=dict)
    """Why a call of the target (a module's: its body) could not be judged."""
    by_thresholds: set[int] = field(default_factory=set)
    """Those of the modules of which thresholds may still tell: bytes were not kept, or a call of theirs could not be judged."""
    held: set[int] = field(default_factory=set)
    """The target's calls that could not be run, and whose results were held against what the reference's program makes."""
    unwritten: set[int] = field(default_factory=set)
    """The target's calls that return memory without writing to it."""
    judged: set[int] = field(default_factory=set)
    """The module calls of the target whose bodies were judged, and those that were dissolved into one."""
    compared: int = 0
    same: int = 0


def judge_programs(
    files: Both[TraceFile],
    pairs: Mapping[int, int],
    covered: Both[set[int]],
    settled: Collection[int] = (),
    trust: Collection[str] = (),
    forms_at: FormsAt = as_they_are,
) -> Iterator[tuple[int, int, Judgement]]:
    """Judge all bodies, and every call of the target by itself; hands out (done, all, what is known so far).

    `pairs`: the target's module call of each of the reference's; `covered`: the module calls whose operators were recorded;
    `settled`: operator calls of the target that need no replay of their own, since they did to the bit what the reference's did.
    """
    judge = _Judge(files, pairs, trust, forms_at)
    found = Judgement()
    roots = judge.roots(pairs)
    all_bodies = list(bodies(judge.runs, both_ways(pairs), roots, forms_at))
    rearranged = judge.rearranged(all_bodies, roots, covered)
    if rearranged:
        all_bodies = list(bodies(judge.runs, both_ways(pairs), roots, forms_at, rearranged))
    aligned = [align_calls(judge.runs, body) for body in all_bodies]
    calls = {r: t for one in aligned for r, t in one.items()}
    all_bodies = with_states(judge.runs, all_bodies, calls)
    is_module = judge.runs.target.is_module
    nobodys = own_of(files.target)
    own_calls = [
        [call for call in body.items.target if call not in settled and call not in nobodys and not is_module(call)] for body in all_bodies
    ]
    total, done = len(all_bodies) + sum(map(len, own_calls)), 0
    setting = judge.setting(all_bodies)
    back = {t: r for r, t in calls.items()}
    for body, own, inside in zip(all_bodies, aligned, own_calls, strict=True):
        if is_covered(body, covered):
            judge.judge(setting, body, own, calls, found)
        for call in inside:  # while what they read is at hand
            judge.replay(call, back.get(call), found)
            done += 1
            if done % 64 == 0:
                yield done, total, found
        done += 1
        yield done, total, found
    found.findings[:] = judge.settled_at_borders(setting, all_bodies, calls, found)
    judge.let_folded_go(setting, all_bodies, aligned, calls, found)
    for body in all_bodies:
        _leave_to_thresholds(judge.runs, body, found)
    found.findings += judge.constants_read.rearranged(found.judged)
    yield total, total, found


def _leave_to_thresholds(runs: Both[Recorded], body: Body, found: Judgement) -> None:
    """Nothing is said of what no cut shows, nor of a body with a call that was neither replayed nor held against anything.

    Unless something was found in it.
    """
    call = body.calls[1]
    if call in found.judged:
        unseen = unreached(runs, body) | ({call} if returns_nothing_compared(runs, body) else set())
        found.unjudged |= dict.fromkeys(unseen, NOTHING_IN_COMMON)
        found.by_thresholds |= unseen
        found.judged -= unseen
    unknown = [item for item in body.items.target if item in found.unjudged and item not in found.held]
    if call not in found.judged or not unknown or any(local.calls[1] in body.items.target and not local.notice for local in found.findings):
        return
    found.unjudged[call] = found.unjudged[unknown[0]]
    found.by_thresholds.add(call)
    found.judged.difference_update(body.dissolved.target)


def _names_of_weights(files: Both[TraceFile], pairs: Mapping[int, int]) -> Callable[[str], str]:
    """What the reference calls a weight of the target's: as it calls the module that has it."""
    modules = {files.target.site(t): files.reference.site(r) for r, t in pairs.items()}
    others = {there: here for there, here in modules.items() if there != here}

    def rename(name: str) -> str:
        module, _, own = name.rpartition(".")
        return f"{others[module]}.{own}" if module in others else name

    return rename


class _Judge:
    def __init__(self, files: Both[TraceFile], pairs: Mapping[int, int], trust: Collection[str], forms_at: FormsAt) -> None:
        self._forms_at = forms_at
        self.runs = files.map(lambda file: Recorded(file, trust))
        self._pairs = pairs
        self.contents = Reading(self.runs)
        self._constants = Constants(self.runs, self.contents, _names_of_weights(files, pairs))
        self._meeting = Meeting(self.runs, pairs, self._constants, self.contents)
        self.constants_read = ConstantsRead(self._constants)

    def roots(self, pairs: Mapping[int, int]) -> list[Pair]:
        """Pairs of module calls that nothing paired encloses."""
        parents = self.runs.target.file.calls.parent
        known = set(pairs.values())
        found = []
        for r, t in pairs.items():
            up = int(parents[t])
            while up >= 0 and up not in known:
                up = int(parents[up])
            if up < 0:
                found.append((r, t))
        return sorted(found, key=lambda pair: pair[1])

    def rearranged(self, all_bodies: Sequence[Body], roots: list[Pair], covered: Both[set[int]]) -> set[Pair]:
        """Pairs of modules that make the same in another order, which the module around them reads so."""
        setting = self.setting(all_bodies)
        return Rearranged(setting, self._pairs, self._constants).dissolved(
            [body for body in all_bodies if is_covered(body, covered)], roots
        )

    def setting(self, all_bodies: Sequence[Body]) -> Setting:
        """The dtype map, from what modules return, and what depends on it. A dtype that no module returns is expected as it is."""
        votes: dict[str, Counter[str]] = {}
        for body in all_bodies:
            for _, (r, t) in body.interface.outputs:
                self._vote(votes, r, t)
        expected = {name: votes_of.most_common(1)[0][0] for name, votes_of in votes.items()}
        product = self.runs.target.product_dtype
        laid = isinstance(self.runs.target.file, Overlaid)
        return Setting(self.runs, self.contents, expected, Rounding(self.runs, expected, product), forms_at=self._forms_at, laid=laid)

    def _vote(self, votes: dict[str, Counter[str]], reference: int, target: int) -> None:
        ours, theirs = self.runs.reference.file.dtype_name(reference), self.runs.target.file.dtype_name(target)
        known = dtype_named(ours), dtype_named(theirs)
        if all(one is not None and one.kind == "float" for one in known):
            votes.setdefault(ours, Counter())[theirs] += 1

    def judge(self, setting: Setting, body: Body, aligned: Mapping[int, int], calls: Mapping[int, int], found: Judgement) -> None:
        """Meaning and arithmetic of one body."""
        kept = reads_kept(self.runs, body)
        if kept:
            found.unjudged[body.calls[1]] = KEPT_BEFORE.format(kept)
            found.by_thresholds.add(body.calls[1])
            return
        incoming = Incoming(self.runs, body, self._constants, calls, aligned, self.contents)
        padded = self._padded(body.calls[1])
        setting = replace(setting, padded=padded)
        try:
            try:
                said = judge_body(setting, body, incoming, Wiring(self.runs, body, incoming), aligned)
            except NotRecorded:
                raise
            except CannotReplay:  # its control flow may depend on choices: judge the tokens for which both runs chose alike
                whole = whole_body(self.runs, body.calls, body.forms)  # its children stand for other experts, call by call
                if whole is None:
                    raise
                whole = replace(whole, unpaired=body.unpaired)
                inside = align_calls(self.runs, whole)
                incoming = Incoming(self.runs, whole, self._constants, calls, inside, self.contents)
                apart = routed_otherwise(Programs(self.runs, whole, incoming, inside, self.contents))
                if apart is None:
                    raise
                dead = replace(setting, padded=dead_tokens(apart, padded))
                said = judge_body(dead, whole, incoming, Wiring(self.runs, whole, incoming), inside)
        except CannotReplay as refusal:
            found.unjudged[body.calls[1]] = str(refusal)
            if isinstance(refusal, NotRecorded):
                found.by_thresholds.add(body.calls[1])
            return
        found.compared += said.compared
        found.same += said.same
        found.findings += self._meeting.reconverging(setting, body, said.findings, calls)
        found.findings += self.constants_read.of(setting, body, aligned)
        found.findings += self._sources(incoming)
        for call, reason in said.opaque:
            found.unjudged.setdefault(call, f"opaque: {reason}")
            if call not in said.unheld:
                found.held.add(call)
        found.judged.add(body.calls[1])
        found.judged.update(body.dissolved.target)

    def _padded(self, call: int) -> NDArray[np.bool_] | None:
        """The padded positions of a call of the target; none where one of the two runs has the tokens that count alone."""
        return None if self._forms_at(call).packing is not None else padded_positions(self.runs.target, call, self.contents)

    def settled_at_borders(self, setting: Setting, all_bodies: Sequence[Body], calls: Mapping[int, int], found: Judgement) -> list[Local]:
        """The findings, those marked that two modules have for work on two sides of the border between them."""
        return Borders(setting, self._pairs, self._constants, calls).settle(all_bodies, found.findings)

    def let_folded_go(
        self, setting: Setting, all_bodies: Sequence[Body], aligned: Sequence[Mapping[int, int]], calls: Mapping[int, int], found: Judgement
    ) -> None:
        """Take back what was found at weights that are folded into others."""
        folding = Folding(setting, self._pairs, self._constants, calls, self._padded)
        found.findings[:], gone = folding.settle(all_bodies, found.findings)
        for body, own in zip(all_bodies, aligned, strict=True):
            if body.calls in gone:
                incoming = Incoming(self.runs, body, self._constants, calls, own, self.contents)
                padded = self._padded(body.calls[1])
                found.findings += precision_beside_folded(replace(setting, padded=padded), body, incoming, own)

    def _sources(self, incoming: Incoming) -> Iterator[Local]:
        """Values that no recorded call made, held against each other."""
        files = self.runs.map(lambda run: run.file)
        for reference, target in incoming.sources.items():
            if self.runs.reference.weight(reference) is not None or self.runs.target.weight(target) is not None:
                continue
            prints = files.reference.fingerprint(reference), files.target.fingerprint(target)
            dtypes = files.reference.dtype_name(reference), files.target.dtype_name(target)
            if prints[0] is not None and prints[0] == prints[1] and dtypes[0] == dtypes[1]:
                continue
            try:
                r, t = self.contents(self.runs.reference, reference), self.contents(self.runs.target, target)
            except CannotReplay:
                continue
            if np.array_equal(r, t, equal_nan=r.dtype.kind == "f") or within_rounding(r, t, *dtypes) or rounded_once(r, t, NARROW):
                continue
            reader = incoming.reader(reference)
            if reader is None:
                continue
            call, position = reader
            off = float(np.count_nonzero(r != t))
            statement = f"a value that no recorded call made differs in {off:.0f} of {r.size} elements"
            yield Local((call, incoming.aligned(call)), f"source.{position}", Verdict.UNEXPLAINED, statement, off, 0.0, "sources")

    def replay(self, call: int, partner: int | None, found: Judgement) -> None:
        """Own replay of one call of the target."""
        operation = self.runs.target.operation(call)
        try:
            own = replay_own(self.runs.target, operation, self.contents)
        except CannotReplay as refusal:
            found.unjudged.setdefault(call, str(refusal))
            return
        if own is None:
            if leaves_unwritten(self.runs.target, operation):
                found.unwritten.add(call)
            return
        found.own[call] = own
        if own.verdict not in CONVICTING:
            flip = None if partner is None else carried_flip(self.runs, (partner, call), self.contents)
            found.findings += [] if flip is None else [flip]
            return
        if partner is not None:
            theirs = self.runs.reference.operation(partner)
            try:
                other = replay_own(self.runs.reference, theirs, self.contents) if theirs.name == operation.name else None
            except CannotReplay:
                other = None
            if excused(own, other):
                found.excused[call] = "the reference's call has the same residual"
                return
        found.findings.append(local_of(own, (-1 if partner is None else partner, call), operation))
