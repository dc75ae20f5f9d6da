"""State that an object carries from step to step, such as a KV cache: which regions it comes into.

A recorder records such an object once, where the outermost call is handed it, and notes at each inner call
that it was handed the same object again. So nothing on an inner call says what it read; who was handed the
object may have read it, and nobody else may: a norm beside it is judged by its own input alone.

Entry N of the state, `in.cache.layers[N].keys`, is written by layer N, and read by it and perhaps by later
ones that share it: it excuses no layer before N. Where the outermost call returns the object, entry N is what layer N made of it.

A cache may be kept in two forms (compressed in other dimensions, in pages), so that no entry of it can be compared. Then what
came into a module in earlier steps comes into it again: of that it made what it reads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.classes import ACTIVATION, EMBEDDING, LINEAR, NORM, ROTARY, module_class
from layerdiff.judge.tables import Columns, Texts
from layerdiff.trace.schema import CallKind, Role

Reals = NDArray[np.float64]
Flags = NDArray[np.bool_]
Rows = NDArray[np.int64]

_TAKES_TENSORS: Final = (EMBEDDING, NORM, LINEAR, ACTIVATION, ROTARY)
"""Modules of these classes read what they are handed, and nothing else."""
_ENTRY: Final = re.compile(r"^in(?:\[\d+\]|(?!\[))[^\[]*\[(\d+)\]")  # an index behind that of the argument
_IN_OBJECT: Final = re.compile(r"in(?:\[\d+\]|\.[^.\[]+)[.\[]")
"""`in.cache.keys`, `in[1].layers[0].keys`: a value inside an argument."""
_RETURNED: Final = re.compile(r"^out[^\[]*(?:\[\d+\])?\.[^\[]*\[(\d+)\]\.")
"""`out.cache.layers[1].keys` or `out[1].layers[1].keys`: of an object's entry an attribute."""
_LAYER: Final = re.compile(r"(?:^|\.)(\d+)(?:\.|$|/)")


@dataclass(frozen=True)
class State:
    """What comes into each site's region through objects alone. One entry a site."""

    difference: Reals
    nonfinite_differs: Flags


def state_coming_in(sites: Columns, pairs: Columns, texts: Texts, difference: Reals, nonfinite: Flags) -> State:
    """The worst of the state that each site was handed. `difference` and `nonfinite` have one entry a pair."""
    count = len(sites["site"])
    coming, bad = _read_again(sites, pairs, texts, difference, nonfinite)
    into_roots = (pairs["role"] == Role.INPUT) & (sites["parent"][pairs["site"]] < 0) if count else np.zeros(0, bool)
    differing = np.unique(pairs["site"][into_roots & ((difference > 0) | nonfinite)]).tolist()
    if not differing:
        return State(coming, bad)
    top = _tops(sites["parent"])
    handed = _handed(sites, texts, top)
    for root in differing:
        rows = np.flatnonzero(handed & (top == root))
        given = np.flatnonzero(into_roots & (pairs["site"] == root))
        entries = _numbers(pairs["position"][given], texts, _ENTRY)
        layers = _numbers(sites["site"][rows], texts, _LAYER)
        if not set(entries[entries >= 0].tolist()) <= set(layers.tolist()):
            entries[:] = -1  # not numbered as the layers are
        for entry in np.unique(entries).tolist():
            at = given[entries == entry]
            reached = rows[(layers < 0) | (layers >= entry)]
            coming[reached] = np.maximum(coming[reached], difference[at].max())
            bad[reached] |= entry >= 0 and bool(nonfinite[at].any())
    return State(coming, bad)


