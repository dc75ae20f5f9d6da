"""`left_behind`: what a body leaves in memory for others besides what it returns: a cache, a running mean."""

from __future__ import annotations

from layerdiff.judge.programs.bodies import Body
from layerdiff.replay.recorded import Place, Recorded
from layerdiff.sides import Both


def leaves_state(runs: Both[Recorded], body: Body) -> bool:
    """Whether a body writes to memory that it did not make, or makes something that is read after it besides what it returns."""
    return any(left_behind(runs, body))


def left_behind(runs: Both[Recorded], body: Body) -> Both[list[Place]]:
    """Where either side of a body leaves such."""
    return Both(_left(runs.reference, body, 0), _left(runs.target, body, 1))


def _left(run: Recorded, body: Body, here: int) -> list[Place]:
    items = list(body.items)[here]
    inside = set(items)
    made: list[Place] = []
    own: set[int] = set()
    found: list[Place] = []
    for item in items:
        if run.is_module(item):
            continue
        operation = run.operation(item)
        if not run.is_view(operation):
            results = [run.place(value) for value in operation.outputs.values() if run.weight(value) is None]
            made += results
            own.update(place.memory[0] for place in results)
        written = [run.place(operation.inputs[position]) for position in operation.writes if position in operation.inputs]
        found += [place for place in written if place.memory[0] not in own]
    handed = [one for child in body.children.values() for one in child.inputs]
    known = {run.place(values[here]).memory[0] for _, values in (*body.interface.outputs, *handed, *body.interface.inputs)}
    elsewhere = {memory for memory in own - known if run.read_elsewhere([memory], inside)}
    return [*found, *(place for place in made if place.memory[0] in elsewhere)]
