"""How attention, norms and softmax were computed: each emulated way is named, or stands in the class that is; others are not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from layerdiff.arithmetic.contract import ContractError
from layerdiff.arithmetic.formats import BFLOAT16, FLOAT16, FLOAT32, TF32, Format, round_to
from layerdiff.arithmetic.orders.variants import Variants, variants_of
from layerdiff.arithmetic.orders.variants.attention import sampled
from layerdiff.arithmetic.orders.variants.exponentials import fast_exp
from layerdiff.trace.arguments import Arguments
from tests.arithmetic.attention_kernels import Case, online, whole
from tests.arithmetic.calls import decoded, name_of, results_of
from tests.arithmetic.norm_kernels import layer_norm, rms_norm, softmax
from tests.evaluate.variants import ATTENTION, Truth, attention_truths, judged, outcome

aten = torch.ops.aten
TRUTHS = list(attention_truths())


def winners(found: Variants) -> list[str]:
    return [one.name for one in found.hypotheses if one.won and not one.name.startswith("variance in")]


def said_of(operator, *args, **kwargs) -> Variants:
    """What is said of torch's own kernel."""
    arguments = Arguments(tuple(decoded(x) for x in args), {name: decoded(x) for name, x in kwargs.items()})
    results = results_of(operator(*args, **kwargs))
    found = variants_of(str(operator), arguments, [decoded(x) for x in results], [name_of(x.dtype) for x in results])
    assert found is not None
    return found


def normal(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("truth", TRUTHS, ids=[f"{truth.name} {truth.arithmetic}" for truth in TRUTHS])
@pytest.mark.parametrize(
    ("format", "length", "width", "causal", "kind", "seed"),
    [
        (BFLOAT16, 512, 32, True, "peaked", 1),
        (FLOAT16, 300, 128, False, "gauss", 2),
    ],
)
def test_attention_is_named(truth: Truth, format: Format, length: int, width: int, causal: bool, kind: str, seed: int) -> None:
    case = Case(format, length, width, causal=causal, kind=kind, seed=seed)
    found = judged(case, truth.make(case))
    said = outcome(found, truth.name, truth.arithmetic)
    assert said == "named" or (kind == "positive" and said.startswith("in a class")), found.statement


def test_right_way_is_far_ahead() -> None:
    case = Case(BFLOAT16, 512, 64, seed=4)
    found = judged(case, online(case, 64, weights=BFLOAT16))
    right, next_ = found.hypotheses[:2]
    assert right.name == "online softmax, tiles of 64 keys"
    assert right.share > 0.995
    assert next_.share < 0.95
    assert found.zrms[1] > 10 * found.zrms[0]
    assert found.statement.startswith("Computed as: online softmax, tiles of 64 keys, probabilities rounded to bf16, ")


@pytest.mark.parametrize("format", [BFLOAT16, FLOAT16])
def test_a_way_that_is_not_tried_is_not_named(format: Format) -> None:
    case = Case(format, 512, 64, seed=5)
    for made in (online(case, 40, weights=format), whole(case, weights=Format("seven bits", 7, -126, 1e38))):
        found = judged(case, made)
        assert winners(found) == []
        assert found.statement.startswith("None of ")
        assert "nearest: " in found.statement


def test_tiles_as_long_as_the_row_are_whole_rows() -> None:
    case = Case(BFLOAT16, 64, 64, seed=6)
    assert winners(judged(case, online(case, 64, weights=BFLOAT16))) == ["softmax of whole rows, divided at the end"]


def test_fp32_does_not_tell_tiles_apart_and_says_so() -> None:
    case = Case(FLOAT32, 256, 64, seed=7)
    for made in (whole(case, weights=None), online(case, 32, weights=None)):
        found = judged(case, made)
        assert winners(found) == ["fp32 throughout, in any tiles"]
        assert found.zrms[0] <= 1.5
        assert found.zrms[1] > 30
    narrow = judged(case, whole(case, weights=BFLOAT16))
    assert winners(narrow) == ["softmax of whole rows, divided before it is rounded"]
    assert narrow.hypotheses[0].arithmetic == "probabilities rounded to bf16"


def test_tf32_products_are_seen_in_fp32_results() -> None:
    case = Case(FLOAT32, 200, 64, seed=8)
    case.query, case.key, case.value = (round_to(x, TF32) for x in (case.query, case.key, case.value))
    exact = Case(FLOAT32, 200, 64, seed=8)
    made = whole(case, weights=TF32)
    found = judged(exact, made)
    assert winners(found) == ["softmax of whole rows, divided before it is rounded"]
    assert found.hypotheses[0].arithmetic == "operands rounded to tf32"


def test_softmax_scale_is_fitted() -> None:
    for format, width in ((FLOAT32, 64), (BFLOAT16, 64), (FLOAT16, 64)):
        case = Case(format, 256, width, seed=9)
        right = judged(case, whole(case, weights=format)).fits[0]
        assert right.inside, right.text
        assert right.name == "softmax scale"
        case.scale = float(1 / np.sqrt(65.0))
        found = judged(case, whole(case, weights=format))
        wrong = found.fits[0]
        assert not wrong.inside
        assert wrong.declared == 0.125
        assert abs(wrong.value**-2 - 65.0) < 0.1
        assert "The softmax scale fitted 0.1240" in found.statement
        assert winners(found) == []


def test_few_results_name_nothing() -> None:
    case = Case(BFLOAT16, 1, 8, seed=10)
    assert judged(case, whole(case, weights=BFLOAT16)).statement.startswith("Too few results")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("length", "causal"), [(64, False), (300, True), (1000, False)])
