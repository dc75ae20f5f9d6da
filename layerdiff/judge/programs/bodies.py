"""Bodies: the glue of each pair of module calls, that is its operators without those of the children that are judged by themselves.

A child whose interface the other side does not match (a fused projection, an (output, residual) pair) is dissolved: its operators
belong to the body around it, and its own children are looked for there. So every operator belongs to exactly one body.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from layerdiff.align.beside import AS_THEY_ARE, Forms, FormsAt, as_they_are
from layerdiff.align.forms import Shape, leading_of
from layerdiff.align.positions import pair_positions
from layerdiff.replay.recorded import Recorded
from layerdiff.sides import Both
from layerdiff.trace.schema import Role

Pair = tuple[int, int]
"""A reference call and a target call, or two values."""


@dataclass(frozen=True)
class Interface:
    """What crosses between a pair of module calls and what calls them."""

    inputs: tuple[tuple[str, Pair], ...]
    """Position and values, of the tensors that both were given."""
    outputs: tuple[tuple[str, Pair], ...]


@dataclass(frozen=True)
class Body:
    """The glue of one pair of module calls."""

    calls: Pair
    interface: Interface
    items: Both[tuple[int, ...]]
    """Operators and children, in order; module calls that were dissolved are not among them."""
    children: Mapping[Pair, Interface]
    """The pairs of child calls that are judged by themselves."""
    dissolved: Both[tuple[int, ...]]
    """Module calls whose operators belong here."""
    unpaired: Both[frozenset[int]] = Both(frozenset(), frozenset())
    """Those of them that the other run never makes."""
    forms: Forms = AS_THEY_ARE
    """In which forms the two runs have what is read and made here."""

    def child_of(self, side: str) -> dict[int, tuple[Pair, Interface]]:
        """The children by the call of one side."""
        return {getattr(Both(*pair), side): (pair, interface) for pair, interface in self.children.items()}


def bodies(
    runs: Both[Recorded],
    paired: Both[Mapping[int, int]],
    roots: list[Pair],
    forms_at: FormsAt = as_they_are,
    dissolved: Collection[Pair] = (),
) -> Iterator[Body]:
    """The bodies of all module calls under `roots`, those `dissolved` judged in others. `paired`: as `both_ways`."""
    stack = list(reversed(roots))
    while stack:
        calls = stack.pop()
        body = body_of(runs, calls, paired, forms_at(calls[1]), dissolved)
        yield body
        stack.extend(reversed(list(body.children)))


def both_ways(pairs: Mapping[int, int]) -> Both[Mapping[int, int]]:
    """By call of either run the other's. `pairs`: the target call of each reference call."""
    return Both(pairs, {t: r for r, t in pairs.items()})


def body_of(runs: Both[Recorded], calls: Pair, paired: Both[Mapping[int, int]], forms: Forms, dissolved: Collection[Pair] = ()) -> Body:
    """The body of a pair of module calls; the children among those `dissolved` are judged in it. `paired`: as `both_ways`."""
    refused = set(dissolved)
    known: dict[Pair, Interface | None] = {}
    while True:
        found = _children(runs, calls, paired, refused)
        for pair in found:
            if pair not in known:
                known[pair] = interface(runs, pair, forms)
        bad = {pair for pair in found if known[pair] is None}
        if not bad:
            break
        refused |= bad
    children = {pair: fits for pair in found if (fits := known[pair]) is not None}
    stops = Both({r for r, _ in children}, {t for _, t in children})
    items = Both(tuple(runs.reference.walk(calls[0], stops.reference)), tuple(runs.target.walk(calls[1], stops.target)))
    inside = Both(
        tuple(runs.reference.modules_inside(calls[0], stops.reference)), tuple(runs.target.modules_inside(calls[1], stops.target))
    )
    whole = interface(runs, calls, forms) or _common(runs, calls, forms)
    unpaired = Both(*(frozenset(call for call in own if call not in of) for own, of in zip(inside, paired, strict=True)))
    return Body(calls, whole, items, children, inside, unpaired, forms)


def tokens_of(runs: Both[Recorded], body: Body) -> Shape | None:
    """The dimensions that one of the runs has as one, batch and positions; empty where they differ in dimensions of size 1 alone.

    None where all that crosses has the same shapes in both runs.
    """
    differ = False
    for interface in (body.interface, *body.children.values()):
        for _, (reference, target) in (*interface.inputs, *interface.outputs):
            shapes = runs.reference.file.shape(reference), runs.target.file.shape(target)
            differ = differ or shapes[0] != shapes[1]
            if found := leading_of(*shapes):
                return found
    return () if differ else None


