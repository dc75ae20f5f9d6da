"""The epsilon of a norm, fitted from outputs alone, on data made with numpy in float64 and rounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from layerdiff.compare import compare_traces
from layerdiff.judge.tables import Verdict
from layerdiff.trace.schema import CallKind, CallRow, CallStatus, Role
from layerdiff.trace.writer import TraceWriter
from tests.trace.writing import raw, value_row


def norm(x: NDArray[Any], weight: NDArray[Any], epsilon: float, kind: str) -> NDArray[np.float32]:
    centred = x - x.mean(-1, keepdims=True) if kind == "LayerNorm" else x
    return (centred / np.sqrt(np.mean(centred**2, -1, keepdims=True) + epsilon) * weight).astype(np.float32)


def write(path: Path, kind: str, x: NDArray[Any], y: NDArray[Any], attributes: dict[str, Any]) -> Path:
    writer = TraceWriter(path, meta={})
    writer.add_root("model", "Root")
    call = writer.begin_call(CallRow(CallKind.MODULE, "", type=kind))
    for role, position, array in ((Role.INPUT, "in[0]", x), (Role.OUTPUT, "out", y)):
        writer.add_edge(call, role, position, writer.add_value(value_row(array), raw(array)))
    writer.end_call(call, CallStatus.RETURNED, json.dumps({"attributes": attributes}))
    return writer.close()


@pytest.mark.parametrize("kind", ["RMSNorm", "LayerNorm"])
@pytest.mark.parametrize("scale", [0.02, 1.0])
@pytest.mark.parametrize(("ours", "theirs"), [(1e-6, 1e-3), (1e-5, 1e-2), (1e-3, 1e-6)])
def test_the_epsilon_is_recovered_with_its_uncertainty(tmp_path: Path, kind: str, scale: float, ours: float, theirs: float) -> None:
    rng = np.random.default_rng(0)
    x = (scale * rng.standard_normal((24, 128)) * rng.uniform(0.3, 3, (24, 1))).astype(np.float32)
    weight = rng.uniform(0.5, 1.5, 128)
    wide = x.astype(np.float64)
    reference = write(tmp_path / "r.h5", kind, x, norm(wide, weight, ours, kind), {"eps": ours})
    target = write(tmp_path / "t.h5", kind, x, norm(wide, weight, theirs, kind), {"eps": theirs})
    (origin,) = compare_traces(reference, target).origins
    assert origin.verdict == Verdict.DEFECT
    assert origin.cause == ("rmsnorm-eps" if kind == "RMSNorm" else "layernorm-eps")
    fit = origin.evidence["fit"]
    assert fit["epsilon"] == pytest.approx(theirs, rel=0.05, abs=0.02 * ours)
    assert abs(fit["epsilon"] - theirs) <= 5 * fit["uncertainty"] + 1e-12


def test_an_attribute_that_differs_is_not_enough(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((24, 128)).astype(np.float32)
    right = norm(x.astype(np.float64), np.ones(128), 1e-6, "RMSNorm")
    wrong = right.copy()
    wrong[:, 7] *= 1.5  # a channel: no epsilon makes that
    reference = write(tmp_path / "r.h5", "RMSNorm", x, right, {"eps": 1e-6})
    target = write(tmp_path / "t.h5", "RMSNorm", x, wrong, {"eps": 1e-5})
    (origin,) = compare_traces(reference, target).origins
    assert (origin.verdict, origin.cause) == (Verdict.UNEXPLAINED, None)
    assert origin.evidence["attributes"] == {"eps": {"reference": 1e-6, "target": 1e-5}}


def test_a_row_factor_unlike_an_epsilon_is_not_named_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((24, 128)) * rng.uniform(0.1, 3, (24, 1))).astype(np.float32)
    right = norm(x.astype(np.float64), np.ones(128), 1e-6, "RMSNorm")
    reference = write(tmp_path / "r.h5", "RMSNorm", x, right, {"eps": 1e-6})
    target = write(tmp_path / "t.h5", "RMSNorm", x, (right * 1.01).astype(np.float32), {"eps": 1e-6})
    (origin,) = compare_traces(reference, target).origins
    assert (origin.verdict, origin.cause) == (Verdict.UNEXPLAINED, None)
