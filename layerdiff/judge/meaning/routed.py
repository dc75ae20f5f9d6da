"""Tokens that the two runs routed otherwise: how many tokens an expert works on was recorded, so another choice does not run.

A body that cannot be run for that reason is run with each side's own choices, and judged by the tokens for which both chose alike.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.programs.bodies import Body
from layerdiff.judge.programs.running import Programs
from layerdiff.replay.recorded import Recorded
from layerdiff.sides import Both
from layerdiff.trace.dtypes import dtype_named

Tokens = NDArray[np.bool_]
_MOSTLY_ALIKE: Final = 0.5
"""Of the tokens. Where more were routed otherwise the rest says nothing."""
_CHOOSE: Final = ("topk", "sort", "argsort", "argmax", "max")


def routed_otherwise(programs: Programs) -> Tokens | None:
    """Shape (tokens,): for which tokens the choices that come into a body, or are made in it, were not the same in both runs.

    Where that is most of them, as where the target's choice is itself the fault, or the target chooses nothing: for which tokens the
    reference would choose otherwise on what the target was given. None where no token was, or by either most were. From then on
    the reference's program is given its own choices. Raises CannotReplay.
    """
    incoming, body = programs.incoming, programs.body
    counts = _counts(programs.runs.reference, body)
    otherwise = _of_the_runs(programs, counts)
    if otherwise is not None and otherwise.any() and otherwise.mean() <= _MOSTLY_ALIKE:
        incoming.own_choices = True
        return otherwise
    if otherwise is not None and _comes_in(programs, counts):
        return None
    incoming.own_choices = True
    otherwise = _of_the_reference(programs, counts)
    return otherwise if otherwise is not None and otherwise.any() and otherwise.mean() <= _MOSTLY_ALIKE else None


def _counts(run: Recorded, body: Body) -> set[int]:
    """How many tokens there may be, by the floats that cross."""
    crossing = [values[0] for _, values in (*body.interface.inputs, *body.interface.outputs)]
    shapes = [run.file.shape(value) for value in crossing if run.file.dtype_name(value) != "int64"]
    return {math.prod(shape[:-1]) for shape in shapes if len(shape) >= 2}


def _choices(programs: Programs, counts: set[int]) -> Both[list[tuple[int, int]]]:
    """Pairs of values that are places in a row a token: those that come in, and those that are made."""
    coming = [values for _, values in programs.body.interface.inputs]
    made: list[tuple[int, int]] = []
    for reference, target in programs.aligned.items():
        one, other = programs.runs.reference.operation(reference), programs.runs.target.operation(target)
        if one.base in _CHOOSE:
            made += [(value, other.outputs[position]) for position, value in one.outputs.items() if position in other.outputs]
    return Both(coming, made).map(lambda pairs: [pair for pair in pairs if _is_choice(programs, pair, counts)])


def _is_choice(programs: Programs, pair: tuple[int, int], counts: set[int]) -> bool:
    file = programs.runs.reference.file
    kind, shape = dtype_named(file.dtype_name(pair[0])), file.shape(pair[0])
    whole = kind is not None and kind.kind == "integer"
    return whole and len(shape) == 2 and shape[0] in counts and shape == programs.runs.target.file.shape(pair[1])


def _comes_in(programs: Programs, counts: set[int]) -> bool:
    return bool(_choices(programs, counts).reference)


def _of_the_runs(programs: Programs, counts: set[int]) -> Tokens | None:
    """By what both recorded; what comes in is followed by what is made of it."""
    choices = _choices(programs, counts)
    found: Tokens | None = None
    for reference, target in choices.reference or choices.target:
        one, other = programs.contents(programs.runs.reference, reference), programs.contents(programs.runs.target, target)
        apart = np.asarray((one != other).any(axis=1))
        found = apart if found is None or found.size != apart.size else found | apart
    return found


def _of_the_reference(programs: Programs, counts: set[int]) -> Tokens | None:
    """By what the reference recorded, and what it would choose of what the target was given; None where it decides something else too."""
    found: Tokens | None = None
    for decision in programs.run("reference").decisions:
        rows = np.asarray(decision.differs)
        if decision.operation.base not in _CHOOSE or rows.ndim != 2 or rows.shape[0] not in counts:
            return None
        apart = np.asarray(rows.any(axis=1))
        found = apart if found is None or found.size != apart.size else found | apart
    return found
