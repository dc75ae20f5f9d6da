"""What the traces alone know of one call: its source line, its scalars, and who made each of its operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.errors import LayerdiffError
from layerdiff.rows.cells import visible
from layerdiff.rows.traces import Traces
from layerdiff.rows.values import shape_text
from layerdiff.saved.comparison import Comparison
from layerdiff.sides import Both
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind, Role

_LONGEST: Final = 60
_DEEPEST: Final = 8


@dataclass(frozen=True)
class CallRecord:
    """One side of a call. Texts are visible."""

    stack: str
    scalars: tuple[str, ...]
    """Arguments that are no tensors, as they were passed: `[2] 1e-06`, `dim=-1`."""
    made_by: Mapping[str, str]
    """By position of an operand: the call that made it, or the parameter that it is."""
    values: Mapping[str, str] = field(default_factory=dict)
    """By position of every value, outputs first: dtype and shape."""


class Producers:
    """Which operator call made each value of a file; found once, in a few passes over the edges."""

    def __init__(self) -> None:
        self._known: dict[int, NDArray[np.int64]] = {}

    def of(self, file: TraceFile) -> NDArray[np.int64]:
        """Shape (values,): the innermost call with each value as output, -1 for none."""
        known = self._known.get(id(file))
        if known is None:
            known = np.full(len(file.values), -1, np.int64)
            edges = file.edges
            made = np.flatnonzero(edges.role == Role.OUTPUT)
            calls, values = edges.call[made].astype(np.int64), edges.value[made]
            # An operator rather than the module around it, and of several modules the innermost, which began last.
            order = np.lexsort((calls, file.calls.kind[calls] != CallKind.MODULE))
            inside = (values[order] >= 0) & (values[order] < known.size)
            known[values[order][inside]] = calls[order][inside]
            self._known[id(file)] = known
        return known


def record_of(traces: Traces, producers: Producers, comparison: Comparison, row: int) -> Both[CallRecord | str]:
    """Both sides of a call; a sentence where a side cannot be read."""
    return Both(*(_side(traces, producers, comparison, row, name) for name in ("reference", "target")))


def _side(traces: Traces, producers: Producers, comparison: Comparison, row: int, name: str) -> CallRecord | str:
    try:
        file, call = traces.file(comparison, name, row)
        edges = sorted(file.edges_of(call), key=lambda edge: edge.role != Role.OUTPUT)
        values = {edge.position: visible(f"{file.dtype_name(edge.value)} {shape_text(file.shape(edge.value))}") for edge in edges}
        made_by = {edge.position: _maker(file, producers, edge.value) for edge in edges if edge.role != Role.OUTPUT}
        detail = file.json(int(file.calls.detail[call]))
        arguments = detail.get("arguments") if isinstance(detail, dict) else None
        operator = int(file.calls.kind[call]) != CallKind.MODULE
        scalars = tuple(_scalars(arguments)) if operator and isinstance(arguments, dict) else ()
        stack = visible(file.text(int(file.calls.stack[call])) or "")
        return CallRecord(stack, scalars, made_by, values)
    except (LayerdiffError, OSError) as error:
        return visible(str(error))


def _maker(file: TraceFile, producers: Producers, value: int) -> str:
    made = int(producers.of(file)[value])
    if made >= 0:
        return visible(file.site(made))
    return visible(file.text(int(file.values.name[value])) or "")


def _scalars(arguments: dict[str, Any]) -> Iterator[str]:
    positional, named = arguments.get("args"), arguments.get("kwargs")
    for i, thing in enumerate(positional if isinstance(positional, list) else []):
        if not _is_tensor(thing):
            yield f"[{i}] {picture_text(thing)}"
    for name, thing in (named if isinstance(named, dict) else {}).items():
        if not _is_tensor(thing) and thing is not None:
            yield f"{visible(str(name))}={picture_text(thing)}"


def _is_tensor(thing: Any) -> bool:
    if isinstance(thing, list):
        return bool(thing) and all(map(_is_tensor, thing))
    return isinstance(thing, dict) and "tensor" in thing


def picture_text(thing: Any, depth: int = 0) -> str:
    """A recorded argument as a person writes it: dtypes by name, lists in brackets, tensors by position."""
    if isinstance(thing, dict) and len(thing) == 1:
        kind, content = next(iter(thing.items()))
        if kind == "tuple" and isinstance(content, list):
            thing = content
        else:
            text = visible(str(content))
            return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    if isinstance(thing, list) and depth < _DEEPEST:
        text = f"[{', '.join(picture_text(item, depth + 1) for item in thing[:16])}{', …' if len(thing) > 16 else ''}]"
    else:
        text = visible(str(thing))
    return text if len(text) <= 4 * _LONGEST else f"{text[: 4 * _LONGEST]}…"
