"""`Enclosed`: a trace file in which modules that were called by themselves, before the model around them, are calls inside that.

An encoder may be called alone, and what it makes handed to the model: that is what the model does itself where it is given the ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from layerdiff.trace.columns import Index
from layerdiff.trace.joined import MadeIndex
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CALLS, EDGES, VALUES


class Enclosed(TraceFile):
    """A trace file so read; `inside`: by call of no other the root call that is to be around it, which began later."""

    def __init__(self, file: TraceFile, inside: Mapping[int, int]) -> None:
        self.__dict__.update(file.__dict__)
        calls = {name: np.array(getattr(file.calls, name)) for name in CALLS}
        roots: list[int] = []  # by call the one of these that it is inside of now; -1 for none
        for call, parent in enumerate(calls["parent"].tolist()):
            roots.append(inside.get(call, roots[parent] if parent >= 0 else -1))
        moved = np.array(roots, np.int64)
        calls["step"] = np.where(moved >= 0, calls["step"][moved], calls["step"])
        calls["parent"][list(inside)] = list(inside.values())
        begins = np.arange(len(moved), dtype=np.float64)
        for call in sorted(inside, reverse=True):  # what is around a call begins before it
            begins[inside[call]] = call - 0.5
        order = np.argsort(begins, kind="stable")
        new = np.argsort(order, kind="stable")
        calls = {name: column[order] for name, column in calls.items()}
        calls["parent"] = np.where(calls["parent"] >= 0, new[calls["parent"]], calls["parent"]).astype(CALLS["parent"])
        edges = {name: np.asarray(getattr(file.edges, name)) for name in EDGES}
        edges["call"] = new[edges["call"]].astype(EDGES["call"])
        self._index = cast(Index, MadeIndex(file, (), calls, {name: np.asarray(getattr(file.values, name)) for name in VALUES}, edges))
