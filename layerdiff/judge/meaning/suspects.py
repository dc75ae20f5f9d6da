"""`Suspects`: the calls of two programs on the way to where they part that make what the other never makes.

What reaches the cut only through a value that both make is looked at last: rewritten on the way to a right value, it is no fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.forms import without_ones
from layerdiff.judge.meaning.acquitted import Acquitted
from layerdiff.judge.meaning.equals import Equals
from layerdiff.judge.meaning.makers import COPIES, Paired
from layerdiff.judge.meaning.reach import behind, cone
from layerdiff.judge.meaning.sent import Sent
from layerdiff.judge.meaning.signatures import Signatures
from layerdiff.judge.programs.bodies import tokens_of
from layerdiff.judge.programs.running import Programs, Ran
from layerdiff.judge.programs.setting import BELOW_ROUNDING, NOTHING, Cut
from layerdiff.sides import Both

Array = NDArray[Any]
_FAR: Final = 1000.0
"""How many times further two programs part than a value that they both make, though not to the last bit."""
_WRITES: Final = frozenset({"index_put_", "index_copy_", "scatter_", "_unsafe_index_put", "index_put", "index_copy", "scatter"})
"""Operators that put a value among others, which may be anything: what was left in a cache."""
_SELECTS: Final = frozenset({"gather", "index", "index_select", "take", "take_along_dim", "embedding"})
"""Operators that hand on some of what they are given, as a choice of the largest does, too."""


@dataclass(frozen=True)
class Suspects:
    """Where two programs part."""

    ours: Ran
    theirs: Ran
    """What they made, at the places that count."""
    near: float
    """How far apart may be what both make."""
    paired: Paired
    known: Both[Equals]
    """What each makes, on the way in fused calls too."""
    cones: Both[set[int]]
    """The calls that reach the cut."""
    apart: Both[set[int]]
    """Those that reach it otherwise than through what both make."""
    first: tuple[int, str] | None
    """The first result of the target's that the reference never makes: call and position."""
    other: tuple[int, str] | None
    """The first result of the reference's that the target never makes."""
    counted: Callable[[Array], Array]
    """A value that the target's program made at the places that count."""
    sent: Both[Sent]
    """What is made of tokens that were sent to experts."""

    def between(self, side: str, call: int) -> int | None:
        """As of `Paired`; None of what is made of tokens that were sent: each run has as many such calls as it has experts to go to."""
        return None if call in getattr(self.sent, side).calls else self.paired.between(side, call)


def nearly(figure: float) -> float:
    """How far apart may be what both programs make, where they part by `figure`: a table that was rounded makes no such difference."""
    return BELOW_ROUNDING if figure > _FAR * BELOW_ROUNDING else NOTHING


