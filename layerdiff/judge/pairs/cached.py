"""Tokens that a run had in a cache before anything was recorded: how many, and what the other run has of them.

A prompt that begins as one before it did goes on with the keys and values of that one. So the run has no such tokens, and what it is handed
of them was made by nobody who was recorded: it is held against what the other run's cache holds at their places.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from layerdiff.errors import TraceError
from layerdiff.judge.pairs.in_batches import Batches
from layerdiff.sides import Both
from layerdiff.trace.along import First, Layout, Shape
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import Role
from layerdiff.trace.tokens import Tokens

_MOST_COUNTS: Final = 4
"""Of a state's numbers."""
_ENTRY: Final = re.compile(r"^(?:in|out)(?:\.\w+|\[\d+\])((?:\.\w+|\[[^\]]*\]){2,})$")


def cached(file: TraceFile, calls: Sequence[int], requests: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """How many tokens steps may have before their own, by the state that each is handed: whichever dimension of keys may be theirs.

    `requests`: how many each step has.
    """
    given = [dict(_state(file, call, Role.INPUT)) for call in calls]
    every = dict.fromkeys(position for own in given for position in own)
    fitting = (
        at for at in every if all(at not in own or file.shape(own[at])[0] == count for own, count in zip(given, requests, strict=True))
    )
    state = next(fitting, None)
    shapes = [file.shape(own[state]) if state in own else () for own in given] if state is not None else []
    dims = {len(shape) for shape in shapes if shape}
    if len(dims) == 1:
        yield from dict.fromkeys(tuple(shape[axis] if shape else 0 for shape in shapes) for axis in range(1, dims.pop()))


def counted(file: TraceFile, calls: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """How many tokens steps may have before their own, by what a cache of one size that each is handed counts, or has in it but zeros."""
    given = [{edge.position: edge.value for edge in file.edges_of(call) if edge.role == Role.INPUT} for call in calls]
    common = [position for position in given[0] if _entry(position) and all(position in own for own in given)]
    counts = [position for position in common if all(_is_count(file, own[position]) for own in given)]
    keys = [position for position in common if position in dict(_state(file, calls[0], Role.INPUT))]
    try:
        for position in counts[:_MOST_COUNTS]:
            yield tuple(int(file.read(own[position]).reshape(-1)[0]) for own in given)
        for position in keys[:1]:
            read = [file.read(own[position]) for own in given]
            for axis in range(1, read[0].ndim):
                held = [np.any(np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1), axis=1) for x in read]
                sizes = tuple(int(np.count_nonzero(own)) for own in held)
                if all(own[:size].all() and size < own.size for own, size in zip(held, sizes, strict=True)):
                    yield sizes
    except TraceError:
        return


def _is_count(file: TraceFile, value: int) -> bool:
    dtype = file.dtype(value)
    return dtype is not None and dtype.kind == "integer" and file.count(value) == 1


def handed_before(files: Both[TraceFile], calls: Both[tuple[int, ...]], batches: Batches) -> Both[dict[str, tuple[int, First]]]:
    """What each run returns of the tokens that only the other had in a cache, as the first step of that one was handed it, by position.

    `calls`: the root calls of steps that are one. Nothing where requests lie in another order: caches have them so, too.
    """
    begun = batches.begun
    if begun.reference == begun.target or not all(map(_in_order, batches.layouts, batches.tokens)):
        return Both({}, {})
    if begun.target:
        return Both(_first_places(files, calls), {})
    return Both({}, _first_places(Both(files.target, files.reference), Both(calls.target, calls.reference)))


def _in_order(layout: Layout, tokens: Tokens) -> bool:
    """Whether the first of some steps has its requests in the order in which tokens are numbered."""
    if not layout.order:
        return bool(np.all(np.diff(tokens.numbers[tokens.numbers >= 0]) > 0))
    requests, count = layout.grids[0]
    places = np.argsort(layout.order)[: requests * count]
    return bool(np.all(np.diff(places[places < np.count_nonzero(tokens.numbers >= 0)]) > 0))


def _first_places(files: Both[TraceFile], calls: Both[tuple[int, ...]]) -> dict[str, tuple[int, First]]:
    """Both: the run that has all tokens, and the one that had some before."""
    whole, part = files.reference, files.target
    returned = [{_entry(position): value for position, value in _state(whole, call, Role.OUTPUT)} for call in calls.reference]
    own = {position for position, _ in _state(whole, calls.reference[0], Role.INPUT)}
    found: dict[str, tuple[int, First]] = {}
    for position, handed in _state(part, calls.target[0], Role.INPUT):
        for values in returned if position not in own else ():
            value = values.get(_entry(position))
            way = None if value is None else _first(whole.shape(value), part.shape(handed))
            if value is not None and way is not None:
                found[position] = value, way
                break
    return found


def _state(file: TraceFile, call: int, role: Role) -> Iterator[tuple[str, int]]:
    """What a root is handed, or returns, that may be keys or values: requests, heads or tokens, and numbers of each."""
    for edge in file.edges_of(call):
        dtype = file.dtype(edge.value)
        if edge.role == role and dtype is not None and dtype.kind == "float" and len(file.shape(edge.value)) > 2 and _entry(edge.position):
            yield edge.position, edge.value


def _entry(position: str) -> str:
    """`.layers[0].keys` of `in.past_key_values.layers[0].keys` and of `out[1].layers[0].keys`; nothing of what is not so deep."""
    found = _ENTRY.match(position)
    return found[1] if found else ""


def _first(whole: Shape, part: Shape) -> First | None:
    """How a value of one shape is the first places of another's."""
    differing = [axis for axis, (size, own) in enumerate(zip(whole, part, strict=False)) if size != own]
    fits = len(whole) == len(part) and len(differing) == 1 and part[differing[0]] < whole[differing[0]]
    return First(differing[0], part[differing[0]]) if fits else None
