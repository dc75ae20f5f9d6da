"""What a root is given that an earlier one returned, line by line, is no input of the run: an encoder's states, once for each beam."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from layerdiff.compare import compare_traces
from layerdiff.trace.schema import CallKind, CallRow, CallStatus, Role
from layerdiff.trace.writer import TraceWriter
from tests.trace.writing import raw, value_row


def encoded(path: Path, lines: list[int], off: float = 0.0, more: float = 0.0) -> Path:
    """An encoder, then a decoder that is given lines of what it made. `off`: what is off in the encoder, `more`: of what is handed on."""
    writer, ids = TraceWriter(path, meta={}), np.array([[1, 2, 3], [4, 5, 6]])
    made = np.random.default_rng(0).standard_normal((2, 3, 8)) * (1 + off)
    handed = made[lines] * (1 + more)
    for step, (name, given, returned) in enumerate((("encoder", ids, made), ("decoder", handed, handed.sum(-1)))):
        call = writer.begin_call(CallRow(CallKind.MODULE, "", type="Model", root=writer.add_root(name, "Model"), step=step))
        for role, position, x in ((Role.INPUT, "in.x", given), (Role.OUTPUT, "out", returned)):
            x = x if x.dtype.kind == "i" else x.astype(np.float32)
            writer.add_edge(call, role, position, writer.add_value(value_row(x), raw(x)))
        writer.end_call(call, CallStatus.RETURNED)
        writer.end_step()
    return writer.close()


@pytest.mark.parametrize(
    ("lines", "more", "told"),
    [([0, 0, 0, 1, 1, 1], 0.0, False), ([0, 0, 1, 1, 1, 1], 0.0, True), ([0, 0, 0, 1, 1, 1], 0.1, True)],
    ids=["the same lines", "other lines", "other numbers"],
)
def test_lines_of_what_an_encoder_returned(tmp_path: Path, lines: list[int], more: float, told: bool) -> None:
    comparison = compare_traces(encoded(tmp_path / "r.h5", [0, 0, 0, 1, 1, 1]), encoded(tmp_path / "t.h5", lines, 0.01, more))
    assert told == any(notice.kind == "input-differs" for notice in comparison.notices)
