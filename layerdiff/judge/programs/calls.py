"""`align_calls`: which operator call of the target goes with which of the reference's, inside one body.

By name and shapes of the results, with insertions and deletions, and never by counters: one call more would shift all that follow.
"""

from __future__ import annotations

from typing import Any

from layerdiff.align.sequence import align_sequences
from layerdiff.judge.programs.bodies import Body, tokens_of
from layerdiff.judge.programs.together import Together
from layerdiff.replay.recorded import Recorded
from layerdiff.sides import Both


def align_calls(runs: Both[Recorded], body: Body) -> dict[int, int]:
    """The target's operator call of each of the reference's. Float casts have no partner."""
    tokens: list[list[Any]] = []
    loose: list[list[Any]] = []
    items: list[list[int]] = []
    leading = tokens_of(runs, body)
    together = Together.both(runs, body.items)
    for here, (side, run) in enumerate((("reference", runs.reference), ("target", runs.target))):
        pieces: Together = getattr(together, side)
        children = {pair[here]: pair for pair in body.children}
        exact: list[Any] = []
        names: list[Any] = []
        kept: list[int] = []
        for item in getattr(body.items, side):
            if item in children:
                token: Any = ("child", children[item])
                exact.append(token)
                names.append(token)
                kept.append(item)
                continue
            operation = run.operation(item)
            if run.is_float_cast(operation) or not pieces.stands(item):
                continue
            shapes = tuple(pieces.shape(item, at) or run.file.shape(value) for at, value in operation.outputs.items())
            if leading is not None:
                shapes = tuple(body.forms.token(shape, side, leading) for shape in shapes)
            name = operation.name, len(operation.inputs)  # a product of two is none with a number
            exact.append((name, shapes))
            names.append(name)
            kept.append(item)
        tokens.append(exact)
        loose.append(names)
        items.append(kept)
    found = align_sequences(tokens[0], tokens[1], loose)
    return {items[0][i]: items[1][j] for i, j in found if not runs.reference.is_module(items[0][i])}
