"""The calls of ranks with the numbers that their layers, and the experts inside, have in the whole model."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from layerdiff.align.alignment import Calls, RenameRule
from layerdiff.align.global_numbers import Offsets, Print, renumbered, rounded_stage_offsets
from layerdiff.align.rename import Renamer
from layerdiff.align.stages import chained_offsets, levels
from layerdiff.judge.issued import issued
from layerdiff.judge.pairs.chunks import as_one_root, names_of_chunks, roots_of
from layerdiff.judge.pairs.known_weights import KnownWeights, figures_of, prints_of, weights_of
from layerdiff.judge.pairs.pairing import calls_of
from layerdiff.sides import Both
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind, Role

STAND_IN: Final = " (hands on what it is given)"
Renamed = Callable[[str], str]
_NUMBER: Final = re.compile(r"(?:(?<=\.)|(?<![^/]))\d+(?=[./]|$)")
"""Of a layer, or an expert, in a path."""
_LISTS: Final = 3
"""Lists inside one another that are numbered."""


def numbered_globally(
    references: Sequence[TraceFile], targets: Sequence[TraceFile], renames: Sequence[RenameRule] = ()
) -> Both[list[Calls]]:
    """The calls of each file of both sides, layers of a pipeline stage by their numbers in the whole model.

    Those of a reference that is a pipeline itself are told from who hands on to whom; the target's then from the reference's weights, under
    the names that `renames` give them. Raises ProfileError where a rule is wrong.
    """
    known, ours = KnownWeights(), list[Calls]()
    for file, offsets in zip(references, _offsets_of_chain(references), strict=True):
        site = renumbered(offsets)
        calls = calls_of(file)
        ours.append(replace(calls, site=[site(one) for one in calls.site]))
        known.add(file, site)
    roots = {site for own in ours for site in roots_of(own)}
    rename = Renamer(renames).rename if renames else None
    theirs = [_numbered(file, known, roots, rename) for file in targets]
    return Both(_without_stand_ins(references, ours), _without_stand_ins(targets, theirs))


def _without_stand_ins(files: Sequence[TraceFile], calls: list[Calls]) -> list[Calls]:
    """The calls with those under a name of their own that hand on what they are given, where another rank runs a module of another class.

    A stage of a pipeline may have an identity in the place of each layer that another stage holds.
    """
    classes: dict[str, set[str | None]] = {}
    for own in calls:
        for call in np.flatnonzero(np.asarray(own.kind) == CallKind.MODULE).tolist():
            classes.setdefault(own.site[call], set()).add(own.type[call])
    doubtful = {site for site, types in classes.items() if len(types) > 1}
    found = []
    for file, own in zip(files, calls, strict=True) if doubtful else ():
        around = set(np.asarray(own.parent).tolist())
        names = list(own.site)
        for call in (call for call, site in enumerate(own.site) if site in doubtful and own.kind[call] == CallKind.MODULE):
            edges = [(edge.role, edge.value) for edge in file.edges_of(call)]
            given, made = ({value for role, value in edges if role == one} for one in (Role.INPUT, Role.OUTPUT))
            if call not in around and made and made <= given and all(role != Role.WEIGHT for role, _ in edges):
                names[call] += STAND_IN
        found.append(replace(own, site=names))
    return found or calls


def _numbered(file: TraceFile, known: KnownWeights, roots: set[str], rename: Renamed | None) -> Calls:
    calls = calls_of(file)
    chunks = names_of_chunks(file, known, roots) if rename is None else {}
    if chunks:
        return as_one_root(calls, chunks)
    values, figures = weights_of(file), figures_of(file)
    if rename is not None:
        values = {_of_weight(rename, name): value for name, value in values.items()}
        figures = {_of_weight(rename, name): one for name, one in figures.items()}
    more = rounded_stage_offsets(known.figures, figures)
    for _ in range(_LISTS):
        offsets = {**more, **known.offsets(file, values)}
        if not offsets:
            break
        more, site = {}, renumbered(offsets)
        own = site if rename is None else _numbered_alike(rename, site)
        calls = replace(calls, site=[own(one) for one in calls.site])
        values = {site(name): value for name, value in values.items()}  # then the lists inside those that have their numbers now
    return calls


def _of_weight(rename: Renamed, name: str) -> str:
    """The name of a weight, of which rules rename the module."""
    module, dot, own = name.rpartition(".")
    return f"{rename(module)}{dot}{own}"


def _numbered_alike(rename: Renamed, site: Renamed) -> Renamed:
    """What gives a site the numbers that `site` gives it under its new name, where the new name has the numbers that it has."""

    def own(path: str) -> str:
        new = rename(path)
        numbers = _NUMBER.findall(site(new))
        if numbers == _NUMBER.findall(new) != [] or _NUMBER.findall(path) != _NUMBER.findall(new):
            return path
        each = iter(numbers)
        return _NUMBER.sub(lambda _: next(each), path)

    return own


def _offsets_of_chain(files: Sequence[TraceFile]) -> list[dict[str, Offsets]]:
    """For each file what has to be added to the numbers of its layers, where the files are stages that count from zero."""
    ranks = [file.rank or 0 for file in files]
    every = [one for number, file in enumerate(files) for one in issued(file, number) if one.operator == "c10d.send"]
    if len(files) < 2 or not every:
        return [{} for _ in files]
    stage = levels(ranks, [(one.rank, one.destination) for one in every if one.destination is not None])
    chain: list[dict[str, Print]] = [{} for _ in range(max(stage) + 1)]
    for file, level in zip(files, stage, strict=True):
        chain[level] = {**prints_of(file), **chain[level]}
    offsets = chained_offsets(chain)
    return [offsets[level] for level in stage]