def test_torch_cpu_flash(dtype: torch.dtype, length: int, causal: bool) -> None:
    """torch's CPU kernel: tiles of 512 keys, probabilities rounded, a fast exponential on vectors."""
    q, k, v = (normal(1, 4, length, 64, dtype=dtype, seed=seed) for seed in range(3))
    found = said_of(aten._scaled_dot_product_flash_attention_for_cpu.default, q, k, v, 0.0, causal)
    expected = "online softmax, tiles of 512 keys" if length > 512 else "softmax of whole rows, divided at the end"
    assert found.hypotheses[0].name == expected, found.statement
    assert found.hypotheses[0].arithmetic.startswith("probabilities rounded to ")
    assert found.fits[0].inside


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_torch_cpu_math_and_eager_attention(dtype: torch.dtype) -> None:
    q, k, v = (normal(2, 4, 200, 96, dtype=dtype, seed=seed) for seed in range(3))
    k, v = k[:, :2].contiguous(), v[:, :2].contiguous()
    mask = torch.zeros(200, 200, dtype=dtype).masked_fill(~torch.ones(200, 200, dtype=torch.bool).tril(), float("-inf"))
    found = said_of(aten._scaled_dot_product_attention_math.default, q, k, v, mask, enable_gqa=True)
    plain = "fp32 throughout, in any tiles" if dtype == torch.float32 else "probabilities kept in fp32, in any tiles"
    assert winners(found) == [plain], found.statement
    wide_k, wide_v = (x.repeat_interleave(2, 1) for x in (k, v))
    scores = torch.matmul(q, wide_k.transpose(2, 3)) * 96**-0.5 + mask
    made = torch.matmul(torch.softmax(scores, -1, dtype=torch.float32).to(dtype), wide_v)
    arguments = Arguments((decoded(q), decoded(k), decoded(v)), {"attn_mask": decoded(mask), "enable_gqa": True})
    eager = variants_of("aten.scaled_dot_product_attention.default", arguments, [decoded(made)], [name_of(dtype)])
    assert eager is not None
    if dtype == torch.float32:
        assert winners(eager) == [plain]
    else:
        assert winners(eager) == ["softmax in fp32 rounded"], eager.statement
        assert eager.hypotheses[0].arithmetic.endswith("after the product and the scale")


@pytest.mark.parametrize("format", [BFLOAT16, FLOAT16, FLOAT32])
@pytest.mark.parametrize("terms", [64, 1000])
def test_what_a_norm_rounds_is_named(format: Format, terms: int) -> None:
    random = np.random.default_rng(terms)
    x = round_to(random.standard_normal((80, terms)) + 1.0, format)
    weight, bias = (round_to(1.0 + 0.2 * random.standard_normal(terms), format) for _ in range(2))
    short = {BFLOAT16: "bf16", FLOAT16: "fp16"}.get(format)
    plain = "statistics and products in fp32, rounded once" if short else "fp32 throughout"

    def of_layer(**how) -> list[str]:
        y, mean, scale = layer_norm(x, weight, bias, 1e-5, format, **how)
        found = variants_of(
            "aten.native_layer_norm.default", Arguments((x, [terms], weight, bias, 1e-5), {}), [y, mean, scale], [format.name] * 3
        )
        assert found is not None
        return winners(found)

    def of_root(**how) -> list[str]:
        y, scale = rms_norm(x, weight, 1e-6, format, **how)
        found = variants_of("aten._fused_rms_norm.default", Arguments((x, [terms], weight, 1e-6), {}), [y, scale], [format.name] * 2)
        assert found is not None
        return winners(found)

    assert of_layer() == [plain]
    assert of_root() == [plain]
    if short:
        assert of_layer(cast=True) == [f"normalised value rounded to {short} before the weight"]
        assert of_root(cast=True) == [f"normalised value rounded to {short} before the weight"]
        assert of_root(narrow_sum=True) == [f"sums one after another in {short}"]


