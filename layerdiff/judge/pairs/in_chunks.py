"""Steps that are compared as one: a prompt that one run is given in one piece, and the other in chunks; told by the tokens of the roots.

Chunks are steps in a row whose tokens, put together, are those of steps in a row of the other run. No forward need be told to go on from
the one before: one that does not is a fault of the target's, and is found where it reads no cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.errors import TraceError
from layerdiff.judge.pairs.cached import handed_before
from layerdiff.judge.pairs.given import LONGEST, given_to
from layerdiff.judge.pairs.in_batches import Batches, Parted, in_batches
from layerdiff.judge.pairs.not_together import no_last_tokens, rows_in_another_order, spots
from layerdiff.judge.pairs.pairing import input_shapes
from layerdiff.judge.pairs.requests import Given
from layerdiff.sides import Both
from layerdiff.trace.along import Layout, Shape, ways
from layerdiff.trace.chunks import Chunks, Spot
from layerdiff.trace.enclosing import outermost
from layerdiff.trace.joined import Joined
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind, Role
from layerdiff.trace.tokens import Tokens

Array = NDArray[Any]
_MOST_STARTS: Final = 1 << 16
"""Pairs of steps that are tried as the first of chunks, the last ones first."""


@dataclass(frozen=True)
class Steps:
    """Steps of a root that are compared as one.

    Attributes:
        numbers: theirs.
        tokens: how many each has; of each request, where these are the same.
        requests: how many there are, where steps have others; else 0.
        alone: how many tokens one run alone has.
        places: which token stands where, of steps that have other requests.
        parted: requests that go on with other tokens.
        begun: whether a run had tokens of these requests before anything was recorded.
    """

    site: str
    numbers: Both[tuple[int, ...]]
    tokens: Both[tuple[int, ...]]
    requests: int = 0
    alone: Both[int] = Both(0, 0)
    places: Both[Tokens] | None = None
    parted: tuple[Parted, ...] = ()
    begun: Both[bool] = Both(False, False)


@dataclass(frozen=True)
class _Step:
    call: int
    number: int
    position: str
    """Of the input that its tokens are."""
    is_row: bool
    """Whether that has no dimension of requests."""
    tokens: Array
    """Shape (requests, tokens)."""


@dataclass(frozen=True)
class Told:
    """Steps of a root that are one, of each run; `batches`: how, where they have other requests."""

    site: str
    steps: Both[list[_Step]]
    batches: Batches | None = None

    @property
    def calls(self) -> Both[tuple[int, ...]]:
        """The root calls of each run."""
        return self.steps.map(lambda own: tuple(step.call for step in own))

    def described(self) -> Steps:
        """What is said of them."""
        numbers, sizes, one = self.steps.map(_numbers), self.steps.map(_sizes), self.batches
        if one is None:
            return Steps(self.site, numbers, sizes)
        return Steps(self.site, numbers, sizes, one.requests, one.alone, one.tokens, one.parted, one.begun)


def in_chunks(files: Both[TraceFile]) -> tuple[Both[TraceFile], tuple[Steps, ...]]:
    """The files, with steps as one where the two runs had their tokens in other pieces, and which these are."""
    found = told(files)
    if not found:
        return files, ()
    return joined(files, [chunks_of(files, one) for one in found]), tuple(one.described() for one in found)


def told(files: Both[TraceFile], *, rows: bool = False) -> list[Told]:
    """The steps that the two runs had in other pieces. `rows`: as in `in_batches`."""
    roots = files.map(roots_of)
    names = Both(*({file.site(calls[0]): calls for calls in of} for file, of in zip(files, roots, strict=True)))
    pairs = [(site, calls, names.target[site]) for site, calls in names.reference.items() if site in names.target]
    if not pairs and len(names.reference) == len(names.target) == 1:
        ((site, alone),) = names.reference.items()
        pairs = [(site, alone, next(iter(names.target.values())))]
    found: list[Told] = []
    for site, ours, theirs in pairs:
        for tokens in _tokens(files, Both(ours, theirs)):
            groups = _chosen(list(_candidates(tokens)), tokens)
            batches = [] if _is_all(tokens, groups, rows=rows) else _batches(files, tokens, rows=rows)
            for one in batches:
                found.append(Told(site, Both(*([own[i] for i in steps] for own, steps in zip(tokens, one.steps, strict=True))), one))
            found += [Told(site, group) for group in groups if not batches]
            if groups or batches:
                break
    return found


def chunks_of(files: Both[TraceFile], one: Told) -> Both[Chunks]:
    """Steps that are one, with the shapes that the other run may have of each value where these tell."""
    if one.batches is None:
        return _with_shapes(files, one)
    return _in_row(files, one, one.batches)


def _with_shapes(files: Both[TraceFile], one: Told) -> Both[Chunks]:
    """Steps that have the same requests, and the shapes that the other run may have of each value."""
    plain = Both(*(Chunks(calls, _layout(steps)) for calls, steps in zip(one.calls, one.steps, strict=True)))
    layout = plain.target.layout
    inputs = _inputs_of_one(files, one.steps) or f"{layout.requests}x{sum(layout.tokens)}"
    return _knowing_shapes(files, plain.map(lambda chunks: replace(chunks, inputs=inputs)))


def _knowing_shapes(files: Both[TraceFile], plain: Both[Chunks]) -> Both[Chunks]:
    shapes = Both(*(_shapes(file, one) for file, one in zip(files, plain, strict=True)))
    return Both(replace(plain.reference, expected=shapes.target), replace(plain.target, expected=shapes.reference))


def _layout(steps: Sequence[_Step]) -> Layout:
    return Layout(tuple((step.tokens.shape[0], step.tokens.shape[1]) for step in steps))


def joined(files: Both[TraceFile], steps: Sequence[Both[Chunks]]) -> Both[TraceFile]:
    """The files with some steps as one, and nothing of the last of them that stands for no more than itself."""
    each = Both(*(list(own) for own in zip(*steps, strict=True)))
    plain = Both(*map(as_one, files, each))
    return Both(*(without_refused(plain, each, side) for side in ("reference", "target")))


def as_one(file: TraceFile, chunks: Sequence[Chunks], refused: frozenset[int] = frozenset()) -> TraceFile:
    """A file with some steps as one, where they are several or lie otherwise. `refused`: as in `Joining`."""
    own = [one for one in chunks if len(one.roots) > 1 or one.layout.order or one.before]
    return Joined(file, own, refused) if own else file


def without_refused(plain: Both[TraceFile], chunks: Both[list[Chunks]], side: str) -> TraceFile:
    """One of two files with steps as one, without values of which the last does not stand for those of all steps, by the other file's."""
    file: TraceFile = getattr(plain, side)
    roots = [Both(*(_root(one, own) for one, own in zip(plain, both, strict=True))) for both in zip(*chunks, strict=True)]
    refused = no_last_tokens(plain, roots, side) | rows_in_another_order(plain, roots, side)
    return as_one(file.base, getattr(chunks, side), refused) if refused and isinstance(file, Joined) else file


