"""Module calls of a body that reach nothing which is compared: whatever they compute, no cut of the body shows it.

A dissolved norm behind the last layer, where the runs return logits of which one has only the last position.
"""

from __future__ import annotations

from layerdiff.judge.meaning.reach import reaching
from layerdiff.judge.programs.bodies import Body
from layerdiff.replay.recorded import Recorded
from layerdiff.sides import Both
from layerdiff.trace.schema import Role


def returns_nothing_compared(runs: Both[Recorded], body: Body) -> bool:
    """Whether both runs return something from the body's call, and nothing of it is a cut."""
    if any(
        position in run.edges(call, Role.OUTPUT)
        for run, call in zip(runs, body.calls, strict=True)
        for position, _ in body.interface.outputs
    ):
        return False
    return all(run.edges(call, Role.OUTPUT) for run, call in zip(runs, body.calls, strict=True))


def unreached(runs: Both[Recorded], body: Body) -> set[int]:
    """The target's dissolved module calls, with operators that make something, none of which reaches a cut."""
    run = runs.target
    if not body.dissolved.target:
        return set()
    crossing = [*body.interface.outputs, *(one for interface in body.children.values() for one in interface.inputs)]
    reached = reaching(run, body.items.target, [run.place(values[1]) for _, values in crossing])
    dissolved = set(body.dissolved.target)
    shows: dict[int, bool] = {}
    for item in body.items.target:
        if run.is_module(item) or run.is_view(run.operation(item)):
            continue
        around = int(run.file.calls.parent[item])
        while around >= 0 and around != body.calls[1]:
            if around in dissolved:
                shows[around] = shows.get(around, False) or item in reached
            around = int(run.file.calls.parent[around])
    return {call for call, does in shows.items() if not does}
