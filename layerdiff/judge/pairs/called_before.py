"""Modules that one run calls by itself before its model, and the other's model inside: an encoder, whose results are handed on."""

from __future__ import annotations

import numpy as np

from layerdiff.sides import Both
from layerdiff.trace.enclosed import Enclosed
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind


def as_calls_inside(files: Both[TraceFile]) -> Both[TraceFile]:
    """The files, with such calls inside the call of the model that comes next in both."""
    called = files.map(_called)
    return Both(*(_enclosed(file, own, other) for file, own, other in zip(files, called, (called.target, called.reference), strict=True)))


Called = tuple[dict[str, list[int]], set[str]]
"""The calls of modules that are in no other, by site; and the sites of those that are in another."""


def _called(file: TraceFile) -> Called:
    calls = file.calls
    modules = np.asarray(calls.kind) == CallKind.MODULE
    alone: dict[str, list[int]] = {}
    for call in np.flatnonzero(modules & (np.asarray(calls.parent) < 0)).tolist():
        alone.setdefault(file.site(call), []).append(call)
    distinct = np.unique(np.stack([calls.root, calls.module])[:, modules & (np.asarray(calls.parent) >= 0)], axis=1, return_index=True)[1]
    inside = np.flatnonzero(modules & (np.asarray(calls.parent) >= 0))[distinct]
    return alone, {file.site(call) for call in inside.tolist()}


def _enclosed(file: TraceFile, own: Called, other: Called) -> TraceFile:
    calls = file.calls
    roots = {call for every in own[0].values() for call in every if file.text(int(calls.module[call])) == ""}
    inside: dict[int, int] = {}
    for site, every in own[0].items():
        if site not in other[1] or site in own[1] or site in other[0]:
            continue
        for call in every:
            around = [root for root in roots if root > call and calls.root[root] == calls.root[call]]
            if around:
                inside[call] = min(around)
    return Enclosed(file, inside) if inside else file
