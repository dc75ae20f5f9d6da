"""A large call is acquitted by a sample of its rows, and by nothing less than a fault that hides in one of the others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from layerdiff.arithmetic.own import replay_call
from layerdiff.arithmetic.registry import contract_of
from layerdiff.arithmetic.sampled import EVENLY, FARTHEST, WHOLE_UP_TO, chosen_rows, replay_sampled
from layerdiff.judge.tables import is_sampled
from layerdiff.trace.arguments import Arguments
from tests.arithmetic.calls import decoded, name_of, results_of

ROWS, TERMS, COLUMNS = 512, 256, 640
LEFT_OUT = 205
"""A row that is at no even distance, in every case here."""
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
ATEN = torch.ops.aten


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, W, BIAS = random(ROWS, TERMS), random(TERMS, COLUMNS, seed=1), random(COLUMNS, seed=2)
HEADS = [random(1, 4, ROWS, 64, seed=seed) for seed in (3, 4, 5)]
MASK = torch.zeros(1, 1, ROWS, ROWS).masked_fill(torch.ones(ROWS, ROWS).triu(60).bool(), -torch.inf)
FLASH = ATEN._scaled_dot_product_flash_attention_for_cpu.default
Call = tuple[object, tuple[object, ...], dict[str, object]]
CALLS: dict[str, Callable[[torch.dtype], Call]] = {
    "mm": lambda dtype: (ATEN.mm.default, (X.to(dtype), W.to(dtype)), {}),
    "mm, one large input": lambda dtype: (ATEN.mm.default, ((X * (1 + 99 * (torch.arange(TERMS) == 7))).to(dtype), W.to(dtype)), {}),
    "addmm": lambda dtype: (ATEN.addmm.default, (BIAS.to(dtype), X.to(dtype), W.to(dtype)), {}),
    "addmm of a matrix": lambda dtype: (
        ATEN.addmm.default,
        (random(ROWS, COLUMNS, seed=6).to(dtype), X.to(dtype), W.to(dtype)),
        {"alpha": 0.5},
    ),
    "linear": lambda dtype: (ATEN.linear.default, (X.to(dtype)[None], W.t().contiguous().to(dtype), BIAS.to(dtype)), {}),
    "bmm": lambda dtype: (ATEN.bmm.default, (HEADS[0][0].to(dtype), HEADS[1][0].transpose(1, 2).to(dtype)), {}),
    "attention": lambda dtype: (FLASH, tuple(x.to(dtype) for x in HEADS), {}),
    "causal attention": lambda dtype: (FLASH, (*(x.to(dtype) for x in HEADS), 0.0, True), {}),
    "mul": lambda dtype: (ATEN.mul.Tensor, (random(4, ROWS, 128).to(dtype), random(ROWS, 1, seed=1).to(dtype)), {}),
    "add": lambda dtype: (ATEN.add.Tensor, (random(1, 4, ROWS, 128).to(dtype), random(1, 1, ROWS, 128, seed=1).to(dtype)), {}),
    "silu": lambda dtype: (ATEN.silu.default, (3 * random(ROWS, 640).to(dtype),), {}),
    "softmax": lambda dtype: (ATEN._softmax.default, ((5 * random(2, ROWS, 320)).to(dtype) + MASK[0, 0, :, :320].to(dtype), -1, False), {}),
    "attention with a mask": lambda dtype: (FLASH, tuple(x.to(dtype) for x in HEADS), {"attn_mask": MASK.to(dtype), "scale": 0.2}),
}
EACH = pytest.mark.parametrize("make", CALLS.values(), ids=CALLS)


def sampled(call: Call, change: Callable[[list[np.ndarray]], None] | None = None, **options: int):
    """What the sample says, and what the whole call does."""
    given, options = prepared(call, change), {"whole_up_to": 1 << 20, **options}
    return replay_sampled(*given, **options), replay_call(contract_of(given[0]), *given[1:])


def prepared(call: Call, change: Callable[[list[np.ndarray]], None] | None = None):
    operator, args, kwargs = call
    results = results_of(operator(*args, **kwargs))
    recorded, dtypes = [decoded(x) for x in results], [name_of(x.dtype) for x in results]
    arguments = Arguments(tuple(decoded(x) for x in args), {name: decoded(x) for name, x in kwargs.items()})
    if change is not None:
        change(recorded)
    return str(operator), arguments, recorded, dtypes


@DTYPES
@EACH
def test_a_harmless_call_is_acquitted_by_an_eighth_of_its_rows(make, dtype: torch.dtype) -> None:
    found, whole = sampled(make(dtype))
    assert found is not None
    assert whole.verdict == found.verdict
    assert (512, 64) == (found.evidence["rows"], found.evidence["rows_replayed"])
    assert found.rung.endswith("; 64 of 512 rows sampled")
    assert is_sampled(found.rung)
    assert not is_sampled(whole.rung)
    assert "64 of 512 rows" in found.statement
    assert found.count * 8 == whole.count
    assert found.zmax <= whole.zmax
    assert 0.8 * whole.zrms <= found.zrms <= 8**0.5 * whole.zrms * (1 + 1e-9)  # the farthest rows are among them


def size(result: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(result))))


def one_element(recorded: list[np.ndarray]) -> None:
    recorded[0][..., LEFT_OUT, 3] += 0.05 * size(recorded[0])


def one_row(recorded: list[np.ndarray]) -> None:
    recorded[0][..., LEFT_OUT, :] *= 1.02


def one_head_of_a_row(recorded: list[np.ndarray]) -> None:
    recorded[0].reshape(-1, recorded[0].shape[-1])[LEFT_OUT] *= 1.02


def a_tile(recorded: list[np.ndarray]) -> None:
    recorded[0][..., 200:216, 16:32] *= 1.02


def a_block_of_columns(recorded: list[np.ndarray]) -> None:
    recorded[0][..., 8:16] *= 1.02


def half_of_the_rows(recorded: list[np.ndarray]) -> None:
    recorded[0][..., 256:, :] *= 1.02


def a_lost_number(recorded: list[np.ndarray]) -> None:
    recorded[0][..., LEFT_OUT, 1] = np.nan


def an_infinite_one(recorded: list[np.ndarray]) -> None:
    recorded[0][..., LEFT_OUT, 1] = np.inf


@pytest.mark.parametrize(
    ("fault", "dtype"),
    [
        (one_element, torch.float32),
        (one_element, torch.bfloat16),
        (one_row, torch.bfloat16),
        (one_head_of_a_row, torch.float32),
        (a_tile, torch.bfloat16),
        (a_block_of_columns, torch.float32),
        (half_of_the_rows, torch.bfloat16),
        (a_lost_number, torch.float32),
        (an_infinite_one, torch.bfloat16),
    ],
)
@EACH
def test_a_fault_in_any_part_is_left_to_the_whole_replay(make, dtype: torch.dtype, fault) -> None:
    assert replay_sampled(*prepared(make(dtype), fault), whole_up_to=1 << 20) is None


@pytest.mark.parametrize("make", [CALLS["mm"], CALLS["attention"]], ids=["mm", "attention"])
def test_one_element_far_beyond_sigma_is_found_though_it_is_small(make) -> None:
    """A hundred sigma of one element is nothing to the sum over its row."""
    _, whole = sampled(make(torch.float32))
    sigma = whole.evidence["sigma"]

    def moved(recorded: list[np.ndarray]) -> None:
        recorded[0][..., LEFT_OUT, 3] += np.float32(100 * sigma)

    assert replay_sampled(*prepared(make(torch.float32), moved), whole_up_to=1 << 20) is None


def test_the_log_of_the_sum_of_one_row() -> None:
    def change(recorded: list[np.ndarray]) -> None:
        recorded[1][0, 2, LEFT_OUT] += 0.01

    assert replay_sampled(*prepared(CALLS["attention"](torch.float32), change), whole_up_to=1 << 20) is None


def test_the_worst_element_is_named_where_it_lies_in_the_whole_result() -> None:
    found, whole = sampled(CALLS["bmm"](torch.bfloat16))
    assert found is not None
    assert whole.zmax == pytest.approx(found.zmax)  # of all rows it was among those that lie farthest
    assert whole.worst == found.worst


def test_lower_precision_everywhere_is_no_sample_s_to_acquit() -> None:
    x, w = X.bfloat16().float(), W.bfloat16().float()
    made = functional.linear(x, w.t())
    arguments = Arguments((decoded(X), decoded(W)), {})
    assert replay_sampled("aten.mm.default", arguments, [decoded(made)], ["float32"], whole_up_to=0) is None


def test_small_calls_narrow_ones_and_others_are_replayed_whole() -> None:
    assert sampled(CALLS["mm"](torch.float32), whole_up_to=WHOLE_UP_TO * 2)[0] is None
    short = (ATEN.mm.default, (X[:127], W), {})
    assert sampled(short)[0] is None
    wide = (ATEN.mm.default, (X.double(), W.double()), {})
    assert sampled(wide)[0] is None
    assert replay_sampled("aten.exp.default", Arguments((decoded(X),), {}), [decoded(X.exp())], ["float32"], whole_up_to=0) is None
    assert replay_sampled("mine.mm.default", Arguments((decoded(X), decoded(W)), {}), [decoded(X @ W)], ["float32"], whole_up_to=0) is None


def test_shapes_that_do_not_fit_are_left_to_the_whole_replay() -> None:
    arguments = Arguments((decoded(X), decoded(W)), {})
    assert replay_sampled("aten.mm.default", arguments, [np.zeros((ROWS, 3))], ["float32"], whole_up_to=0) is None
    assert replay_sampled("aten.mm.default", Arguments((decoded(X),), {}), [np.zeros((3, 3))], ["float32"], whole_up_to=0) is None


def test_a_sample_is_even_rows_and_the_farthest_of_the_rest() -> None:
    far = np.zeros(1000)
    far[[500, 501, 502]] = 11.0
    chosen = chosen_rows(far)
    assert chosen is not None
    assert EVENLY + FARTHEST == chosen.size == np.unique(chosen).size
    assert {0, 999, 500, 501, 502} <= set(chosen.tolist())
    far[100 : 100 + 3 * FARTHEST] = 13.0
    assert chosen_rows(far) is None
