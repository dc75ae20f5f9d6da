from __future__ import annotations

import numpy as np
import pytest

from layerdiff.arithmetic.contract import EXACT, ContractError, Spread
from layerdiff.arithmetic.formats import BFLOAT16, FLOAT32, round_to
from layerdiff.arithmetic.own import own_replay, replay_call
from layerdiff.arithmetic.registry import contract_of
from layerdiff.arithmetic.verdict import Own
from layerdiff.trace.arguments import Arguments


def ladder(recorded, exact, sigma=0.0, bound=0.0, terms=1, dtype="float32", accumulator=FLOAT32, **more) -> Own:
    spread = Spread(np.full(np.shape(exact), sigma), np.full(np.shape(exact), bound), terms)
    return own_replay([np.asarray(recorded)], [dtype], [np.asarray(exact)], [spread], accumulator, **more)


def test_a_correct_rounding_is_identical() -> None:
    exact = np.linspace(0.1, 0.9, 100)
    own = ladder(round_to(exact, FLOAT32), exact)
    assert ("identical", 100, 0.0) == (own.verdict, own.count, own.zmax)


def test_below_sixteen_terms_the_bound_decides_both_ways() -> None:
    exact = np.ones(100)
    recorded = exact.copy()
    recorded[7] = 1.0 + 2.0**-10
    excess = 2.0**-10 - 2.0**-24
    assert "order-consistent" == ladder(recorded, exact, bound=excess, terms=15).verdict
    own = ladder(recorded, exact, bound=excess * 0.999, terms=15)
    assert ("defect", None, 7, 1) == (own.verdict, own.cause, own.worst, own.evidence["outside"])
    assert excess / (excess * 0.999) == pytest.approx(own.measured)


@pytest.mark.parametrize(("size", "verdict"), [(1.4, "order-consistent"), (1.6, "unexplained")])
def test_a_sum_is_acquitted_by_the_root_mean_square_of_z(size: float, verdict: str) -> None:
    exact = np.ones(1000)
    sigma = 2.0**-12
    recorded = exact + 2.0**-24 + size * sigma
    own = ladder(recorded, exact, sigma=sigma, bound=1.0, terms=16, dtype="float32")
    assert verdict == own.verdict
    assert (size, 1.5) == (pytest.approx(own.zrms, rel=1e-3), own.allowed)


def test_one_element_beyond_twelve_sigma_is_enough() -> None:
    exact = np.ones(10000)
    recorded = exact.copy()
    recorded[5000] += 13 * 2.0**-12
    own = ladder(recorded, exact, sigma=2.0**-12, bound=1.0, terms=100)
    assert ("unexplained", 5000, 12.0) == (own.verdict, own.worst, own.allowed)
    assert 13.0 == pytest.approx(own.measured, rel=1e-3)


def test_outside_the_bound_a_sum_is_a_defect() -> None:
    exact = np.ones(1000)
    own = ladder(exact + 0.5, exact, sigma=2.0**-12, bound=0.25, terms=100)
    assert ("defect", 1.0, 1000) == (own.verdict, own.allowed, own.evidence["outside"])


def test_few_results_are_held_against_the_bound_only_and_say_so() -> None:
    exact = np.ones(63)
    own = ladder(exact + 2.0**-8, exact, sigma=2.0**-20, bound=2.0**-7, terms=100)
    assert ("order-consistent", "4: bound only, 63 outputs") == (own.verdict, own.rung)
    assert "unexplained" == ladder(np.ones(64) + 2.0**-8, np.ones(64), sigma=2.0**-20, bound=2.0**-7, terms=100).verdict


def test_a_wide_error_over_an_accumulator_of_bfloat16_is_not_judged() -> None:
    exact = np.ones(1000)
    own = ladder(exact * 1.5, exact, sigma=2.0**-8, bound=0.1, terms=64, dtype="bfloat16", accumulator=BFLOAT16)
    assert ("not-comparable", "statistics not valid", 0.25) == (own.verdict, own.rung, own.measured)
    assert "defect" == ladder(exact * 1.5, exact, sigma=2.0**-8, bound=0.1, terms=63, dtype="bfloat16", accumulator=BFLOAT16).verdict


def test_without_a_spread_results_are_compared_exactly() -> None:
    exact = np.ones(1000)
    recorded = exact.copy()
    recorded[1] = 1.0 + 2.0**-23
    assert "defect" == ladder(recorded, exact, terms=1).verdict
    assert "defect" == ladder(recorded, exact, terms=100).verdict


def test_not_finite_where_the_exact_result_is_finite_is_broken() -> None:
    exact = np.ones(100)
    recorded = exact.copy()
    recorded[[3, 4]] = np.nan, np.inf
    own = ladder(recorded, exact, bound=1.0)
    assert ("broken", 3, 2.0) == (own.verdict, own.worst, own.measured)


