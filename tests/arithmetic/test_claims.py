"""What the statistics claim, each reproduced on emulated kernels with a known truth (and one small network in bf16)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from layerdiff.arithmetic.contracts.matmul import sum_of_squares
from layerdiff.arithmetic.formats import BFLOAT16, FLOAT32, TF32, Format, round_to
from layerdiff.arithmetic.own import replay_call
from layerdiff.arithmetic.registry import contract_of
from layerdiff.arithmetic.verdict import Own
from layerdiff.trace.arguments import Arguments
from tests.arithmetic.calls import replayed
from tests.arithmetic.orders import BUGS, ORDERS, chain, data, int8_weights, narrow_chain

KINDS = ["gauss", "relu", "positive", "outliers"]
GOOD = ("identical", "order-consistent")


def own_of(x, w, y, format: Format = FLOAT32, accumulator: Format = FLOAT32) -> Own:
    contract = contract_of("aten.mm.default")
    assert contract is not None
    return replay_call(contract, Arguments((x, w), {}), [round_to(y, format)], [format.name], accumulator)


@pytest.mark.parametrize("order", ["sequential", "reversed", "shuffled"])
@pytest.mark.parametrize("terms", [256, 4096])
def test_sigma_is_calibrated_for_chains_in_fp32(order: str, terms: int) -> None:
    x, w = data("gauss", 48, 48, terms, FLOAT32, seed=terms)
    contract, arguments = contract_of("aten.mm.default"), Arguments((x, w), {})
    assert contract is not None and contract.exact is not None
    exact = contract.exact(arguments)
    (spread,) = contract.spread(arguments, exact, FLOAT32)
    y = ORDERS[order](x, w)
    assert 0.9 <= np.sqrt(np.mean(np.square((y - exact[0]) / spread.sigma))) <= 1.25
    assert 0.85 <= own_of(x, w, y).zrms <= 1.25  # the excess leaves the last of the roundings out


@pytest.mark.parametrize("kind", KINDS)
def test_no_order_is_a_fault_and_every_fault_is_found_in_fp32(kind: str) -> None:
    x, w = data(kind, 24, 24, 256, FLOAT32, seed=257)
    for name, order in ORDERS.items():
        own = own_of(x, w, order(x, w))
        assert own.verdict in GOOD, (name, own)
    for name, bug in BUGS.items():
        own = own_of(x, w, bug(x, w))
        assert own.verdict in ("precision", "defect", "unexplained"), (name, own)


@pytest.mark.parametrize("kind", KINDS)
def test_a_factor_of_one_part_in_ten_thousand_is_seen_through_bf16_where_assert_close_sees_nothing(kind: str) -> None:
    x, w = data(kind, 64, 64, 1024, BFLOAT16, seed=5)
    y = chain(x, w)
    assert own_of(x, w, y, BFLOAT16).verdict in GOOD
    wrong = own_of(x, w, y * 1.0001, BFLOAT16)
    assert ("defect", "scale") == (wrong.verdict, wrong.cause)
    assert wrong.evidence["factor"] == pytest.approx(1.0001, abs=5e-6)
    torch.testing.assert_close(torch.from_numpy(y * 1.0001).bfloat16(), torch.from_numpy(y).bfloat16())


@pytest.mark.parametrize("format", [FLOAT32, BFLOAT16])
def test_a_dropped_split_is_recovered_to_the_term(format: Format) -> None:
    x, w = data("gauss", 48, 48, 2048, format, seed=2)
    kept = np.r_[0:512, 768:2048]
    own = own_of(x, w, chain(x[:, kept], w[kept]), format)
    assert ("defect", "k-range-missing", [[512, 768]]) == (own.verdict, own.cause, own.evidence["ranges"])
    twice = own_of(x, w, chain(x, w) + x[:, 1024:1536] @ w[1024:1536], format)
    assert ("defect", "k-range-doubled", [[1024, 1536]]) == (twice.verdict, twice.cause, twice.evidence["ranges"])


def test_int8_weights_and_a_bf16_accumulator_are_told_apart() -> None:
    x, w = data("gauss", 128, 128, 512, FLOAT32, seed=3)
    columns = own_of(x, w, x @ int8_weights(w))
    assert ("precision", "int8-weights") == (columns.verdict, columns.cause)
    groups = own_of(x, w, x @ int8_weights(w, group=64))
    assert ("defect", "weight-side") == (groups.verdict, groups.cause)
    assert groups.evidence["t_weights"] >= 4.0 > abs(groups.evidence["t_inputs"])
    partial = np.zeros((64, 128, 128))
    for k in range(0, 512, 64):
        partial = round_to(partial + x[:, k : k + 64].T[:, :, None] * w[k : k + 64][:, None, :], BFLOAT16)
    lanes = own_of(x, w, partial.sum(0))
    assert ("precision", "bf16-accumulator") == (lanes.verdict, lanes.cause)
    assert max(abs(lanes.evidence["t_weights"]), abs(lanes.evidence["t_inputs"])) <= 2.5


def test_other_inputs_show_on_the_input_side() -> None:
    x, w = data("gauss", 128, 128, 512, FLOAT32, seed=3)
    moved = x * (1 + 1e-3 * np.random.default_rng(0).standard_normal(x.shape))
    own = own_of(x, w, moved @ w)
    assert ("defect", "input-side") == (own.verdict, own.cause)


def test_a_declared_bf16_accumulator_over_4096_terms_has_no_valid_statistics() -> None:
    x, w = data("gauss", 32, 32, 4096, BFLOAT16, seed=4)
    order = np.random.default_rng(4).permutation(4096)
    own = own_of(x, w, narrow_chain(x[:, order], w[order]), BFLOAT16, accumulator=BFLOAT16)
    assert ("not-comparable", "statistics not valid", 16.0) == (own.verdict, own.rung, own.measured)


def test_a_declared_bf16_accumulator_in_an_order_that_is_tried_is_reproduced() -> None:
    x, w = data("gauss", 32, 32, 4096, BFLOAT16, seed=4)
    own = own_of(x, w, narrow_chain(x, w), BFLOAT16, accumulator=BFLOAT16)
    assert ("order-exact", "sequential", 1024) == (own.verdict, own.evidence["order"], own.evidence["made"])


def test_lower_precision_is_named_by_doing_it() -> None:
    x, w = data("gauss", 48, 48, 512, FLOAT32, seed=6)
    found = {
        "tf32": chain(round_to(x, TF32), round_to(w, TF32)),
        "bf16-operands": chain(round_to(x, BFLOAT16), round_to(w, BFLOAT16)),
        "bf16-partials": BUGS["bf16 partials"](x, w),
        "bf16-accumulator": narrow_chain(x, w),
        "bf16-result": round_to(chain(x, w), BFLOAT16),
    }
    assert {name: ("precision", name) for name in found} == {
        name: ((own := own_of(x, w, y)).verdict, own.cause) for name, y in found.items()
    }


def test_a_bias_left_out_is_a_factor_of_zero_on_what_is_added() -> None:
    x, w = data("gauss", 48, 48, 64, FLOAT32, seed=8)
    bias = np.random.default_rng(1).standard_normal(48)
    contract = contract_of("aten.addmm.default")
    assert contract is not None
    own = replay_call(contract, Arguments((bias, x, w), {}), [round_to(x @ w, FLOAT32)], ["float32"])
    assert ("defect", "scale", "what is added to the product") == (own.verdict, own.cause, own.evidence["part"])
    assert own.evidence["factor"] == pytest.approx(0.0, abs=1e-5)


def test_noise_that_no_test_knows_stays_without_a_name() -> None:
    x, w = data("gauss", 48, 48, 512, FLOAT32, seed=9)
    y = chain(x, w)
    y[5, 7] += 0.01
    own = own_of(x, w, y)
    assert own.verdict in ("defect", "unexplained")
    assert (None, 5 * 48 + 7) == (own.cause, own.worst)


def test_a_fault_in_one_of_six_layers_stands_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = [(torch.randn(256, 256, generator=generator) / 16).bfloat16() for _ in range(6)]
    x = torch.randn(64, 256, generator=generator).bfloat16()
    found = []
    for layer, weight in enumerate(weights):

        def scaled(results, layer=layer):
            if layer == 3:
                results[0][:] = round_to(results[0] * 1.002, BFLOAT16)

        found.append(replayed(torch.ops.aten.mm.default, x, weight, change=scaled))
        y = x @ weight
        x = torch.nn.functional.gelu((y.float() * 1.002).bfloat16() if layer == 3 else y)
    assert [3] == [layer for layer, own in enumerate(found) if own.verdict not in GOOD]
    assert found[3].zrms > 100.0
    assert max(own.zrms for layer, own in enumerate(found) if layer != 3) < 0.02  # a few elements beside a border of bf16


def test_the_bound_of_a_sum_never_acquits_many_results() -> None:
    x, w = data("gauss", 48, 48, 1024, FLOAT32, seed=10)
    size = np.abs(x) @ np.abs(w)
    y = x @ w + 0.5 * 1024 * 2.0**-24 * size * np.sign(np.random.default_rng(0).standard_normal((48, 48)))
    own = own_of(x, w, y)
    assert "unexplained" == own.verdict
    assert own.evidence["excess"] < own.evidence["bound"]


def test_terms_in_no_exchangeable_order_are_judged_by_their_own_prefix_sums() -> None:
    random = np.random.default_rng(0)
    large = random.standard_normal((24, 4)) * 1e4
    x = round_to(np.concatenate([large, random.standard_normal((24, 2040)), -large], axis=1), FLOAT32)
    w = np.ones((2048, 24))
    assert own_of(x, w, chain(x, w)).verdict in GOOD


@pytest.mark.parametrize("factor", [0.0, 2.0, 1.5])
def test_a_result_that_is_not_a_product_shows_its_factor_too(factor: float) -> None:
    own = replayed(
        torch.ops.aten.gelu.default, torch.randn(500, generator=torch.Generator().manual_seed(0)), change=lambda r: r[0].__imul__(factor)
    )
    assert ("defect", "scale") == (own.verdict, own.cause)
    assert own.evidence["factor"] == pytest.approx(factor, abs=1e-5)


def test_one_signed_sums_on_a_coarse_grid_are_biased_and_allowed_for() -> None:
    x = round_to(np.random.default_rng(0).standard_normal((200, 4096)), BFLOAT16)
    squares = np.square(x)
    chained = np.cumsum(squares.astype(np.float32), axis=1, dtype=np.float32)[:, -1].astype(np.float64)
    exact = squares.sum(1)
    bias = float(np.mean((chained - exact) / exact)) * 2.0**24
    assert -75.0 < bias < -50.0  # in u; a half of 4096 additions times the allowance of 0.03 is 61
    contract = contract_of("aten.sum.dim_IntList")
    assert contract is not None
    own = replay_call(contract, Arguments((squares, [1]), {}), [chained], ["float32"])
    assert "order-consistent" == own.verdict
    assert own.zrms == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("tiny", [1e-9, 1e-15, 1e-30])
def test_a_sum_of_squares_in_fp32_loses_no_row_that_only_small_elements_make(tiny: float) -> None:
    random = np.random.default_rng(0)
    x, w = random.standard_normal((64, 1024)), random.standard_normal((1024, 256))
    x[3, 1:] *= tiny
    w[0] = 0.0
    w[5] *= tiny
    np.testing.assert_allclose(sum_of_squares(x, w), np.square(x) @ np.square(w), rtol=1e-4)
