"""Values that ranks hold, as the tensor screen opens them: every one of every capture has the figures that the comparison says."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from layerdiff.compare import compare_in_steps, compare_traces
from layerdiff.errors import TraceError
from layerdiff.measure.full import full
from layerdiff.rows.tensor.pair import open_tensor
from layerdiff.rows.tensor.put_together import ranks_of
from layerdiff.rows.traces import Traces
from layerdiff.saved.comparison import Comparison
from layerdiff.saved.file import open_comparison
from layerdiff.saved.placements import Placements
from layerdiff.trace.schema import Role
from tests.ranks import Rank

CAPTURES = Path(__file__).parents[2] / "captures"
RANKED = sorted(path.parent.name for path in CAPTURES.glob("*/target") if path.is_dir())


@cache
def compared(case: str) -> Comparison:
    return compare_traces(CAPTURES / case / "reference.h5", CAPTURES / case / "target")


def pair_of(comparison: Comparison, site: str, position: str) -> int:
    return next(
        pair
        for pair, row in enumerate(comparison.pairs["site"].tolist())
        if comparison.texts[int(comparison.sites["site"][row])] == site
        and comparison.texts[int(comparison.pairs["position"][pair])] == position
    )


@pytest.mark.parametrize("case", RANKED)
def test_every_value_is_shown_with_the_figure_of_the_comparison(case: str, tmp_path: Path) -> None:
    comparison = open_comparison(compared(case).save(tmp_path / "saved.ldiff"))
    traces, said = Traces(), Counter[str]()
    for pair in range(len(comparison.pairs["site"])):
        tensor = open_tensor(traces, comparison, pair)
        figure = full(tensor.sides.reference.whole, tensor.sides.target.whole).rel_l2
        assert float(comparison.pairs["rel_l2"][pair]) == pytest.approx(figure, rel=1e-6, nan_ok=True)
        said[tensor.made_of.partition(",")[0]] += 1
    assert "" not in said
    traces.close()


@pytest.mark.parametrize(
    ("case", "site", "position", "said", "figure"),
    [
        ("bias_every_rank", "layers.0.mlp.down_proj", "weight", "put together of 2 ranks, sharded along 1, contiguous", 0.0),
        ("missing_all_reduce", "layers.1.self_attn.o_proj", "out", "the sum of 2 ranks", 3.00e-7),
        ("expert_offset", "layers.1.mlp.experts", "out", "rank 1 of 2, the furthest off", 1.20),
        ("clean_tp4_bf16", "layers.0.mlp.down_proj", "in[0]", "put together of 4 ranks, sharded along 2, contiguous", math.nan),
        ("clean_tp4_bf16", "layers.0.input_layernorm", "weight", "the same on 4 ranks", math.nan),
    ],
)
def test_what_is_shown_is_said(case: str, site: str, position: str, said: str, figure: float) -> None:
    comparison, traces = compared(case), Traces()
    tensor = open_tensor(traces, comparison, pair_of(comparison, site, position))
    assert said == tensor.made_of
    if not math.isnan(figure):
        assert figure == pytest.approx(full(tensor.sides.reference.whole, tensor.sides.target.whole).rel_l2, rel=5e-3)
    traces.close()


@pytest.mark.parametrize("case", ["bias_every_rank", "clean_tp4_bf16", "zigzag_positions"])
def test_each_rank_by_itself_is_as_far_off_as_its_part(case: str) -> None:
    comparison, traces, placements = compared(case), Traces(), Placements(compared(case))
    for row in range(len(comparison.sites["site"])):
        for value in placements.of_site(row):
            assert [part.rank for part in value.parts] == ranks_of(comparison, value.pair)
            for number, part in enumerate(value.parts):
                tensor = open_tensor(traces, comparison, value.pair, part=number)
                assert tensor.made_of.startswith(f"rank {part.rank} of {len(value.parts)}: ")
                padded = part.holds is not None and any(run.start < 0 for run in part.holds)
                if math.isfinite(part.error) and not padded and tensor.sides.target.dtype.kind == "float":
                    figure = full(tensor.sides.reference.whole, tensor.sides.target.whole).rel_l2
                    assert part.error == pytest.approx(figure, rel=1e-4)
    traces.close()


def test_two_layouts_are_put_together_on_both_sides() -> None:
    comparison, traces = compare_traces(CAPTURES / "missing_all_reduce" / "target", CAPTURES / "bias_every_rank" / "target"), Traces()
    pair = pair_of(comparison, "layers.0.mlp.down_proj", "weight")
    tensor = open_tensor(traces, comparison, pair)
    assert tensor.made_of.startswith("target: put together of 2 ranks") and tensor.made_of.endswith("; reference: of 2 ranks")
    figure = full(tensor.sides.reference.whole, tensor.sides.target.whole).rel_l2
    assert float(comparison.pairs["rel_l2"][pair]) == pytest.approx(figure, rel=1e-6)
    traces.close()


def two_ranks(folder: Path, kept: bool = True) -> Comparison:
    """A value in two parts, which the second rank may not have kept."""
    rng = np.random.default_rng(1)
    whole, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((8, 6), (4, 6)))
    reference = Rank(folder / "reference", 0, 1)
    reference.module("layers.0.mlp", "Linear", whole, whole * 2, {"weight": weight})
    reference.close()
    for rank in range(2):
        own = slice(4 * rank, 4 * rank + 4)
        target = Rank(folder / "target", rank, 2)
        target.module("layers.0.mlp", "Linear", whole[own], whole[own] * 2, {"weight": weight}, kept=kept or rank == 0)
        target.close()
    return compare_traces(folder / "reference" / "rank00000.h5", folder / "target")


def test_a_part_without_bytes_is_no_other_run(tmp_path: Path) -> None:
    comparison = two_ranks(tmp_path, kept=False)
    with pytest.raises(TraceError) as error:
        open_tensor(Traces(), comparison, pair_of(comparison, "layers.0.mlp", "out"))
    assert "rank 1 of the target" in str(error.value) and str(error.value).endswith("r shows each rank's part")


def test_traces_of_another_run_are_not_shown_in_its_place(tmp_path: Path) -> None:
    comparison = two_ranks(tmp_path)
    pair = pair_of(comparison, "layers.0.mlp", "out")
    assert "put together of 2 ranks, sharded along 0, contiguous" == open_tensor(Traces(), comparison, pair).made_of
    figures = {**comparison.pairs, "rel_l2": comparison.pairs["rel_l2"] + 1.0}
    with pytest.raises(TraceError, match="does not make up what was compared"):
        open_tensor(Traces(), replace(comparison, pairs=figures), pair)


def test_before_it_was_compared_nothing_is_guessed() -> None:
    steps = compare_in_steps(CAPTURES / "missing_all_reduce" / "reference.h5", CAPTURES / "missing_all_reduce" / "target")
    first = next(steps).comparison
    outputs = np.flatnonzero(first.pairs["role"] == Role.OUTPUT)
    with pytest.raises(TraceError, match=r"^not compared yet"):
        open_tensor(Traces(), first, int(outputs[0]))