def _root(file: TraceFile, chunks: Chunks) -> int:
    """The call of the root that stands for those of some steps."""
    if not isinstance(file, Joined):
        return chunks.roots[0]
    return file.new_root(chunks.roots[-1])


def roots_of(file: TraceFile) -> list[list[int]]:
    """The calls of each root, in order."""
    calls = file.calls
    found: dict[int, list[int]] = {}
    for call in np.flatnonzero((np.asarray(calls.parent) < 0) & (np.asarray(calls.kind) == CallKind.MODULE)).tolist():
        if file.text(int(calls.module[call])) == "":
            found.setdefault(int(calls.root[call]), []).append(call)
    return list(found.values())


def _numbers(steps: Sequence[_Step]) -> tuple[int, ...]:
    return tuple(step.number for step in steps)


def _sizes(steps: Sequence[_Step]) -> tuple[int, ...]:
    return tuple(step.tokens.shape[1] for step in steps)


def _tokens(files: Both[TraceFile], calls: Both[list[int]]) -> Iterator[Both[list[_Step]]]:
    """The steps of a root, by whichever inputs may be the tokens."""
    for ours, theirs in _token_positions(files, calls):
        steps = Both(steps_of(files.reference, calls.reference, ours), steps_of(files.target, calls.target, theirs))
        if steps.reference and steps.target:
            yield steps


