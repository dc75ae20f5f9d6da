"""A serving engine against the model that it serves: flattened tokens, fused projections, a residual handed along, a paged cache."""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from captures.llama import small_llama, tokens
from layerdiff import Recorder, compare_traces
from layerdiff.cli.exits import UNUSABLE, code_of
from layerdiff.judge.tables import BY_THRESHOLDS
from layerdiff.measure.full import full
from layerdiff.rows.tensor.pair import open_tensor
from layerdiff.rows.traces import Traces
from layerdiff.saved.comparison import Comparison
from layerdiff.trace.schema import CallKind, Role
from tests.engine import HIDDEN, LAYERS, Engine, Pieces, Sampling, serve


def compared(
    folder: Path, batch: int, faults: tuple[str, ...], dtype: torch.dtype = torch.float32, *, operators: bool = True
) -> Comparison:
    ids = tokens(batch=batch)
    with torch.no_grad(), Recorder(folder / "r.h5", model := small_llama(hidden=HIDDEN, layers=LAYERS), operators=operators):
        model(input_ids=ids)
    engine = Engine(small_llama(hidden=HIDDEN, layers=LAYERS), faults)
    table = engine.cos_sin_cache
    engine.to(dtype).cos_sin_cache = table
    with torch.no_grad(), Recorder(folder / "t.h5", engine, operators=operators):
        serve(engine, list(ids))
    return compare_traces(folder / "r.h5", folder / "t.h5")


@pytest.mark.parametrize(("operators", "dtype"), [(True, torch.bfloat16), (False, torch.float32)], ids=["operators", "modules"])
@pytest.mark.parametrize("batch", [1, 2])
def test_an_engine_that_is_right(tmp_path: Path, batch: int, dtype: torch.dtype, operators: bool) -> None:
    comparison = compared(tmp_path, batch, ("", ""), dtype, operators=operators)
    assert [] == [origin.site for origin in comparison.origins]
    assert [] == [notice.statement for notice in comparison.notices if notice.defect]
    assert {"results-not-compared", "shape-differs"}.isdisjoint(notice.kind for notice in comparison.notices)


FAULTS = {
    "split": ("self_attn/aten.mul*", None),
    "slot": ("self_attn/aten.cat*", None),
    "table": ("self_attn/aten.flip*", None),
    "scale": ("self_attn/aten.mul*", "scalar-differs"),
    "mask": ("self_attn/aten.triu*", None),
    "halves": ("mlp/aten.silu*", None),
    "epsilon": ("post_attention_layernorm/aten.add*", "rmsnorm-eps"),
}
"""The call that is wrong, and the cause where it is proven: a write to the cache, right for any place and any other slots, is not named."""


@pytest.mark.parametrize(("fault", "batch"), zip(FAULTS, cycle([1, 2]), strict=False))
def test_a_fault_of_an_engine_is_found_at_its_call(tmp_path: Path, fault: str, batch: int) -> None:
    layer, dtype = batch % LAYERS, torch.bfloat16 if batch == 2 else torch.float32
    faults = tuple(fault if here == layer else "" for here in range(LAYERS))
    (origin,) = compared(tmp_path, batch, faults, dtype).origins
    place, cause = FAULTS[fault]
    assert fnmatchcase(origin.site, f"layers.{layer}.{place}") and cause == origin.cause, (origin.site, origin.cause)


def of_several_lengths(
    folder: Path,
    faults: tuple[str, ...] = ("", ""),
    dtype: torch.dtype = torch.float32,
    *,
    operators: bool = True,
    told: bool = True,
    side: str = "right",
    lengths: tuple[int, ...] = (11, 18, 7),
    engine: Engine | None = None,
) -> Comparison:
    """A model is given requests of several lengths as a padded batch, an engine their tokens in a row, in another order."""
    requests = [request[:length] for request, length in zip(tokens(batch=len(lengths)), lengths, strict=True)]
    ids = torch.nn.utils.rnn.pad_sequence(requests, batch_first=True, padding_side=side)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(request) for request in requests], batch_first=True, padding_side=side)
    with torch.no_grad(), Recorder(folder / "r.h5", model := small_llama(hidden=HIDDEN, layers=LAYERS), operators=operators):
        model(input_ids=ids, **({"attention_mask": mask} if told else {}))
    engine = engine or Engine(small_llama(hidden=HIDDEN, layers=LAYERS), faults)
    table = engine.cos_sin_cache
    engine.to(dtype).cos_sin_cache = table
    with torch.no_grad(), Recorder(folder / "t.h5", engine, operators=operators):
        serve(engine, requests[::-1])
    return compare_traces(folder / "r.h5", folder / "t.h5")


