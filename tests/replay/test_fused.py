"""Formulas of fused operators against torch's own composites, and against hand-made cases."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from layerdiff.replay import attention
from layerdiff.replay.operators import CannotReplay, run64
from layerdiff.trace.arguments import Arguments, Token


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def run(name: str, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    return run64(name, Arguments(args, kwargs))


def qkv(heads: int = 4, shared: int = 4, length: int = 5, keys: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    return numbers(2, heads, length, 8, seed=1), numbers(2, shared, keys, 8, seed=2), numbers(2, shared, keys, 6, seed=3)


def by_hand(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | float = 0.0, scale: float | None = None) -> tuple[Tensor, Tensor]:
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = torch.einsum("bhle,bhse->bhls", q, k) * (scale or 8**-0.5) + bias
    return torch.einsum("bhls,bhsv->bhlv", torch.softmax(scores, -1), v), torch.logsumexp(scores, -1)


def close(expected: Tensor, actual: Tensor) -> None:
    assert expected.shape == actual.shape
    torch.testing.assert_close(actual, expected, rtol=1e-13, atol=1e-14)


CAUSAL = torch.full((5, 5), -math.inf, dtype=torch.float64).triu(1)


@pytest.mark.parametrize("block", [1 << 24, 1, 100])
@pytest.mark.parametrize("shared", [4, 2, 1])
def test_every_kernel_of_attention(block: int, shared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_BLOCK_ELEMENTS", block)
    q, k, v = qkv(shared=shared)
    bias = numbers(2, 1, 5, 5, seed=4)
    out, sums = by_hand(q, k, v, CAUSAL)
    biased, biased_sums = by_hand(q, k, v, bias, 0.3)

    (actual,) = run("aten.scaled_dot_product_attention.default", q, k, v, is_causal=True, enable_gqa=True)
    close(out, actual)
    (actual,) = run("aten.scaled_dot_product_attention.default", q, k, v, bias, scale=0.3, enable_gqa=True)
    close(biased, actual)

    for name, results in [
        (
            "aten._scaled_dot_product_flash_attention_for_cpu.default",
            run("aten._scaled_dot_product_flash_attention_for_cpu.default", q, k, v, 0.0, True),
        ),
        ("aten._scaled_dot_product_flash_attention.default", run("aten._scaled_dot_product_flash_attention.default", q, k, v, 0.0, True)),
        (
            "aten._scaled_dot_product_fused_attention_overrideable.default",
            run("aten._scaled_dot_product_fused_attention_overrideable.default", q, k, v, is_causal=True),
        ),
    ]:
        declared = getattr(torch.ops.aten, name.split(".")[1]).default._schema.returns
        assert len(declared) == len(results), name
        close(out, results[0])
        close(sums, results[1])

    actual, padded, *seeds = run("aten._scaled_dot_product_efficient_attention.default", q, k, v, bias, True, scale=0.3)
    close(biased, actual)
    assert (2, 4, 32) == tuple(padded.shape)
    close(biased_sums, padded[..., :5])
    assert [0, 0] == [seed.numel() for seed in seeds]
    assert (2, 4, 0) == tuple(run("aten._scaled_dot_product_efficient_attention.default", q, k, v, None, False)[1].shape)

    results = run("aten._scaled_dot_product_cudnn_attention.default", q, k, v, bias, True, scale=0.3)
    assert 9 == len(results)
    close(biased, results[0])
    close(biased_sums.unsqueeze(-1), results[1])


def test_weights_of_attention() -> None:
    q, k, v = qkv()
    out, weights = run("aten._scaled_dot_product_attention_math.default", q, k, v, None, 0.0, True)
    close(by_hand(q, k, v, CAUSAL)[0], out)
    close(torch.softmax(torch.einsum("bhle,bhse->bhls", q, k) * 8**-0.5 + CAUSAL, -1), weights)


def test_a_causal_mask_starts_at_the_top_left() -> None:
    q, k, v = qkv(length=2, keys=5)
    bias = torch.tensor([[0, -math.inf, -math.inf, -math.inf, -math.inf], [0, 0, -math.inf, -math.inf, -math.inf]], dtype=torch.float64)
    close(by_hand(q, k, v, bias)[0], run("aten.scaled_dot_product_attention.default", q, k, v, is_causal=True)[0])
    with pytest.raises(CannotReplay, match="where the causal mask starts"):
        run("aten._scaled_dot_product_flash_attention.default", q, k, v, 0.0, True)


def test_masks_of_booleans_and_rows_that_see_nothing() -> None:
    q, k, v = qkv()
    seen = torch.tensor([[True] * 5, [False] * 5, [True, False, False, False, False], [True] * 5, [True] * 5])
    out, sums = run("aten._scaled_dot_product_flash_attention_for_cpu.default", q, k, v, attn_mask=seen)
    expected, expected_sums = by_hand(q, k, v, torch.zeros(5, 5, dtype=torch.float64).masked_fill(~seen, -math.inf))
    rows = [0, 2, 3, 4]
    close(expected[:, :, rows], out[:, :, rows])
    close(expected_sums[:, :, rows], sums[:, :, rows])
    assert 0.0 == out[:, :, 1].abs().max().item()
    close(v[:, :, 0], out[:, :, 2])


def test_dropout_inside_a_kernel_is_refused() -> None:
    with pytest.raises(CannotReplay, match="what it drew was not recorded"):
        run("aten.scaled_dot_product_attention.default", *qkv(), None, 0.1)


def test_rms_norm() -> None:
    x, weight = numbers(2, 3, 8), numbers(8, seed=5)
    out, scale = run("aten._fused_rms_norm.default", x, [8], weight, 1e-6)
    close(functional.rms_norm(x, [8], weight, 1e-6), out)
    assert (2, 3, 1) == tuple(scale.shape)
    close(1 / (x.square().sum(-1, keepdim=True) / 8 + 1e-6).sqrt(), scale)
    close(x * scale, run("aten.rms_norm.default", x, [8], None, 1e-6)[0])


def test_other_norms() -> None:
    x, weight, bias = numbers(2, 4, 6), numbers(6, seed=6), numbers(6, seed=7)
    out, mean, _ = run("aten.native_layer_norm.default", x, [6], weight, bias, 1e-5)
    centred = x - x.mean(-1, keepdim=True)
    close(centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias, out)
    close(x.mean(-1, keepdim=True), mean)
    out, _, _ = run("aten.native_group_norm.default", x, None, None, 2, 4, 6, 2, 1e-5)
    close(functional.group_norm(x, 2), out)


@pytest.mark.parametrize("training", [False, True])
def test_batch_norm_and_its_running_statistics(training: bool) -> None:
    x = numbers(3, 2, 5)
    for name, extra in [("aten.native_batch_norm.default", 0), ("aten.cudnn_batch_norm.default", 1)]:
        mean, variance = torch.zeros(2, dtype=torch.float64), torch.full((2,), 2.0, dtype=torch.float64)
        ones = torch.ones(2, dtype=torch.float64)
        used = (x.mean((0, 2)), x.var((0, 2), unbiased=False)) if training else (mean.clone(), variance.clone())
        results = run(name, x, ones, None, mean, variance, training, 0.1, 1e-5)
        assert 3 + extra == len(results)
        close((x - used[0][:, None]) / (used[1][:, None] + 1e-5).sqrt(), results[0])
        close(0.1 * x.mean((0, 2)) if training else torch.zeros(2, dtype=torch.float64), mean)
        close(1.8 + 0.1 * x.var((0, 2)) if training else torch.full((2,), 2.0, dtype=torch.float64), variance)


def test_grouped_products() -> None:
    rows, stacked, ends = numbers(7, 4), numbers(3, 4, 5, seed=8), torch.tensor([2, 2, 6], dtype=torch.int32)
    (out,) = run("aten._grouped_mm.default", rows, stacked, ends, None, Token("dtype", "bfloat16"))
    close(torch.cat([rows[:2] @ stacked[0], rows[2:6] @ stacked[2], torch.zeros(1, 5, dtype=torch.float64)]), out)
    (out,) = run("aten._grouped_mm.default", numbers(4, 7), numbers(7, 5, seed=9), ends)
    close(torch.stack([numbers(4, 7)[:, a:b] @ numbers(7, 5, seed=9)[a:b] for a, b in [(0, 2), (2, 2), (2, 6)]]), out)
    columns, ends = numbers(4, 6, seed=10), torch.tensor([1, 3, 6], dtype=torch.int32)
    (out,) = run("aten._grouped_mm.default", numbers(3, 5, 4), columns, ends)
    left = numbers(3, 5, 4)
    close(torch.cat([left[0] @ columns[:, :1], left[1] @ columns[:, 1:3], left[2] @ columns[:, 3:]], 1), out)
    (out,) = run("aten._grouped_mm.default", left, numbers(3, 4, 2))
    close(torch.einsum("gmk,gkn->gmn", left, numbers(3, 4, 2)), out)
    with pytest.raises(CannotReplay, match="do not rise"):
        run("aten._grouped_mm.default", rows, stacked, torch.tensor([4, 2, 6], dtype=torch.int32))


def test_products_with_packed_and_scaled_operands() -> None:
    x, codes, scales = numbers(2, 4), torch.tensor([[1, -2, 3, 4], [5, 6, -128, 127]], dtype=torch.int8), torch.tensor([0.5, 0.25])
    (out,) = run("aten._weight_int8pack_mm.default", x, codes, scales.double())
    close(x @ (codes.double() * torch.tensor([[0.5], [0.25]], dtype=torch.float64)).t(), out)

    left, right, bias = numbers(2, 4), numbers(4, 6, seed=11), numbers(6, seed=12)
    one, half = torch.tensor(2.0, dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64)
    (out,) = run("aten._scaled_mm.default", left, right, one, half, bias, out_dtype=Token("dtype", "bfloat16"))
    close(left @ right + bias, out)
    each_row, each_column = numbers(2, 1, seed=13), numbers(1, 6, seed=14)
    (out,) = run("aten._scaled_mm.default", left, right, each_row, each_column)
    close(each_row * (left @ right) * each_column, out)
    blocks = torch.tensor([[2.0, 3.0], [5.0, 7.0]], dtype=torch.float64)
    (out,) = run("aten._scaled_mm.default", left, right, blocks, one)
    close(2.0 * torch.cat([left[:, :2] * blocks[:, :1], left[:, 2:] * blocks[:, 1:]], 1) @ right, out)
    with pytest.raises(CannotReplay, match="how its scales lie"):
        run("aten._scaled_mm.default", left, right, numbers(3, 1), one)