def _is_all(steps: Both[list[_Step]], groups: Sequence[Both[list[_Step]]], *, rows: bool) -> bool:
    """Whether the steps that are in none of the groups go together as they are, or one run has no such.

    `rows`: they do not where one run's are a row, and the other's a batch, if of one request.
    """
    taken = {id(step) for group in groups for side in group for step in side}
    left = steps.map(lambda own: [step for step in own if id(step) not in taken])
    if not (left.reference and left.target):
        return True
    alike = (
        np.array_equal(one.tokens, other.tokens) and not (rows and one.is_row != other.is_row)
        for one, other in zip(left.reference, left.target, strict=False)
    )
    return len(left.reference) == len(left.target) and all(alike)


def _batches(files: Both[TraceFile], steps: Both[list[_Step]], *, rows: bool) -> list[Batches]:
    """Steps that have requests in other batches, by whichever inputs may be positions."""
    given = Both(*(list(given_to(file, [(step.call, step.tokens) for step in own])) for file, own in zip(files, steps, strict=True)))
    readings: Iterator[Both[Sequence[Given]]] = (Both(ours, theirs) for ours, theirs in product(given.reference, given.target))
    return in_batches(readings, rows=rows, other_form=rows and steps.reference[0].is_row != steps.target[0].is_row)


def _in_row(files: Both[TraceFile], one: Told, batches: Batches) -> Both[Chunks]:
    """Steps that have other requests."""
    tokens = batches.tokens
    count = np.count_nonzero(tokens.reference.numbers >= 0)
    first = one.steps.reference[0].number
    inputs = _inputs_of_one(files, one.steps) or f"{count} tokens of {batches.requests} requests, from step {first} on"
    before = handed_before(files, one.calls, batches)
    each = zip(one.calls, batches.layouts, batches.begun, before, strict=True)
    made = Both(*(Chunks(own, layout, inputs=inputs, tokens=tokens, begun=later, before=held) for own, layout, later, held in each))
    return _knowing_shapes(files, made)


def _inputs_of_one(files: Both[TraceFile], steps: Both[list[_Step]]) -> str:
    """What the inputs of a step are called that is all that a run has; nothing where both have several."""
    return next((input_shapes(file, own[0].call) for file, own in zip(files, steps, strict=True) if len(own) == 1), "")


def _token_positions(files: Both[TraceFile], calls: Both[list[int]]) -> Iterator[tuple[str, str]]:
    """Positions of the roots' inputs at which each run may have its tokens, likely ones first; those that count from 0 on are positions."""
    positions = Both(*(may_be_tokens(file, own[-1]) for file, own in zip(files, calls, strict=True)))
    for ours in positions.reference:
        yield from ((ours, theirs) for theirs in sorted(positions.target, key=lambda one: one != ours))


def may_be_tokens(file: TraceFile, call: int) -> list[str]:
    """Positions of inputs that may be tokens, likely ones first."""
    edges = [edge for edge in file.edges_of(call) if edge.role == Role.INPUT]
    whole = [e.position for e in edges if _kind(file, e.value) == "integer" and 1 <= len(file.shape(e.value)) <= 2]
    return sorted(whole, key=lambda position: "input_ids" not in position)


def _kind(file: TraceFile, value: int) -> str:
    dtype = file.dtype(value)
    return "" if dtype is None else dtype.kind