@pytest.mark.parametrize(("operators", "dtype"), [(True, torch.bfloat16), (False, torch.float32)], ids=["operators", "modules"])
def test_requests_of_several_lengths_in_a_row_are_those_of_a_padded_batch(tmp_path: Path, dtype: torch.dtype, operators: bool) -> None:
    comparison = of_several_lengths(tmp_path, dtype=dtype, operators=operators)
    assert [] == [origin.site for origin in comparison.origins]
    assert not comparison.defect
    kinds = {notice.kind for notice in comparison.notices}
    assert "layout-packed" in kinds and {"results-not-compared", "shape-differs", "input-differs"}.isdisjoint(kinds)
    pairs, roots = comparison.pairs, (comparison.sites["parent"] < 0) & (comparison.sites["kind"] == CallKind.MODULE)
    (pair,) = np.flatnonzero(roots[pairs["site"]] & (pairs["role"] == Role.OUTPUT)).tolist()
    tensor = open_tensor(Traces(), comparison, pair)
    assert (36, 97) == tensor.shape
    numbers = full(*tensor.measured)
    assert numbers.rel_l2 < (1e-5 if dtype is torch.float32 else 0.1)


@pytest.mark.parametrize(
    ("fault", "place", "side", "layer"),
    [
        ("split", "self_attn*", "right", 0),
        ("slot", "self_attn/*", "left", 1),
        ("scale", "self_attn/*", "right", 1),
        ("epsilon", "post_attention_layernorm/aten.add*", "left", 1),
    ],
)
def test_a_fault_is_found_in_its_module_beside_a_padded_batch(tmp_path: Path, side: str, fault: str, place: str, layer: int) -> None:
    """Padded to the left, the model counts positions from the padding, and the tables that the engine looks up are none of its own."""
    dtype = torch.bfloat16 if layer else torch.float32
    faults = tuple(fault if here == layer else "" for here in range(LAYERS))
    sites = [origin.site for origin in of_several_lengths(tmp_path, faults, dtype, side=side).origins]
    assert sites and all(fnmatchcase(site, f"layers.{layer}.{place}") for site in sites), sites


SEVERAL = pytest.mark.parametrize("lengths", [(11, 18, 7), (18, 18), (18,)], ids=["ragged", "two", "one"])


def sampling(*, early: int = 0, epsilon: float = 1e-6, rolled: int = 0) -> Sampling:
    engine = Sampling(small_llama(hidden=HIDDEN, layers=LAYERS))
    engine.early, engine.norm.eps = early, epsilon
    engine.lm_head.weight.data = engine.lm_head.weight.data.roll(rolled, 0)
    return engine


@SEVERAL
@pytest.mark.parametrize(("operators", "dtype"), [(True, torch.bfloat16), (False, torch.float32)], ids=["operators", "modules"])
def test_logits_of_the_last_tokens_are_compared(tmp_path: Path, lengths: tuple[int, ...], dtype: torch.dtype, operators: bool) -> None:
    comparison = of_several_lengths(tmp_path, dtype=dtype, lengths=lengths, engine=sampling(), operators=operators)
    assert [] == [origin.site for origin in comparison.origins]
    assert not comparison.defect
    assert {"results-not-compared", "results-differ"}.isdisjoint(notice.kind for notice in comparison.notices)


@pytest.mark.parametrize(("lengths", "dtype"), [((11, 18, 7), torch.float32), ((18,), torch.bfloat16)], ids=["ragged", "one"])
def test_faults_before_the_logits_of_the_last_tokens_are_found(tmp_path: Path, lengths: tuple[int, ...], dtype: torch.dtype) -> None:
    comparison = of_several_lengths(tmp_path, dtype=dtype, lengths=lengths, engine=sampling(epsilon=1e-4))
    assert ["norm/aten.add.Tensor#1"] == [origin.site for origin in comparison.origins]
    comparison = of_several_lengths(tmp_path, dtype=dtype, lengths=lengths, engine=sampling(rolled=1))
    assert ["lm_head/aten.mm.default#0"] == [origin.site for origin in comparison.origins]


