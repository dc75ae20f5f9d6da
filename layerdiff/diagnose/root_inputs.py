"""Notices of what the roots are given otherwise, and what of it the runs made themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.diagnose.differing import differs_beyond_rounding, how_much
from layerdiff.diagnose.evidence import Evidence
from layerdiff.diagnose.findings import Notice
from layerdiff.diagnose.generation import Parting
from layerdiff.diagnose.made_before import made_in_both
from layerdiff.judge.tables import Source, of_another_form
from layerdiff.trace.dtypes import dtype_named
from layerdiff.trace.enclosing import outermost
from layerdiff.trace.schema import CallKind, Role

_ANOTHER: Final = 0.5
"""Relative difference from which a value is not the same one that is off: what nothing depends on may hold anything."""
_DRAWN: Final = "; it began with the same: if a loop drew these tokens from the results, decode greedily, or feed both runs the same"
LAYERS: Final = 32.0
"""Unit roundoffs that what a model keeps from step to step may lie apart. Measured, three layers and five steps: 1.6 in bf16, 2 in fp32."""


def notices_of_inputs(evidence: Evidence, packed: Collection[str], parting: Parting) -> Iterator[Notice]:
    """One for each input of a root that has another shape, or differs, unless the run made it itself. As in `notices_of_values`."""
    sites, pairs, texts = evidence.sites, evidence.pairs, evidence.texts
    if not len(pairs["site"]):
        return
    top = (sites["parent"][pairs["site"]] < 0) & (pairs["role"] == Role.INPUT) & (sites["kind"][pairs["site"]] == CallKind.MODULE)
    roots = top & ~_is_state(evidence, top)
    begins = _as_it_begins(evidence, top)
    other_form = of_another_form(pairs, texts)
    seen: set[tuple[str, str]] = set()
    for pair in np.flatnonzero(roots).tolist():
        row = int(pairs["site"][pair])
        position, step, site = texts[int(pairs["position"][pair])] or "", int(sites["step"][row]), texts[int(sites["site"][row])] or ""
        if other_form[pair]:
            if site in packed and position.endswith("attention_mask"):
                continue  # by it the tokens were told: what it lets through is judged where it is read
            kind = "shape-differs"
            shapes = f"{texts[int(pairs['reference_shape'][pair])]} against {texts[int(pairs['target_shape'][pair])]}"
            said = f"the input {position} of step {step} has another shape: {shapes}"
        elif differs_beyond_rounding(evidence, pair):
            if pair in parting.given or _only_at_padding(evidence, row, pair) or made_in_both(evidence, row, pair):
                continue
            made_here = begins.get((site, position), step) < step
            if made_here and (_within_what_layers_make(evidence, pair) or _follows_on(evidence, pair, parting, step)):
                continue
            if _nothing_depends_on(evidence, row, pair):
                if ("unread", position) not in seen:
                    seen.add(("unread", position))
                    said = f"the input {position} of step {step} is not the same in both runs"
                    yield Notice("input-differs", f"{said}, and nothing that they make depends on what differs", site=site)
                continue
            kind = "input-differs"
            drawn = _DRAWN if made_here and int(pairs["mismatched"][pair]) > 0 else ""
            said = f"the input {position} of step {step} is not the same in both runs ({how_much(evidence, pair)}){drawn}"
        else:
            continue
        if (kind, position) not in seen:
            seen.add((kind, position))
            yield Notice(kind, said, site=site, defect=True)


def _as_it_begins(evidence: Evidence, inputs: NDArray[np.bool_]) -> dict[tuple[str, str], int]:
    """By site and position of an input of a root: the first compared step, where it was absent there, or the same in both runs.

    What differs in a later step then comes out of the run itself: a cache that is handed in as plain tensors.
    """
    pairs, texts = evidence.pairs, evidence.texts
    rows, steps = np.asarray(pairs["site"]), np.asarray(evidence.sites["step"])
    places = [(texts[int(evidence.sites["site"][row])] or "", int(steps[row])) for row in rows.tolist()]
    chosen = np.flatnonzero(inputs).tolist()
    first: dict[str, int] = {}
    for pair in chosen:
        site, step = places[pair]
        first[site] = min(step, first.get(site, step))
    found: dict[tuple[str, str], int] = {}
    other: set[tuple[str, str]] = set()
    for pair in chosen:
        site, step = places[pair]
        key = site, texts[int(pairs["position"][pair])] or ""
        found[key] = first[site]
        if step == first[site] and not pairs["equal"][pair]:
            other.add(key)
    return {key: step for key, step in found.items() if key not in other}


def _nothing_depends_on(evidence: Evidence, root: int, pair: int) -> bool:
    """Whether all that a root and the modules inside make is the same but for rounding, although an input of floats is wholly another one.

    So is a cache that holds what others left there: it is handed over whole, and what is read of it was written first.
    """
    sites, pairs, texts = evidence.sites, evidence.pairs, evidence.texts
    dtype = dtype_named(texts[int(pairs["target_dtype"][pair])] or "")
    inside = outermost(sites["parent"])[pairs["site"]] == root
    made = np.flatnonzero(inside & (pairs["role"] == Role.OUTPUT) & (sites["kind"][pairs["site"]] == CallKind.MODULE))
    made = made[np.isin(pairs["source"][made], (Source.BYTES, Source.STATISTICS))]
    own = pairs["site"][made] == root
    if dtype is None or dtype.kind != "float" or not own.any() or not pairs["rel_l2"][pair] > _ANOTHER:
        return False
    return all(bool(pairs["equal"][one]) or _within_what_layers_make(evidence, one) for one in made.tolist())


def _within_what_layers_make(evidence: Evidence, pair: int) -> bool:
    """Whether two floats lie no further apart than what layers make of the same in the coarser of their dtypes."""
    units = evidence.roundoffs(pair)
    return units is not None and float(evidence.pairs["rel_l2"][pair]) <= LAYERS * max(units)


def _follows_on(evidence: Evidence, pair: int, parting: Parting, step: int) -> bool:
    """Whether floats are state, such as a cache in plain tensors, of generations that had parted before."""
    dtype = dtype_named(evidence.texts[int(evidence.pairs["target_dtype"][pair])] or "")
    return dtype is not None and dtype.kind == "float" and parting.before(step)


def _only_at_padding(evidence: Evidence, row: int, pair: int) -> bool:
    """Whether two inputs of a root differ at no position that its attention mask, the same on both sides, lets through."""
    pairs, texts = evidence.pairs, evidence.texts
    for other in evidence.pairs_of(row):
        position = texts[int(pairs["position"][other])] or ""
        if pairs["role"][other] != Role.INPUT or not position.endswith("attention_mask") or not pairs["equal"][other] or other == pair:
            continue
        mask = evidence.values(row, Role.INPUT, position)
        found = evidence.values(row, Role.INPUT, texts[int(pairs["position"][pair])] or "")
        if mask is None or found is None or mask.target.ndim != 2 or found.target.shape[:2] != mask.target.shape:
            continue
        kept = mask.target != 0
        return bool(np.array_equal(found.reference[kept], found.target[kept]))
    return False


def _is_state(evidence: Evidence, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Per pair: root inputs that are state of the run itself, such as a cache: held by an object, not handed in as tensors."""
    state = np.zeros(len(chosen), bool)
    held: dict[int, set[str]] = {}
    for pair in np.flatnonzero(chosen).tolist():
        row = int(evidence.pairs["site"][pair])
        if row not in held:
            pictures = (evidence.detail(side, row).get("arguments") for side in ("reference", "target"))
            held[row] = {position for picture in pictures for position in held_by_objects(picture)}
        state[pair] = evidence.texts[int(evidence.pairs["position"][pair])] in held[row]
    return state


def held_by_objects(picture: Any, *, inside: bool = False) -> Iterator[str]:
    """Positions of the tensors that a recorded picture of arguments shows inside objects."""
    if isinstance(picture, dict):
        inside = inside or "object" in picture
        if inside and isinstance(picture.get("tensor"), str):
            yield picture["tensor"]
        for part in picture.values():
            yield from held_by_objects(part, inside=inside)
    elif isinstance(picture, list):
        for part in picture:
            yield from held_by_objects(part, inside=inside)