def whole_body(runs: Both[Recorded], calls: Pair, forms: Forms, but: Mapping[Pair, Interface] = {}) -> Body | None:
    """The body of a pair of calls with every call inside dissolved, `but` some; None where the two do not take and return the same."""
    fits = interface(runs, calls, forms)
    if fits is None:
        return None
    stops = Both({r for r, _ in but}, {t for _, t in but})
    items = Both(tuple(runs.reference.walk(calls[0], stops.reference)), tuple(runs.target.walk(calls[1], stops.target)))
    return Body(calls, fits, items, but, Both((), ()), forms=forms)


def _children(runs: Both[Recorded], calls: Pair, paired: Both[Mapping[int, int]], refused: Collection[Pair]) -> list[Pair]:
    """The nearest paired calls inside both, but for those refused, in the order of the target's."""
    without = Both({r for r, _ in refused}, {t for _, t in refused})
    ours = _nearest(runs.reference, calls[0], paired.reference, without.reference)
    theirs = _nearest(runs.target, calls[1], paired.target, without.target)
    pairs = Both([(r, paired.reference[r]) for r in ours], [(paired.target[t], t) for t in theirs])
    known = set(pairs.reference)
    found = [pair for pair in pairs.target if pair in known]
    if len(found) == len(ours) == len(theirs):
        return found
    # a pair of which one call lies deeper than the other is no child of either: what is around it is dissolved
    return _children(runs, calls, paired, {*refused, *(known ^ set(pairs.target))})


def _nearest(run: Recorded, call: int, paired: Mapping[int, int], without: Collection[int]) -> list[int]:
    found: list[int] = []
    for child in run.children[call]:
        if run.is_module(child):
            if child in paired and child not in without:
                found.append(child)
            else:
                found.extend(_nearest(run, child, paired, without))
    return found


def interface(runs: Both[Recorded], pair: Pair, forms: Forms) -> Interface | None:
    """What a pair of calls takes and returns, where both take and return the same; else None."""
    inputs = _paired_values(runs, pair, Role.INPUT, forms)
    outputs = _paired_values(runs, pair, Role.OUTPUT, forms)
    if inputs is None or outputs is None or not outputs:
        return None
    return Interface(tuple(inputs), tuple(outputs))


def _paired_values(runs: Both[Recorded], pair: Pair, role: Role, forms: Forms) -> list[tuple[str, Pair]] | None:
    ours, theirs = (list(run.edges(call, role).items()) for run, call in zip(runs, pair, strict=True))
    found, left, over = _pairs(runs, ours, theirs, role)
    if left or over:
        return None
    values = [(theirs[j][0], (ours[i][1], theirs[j][1])) for i, j in found]
    same = all(forms.same(runs.reference.file.shape(r), runs.target.file.shape(t)) for _, (r, t) in values)
    return values if same else None


def _pairs(
    runs: Both[Recorded], ours: Sequence[tuple[str, int]], theirs: Sequence[tuple[str, int]], role: Role
) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Which of the values of two calls go together, as `pair_positions`."""
    kinds: Both[Sequence[str]] = Both(*([_kind(run, value) for _, value in own] for run, own in zip(runs, (ours, theirs), strict=True)))
    return pair_positions([(role, position) for position, _ in ours], [(role, position) for position, _ in theirs], kinds=kinds)


def _kind(run: Recorded, value: int) -> str:
    dtype = run.file.dtype(value)
    return "" if dtype is None else dtype.kind


def _common(runs: Both[Recorded], pair: Pair, forms: Forms) -> Interface:
    """What a pair of calls has in common, where there is more on one side; of what it returns also what one side filled up."""

    def common(role: Role) -> tuple[tuple[str, Pair], ...]:
        ours, theirs = (list(run.edges(call, role).items()) for run, call in zip(runs, pair, strict=True))
        found, _, _ = _pairs(runs, ours, theirs, role)
        values = [(theirs[j][0], (ours[i][1], theirs[j][1])) for i, j in found]
        shapes = [(runs.reference.file.shape(r), runs.target.file.shape(t)) for _, (r, t) in values]
        filled = [role == Role.OUTPUT and forms.fillings.common(*both) is not None for both in shapes]
        return tuple(one for one, both, fills in zip(values, shapes, filled, strict=True) if forms.same(*both) or fills)

    return Interface(common(Role.INPUT), common(Role.OUTPUT))