@SEVERAL
@pytest.mark.parametrize("operators", [True, False], ids=["operators", "modules"])
def test_logits_of_another_token_are_said(tmp_path: Path, lengths: tuple[int, ...], operators: bool) -> None:
    comparison = of_several_lengths(tmp_path, lengths=lengths, engine=sampling(early=1), operators=operators)
    (said,) = [notice.statement for notice in comparison.notices if notice.kind == "results-differ"]
    assert f"position {lengths[-1] - 2} of request {len(lengths) - 1}" in said
    assert comparison.defect


class Positioned(nn.Module):
    """Is given the position of each token beside it."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.model = small_llama(hidden=HIDDEN, layers=1)
        self.model.norm.variance_epsilon = epsilon

    def forward(self, positions: Tensor, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids) + positions[..., None]  # type: ignore[no-any-return]


@pytest.mark.parametrize("operators", [True, False], ids=["operators", "modules"])
@pytest.mark.parametrize("batch", [2, 3, 4])
@pytest.mark.parametrize("epsilon", [1e-6, 1e-3])
def test_requests_that_are_as_far_are_in_their_own_order(tmp_path: Path, batch: int, epsilon: float, operators: bool) -> None:
    """One token of each: the positions, the same for all, might lie in any order."""
    for name, chosen in (("r.h5", 1e-6), ("t.h5", epsilon)):
        with torch.no_grad(), Recorder(tmp_path / name, model := Positioned(chosen), operators=operators):
            model(torch.full((batch, 1), 8), tokens(batch=batch)[:, :1])
    comparison = compare_traces(tmp_path / "r.h5", tmp_path / "t.h5")
    assert {"layout-packed", "input-differs"}.isdisjoint(notice.kind for notice in comparison.notices)
    assert (["model.norm"] if epsilon > 1e-6 else []) == [origin.site.partition("/")[0] for origin in comparison.origins]


@pytest.mark.parametrize("operators", [True, False], ids=["operators", "modules"])
@pytest.mark.parametrize("batch", [2, 4])
def test_tokens_of_other_requests_are_other_tokens(tmp_path: Path, batch: int, operators: bool) -> None:
    """Both runs have a batch of one token each: neither is a row."""
    for name, order in (("r.h5", range(batch)), ("t.h5", range(batch)[::-1])):
        with torch.no_grad(), Recorder(tmp_path / name, model := Positioned(1e-6), operators=operators):
            model(torch.full((batch, 1), 8), tokens(batch=batch)[list(order), :1])
    comparison = compare_traces(tmp_path / "r.h5", tmp_path / "t.h5")
    assert ["input-differs"] == [notice.kind for notice in comparison.notices if notice.defect]


class Forgetful(Engine):
    """Returns something that is no part of what the model returns."""

    def asked_for(self, x: Tensor, pieces: Pieces) -> Tensor:
        return x.mean(0)


@pytest.mark.parametrize("operators", [True, False], ids=["operators", "modules"])
def test_a_run_whose_results_have_no_form_in_common_does_not_look_right(tmp_path: Path, operators: bool) -> None:
    """No cut shows what the last norm does."""
    engine = Forgetful(small_llama(hidden=HIDDEN, layers=LAYERS))
    comparison = of_several_lengths(tmp_path, lengths=(18,), engine=engine, operators=operators)
    assert "results-not-compared" in [notice.kind for notice in comparison.notices]
    norm = next(row for row, site in enumerate(comparison.sites["site"]) if comparison.texts[int(site)] == "norm")
    assert comparison.sites["exact"][norm] == BY_THRESHOLDS


def test_what_has_no_form_in_common_is_not_called_right(tmp_path: Path) -> None:
    """Nothing says which positions of the batch are padding."""
    comparison = of_several_lengths(tmp_path, told=False)
    assert ("not-comparable", False, UNUSABLE) == (comparison.verdict.label, comparison.defect, code_of(comparison))
    assert "results-not-compared" in [notice.kind for notice in comparison.notices]