@pytest.mark.parametrize(("format", "mean"), [(FLOAT32, 30.0), (FLOAT32, 300.0), (FLOAT16, 100.0)])
def test_one_pass_variance_shows_where_the_mean_is_large(format: Format, mean: float) -> None:
    x = round_to(np.random.default_rng(3).standard_normal((64, 1024)) + mean, format)
    for how, expected in (
        ("two", "variance in two passes, or Welford's"),
        ("welford", "variance in two passes, or Welford's"),
        ("one", "variance in one pass, E[x^2] - mean^2"),
    ):
        y, _, _ = layer_norm(x, np.ones(1024), np.zeros(1024), 1e-5, format, how=how)
        found = variants_of("aten.layer_norm.default", Arguments((x, [1024], None, None, 1e-5), {}), [y], [format.name])
        assert found is not None
        assert [expected] == [one.name for one in found.hypotheses if one.won and one.name.startswith("variance in")], found.statement


def test_a_small_mean_does_not_tell_how_the_variance_was_summed() -> None:
    x = np.random.default_rng(3).standard_normal((64, 1024)).astype(np.float32).astype(np.float64)
    for how in ("two", "one"):
        y, _, _ = layer_norm(x, np.ones(1024), np.zeros(1024), 1e-5, FLOAT32, how=how)
        found = variants_of("aten.layer_norm.default", Arguments((x, [1024], None, None, 1e-5), {}), [y], ["float32"])
        assert found is not None
        assert "Two passes and one pass of the variance are not told apart" in found.statement


