"""Requests that one run has in other batches than the other: a server takes them on while others go on. Each is compared with itself."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from captures.llama import small_llama, tokens
from layerdiff import Recorder, compare_traces
from layerdiff.cli.exits import OK, code_of
from layerdiff.measure.full import full
from layerdiff.rows.tensor.pair import open_tensor
from layerdiff.rows.traces import Traces
from layerdiff.saved.comparison import Comparison
from layerdiff.trace.schema import CallKind, Role
from tests.chunked import assert_mean_is_not_compared
from tests.engine import HIDDEN, LAYERS, Engine, Sampling, serve

FP32, BF16 = torch.float32, torch.bfloat16
OPERATORS = pytest.mark.parametrize("operators", [True, False], ids=["operators", "modules"])
LENGTHS = (11, 18, 7)
Steps = Sequence[Sequence[tuple[int, int]]]
ALONE: Steps = [[(0, 11)], [(1, 18)], [(2, 7)]]
MIXED: Steps = [[(0, 8)], [(0, 11), (1, 4)], [(1, 12), (2, 6)], [(2, 7), (1, 18)]]
DECODING: Steps = [[(1, 15)], [(1, 16), (0, 9)], [(0, 10), (1, 17), (2, 6)], [(1, 18), (0, 11), (2, 7)]]
FEW: Steps = [[(1, 14)], [(0, 9), (1, 15)], [(1, 18), (0, 11), (2, 7)]]
"""Which request goes on to which length, in each forward."""


def requests(lengths: Sequence[int] = LENGTHS) -> list[Tensor]:
    return [ids[:length] for ids, length in zip(tokens(batch=len(lengths)), lengths, strict=True)]


def record_model(path: Path, every: Sequence[Tensor], *, alone: bool, operators: bool) -> None:
    """All requests as a padded batch, or each `alone`."""
    with torch.no_grad(), Recorder(path, model := small_llama(hidden=HIDDEN, layers=LAYERS), operators=operators):
        if alone:
            for ids in every:
                model(input_ids=ids[None])
        else:
            mask = pad_sequence([torch.ones_like(ids) for ids in every], batch_first=True)
            model(input_ids=pad_sequence(list(every), batch_first=True), attention_mask=mask)


def record_engine(
    path: Path,
    every: Sequence[Tensor],
    steps: Steps,
    *,
    faults: tuple[str, ...] = ("", ""),
    dtype: torch.dtype = FP32,
    last: bool = False,
    rolled: int = 0,
    operators: bool,
) -> None:
    engine = (Sampling if last else Engine)(small_llama(hidden=HIDDEN, layers=LAYERS), faults)
    table, engine.lm_head.weight.data = engine.cos_sin_cache, engine.lm_head.weight.data.roll(rolled, 0)
    engine.to(dtype).cos_sin_cache = table
    with torch.no_grad(), Recorder(path, engine, operators=operators):
        serve(engine, every, steps)


def compared(folder: Path, steps: Steps, *, alone: bool = False, operators: bool, **options: object) -> Comparison:
    record_model(folder / "r.h5", requests(), alone=alone, operators=operators)
    record_engine(folder / "t.h5", requests(), steps, operators=operators, **options)  # type: ignore[arg-type]
    return compare_traces(folder / "r.h5", folder / "t.h5")


def is_right(comparison: Comparison) -> bool:
    kinds = {notice.kind for notice in comparison.notices}
    return not (comparison.origins or comparison.defect or kinds & {"results-not-compared", "shape-differs", "judged-by-thresholds"})


def told(comparison: Comparison) -> str:
    (said,) = [notice.statement for notice in comparison.notices if notice.kind == "steps-joined"]
    return said


@pytest.mark.parametrize(
    ("steps", "alone", "dtype", "last", "operators"),
    [
        (ALONE, False, FP32, True, False),
        (FEW, False, BF16, False, True),
        (DECODING, False, FP32, True, True),
        (DECODING, True, BF16, True, False),
    ],
    ids=["alone", "few", "decoding", "decoding-modules"],
)
def test_requests_in_other_batches_are_no_fault(
    tmp_path: Path, steps: Steps, alone: bool, dtype: torch.dtype, last: bool, operators: bool
) -> None:
    comparison = compared(tmp_path, steps, alone=alone, dtype=dtype, last=last, operators=operators)
    assert is_right(comparison), (comparison.origins, comparison.notices)
    assert code_of(comparison) == OK
    ran = f"in {len(steps)} forwards (steps 0..{len(steps) - 1}) in the target"
    assert "the tokens of 3 requests" in told(comparison) and ran in told(comparison)
    pairs, sites = comparison.pairs, comparison.sites
    roots = (sites["parent"] < 0) & (sites["kind"] == CallKind.MODULE)
    (pair,) = np.flatnonzero(roots[pairs["site"]] & (pairs["role"] == Role.OUTPUT)).tolist()
    tensor = open_tensor(Traces(), comparison, pair)
    ends = sum(map(len, steps)) if last else sum(LENGTHS)
    assert (ends, 97) == tensor.shape
    assert full(*tensor.measured).rel_l2 < (1e-5 if dtype is FP32 else 0.1)


FAULTS = {"scale": "self_attn/aten.mul*", "slot": "self_attn/aten.*", "epsilon": "post_attention_layernorm/aten.add*"}


@pytest.mark.parametrize(("number", "fault"), enumerate(FAULTS), ids=list(FAULTS))
def test_a_fault_is_found_at_its_call(tmp_path: Path, number: int, fault: str) -> None:
    layer, alone, dtype = number % 2, number > 0, (FP32, BF16)[number % 2]
    faults = tuple(fault if here == layer else "" for here in range(LAYERS))
    comparison = compared(tmp_path, FEW, alone=alone, faults=faults, dtype=dtype, last=alone, operators=True)
    (origin,) = comparison.origins
    assert fnmatchcase(origin.site, f"layers.{layer}.{FAULTS[fault]}"), origin.site
    assert "joined." not in origin.statement


@pytest.mark.parametrize(("fault", "module"), [("scale", "self_attn"), ("halves", "mlp")])
def test_a_fault_is_found_at_its_module(tmp_path: Path, fault: str, module: str) -> None:
    comparison = compared(tmp_path, MIXED, faults=("", fault), operators=False)
    (origin,) = comparison.origins
    assert f"layers.1.{module}" == origin.site


def test_a_fault_behind_the_last_tokens_is_found(tmp_path: Path) -> None:
    comparison = compared(tmp_path, FEW, rolled=1, last=True, operators=True)
    assert ["lm_head/aten.mm.default"] == [origin.site.partition("#")[0] for origin in comparison.origins]


@OPERATORS
def test_steps_in_another_order_are_compared_each_with_its_own(tmp_path: Path, operators: bool) -> None:
    for name, every in (("r.h5", requests()), ("t.h5", requests()[::-1])):
        record_model(tmp_path / name, every, alone=True, operators=operators)
    comparison = compare_traces(tmp_path / "r.h5", tmp_path / "t.h5")
    assert is_right(comparison) and code_of(comparison) == OK
    assert not np.nansum(comparison.pairs["rel_l2"])


@OPERATORS
def test_what_one_run_alone_has_is_compared_with_nothing(tmp_path: Path, operators: bool) -> None:
    """The reference has two of the three requests, and of one of them fewer tokens."""
    first, second, _ = requests()
    record_model(tmp_path / "r.h5", [first, second[:14]], alone=False, operators=operators)
    record_engine(tmp_path / "t.h5", requests(), MIXED, faults=("", "halves"), operators=operators)
    comparison = compare_traces(tmp_path / "r.h5", tmp_path / "t.h5")
    assert "compared with nothing: 11 tokens of the target" in told(comparison)
    assert ["layers.1.mlp"] == [origin.site.partition("/")[0] for origin in comparison.origins]
    assert "input-differs" not in {notice.kind for notice in comparison.notices}


def test_a_number_is_named_where_one_run_has_further_tokens(tmp_path: Path) -> None:
    """With the reference's the target's call makes what the reference makes, of the tokens that both have."""
    first, second, _ = requests()
    record_model(tmp_path / "r.h5", [first, second[:14]], alone=True, operators=True)
    record_engine(tmp_path / "t.h5", requests(), MIXED, faults=("", "epsilon"), operators=True)
    (origin,) = compare_traces(tmp_path / "r.h5", tmp_path / "t.h5").origins
    assert ("layers.1.post_attention_layernorm/aten.add.Tensor", "rmsnorm-eps") == (origin.site.partition("#")[0], origin.cause)


def test_other_requests_are_not_compared(tmp_path: Path) -> None:
    record_model(tmp_path / "r.h5", requests(), alone=False, operators=False)
    others = [(ids + 1) % 97 for ids in requests()]
    record_engine(tmp_path / "t.h5", others, [[(0, 11), (1, 18)], [(2, 7)]], operators=False)
    with pytest.raises(Exception, match="no step has the same input shapes"):
        compare_traces(tmp_path / "r.h5", tmp_path / "t.h5")


@pytest.mark.parametrize("rolled", [0, 1])
def test_requests_that_go_on_with_other_tokens_are_compared_until_then(tmp_path: Path, rolled: int) -> None:
    """Each goes on with the token of its own largest logit; or the target with that of another."""
    every = requests()
    model = small_llama(hidden=HIDDEN, layers=LAYERS)
    with torch.no_grad():
        chosen = int(model(input_ids=every[0][None, :10])[0, -1].argmax())
    ours = [torch.cat([every[0][:10], torch.tensor([chosen])]), *every[1:]]
    theirs = [torch.cat([every[0][:10], torch.tensor([(chosen + 1) % 97])]), *every[1:]]
    record_engine(tmp_path / "r.h5", ours, [[(0, 9)], [(0, 10)], [(0, 11)], [(1, 18)], [(2, 7)]], last=True, operators=False)
    record_engine(tmp_path / "t.h5", theirs, DECODING, last=True, rolled=rolled, operators=False)
    comparison = compare_traces(tmp_path / "r.h5", tmp_path / "t.h5")
    assert "compared with nothing: 1 token of the target, 1 token of the reference" in told(comparison)
    kind = "generations-part" if rolled else "input-differs"
    (said,) = [notice.statement for notice in comparison.notices if notice.kind in ("generations-part", "input-differs")]
    assert f"after 10 tokens a request goes on with {'another one in each run' if rolled else 'others'}" in said
    assert str(chosen) in said and kind in {notice.kind for notice in comparison.notices}
    assert comparison.defect


@OPERATORS
def test_a_mean_over_the_tokens_of_a_piece_is_that_of_no_request(tmp_path: Path, operators: bool) -> None:
    ids = tokens(batch=3, length=12)
    assert_mean_is_not_compared(tmp_path, [ids], [ids[:1, :5], ids[1:], ids[:1, 5:]], operators=operators)
