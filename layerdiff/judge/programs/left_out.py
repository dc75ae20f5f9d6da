"""Tokens that are not among those that both runs have (padding of a batch), where what both have is taken apart: the run's own stand there.

With 0 in their place a router would send them elsewhere, and another number of tokens to each expert than was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.errors import TraceError
from layerdiff.replay.recorded import Operation, Recorded
from layerdiff.replay.refusal import CannotReplay
from layerdiff.trace.along import How, InRow, Shape, from_json
from layerdiff.trace.arguments import Arguments
from layerdiff.trace.joining import PART

Array = NDArray[Any]


def left_out(how: How, shapes: Sequence[Shape], recorded: Callable[[], Sequence[Array]]) -> Sequence[Array]:
    """The values that were recorded, where some of their lines are not in a row; nothing else, nor where they were not kept."""
    if not isinstance(how, InRow) or how.keys or how.is_all(shapes):
        return ()
    try:
        return recorded()
    except (CannotReplay, TraceError):
        return ()


def with_rest(
    run: Recorded, operation: Operation, args: Arguments, contents: Callable[[Recorded, int], Array]
) -> Mapping[str, Array] | None:
    """What a row is taken apart into, with the run's own numbers where it has none; None of other calls."""
    if operation.name != PART:
        return None
    how, values = from_json(args.args[1]), operation.outputs.values()
    shapes = [run.file.shape(value) for value in values]
    rest = left_out(how, shapes, lambda: [contents(run, value) for value in values])
    return dict(zip(operation.outputs, how.parts(np.asarray(args.args[0]), shapes, rest), strict=True)) if rest else None