def suspects(programs: Programs, ours: Ran, theirs: Ran, cut: Cut, figure: float, acquitted: Acquitted) -> Suspects:
    """The calls to suspect where two programs part at a cut by `figure`; those that are `acquitted` only where nothing else is left."""
    near = nearly(figure)
    tokens = tokens_of(programs.runs, programs.body) or ()
    common = _what_both_have(programs, ours, theirs)
    ours, theirs = (_of_both(ran, common) for ran in _plain(programs, ours, theirs))
    pieces = Both(programs.together.target, programs.together.reference)
    signatures = Signatures(tokens)
    known = Both(
        Equals.around(ours, near, pieces=pieces.reference, signatures=signatures),
        Equals.around(theirs, near, pieces=pieces.target, signatures=signatures),
    )
    cones = Both(cone(programs, "reference", cut), cone(programs, "target", cut))
    beside = Both(
        {r: theirs.results[t] for r, t in programs.aligned.items() if t in theirs.results},
        {t: ours.results[r] for r, t in programs.aligned.items() if r in ours.results},
    )
    held = Both(known.target.holds(ours, known.reference, beside.reference), known.reference.holds(theirs, known.target, beside.target))
    back = {t: r for r, t in programs.aligned.items()}
    reads = Both(
        {(r, p): theirs.read[programs.aligned[r], p] for r, p in ours.read if (programs.aligned.get(r, -1), p) in theirs.read},
        {(t, p): ours.read[back[t], p] for t, p in theirs.read if (back.get(t, -1), p) in ours.read},
    )
    given = Both(*(Equals(ran.came_in.values(), near, signatures=signatures) for ran in (ours, theirs)))
    held = Both(
        held.reference | {call for call in given.target.holds(ours, known.reference, {}) if call not in programs.aligned},
        held.target | {call for call in given.reference.holds(theirs, known.target, {}) if call not in back},
    )
    read = Both(
        known.target.holds_read(ours, known.reference, reads.reference), known.reference.holds_read(theirs, known.target, reads.target)
    )
    apart = Both(cone(programs, "reference", cut, held.reference, read.reference), cone(programs, "target", cut, held.target, read.target))
    right = Both(
        behind(programs, "reference", ours, held.reference, read.reference),
        behind(programs, "target", theirs, held.target, read.target),
    )
    apart = Both(apart.reference - right.reference or apart.reference, apart.target - right.target or apart.target)
    if programs.incoming.own_choices:  # what follows from other choices is no fault
        cones = Both(cones.reference - _following(ours), cones.target - _following(theirs))
        apart = Both(apart.reference - _following(ours), apart.target - _following(theirs))
    paired = Paired(programs, ours, theirs, near)
    exactly = Both(
        Equals.of(ours, NOTHING, pieces=pieces.reference, signatures=signatures),
        Equals.of(theirs, NOTHING, pieces=pieces.target, signatures=signatures),
    )
    sent = Both(Sent(programs, "reference", ours, theirs, near), Sent(programs, "target", theirs, ours, near))
    first = other = None
    for inside, equals in ((apart, known), (cones, exactly)):
        first = first or _first(
            equals.reference, theirs, inside.target - _says_nothing(programs, "target", inside.target, theirs), acquitted, sent.target
        )
        first = first or _first(equals.reference, theirs, inside.target - programs.together.target.own, acquitted, sent.target)
        other = other or _first(
            equals.target, ours, inside.reference - _says_nothing(programs, "reference", inside.reference, ours), sent.reference
        )
        other = other or _first(equals.target, ours, inside.reference, sent.reference)
        if first is None and other is not None and _is_lacking(programs, paired, sent.reference, other[0]):
            break  # all that the target makes is right, and something is lacking
    if first is None and other is None:
        first = known.reference.first_without(theirs, apart.target) or known.reference.first_without(theirs, cones.target)
        other = known.target.first_without(ours, apart.reference) or exactly.target.first_without(ours, cones.reference)
    for call in sorted(cones.target):
        if (first is not None and call >= first[0]) or not _is_misled(programs, paired, known, back.get(call, -1), call):
            continue
        if call in cone(programs, "target", cut, held.target - {call}, read.target):  # not only on the way to what is right
            first = call, "out"

    def counted(x: Array) -> Array:
        packing = programs.body.forms.packing
        return common(x if packing is None else packing.tokens_only(x, "target"))

    return Suspects(ours, theirs, near, paired, known, cones, apart, first, other, counted, sent)


def _is_lacking(programs: Programs, paired: Paired, sent: Sent, reference: int) -> bool:
    """Whether the target goes on without a call of the reference's."""
    return reference not in programs.aligned and reference not in sent.calls and paired.between("reference", reference) is not None


def _first(known: Equals, ran: Ran, inside: Set[int], *innocent: Acquitted | Sent) -> tuple[int, str] | None:
    """The first result of a program's calls `inside` that the other never makes, those `innocent` left out: call and position."""
    left = set(inside)
    while (found := known.first_without(ran, left)) is not None and any(one.has(found[0]) for one in innocent):
        left.remove(found[0])
    return found


def _is_misled(programs: Programs, paired: Paired, known: Both[Equals], reference: int, target: int) -> bool:
    """Whether two aligned calls select alike, from what both programs make, and not from the same.

    What the target's hands on may be made by the reference elsewhere, and yet not be right here: scores with a bias, as a top-k hands
    out.
    """
    if reference < 0 or programs.runs.target.operation(target).base not in _SELECTS:
        return False
    given = paired.makers.reference.given(reference), paired.makers.target.given(target)
    same = [paired.same(one, other) for one, other in zip(*given, strict=False)]
    usual, made = paired.contents("reference", given[0][0]), paired.contents("target", given[1][0])
    if len(given[0]) != len(given[1]) or same[0] or not all(same[1:]) or usual is None or made is None:
        return False
    name = programs.runs.target.operation(target).name
    if not known.target.has(usual) or not known.reference.has(made):
        return False
    return all(programs.runs.reference.operation(call).name != name for call in paired.equal_calls(target))