@pytest.mark.parametrize("format", [FLOAT32, BFLOAT16, FLOAT16])
def test_epsilon_is_fitted(format: Format) -> None:
    for seed in range(3):
        x = round_to(np.random.default_rng(seed).standard_normal((256, 512)) * 0.05, format)
        for used in (1e-5, 2e-5):
            y, _ = rms_norm(x, np.ones(512), used, format)
            found = variants_of("aten.rms_norm.default", Arguments((x, [512], None, 1e-5), {}), [y], [format.name])
            assert found is not None
            assert found.fits[0].inside == (used == 1e-5), found.fits[0].text
            assert abs(found.fits[0].value - used) < 0.1 * used
            assert ("epsilon fitted" in found.statement) == (used != 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_torch_cpu_norms(dtype: torch.dtype) -> None:
    x, weight, bias = normal(200, 768, dtype=dtype), normal(768, dtype=dtype, seed=1), normal(768, dtype=dtype, seed=2)
    plain = "fp32 throughout" if dtype == torch.float32 else "statistics and products in fp32, rounded once"
    for found in (
        said_of(aten.native_layer_norm.default, x, [768], weight, bias, 1e-5),
        said_of(aten._fused_rms_norm.default, x, [768], weight, 1e-6),
        said_of(aten.native_group_norm.default, x.reshape(4, 50, 768)[:, :48].contiguous(), weight[:48], bias[:48], 4, 48, 768, 8, 1e-5),
    ):
        assert winners(found) == [plain], found.statement
        assert all(one.inside for one in found.fits)
    image = normal(4, 32, 10, 10, dtype=dtype, seed=3)
    batch = said_of(aten.native_batch_norm.default, image, weight[:32], bias[:32], None, None, True, 0.1, 1e-5)
    kept = plain if dtype == torch.float32 else "mean and scale as recorded, in 16 bits"
    assert kept in [name for one in batch.hypotheses if one.won for name in (one.name, *one.also)], batch.statement


@pytest.mark.parametrize("format", [BFLOAT16, FLOAT16])
def test_what_a_softmax_rounds_is_named(format: Format) -> None:
    x = round_to(np.random.default_rng(0).standard_normal((96, 700)) * 3.0, format)
    short = {"bfloat16": "bf16", "float16": "fp16"}[format.name]
    for log, narrow in ((False, f"denominator rounded to {short}"), (True, f"logarithm of the sum rounded to {short}")):
        for expected, total in (("fp32, rounded once, the maximum subtracted", None), (narrow, format)):
            operator = "aten._log_softmax.default" if log else "aten._softmax.default"
            made = softmax(x, format, total=total, log=log)
            found = variants_of(operator, Arguments((x, -1, False), {}), [made], [format.name])
            assert found is not None
            assert winners(found) == [expected], found.statement


def test_torch_cpu_log_softmax_keeps_its_sum_in_16_bits() -> None:
    found = said_of(aten._log_softmax.default, normal(200, 500, dtype=torch.bfloat16), -1, False)
    assert winners(found) == ["sum and its logarithm rounded to bf16"]
    plain = said_of(aten._softmax.default, normal(200, 500, dtype=torch.bfloat16), -1, False)
    assert plain.hypotheses[0].also == ("fp32, rounded once, without subtracting the maximum",)
    assert plain.statement.startswith("Not told apart: ")


def test_fast_exponential_is_as_good_as_its_polynomial() -> None:
    """2^-14 relative: far less than fp32 holds, far more than 16 bits show."""
    x = -np.abs(np.random.default_rng(0).standard_normal(1 << 14)) * 4.0
    x = x.astype(np.float32).astype(np.float64)
    off = (fast_exp(x) / np.exp(x) - 1.0) * 2.0**24
    assert 800 < float(np.sqrt(np.mean(np.square(off)))) < 1024
    assert 1024 < float(np.abs(off).max()) < 2048
    assert [0.0, 0.0] == fast_exp(np.full(32, -np.inf))[:2].tolist()


def test_other_operators_and_formats_are_none() -> None:
    x = np.ones((4, 4))
    assert variants_of("aten.mm.default", Arguments((x, x), {}), [x], ["float32"]) is None
    assert variants_of("aten._softmax.default", Arguments((x, -1, False), {}), [x], ["float64"]) is None
    assert variants_of(ATTENTION, Arguments((x, x, x, 0.5), {}), [x], ["float32"]) is None
    assert variants_of("vendor.attention.default", Arguments((x,), {}), [x], ["float32"]) is None


def test_arguments_that_do_not_fit_are_said() -> None:
    x = np.ones((2, 8, 4))
    with pytest.raises(ContractError):
        variants_of(ATTENTION, Arguments((x,), {}), [x], ["float32"])
    with pytest.raises(ContractError):
        variants_of(ATTENTION, Arguments((x, np.ones((2, 8, 5)), x), {}), [x], ["float32"])


def test_a_large_call_is_sampled() -> None:
    """64 queries of 8 heads; a decoding step has one query a head, and its keys are bounded."""
    key = np.broadcast_to(np.float64(0.5), (1, 8, 4096, 128))
    for length in (4096, 1):
        query = np.broadcast_to(np.float64(0.25), (1, 32, length, 128))
        arguments = Arguments((query, key, key, None, 0.0, length > 1), {"enable_gqa": True})
        rows = sampled("scaled_dot_product_attention", arguments, query)
        assert rows is not None
        assert rows.query.shape == (8, 8 if length > 1 else 1, 128)
        assert rows.key.shape == rows.value.shape == (8, 4096, 128)
        assert rows.heads * rows.queries == 32 * length


def test_grouped_heads_and_masks_are_those_of_the_call() -> None:
    random = np.random.default_rng(0)
    query, key = random.standard_normal((2, 4, 6, 3)), random.standard_normal((2, 2, 5, 3))
    mask = random.standard_normal((2, 1, 6, 5)) > 0
    rows = sampled("scaled_dot_product_attention", Arguments((query, key, key, mask, 0.0, True), {}), query)
    assert rows is not None
    assert np.array_equal(rows.key[5], key[1, 0])  # head 5 of 8 is batch 1, head 1, which reads the first of two key heads
    expected = np.where(mask[1, 0] & np.tri(6, 5, dtype=bool), 0.0, -np.inf)
    assert rows.mask is not None
    assert np.array_equal(rows.mask[5], expected)