def _read_again(sites: Columns, pairs: Columns, texts: Texts, difference: Reals, nonfinite: Flags) -> tuple[Reals, Flags]:
    """Per site: the worst that a module was given in earlier steps, where it is handed a state that was not compared."""
    count = len(sites["site"])
    coming, bad = np.zeros(count), np.zeros(count, bool)
    handed: Flags = (sites["handed_state"] > 0) & (sites["kind"] == CallKind.MODULE)
    if not handed.any():
        return coming, bad
    top = _tops(sites["parent"])
    given = np.flatnonzero(pairs["role"] == Role.INPUT)
    carried = [text for text in np.unique(pairs["position"][given]).tolist() if _IN_OBJECT.match(texts[text] or "")]
    compared = np.isin(top, pairs["site"][given[np.isin(pairs["position"][given], carried)]])
    own, own_bad = np.zeros(count), np.zeros(count, bool)
    np.maximum.at(own, pairs["site"][given], difference[given])
    own_bad[pairs["site"][given[nonfinite[given]]]] = True
    before: dict[tuple[int, int], tuple[int, float, bool, float, bool]] = {}
    rows = np.flatnonzero(handed)
    for row, key in zip(rows.tolist(), zip(sites["site"][rows].tolist(), sites["rank"][rows].tolist(), strict=True), strict=True):
        step = int(sites["step"][row])
        last, worst, broken, until, until_broken = before.get(key, (step, 0.0, False, 0.0, False))
        if step != last:
            worst, broken = until, until_broken
        before[key] = (step, worst, broken, max(until, float(own[row])), until_broken or bool(own_bad[row]))
        if not compared[row]:
            coming[row], bad[row] = worst, broken
    return coming, bad


def made_below(sites: Columns, pairs: Columns, texts: Texts, owner: Rows, convicted: Flags) -> Flags:
    """Per pair: an entry of the state that an outermost call returned, of a layer in which something is convicted itself."""
    found = np.zeros(len(owner), bool)
    roots = np.flatnonzero(convicted & (pairs["role"] == Role.OUTPUT) & (sites["parent"][owner] < 0))
    entries = _numbers(pairs["position"][roots], texts, _RETURNED)
    if not np.any(entries >= 0):
        return found
    top, below = _tops(sites["parent"]), np.unique(owner[convicted & (sites["parent"][owner] >= 0)])
    layers = _numbers(sites["site"][below], texts, _LAYER)
    known = set(zip(top[below].tolist(), layers.tolist(), strict=True))
    found[roots] = [entry >= 0 and (site, entry) in known for site, entry in zip(owner[roots].tolist(), entries.tolist(), strict=True)]
    return found


def _tops(parents: Rows) -> Rows:
    """The outermost call around each site. Parents stand before their children."""
    top = list(range(len(parents)))
    for row, parent in enumerate(parents.tolist()):
        if parent >= 0:
            top[row] = top[parent]
    return np.array(top, np.int64)


def _handed(sites: Columns, texts: Texts, top: Rows) -> Flags:
    """Sites that may read the state: those that were handed it. Where none was, any whose class does not rule it out."""
    handed: Flags = sites["handed_state"] > 0
    noted = np.zeros(len(top), bool)
    noted[top[handed]] = True
    leaf = np.ones(len(top), bool)
    leaf[sites["parent"][sites["parent"] >= 0]] = False
    distinct, number = np.unique(sites["type"], return_inverse=True)
    plain = np.array([module_class(texts[text], has_children=False) in _TAKES_TENSORS for text in distinct.tolist()], bool)
    ruled_out = leaf & plain[number.reshape(-1)] & (sites["kind"] == CallKind.MODULE)
    found: Flags = np.where(noted[top], handed, ~ruled_out)
    return found


def _numbers(numbers: NDArray[np.int32], texts: Texts, pattern: re.Pattern[str]) -> Rows:
    """The number that `pattern` finds in each text; -1 where it finds none."""
    distinct, place = np.unique(numbers, return_inverse=True)
    found = [pattern.search(texts[text] or "") for text in distinct.tolist()]
    known = np.array([-1 if match is None else int(match[1][:9]) for match in found], np.int64)
    entries: Rows = known[place.reshape(-1)] if len(distinct) else np.zeros(0, np.int64)
    return entries
