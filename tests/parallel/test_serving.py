"""A serving engine on several ranks, against a batch of one process or a forward a request: every token is held against itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from captures.processes import Processes
from layerdiff.compare import compare_traces
from layerdiff.judge.tables import BY_THRESHOLDS
from layerdiff.rows.traces import Traces
from layerdiff.saved.comparison import Comparison
from layerdiff.trace.joined import Joined
from layerdiff.trace.schema import CallKind
from tests.parallel.serving import record, record_rank


def compared(
    processes: Processes,
    folder: Path,
    steps: str,
    wrong: str = "",
    *,
    operators: bool,
    batch: bool,
    size: int = 2,
    dtype: torch.dtype = torch.float32,
) -> Comparison:
    processes.run(record_rank, folder / "target", steps, operators, wrong, dtype, size=size)
    return compare_traces(record(folder / "reference.h5", operators, batch=batch), folder / "target")


@pytest.mark.parametrize(
    ("steps", "batch", "operators", "size", "dtype"),
    [
        ("mixed", True, True, 2, torch.bfloat16),
        ("mixed", False, False, 4, torch.bfloat16),
        ("decoding", False, True, 2, torch.float32),
        ("alone", False, True, 2, torch.float32),
        ("late", True, True, 2, torch.float32),
    ],
)
def test_requests_that_come_and_go_are_no_fault(
    steps: str, batch: bool, operators: bool, size: int, dtype: torch.dtype, processes: Processes, tmp_path: Path
) -> None:
    comparison = compared(processes, tmp_path, steps, operators=operators, batch=batch, size=size, dtype=dtype)
    assert [] == [(origin.site, origin.statement) for origin in comparison.origins]
    assert [] == [notice.statement for notice in comparison.notices if notice.defect]
    traces = Traces()
    assert all(
        isinstance(file, Joined) for side in ("reference", "target") for file in traces.files(comparison, side)
    )  # as screens open them
    traces.close()
    sites, texts = comparison.sites, comparison.texts
    compares = (sites["kind"] == CallKind.MODULE) & (~np.isnan(sites["measured"]) | (sites["exact"] != BY_THRESHOLDS))
    assert {"layers.1.self_attn.o_proj", "layers.1.mlp", "lm_head"} <= {texts[int(site)] for site in sites["site"][compares]}


FAULTS: dict[str, tuple[str, str | None, int | None]] = {
    "scale": ("layers.1.self_attn", "scalar-differs", None),
    "rank 1 scale": ("layers.1.self_attn", "scalar-differs", 1),
    "epsilon": ("layers.1.post_attention_layernorm", "rmsnorm-eps", None),
    "slot": ("layers.1.self_attn", None, None),
    "halves": ("layers.1.mlp", None, None),
    "sum": ("layers.1.self_attn.o_proj", "allreduce-missing", None),
}
"""Where it is found, why, and on which rank."""


@pytest.mark.parametrize(
    ("wrong", "steps", "batch", "size", "operators"),
    [
        ("scale", "mixed", True, 2, True),
        ("rank 1 scale", "alone", False, 2, True),
        ("epsilon", "decoding", True, 2, True),
        ("slot", "mixed", False, 2, True),
        ("halves", "mixed", False, 2, True),
        ("halves", "late", True, 2, True),
        ("sum", "mixed", True, 4, False),
    ],
)
def test_a_fault_is_found_where_it_is(
    wrong: str, steps: str, batch: bool, size: int, operators: bool, processes: Processes, tmp_path: Path
) -> None:
    comparison = compared(processes, tmp_path, steps, wrong, operators=operators, batch=batch, size=size)
    assert [FAULTS[wrong]] == [(origin.site.split("/")[0], origin.cause, origin.rank) for origin in comparison.origins]


def test_a_second_fault_of_what_is_judged_as_one_is_found(processes: Processes, tmp_path: Path) -> None:
    """The engine's attention is no call of its own to the reference: what its modules make of one another is one program."""
    comparison = compared(processes, tmp_path, "mixed", "scale, epsilon", operators=True, batch=True)
    found = {(origin.site.split("/")[0], origin.cause) for origin in comparison.origins}
    assert found == {("layers.0.self_attn", "scalar-differs"), ("layers.1.post_attention_layernorm", "rmsnorm-eps")}
