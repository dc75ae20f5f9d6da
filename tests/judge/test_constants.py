"""Constants of two runs held against each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from layerdiff.arithmetic.formats import format_named, round_to
from layerdiff.judge.programs.constants import NARROW, Constants, as_mask, is_masked, rounded_once, within_rounding
from layerdiff.judge.programs.reading import Reading
from layerdiff.replay.recorded import Recorded
from layerdiff.sides import Both
from tests.programs import opened, random, record, seeded

X = np.array([1.0, -0.3, 3.0e-3, 700.1])


def rounded(x: np.ndarray, name: str) -> np.ndarray:
    format = format_named(name)
    assert format is not None
    return round_to(x, format)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_a_rounding_is_the_same_constant_in_both_directions(name: str) -> None:
    wide = rounded(X, "float32")
    assert within_rounding(wide, rounded(wide, name), "float32", name)
    assert within_rounding(rounded(wide, name), wide, name, "float32")


def test_more_than_half_an_ulp_is_another_constant() -> None:
    # 1 + 2^-8 lies half way between two neighbours of bfloat16; 1 + 3 * 2^-8 rounds to 1 + 2^-6, never to 1
    assert within_rounding(np.array([1.0 + 2.0**-8]), np.array([1.0]), "float32", "bfloat16")
    assert not within_rounding(np.array([1.0 + 3 * 2.0**-8]), np.array([1.0]), "float32", "bfloat16")


def test_one_dtype_allows_nothing() -> None:
    assert within_rounding(X, X, "float32", "float32")
    assert not within_rounding(X, np.nextafter(X, np.inf), "float32", "float32")


def test_subnormal_numbers_differ_by_half_of_the_smallest() -> None:
    # the smallest number of float16 is 2^-24: a third of it rounds to 0
    assert within_rounding(np.array([2.0**-24 / 3]), np.array([0.0]), "float32", "float16")
    assert not within_rounding(np.array([2.0**-24]), np.array([0.0]), "float32", "float16")


def test_roundings_to_two_narrow_dtypes_are_one_constant() -> None:
    assert within_rounding(rounded(X, "bfloat16"), rounded(X, "float16"), "bfloat16", "float16")


def test_whole_numbers_are_never_rounded() -> None:
    assert not within_rounding(np.array([1, 2]), np.array([1, 3]), "int64", "int32")


@pytest.mark.parametrize("lowest", [-np.inf, -3.4028234663852886e38, -3.3895313892515355e38, -65504.0])
def test_what_hides_in_a_mask_is_one_meaning(lowest: float) -> None:
    assert [True, False, False] == is_masked(np.array([lowest, 0.0, -1e4])).tolist()
    assert within_rounding(np.array([0.0, lowest]), np.array([0.0, -np.inf]), "float32", "bfloat16")


def test_a_mask_in_the_representation_of_another() -> None:
    seen = np.array([True, False])
    assert [0.0, -np.inf] == as_mask(seen, np.zeros(2)).tolist()
    assert [0.0, -65504.0] == as_mask(seen, np.array([0.0, -65504.0])).tolist()
    assert [True, False] == as_mask(np.array([0.0, -np.inf]), seen).tolist()
    assert [1.0, 2.0] == as_mask(np.array([1.0, 2.0]), np.zeros(2)).tolist()


def test_a_constant_that_was_rounded_once_and_kept_wide() -> None:
    assert "bfloat16" == rounded_once(X, rounded(X, "bfloat16"), NARROW)
    assert "float16" == rounded_once(X, rounded(X, "float16"), NARROW)
    assert rounded_once(X, X * (1 + 1e-3), NARROW) is None
    assert rounded_once(X, rounded(X * (1 + 1e-2), "bfloat16"), NARROW) is None


class Part(nn.Module):
    """Reads the second half of its weight through a view, and nothing else."""

    def __init__(self, **weights: torch.Tensor) -> None:
        super().__init__()
        for name, weight in weights.items():
            self.register_parameter(name, nn.Parameter(weight, requires_grad=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for _, weight in sorted(self.named_parameters()):
            y = y * weight[2:].sum()
        return y


def constants(folder: Path, reference: nn.Module, target: nn.Module, **options: str) -> tuple[Both[Recorded], Constants]:
    x = torch.ones(3)
    runs = opened(record(folder / "r.h5", reference, x, **options), record(folder / "t.h5", target, x, **options)).map(Recorded)
    return runs, Constants(runs, Reading(runs))


def test_constants_are_paired_by_name(tmp_path: Path) -> None:
    ours = Part(same=random(4), coarse=random(4, seed=3), other=random(4, seed=4), ours=random(4))
    theirs = Part(same=random(4), coarse=random(4, seed=3).bfloat16(), other=random(4, seed=5), theirs=random(4))
    _, found = constants(tmp_path, ours, theirs)
    same, coarse, other = (found.pair(name) for name in ("same", "coarse", "other"))
    assert same is not None and coarse is not None and other is not None
    assert [True, True, False] == [same.same, coarse.same, other.same]
    rms = float(random(4, seed=4).double().square().mean().sqrt())
    assert float((random(4, seed=5) - random(4, seed=4)).abs().max()) / rms == pytest.approx(other.difference, rel=1e-6)
    assert found.pair("ours") is None
    assert found.number("reference", "coarse") == found.number("target", "coarse")
    assert found.number("reference", "other") != found.number("target", "other")


def test_what_the_reference_reads_of_a_constant_is_the_targets_where_it_is_the_same(tmp_path: Path) -> None:
    ours, theirs = Part(w=random(4)), Part(w=random(4).bfloat16())
    runs, found = constants(tmp_path, ours, theirs)
    views = [
        v for v in range(len(runs.reference.file.values)) if runs.reference.weight(v) is not None and runs.reference.file.shape(v) == (2,)
    ]
    weight = runs.reference.weight(views[0])
    assert weight is not None
    assert random(4).bfloat16()[2:].double().tolist() == found.contents(weight, views[0]).tolist()


def test_a_constant_that_differs_is_read_as_the_reference_has_it(tmp_path: Path) -> None:
    ours, theirs = Part(w=random(4)), Part(w=random(4, seed=9))
    runs, found = constants(tmp_path, ours, theirs)
    whole = next(v for v in range(len(runs.reference.file.values)) if runs.reference.file.shape(v) == (4,))
    weight = runs.reference.weight(whole)
    assert weight is not None
    assert random(4).double().tolist() == found.contents(weight, whole).tolist()


@pytest.mark.parametrize(
    ("ours", "theirs", "difference"),
    [
        ([True, False, True, True], [True, True, True, True], 1 / 0.75**0.5),
        ([-torch.inf] * 4, [-torch.inf, -torch.inf, -1e4, -1e4], 0.0),
        ([3j, 4.0, 0.0, 0.0], [3j, 4j, 0.0, 0.0], 32**0.5 / 2.5),
        (torch.tensor([0, 1, 2, 3], dtype=torch.uint8), torch.tensor([3, 1, 2, 0], dtype=torch.uint8), 3 / 3.5**0.5),
    ],
    ids=["booleans", "nothing finite", "complex", "bytes"],
)
def test_how_far_constants_of_any_kind_are_apart(tmp_path: Path, ours: object, theirs: object, difference: float) -> None:
    _, found = constants(tmp_path, Part(w=torch.as_tensor(ours)), Part(w=torch.as_tensor(theirs)))
    pair = found.pair("w")
    assert pair is not None
    assert (False, pytest.approx(difference)) == (pair.same, pair.difference)


@pytest.mark.parametrize(
    "arrange", [lambda a, b: torch.cat([a, b]), lambda a, b: torch.cat([b, a]).T.contiguous(), lambda a, b: torch.stack([b, a])]
)
def test_a_constant_that_is_a_part_of_another_in_another_dtype(tmp_path: Path, arrange: object) -> None:
    a, b = random(4, 3), random(4, 3, seed=7)
    ours, theirs = Part(a=a, b=b), Part(ab=arrange(a, b).bfloat16())  # type: ignore[operator]
    runs, found = constants(tmp_path, ours, theirs)
    weight = next(one for v in range(len(runs.reference.file.values)) if (one := runs.reference.weight(v)) and one[:2] == ("b", v))
    assert b.bfloat16().double().tolist() == found.contents(weight, weight.whole).tolist()


def test_a_constant_of_which_one_row_is_elsewhere_lies_in_no_other(tmp_path: Path) -> None:
    a, b = random(4, 3), random(4, 3, seed=7)
    wrong = torch.cat([a, b])
    wrong[5] *= 1.5
    runs, found = constants(tmp_path, Part(a=a, b=b), Part(ab=wrong.bfloat16()))
    weight = next(one for v in range(len(runs.reference.file.values)) if (one := runs.reference.weight(v)) and one[:2] == ("b", v))
    assert b.double().tolist() == found.contents(weight, weight.whole).tolist()


def test_state_is_no_constant(tmp_path: Path) -> None:
    """A buffer that is written to while recording is what it was at each call."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.ones(3))
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += self.kept
            return x * self.count

    runs, _ = constants(tmp_path, seeded(Counting()), seeded(Counting()))
    names = {weight[0] for v in range(len(runs.target.file.values)) if (weight := runs.target.weight(v)) is not None}
    assert {"kept"} == names
