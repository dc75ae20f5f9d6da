"""Chunks of a model that a process calls one by one, as ranks of an interleaved pipeline do: each a root of its own, with layers from zero.

Which layers a chunk has is told by its weights, as of a stage; the name that the recorder gave the root is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from layerdiff.align.alignment import Calls
from layerdiff.align.global_numbers import renumbered
from layerdiff.judge.pairs.known_weights import KnownWeights, print_of
from layerdiff.judge.pairs.pairing import calls_of
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind, Role

_LISTS: Final = 3
"""Lists inside one another that are numbered."""
_MOST: Final = 0.5
"""Share of the weights of a root."""


def names_of_chunks(file: TraceFile, known: KnownWeights, roots: Collection[str] = ()) -> dict[str, Callable[[str], str]]:
    """By the name of a root what its sites are called in the whole model; nothing of a file whose sites have the reference's names already.

    A root is renamed where most of its weights are then the reference's of that name, or parts of them. It may be what the reference has in
    a module of its own: `layers.0` of a chunk as `model.layers.4`. `roots`: the reference's, which are no chunks: an encoder and a decoder.
    """
    found: dict[str, Callable[[str], str]] = {}
    found_roots = weights_of_roots(file)
    alone = len(found_roots) == 1
    if not alone and found_roots.keys() & set(roots):
        return found
    for root, values in found_roots.items():
        heads = known.heads(values)
        best = 0.0
        for head in () if alone and known.has(values) else heads:
            own, steps = {f"{head}{name}": value for name, value in values.items()}, list[Callable[[str], str]]()
            for _ in range(_LISTS):
                offsets = known.offsets(file, own)
                if not offsets:
                    break
                steps.append(renumbered(offsets))
                own = {steps[-1](name): value for name, value in own.items()}
            same = known.share(file, own)
            if same > best and same > _MOST:
                best, found[root] = same, _renamed(root, head, steps)
    return found


def roots_of(calls: Calls) -> set[str]:
    """The names of the roots of a process."""
    return {site for site, parent, kind in zip(calls.site, calls.parent, calls.kind, strict=True) if parent < 0 and kind == CallKind.MODULE}


def as_one_root(calls: Calls, chunks: Mapping[str, Callable[[str], str]]) -> Calls:
    """The calls of a process with its chunks as parts of one root, whose steps are theirs: each runs once a step."""
    sites = list(calls.site)
    for rename in chunks.values():
        sites = [rename(one) for one in sites]
    root = np.array(calls.root)
    top = [call for call, site in enumerate(calls.site) if site in chunks and int(calls.parent[call]) < 0]
    root[np.isin(root, root[top])] = root[top[0]]
    return replace(calls, site=sites, root=root)


def _renamed(root: str, head: str, steps: Iterable[Callable[[str], str]]) -> Callable[[str], str]:
    """Of a root that is called by itself there is no such module in the whole model: it keeps its name."""
    before = f"{root}." if root else ""

    def site(path: str) -> str:
        if path[: len(before)] != before or path[len(before) :][:1] in ("", "/"):
            return path
        path = head + path[len(before) :]
        for step in steps:
            path = step(path)
        return path

    return site


def weights_of_roots(file: TraceFile) -> dict[str, dict[str, int]]:
    """By the name of a root the value of each weight that is read in it, by its name there."""
    calls, edges = calls_of(file), file.edges
    root_of: list[str] = []
    for call, parent in enumerate(np.asarray(calls.parent).tolist()):
        root_of.append(root_of[parent] if 0 <= parent < call else calls.site[call])
    found: dict[str, dict[str, int]] = {}
    for row in np.flatnonzero(np.asarray(edges.role) == Role.WEIGHT).tolist():
        call, value = int(edges.call[row]), int(edges.value[row])
        root, position = root_of[call], file.text(int(edges.position[row])) or ""
        before = f"{root}." if root else ""
        if print_of(file, value) is None or not calls.site[call].startswith(before):
            continue
        found.setdefault(root, {})[f"{calls.site[call][len(before) :]}.{position}".lstrip(".")] = value
    return found