def test_overflow_of_the_results_format_is_legitimate() -> None:
    exact = np.array([70000.0, -70000.0, 1.0])
    assert "identical" == ladder([np.inf, -np.inf, 1.0], exact, dtype="float16").verdict
    assert "defect" == ladder([-np.inf, -np.inf, 1.0], exact, dtype="float16").verdict
    assert "identical" == ladder([np.nan, np.nan, 1.0], exact, dtype="float8_e4m3fn").verdict


def test_an_infinite_bound_lets_an_infinite_result_pass() -> None:
    assert "identical" == ladder([np.inf, 1.0], np.array([5.0, 1.0]), bound=np.array([np.inf, 0.0])).verdict
    assert "broken" == ladder([np.inf, np.inf], np.array([5.0, 1.0]), bound=np.array([np.inf, 0.0])).verdict
    assert "not-comparable" == ladder([np.inf, 1.0], np.array([5.0, 1.0]), bound=np.inf).verdict


def test_nan_and_infinity_are_held_by_position() -> None:
    exact = np.array([np.nan, np.inf, -np.inf, 1.0])
    assert "identical" == ladder(exact, exact).verdict
    for wrong in ([0.0, np.inf, -np.inf, 1.0], [np.nan, -np.inf, -np.inf, 1.0], [np.nan, np.inf, -3e38, 1.0]):
        assert "defect" == ladder(wrong, exact).verdict


def test_a_subnormal_may_be_flushed_to_zero_but_not_in_half() -> None:
    assert "identical" == ladder([0.0, 1.0], np.array([1e-39, 1.0])).verdict
    assert "defect" == ladder([0.0, 1.0], np.array([3e-38, 1.0])).verdict
    assert "defect" == ladder([0.0, 1.0], np.array([3e-5, 1.0]), dtype="float16").verdict


def test_dead_elements_are_left_out() -> None:
    exact = np.ones(100)
    recorded = exact.copy()
    recorded[3] = np.nan
    dead = np.zeros(100, bool)
    dead[3] = True
    own = ladder(recorded, exact, dead=[dead])
    assert ("identical", 99) == (own.verdict, own.count)


def test_integers_are_exact_unless_the_bound_leaves_them_open() -> None:
    assert "identical" == ladder(np.arange(5), np.arange(5), dtype="int64").verdict
    own = ladder(np.array([0, 1, 3]), np.arange(3), dtype="int64")
    assert ("defect", 2, 1.0) == (own.verdict, own.worst, own.measured)
    assert "order-consistent" == ladder(np.array([0, 1, 3]), np.arange(3), bound=1.0, dtype="int64").verdict


def test_the_worst_result_speaks_for_the_call() -> None:
    good, bad = np.ones(3), np.array([1.0, 1.0, 2.0])
    own = own_replay([good, bad, good], ["float32"] * 3, [np.ones(3)] * 3, [EXACT] * 3, FLOAT32)
    assert ("defect", 1, 2) == (own.verdict, own.evidence["result"], own.worst)


def test_another_shape_is_not_comparable() -> None:
    assert "not-comparable" == ladder(np.ones(3), np.ones(4)).verdict


def test_sigma_is_refined_where_the_closed_form_is_too_small() -> None:
    exact = np.ones(1000)
    recorded = exact + 2.0**-24 + 10 * 2.0**-12
    asked = []

    def refine(flat):
        asked.append(flat.size)
        return np.full(flat.size, 2.0**-8)

    spread = Spread(np.full(1000, 2.0**-12), np.ones(1000), 100, refine)
    assert "order-consistent" == own_replay([recorded], ["float32"], [exact], [spread], FLOAT32).verdict
    assert [1000] == asked


def test_arguments_that_do_not_fit_and_sizes_without_bound_are_no_crash() -> None:
    for name, arguments in [
        ("aten.mm.default", (np.ones((3, 4)), np.ones((5, 6)))),
        ("aten.embedding.default", (np.ones((3, 4)), np.array([7]))),
        ("aten.repeat.default", (np.ones(3), [1 << 40])),
        ("aten.arange.default", (1 << 40,)),
        ("aten.constant_pad_nd.default", (np.ones(3), [0, 1 << 40])),
        ("aten.mm.default", (np.ones((1 << 17, 1)), np.ones((1, 1 << 17)))),
        ("aten.add.Tensor", (np.ones(3),)),
    ]:
        contract = contract_of(name)
        assert contract is not None
        with pytest.raises(ContractError):
            replay_call(contract, Arguments(arguments, {}), [np.ones(3)], ["float32"])