def steps_of(file: TraceFile, calls: Sequence[int], position: str) -> list[_Step]:
    """The tokens of each step; none where one of them is not known."""
    found = []
    for call in calls:
        values = [edge.value for edge in file.edges_of(call) if edge.role == Role.INPUT and edge.position == position]
        if len(values) != 1 or _kind(file, values[0]) != "integer" or int(file.values.nbytes[values[0]]) > LONGEST:
            return []
        try:
            ids = file.read(values[0])
        except TraceError:
            return []
        if ids.ndim not in (1, 2) or not ids.size:
            return []
        found.append(_Step(call, int(file.calls.step[call]), position, ids.ndim == 1, ids.reshape(-1, ids.shape[-1]).astype(np.int64)))
    return found


def _candidates(steps: Both[list[_Step]]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Steps (first, end) of the reference and of the target that have the same tokens in other pieces; the last ones first."""
    starts = [(i, j) for i in reversed(range(len(steps.reference))) for j in reversed(range(len(steps.target)))]
    for i, j in starts[:_MOST_STARTS]:
        first = steps.reference[i].tokens, steps.target[j].tokens
        least = min(first[0].shape[1], first[1].shape[1])
        if (
            first[0].shape == first[1].shape
            or len(first[0]) != len(first[1])
            or not np.array_equal(first[0][:, :least], first[1][:, :least])
        ):
            continue
        ends = _together(steps, i, j)
        if ends is not None:
            yield (i, ends[0]), (j, ends[1])


def _together(steps: Both[list[_Step]], i: int, j: int) -> tuple[int, int] | None:
    """Where steps from there on have the same tokens for the first time; None where they never do."""
    tokens = [steps.reference[i].tokens, steps.target[j].tokens]
    ends = [i + 1, j + 1]
    sides = [steps.reference, steps.target]
    while tokens[0].shape[1] != tokens[1].shape[1]:
        side = 0 if tokens[0].shape[1] < tokens[1].shape[1] else 1
        if ends[side] == len(sides[side]) or len(sides[side][ends[side]].tokens) != len(tokens[side]):
            return None
        tokens[side] = np.concatenate([tokens[side], sides[side][ends[side]].tokens], 1)
        ends[side] += 1
        least = min(tokens[0].shape[1], tokens[1].shape[1])
        if not np.array_equal(tokens[0][:, :least], tokens[1][:, :least]):
            return None
    counts = bool(np.all(np.diff(tokens[0], axis=1) == 1))
    alike = len(np.unique(tokens[0], axis=1).T) < 2
    return None if counts or alike else (ends[0], ends[1])


def _chosen(candidates: Sequence[tuple[tuple[int, int], tuple[int, int]]], steps: Both[list[_Step]]) -> list[Both[list[_Step]]]:
    """Those that are taken, in their order: of two that exclude each other the later one."""
    found: list[Both[list[_Step]]] = []
    before = len(steps.reference), len(steps.target)
    for ours, theirs in candidates:
        if ours[1] <= before[0] and theirs[1] <= before[1]:
            found.append(Both(steps.reference[slice(*ours)], steps.target[slice(*theirs)]))
            before = ours[0], theirs[0]
    return found[::-1]


def _shapes(file: TraceFile, chunks: Chunks) -> dict[Spot, list[Shape]]:
    """The shapes that a run may have at each place, where what its steps have there is one."""
    at: dict[Spot, list[Shape]] = {}
    tops = outermost(file.calls.parent)
    for root in chunks.roots:
        for spot, value in spots(file, root, tops):
            at.setdefault(spot, []).append(file.shape(value))
    if len(chunks.roots) == 1 and not chunks.layout.order:
        return at
    each = {spot: shapes for spot, shapes in at.items() if len(shapes) == len(chunks.roots)}
    return {spot: [way.shape for way in ways(shapes, chunks.layout)] for spot, shapes in each.items()}