def _plain(programs: Programs, ours: Ran, theirs: Ran) -> Both[Ran]:
    """What the programs made, and were given, at the places that count."""
    forms, rans = programs.body.forms, Both(ours, theirs)
    if not forms.fillings.sizes and forms.packing is None:
        return rans
    partners = Both(programs.aligned, {t: r for r, t in programs.aligned.items()})
    sizes = rans.map(lambda ran: {size for results in ran.results.values() for made in results.values() for size in made.shape})

    def plain(side: str, other: str) -> Ran:
        ran: Ran = getattr(rans, side)
        known, there = getattr(rans, other), getattr(sizes, other)
        partner: Mapping[int, int] = getattr(partners, side)
        made: dict[int, dict[str, Array]] = {}
        one = _once(lambda x, other: forms.plain(x, side, other, there))
        for call, results in ran.results.items():
            beside = known.results.get(partner.get(call), {})
            made[call] = {at: one(x, beside.get(at)) for at, x in results.items()}
        inside = {call: [one(x, None) for x in every] for call, every in ran.inside.items()}
        read = {(call, at): one(x, known.read.get((partner.get(call), at))) for (call, at), x in ran.read.items()}
        came_in = {value: one(x, None) for value, x in ran.came_in.items()}
        return replace(ran, results=made, inside=inside, read=read, came_in=came_in)

    return Both(plain("reference", "target"), plain("target", "reference"))


def _what_both_have(programs: Programs, ours: Ran, theirs: Ran) -> Callable[[Array], Array]:
    """What takes from a value, at the places that count, what a piece of one run has not: scores of tokens that were not there yet."""
    packing, seen = programs.body.forms.packing, list[NDArray[np.bool_]]()
    for side, ran in (("reference", ours), ("target", theirs)):
        blocks = {(ran.results[call][at].shape, block) for call, block in ran.lacking.items() for at in ran.results.get(call, {})}
        for shape, block in blocks:
            places = block.seen(shape)
            seen.append(places if packing is None else packing.tokens_only(places, side))

    def common(x: Array) -> Array:
        for places in seen:
            if without_ones(x.shape) == without_ones(places.shape):
                x = np.where(places.reshape(x.shape), x, np.zeros((), x.dtype))
        return x

    return common


def _of_both(ran: Ran, common: Callable[[Array], Array]) -> Ran:
    one = _once(lambda x, _: common(x))
    results = {call: {at: one(x, None) for at, x in made.items()} for call, made in ran.results.items()}
    inside = {call: [one(x, None) for x in every] for call, every in ran.inside.items()}
    return replace(ran, results=results, inside=inside, read={at: one(x, None) for at, x in ran.read.items()})


def _once(change: Callable[[Array, Array | None], Array]) -> Callable[[Array, Array | None], Array]:
    """What changes a value, beside another: one that many calls made, as those do that are one in pieces, stays one."""
    known: dict[tuple[int, int], tuple[Array, Array | None, Array]] = {}

    def once(x: Array, other: Array | None) -> Array:
        key = id(x), id(other)
        if key not in known:
            known[key] = x, other, change(x, other)  # with what it was made of: another array may come to lie at its place
        return known[key][2]

    return once


def _says_nothing(programs: Programs, side: str, calls: Set[int], ran: Ran) -> set[int]:
    """Calls of a side that hand on what they are given, since another value there was another before; or one number of nothing.

    So do those that count what a step of several has.
    """
    run, together = getattr(programs.runs, side), getattr(programs.together, side)
    found, partnered = set(together.own), set(programs.aligned if side == "reference" else programs.partners)
    for call in calls - together.own:
        operation = run.operation(call)
        name = operation.base
        alone = not operation.inputs or name.endswith("_like") or name.startswith("new_")
        one = alone and all(made.size and (made == made.flat[0]).all() for made in ran.results.get(call, {}).values())
        counts = not operation.inputs and together.counts_a_step(call)
        if one or counts or name in COPIES or (name in _WRITES and call not in partnered):
            found.add(call)
    return found


def _following(ran: Ran) -> set[int]:
    """Calls that make whole numbers or truth values only: masks and lists of the tokens of an expert."""
    return {call for call, results in ran.results.items() if all(made.dtype.kind in "iub" for made in results.values())}
