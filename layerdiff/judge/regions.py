"""Regions of a module-level comparison: what comes into the glue of a module, and what leaves it.

A region is a module call without its recorded children. Into it come the module's inputs and weights,
the state that it was handed (state.py), and what its children return; out of it go the children's
inputs and the module's outputs. Judging each region on its own incoming differences is what keeps one
fault from being found again at every later module, and a second one from hiding behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.state import State
from layerdiff.judge.tables import Columns
from layerdiff.trace.schema import CallKind, Role

Reals = NDArray[np.float64]
Flags = NDArray[np.bool_]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class PairNumbers:
    """What regions need to know of each pair of values. One entry a pair."""

    site: Rows
    role: NDArray[Any]
    difference: Reals
    """Relative difference, 0 where equal or not comparable."""
    discrete_differs: Flags
    nonfinite_differs: Flags


@dataclass(frozen=True)
class Incoming:
    """The worst of what came into a region before something left it."""

    difference: Reals
    discrete_differs: Flags
    nonfinite_differs: Flags


@dataclass(frozen=True)
class Regions:
    """Incoming numbers at the two moments at which a region is judged. One entry a site."""

    at_end: Incoming
    """When the module itself returns: inputs, weights and all its children's outputs."""
    at_call: Incoming
    """When it is called: what had come into its *parent's* region until then."""
    has_children: Flags
    lost_children: Flags
    """Some child was recorded on one side only, or its values are not known, so its work counts as the module's own."""
    hides: Flags
    """Values of a child are not put together: tokens may have been dealt otherwise in it, so that only what is wholly wrong tells."""


def regions(sites: Columns, numbers: PairNumbers, state: State, unpaired: Flags, unseen: Flags, apart: Flags) -> Regions:
    """Walk the calls in order, once, carrying what has come into each open region.

    `state` comes in beside the recorded inputs. All flags have one entry a site. `unpaired`: only one side
    ran it. `unseen`: both did, and what it returned could not be compared, so nobody knows how far it differs.
    `apart`: values of ranks that it was given or returned are not put together: it excuses nothing, and its work counts as its parent's.
    Operators are no children: what one makes does not come into its module, and excuses nothing.
    """
    count = len(sites["parent"])
    inputs = _worst(numbers, numbers.role != Role.OUTPUT, count)
    outputs = _worst(numbers, numbers.role == Role.OUTPUT, count)
    parents = sites["parent"].tolist()
    at_end = [list(column) for column in zip(*inputs, strict=True)] if count else []
    at_call: list[tuple[float, bool, bool]] = [(0.0, False, False)] * count
    has_children, lost_children, hides = np.zeros(count, bool), np.zeros(count, bool), np.zeros(count, bool)
    carried, carried_nonfinite = state.difference.tolist(), state.nonfinite_differs.tolist()
    alone, operators = unpaired.tolist(), (sites["kind"] == CallKind.OPERATOR).tolist()
    returned = list(zip(*outputs, strict=True))
    hidden, absorbed = unseen.tolist(), apart.tolist()
    for row, parent in enumerate(parents):
        own = at_end[row]
        own[0] = max(own[0], carried[row])
        own[2] = own[2] or carried_nonfinite[row]
        if parent < 0 or operators[row]:
            continue
        region = at_end[parent]
        at_call[row] = (inf if hides[parent] else region[0], region[1], region[2])
        if alone[row]:
            lost_children[parent] = True
            continue
        has_children[parent] = True
        if absorbed[row]:
            lost_children[parent] = hides[parent] = True
            region[1] = region[1] or returned[row][1]
            continue
        difference, discrete, nonfinite = (inf, False, False) if hidden[row] else returned[row]
        region[0] = max(region[0], difference)
        region[1] = region[1] or discrete
        region[2] = region[2] or nonfinite
    return Regions(_incoming(at_end), _incoming(at_call), has_children, lost_children, hides)


def _worst(numbers: PairNumbers, chosen: Flags, count: int) -> tuple[list[float], list[bool], list[bool]]:
    site = numbers.site[chosen]
    difference = np.zeros(count)
    np.maximum.at(difference, site, numbers.difference[chosen])
    discrete, nonfinite = np.zeros(count, bool), np.zeros(count, bool)
    discrete[site[numbers.discrete_differs[chosen]]] = True
    nonfinite[site[numbers.nonfinite_differs[chosen]]] = True
    return difference.tolist(), discrete.tolist(), nonfinite.tolist()


def _incoming(rows: list[Any]) -> Incoming:
    if not rows:
        return Incoming(np.zeros(0), np.zeros(0, bool), np.zeros(0, bool))
    difference, discrete, nonfinite = zip(*rows, strict=True)
    return Incoming(np.array(difference, float), np.array(discrete, bool), np.array(nonfinite, bool))
