"""Where generations part by a choice of their own, and where a run is given what it did not choose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from layerdiff.compare import compare_traces
from layerdiff.saved.comparison import Comparison
from layerdiff.saved.file import open_comparison
from layerdiff.trace.schema import CallKind, CallRow, CallStatus, Role
from layerdiff.trace.writer import TraceWriter
from layerdiff.verdicts import judge_again
from tests.trace.writing import raw, value_row

Array = NDArray[Any]
VOCABULARY = 12
PROMPT = np.array([[1, 2, 3], [4, 5, 6]])
TABLE = np.random.default_rng(0).standard_normal((VOCABULARY, VOCABULARY)).astype(np.float32)
TIE = 2
"""The step whose logits of sequence 1 have two that rounding may order either way."""


def generated(
    path: Path,
    off: float,
    *,
    dim: int = 3,
    steps: int = 6,
    whole: bool = False,
    feed: Callable[[int, Array], Array] | None = None,
    prompt: Array = PROMPT,
    rank: int | None = None,
) -> Path:
    """A greedy loop over logits that depend on the step and the last token.

    `whole`: all tokens are given each time, as without a cache. `feed`: what is given instead of the largest. `rank`: of two, which
    has half of the vocabulary.
    """
    writer, ids = TraceWriter(path, meta={} if rank is None else {"rank": rank, "world_size": 2}), prompt
    root = writer.add_root("model", "Model")
    for step in range(steps):
        logits = TABLE[ids[:, -1]] + np.float32(0.1 * step)
        if step == TIE:
            logits[1, 7:9] = 9.0, 9.0 - 1e-6 + off
        made = logits if dim == 2 else np.repeat(logits[:, None], ids.shape[1], 1)
        mine = made if rank is None else np.ascontiguousarray(np.split(made, 2, -1)[rank])
        call = writer.begin_call(CallRow(CallKind.MODULE, "", type="Model", root=root, step=step))
        writer.add_edge(call, Role.INPUT, "in.input_ids", writer.add_value(value_row(ids), raw(ids)))
        writer.add_edge(call, Role.OUTPUT, "out.logits", writer.add_value(value_row(mine), raw(mine)))
        writer.end_call(call, CallStatus.RETURNED)
        writer.end_step()
        tokens = logits.argmax(-1)[:, None]
        tokens = tokens if feed is None else feed(step, tokens)
        ids = np.concatenate([ids, tokens], 1) if whole else tokens
    return writer.close()


def said(comparison: Comparison) -> dict[str, bool]:
    return {notice.kind: notice.defect for notice in comparison.notices}


@pytest.mark.parametrize("whole", [False, True], ids=["a token at a time", "all tokens again"])
@pytest.mark.parametrize("dim", [2, 3])
def test_tokens_that_each_run_chose_are_no_other_input(tmp_path: Path, dim: int, whole: bool) -> None:
    runs = [generated(tmp_path / f"{off}.h5", off, dim=dim, whole=whole) for off in (0.0, 2e-6)]
    comparison = compare_traces(*runs)
    (told,) = [notice.statement for notice in comparison.notices if notice.kind == "generations-part"]
    assert told.startswith("from step 3 on the runs go on with other tokens")
    assert "of sequence 1 7 against 8, which lie 9.5e-07 apart in the reference and are moved by up to 1.9e-06" in told
    assert ({"generations-part": False}, False) == (said(comparison), comparison.defect)
    again = judge_again(open_comparison(comparison.save(tmp_path / "run.ldiff")), profile="relaxed")
    assert {"generations-part": False} == said(again)


def test_the_logits_may_lie_on_several_ranks(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    for rank in range(2):
        generated(tmp_path / "target" / f"rank{rank:05}.h5", 2e-6, rank=rank)
    comparison = compare_traces(generated(tmp_path / "r.h5", 0.0), tmp_path / "target")
    assert {"generations-part": False} == said(comparison)


@pytest.mark.parametrize("first", [1, 3])
def test_a_token_that_is_not_the_runs_own_is_another_input(tmp_path: Path, first: int) -> None:
    """A loop that hands each sequence the token of its neighbour, before and after a choice that is the run's own."""

    def other(step: int, tokens: Array) -> Array:
        return tokens[::-1] if step >= first else tokens

    comparison = compare_traces(generated(tmp_path / "r.h5", 0.0), generated(tmp_path / "t.h5", 2e-6, feed=other))
    (told,) = [notice for notice in comparison.notices if notice.kind == "input-differs"]
    assert told.defect
    assert told.statement.endswith("decode greedily, or feed both runs the same")


def test_tokens_handed_on_a_step_late_are_another_input(tmp_path: Path) -> None:
    kept: list[Array] = []

    def late(step: int, tokens: Array) -> Array:
        kept.append(tokens)
        return kept[max(step - 1, 0)]

    assert said(compare_traces(generated(tmp_path / "r.h5", 0.0), generated(tmp_path / "t.h5", 0.0, feed=late)))["input-differs"]


def test_another_prompt_is_another_input(tmp_path: Path) -> None:
    """Nothing chose it."""
    target = generated(tmp_path / "t.h5", 0.0, prompt=np.array([[1, 2, 3], [4, 5, 7]]))
    assert said(compare_traces(generated(tmp_path / "r.h5", 0.0), target))["input-differs"]


@pytest.mark.parametrize(("off", "defect"), [(2e-6, False), (0.0, True)], ids=["parted before", "with the same tokens"])
def test_a_generation_that_parted_may_be_longer(tmp_path: Path, off: float, defect: bool) -> None:
    comparison = compare_traces(generated(tmp_path / "r.h5", 0.0), generated(tmp_path / "t.h5", off, steps=8))
    assert defect == said(comparison)["steps-differ"] == comparison.defect
