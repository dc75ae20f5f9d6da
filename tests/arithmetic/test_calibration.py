"""Fault-free calls of torch's own CPU kernels acquit, and a spoiled result convicts: every contract, fp32 and bf16."""

from __future__ import annotations

import pytest
import torch

from tests.arithmetic.calls import replayed

aten = torch.ops.aten
GOOD = ("identical", "order-consistent")
BAD = ("defect", "unexplained", "broken")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def held(operator, *args, **kwargs) -> None:
    """The call as it is acquits; with an element of each float result moved by 1 % (of the tensor's size) it does not."""
    copies = [x.clone() if isinstance(x, torch.Tensor) else x for x in args]
    own = replayed(operator, *args, **kwargs)
    assert own.verdict in GOOD, (operator, own)

    def spoil(results) -> None:
        for result in results:
            if result.dtype.kind == "f" and result.size:
                result.reshape(-1)[result.size // 2] += 0.05 * max(abs(result).max(), 1e-3)

    spoiled = replayed(operator, *copies, change=spoil, **kwargs)
    assert spoiled.verdict in BAD, (operator, spoiled)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("terms", "seed"), [(8, 0), (64, 1), (1000, 2)])
def test_matrix_products(dtype: torch.dtype, terms: int, seed: int) -> None:
    x, w = numbers(40, terms, dtype=dtype, seed=seed), numbers(terms, 48, dtype=dtype, seed=seed + 10)
    bias = numbers(48, dtype=dtype, seed=5)
    held(aten.mm.default, x, w)
    held(aten.addmm.default, bias, x, w)
    held(aten.addmm.default, numbers(40, 48, dtype=dtype), x, w, alpha=0.3, beta=0.7)
    held(aten.bmm.default, x.view(4, 10, terms), w.expand(4, terms, 48).contiguous())
    held(aten.baddbmm.default, numbers(4, 10, 48, dtype=dtype), x.view(4, 10, terms), w.expand(4, terms, 48).contiguous(), beta=0.5)
    held(aten.linear.default, x.view(2, 20, terms), w.t().contiguous(), bias)
    held(aten.matmul.default, x.view(2, 20, terms), w)
    held(aten.mv.default, numbers(96, terms, dtype=dtype), w[:, 0].contiguous())


UNARY = {
    "any": [
        "neg",
        "abs",
        "relu",
        "sign",
        "floor",
        "ceil",
        "trunc",
        "relu6",
        "exp",
        "exp2",
        "expm1",
        "sin",
        "cos",
        "tan",
        "atan",
        "tanh",
        "sigmoid",
        "erf",
        "erfc",
        "silu",
        "log_sigmoid",
        "mish",
        "hardsigmoid",
        "hardswish",
        "hardtanh",
        "gelu",
        "softplus",
        "leaky_relu",
        "elu",
        "round",
        "square",
        "clone",
    ],
    "positive": ["sqrt", "rsqrt", "reciprocal", "log", "log2", "log10", "log1p"],
    "fraction": ["asin", "acos"],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "kind"), [(name, kind) for kind, names in UNARY.items() for name in names])
def test_functions_of_one_operand(name: str, kind: str, dtype: torch.dtype) -> None:
    x = numbers(4000, dtype=dtype) * 3
    x = {"any": x, "positive": x.abs() + 2e-3, "fraction": x.clamp(-0.98, 0.98)}[kind]
    held(getattr(aten, name).default, x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_of_more_operands(dtype: torch.dtype) -> None:
    x, y, z = (numbers(4000, dtype=dtype, seed=seed) for seed in range(3))
    positive = x.abs() + 0.01
    held(aten.add.Tensor, x, y)
    held(aten.add.Tensor, x, y, alpha=0.3)
    held(aten.add.Tensor, x, 0.1)
    held(aten.add_.Tensor, x.clone(), y)
    held(aten.sub.Tensor, x, y)
    held(aten.rsub.Scalar, x, 0.1)
    held(aten.mul.Tensor, x, y)
    held(aten.mul.Tensor, x, 0.1)
    held(aten.mul.Tensor, x, torch.arange(4000))
    held(aten.div.Tensor, x, y)
    held(aten.div.Tensor, x, 3.3)
    for exponent in (2, 3, 0.5, -0.5, -1, -2, 1.7):
        held(aten.pow.Tensor_Scalar, positive, exponent)
    held(aten.pow.Scalar, 1e4, y.clamp(-1.5, 1.5))
    held(aten.pow.Tensor_Tensor, positive, y)
    held(aten.atan2.default, x, y)
    held(aten.hypot.default, x, y)
    held(aten.maximum.default, x, y)
    held(aten.clamp.default, x, -0.1, 0.3)
    held(aten.threshold.default, x, 0.1, 0.7)
    held(aten.where.self, x > 0, x, y)
    held(aten.where.ScalarOther, x > 0, x, 0.1)
    held(aten.masked_fill.Scalar, x, y > 0, 0.1)
    held(aten.gelu.default, x, approximate="tanh")
    held(aten.addcmul.default, x, y, z, value=0.3)
    held(aten.addcdiv.default, x, y, positive, value=0.3)
    held(aten.lerp.Scalar, x, y, 0.3)
    held(aten.lerp.Tensor, x, y, z)
    held(aten.nan_to_num.default, x)
    held(aten.fill.Scalar, x, 0.1)
    held(aten.copy_.default, x.clone(), numbers(4000, dtype=torch.float32, seed=7))
    held(aten._to_copy.default, numbers(4000, dtype=torch.float64), dtype=dtype)
    held(aten._to_copy.default, torch.arange(4000), dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_division_to_whole_numbers_and_remainders(dtype: torch.dtype) -> None:
    x, y = numbers(4000, dtype=dtype), numbers(4000, dtype=dtype, seed=1)
    for own in (
        replayed(aten.div.Tensor_mode, x, y, rounding_mode="floor"),
        replayed(aten.div.Tensor_mode, x, y, rounding_mode="trunc"),
        replayed(aten.floor_divide.default, x, y),
        replayed(aten.remainder.Tensor, x, y),
        replayed(aten.remainder.Scalar, x, 0.3),
        replayed(aten.fmod.Tensor, x, y),
    ):
        assert own.verdict in GOOD, own


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [8, 100, 3000])
def test_reductions_and_softmax(dtype: torch.dtype, length: int) -> None:
    x = numbers(96, length, dtype=dtype) * 3
    held(aten.sum.dim_IntList, x, [1])
    held(aten.sum.dim_IntList, x.t().contiguous(), [0], True)
    held(aten.mean.dim, x.abs() ** 2, [-1], True)
    held(aten.amax.default, x, [1])
    held(aten.max.default, x)
    held(aten.linalg_vector_norm.default, x, 2, [-1])
    held(aten.logsumexp.default, x, [-1])
    held(aten._softmax.default, x, -1, False)
    held(aten._log_softmax.default, x, 1, False)
    held(aten._safe_softmax.default, x, -1)
    held(aten.prod.dim_int, x[:, :8].abs() + 0.1, 1)
