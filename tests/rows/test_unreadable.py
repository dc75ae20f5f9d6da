"""Why a value cannot be shown: advice to record more only where more can be recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from layerdiff.rows.tensor.unreadable import why_unreadable
from layerdiff.trace.reader import open_trace
from layerdiff.trace.schema import ValueKind
from layerdiff.trace.writer import TraceWriter
from tests.trace.writing import value_row


@pytest.mark.parametrize(
    ("reason", "kind", "expected"),
    [
        ("not kept: statistics only by the keep policy", ValueKind.ACTIVATION, "record it again with --keep full"),
        ("weight bytes not recorded: weights=none", ValueKind.PARAMETER, "record it again with --weights used"),
        (None, ValueKind.ACTIVATION, "record it again with --keep full"),
        ("memory that nothing was written to yet", ValueKind.ACTIVATION, "of this value: memory that nothing was written to yet"),
        ("the all_reduce that writes it failed", ValueKind.ACTIVATION, "of this value: the all_reduce that writes it failed"),
    ],
)
def test_what_would_help(tmp_path: Path, reason: str | None, kind: ValueKind, expected: str) -> None:
    writer = TraceWriter(tmp_path / "trace.h5", meta={})
    writer.add_value(value_row(np.zeros(3, np.float32), kind=kind)._replace(reason=reason), None)
    writer.close()
    why = why_unreadable(open_trace(tmp_path / "trace.h5", allow_empty=True).files[0], 0, "the target")
    assert why is not None and why.startswith("the target ") and why.endswith(expected)
