"""How parts of many ranks are read as one tensor: each reading on numbers that allow no other, and what is said where they do not tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from layerdiff.align import nested
from layerdiff.align.layouts import RANK_BY_RANK, infer_both
from layerdiff.align.matching import matched_places
from layerdiff.align.placement import PAD
from layerdiff.align.placements import APART, by_shapes, infer

Array = NDArray[Any]
Held = list[list[int]]


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def cut(whole: Array, held: Held, dim: int = 0, padding: float = 0.0) -> list[Array]:
    """What ranks hold that have these places; padding where a place is PAD."""
    parts = []
    for at in (np.array(one, np.intp) for one in held):
        part = np.take(whole, np.maximum(at, 0), axis=dim)
        np.moveaxis(part, dim, 0)[at == PAD] = padding
        parts.append(part)
    return parts


def positions(placement: Any) -> Held:
    return [at.tolist() for at in placement.positions]


READINGS: dict[str, tuple[int, Held]] = {
    "contiguous": (8, [[0, 1, 2, 3], [4, 5, 6, 7]]),
    "strided": (9, [[0, 3, 6], [1, 4, 7], [2, 5, 8]]),
    "zigzag": (8, [[0, 1, 6, 7], [2, 3, 4, 5]]),
    "2 blocks, each contiguous": (12, [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]]),
    "3 blocks, each contiguous": (12, [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]]),
    "4 blocks, each contiguous": (16, [[0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15]]),
    "contiguous from the last rank": (6, [[4, 5], [2, 3], [0, 1]]),
    "contiguous, each part on 2 ranks in a row": (6, [[0, 1, 2], [0, 1, 2], [3, 4, 5], [3, 4, 5]]),
    "contiguous, each part on every 2nd rank": (6, [[0, 1, 2], [3, 4, 5], [0, 1, 2], [3, 4, 5]]),
    "contiguous, padded at the end": (7, [[0, 1], [2, 3], [4, 5], [6, PAD]]),
    "contiguous, 3 places a rank, each part padded": (5, [[0, 1, 2, PAD], [3, 4, PAD, PAD]]),
    "contiguous, 2 places a rank, each part padded": (5, [[0, 1, PAD, PAD], [2, 3, 4, PAD]]),
}


def test_complex_numbers_lie_as_others_do() -> None:
    whole = numbers(6, 4) + 1j * numbers(6, 4, seed=1)
    other = numbers(6, 4, seed=2) * 1j
    assert ("contiguous", 0.0) == ((found := infer(whole, cut(whole, [[0, 1, 2], [3, 4, 5]]))).reading, found.error)
    assert ("replicated", 0.0) == ((found := infer(whole, [whole, whole])).kind, found.error)
    assert ("partial", pytest.approx(0.0, abs=1e-6)) == ((found := infer(whole, [whole - other, other])).kind, found.error)
    assert not infer(whole, cut(whole.conj(), [[0, 1, 2], [3, 4, 5]])).fits


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("name", READINGS)
def test_each_reading_is_told_by_its_numbers(name: str, dim: int) -> None:
    size, held = READINGS[name]
    whole = np.moveaxis(numbers(size, 3, 5), 0, dim)
    parts = cut(whole, held, dim)
    placement = infer(whole, parts)
    assert ("sharded", dim, f"sharded along {dim}, {name}", ()) == (placement.kind, placement.dim, placement.name, placement.also)
    assert held == positions(placement)
    assert 0.0 == placement.error
    assert placement.covers(whole.shape)
    assert np.array_equal(whole, placement.joined(parts, whole.shape))
    for rank, part in enumerate(parts):
        assert np.array_equal(part, placement.part(whole, rank))


@pytest.mark.parametrize("name", READINGS)
def test_rounding_changes_no_reading(name: str) -> None:
    size, held = READINGS[name]
    whole = numbers(size, 16)
    parts = [part * (1 + 2.0**-8 * numbers(*part.shape, seed=rank)) for rank, part in enumerate(cut(whole, held))]
    assert held == positions(infer(whole, parts))


def test_parts_of_unequal_size_are_contiguous() -> None:
    whole, held = numbers(7, 3), [[0, 1, 2], [3, 4, 5, 6], []]
    placement = infer(whole, cut(whole, held))
    assert "sharded along 0, contiguous" == placement.name
    assert held == positions(placement)


def test_what_padding_holds_does_not_matter() -> None:
    whole, held = numbers(7, 3), READINGS["contiguous, padded at the end"][1]
    parts = cut(whole, held, padding=1e9)
    placement = infer(whole, parts)
    assert held == positions(placement)
    assert np.array_equal(whole, placement.joined(parts, whole.shape))


def test_fused_blocks_of_unequal_size_are_matched() -> None:
    # 8 rows of queries, 4 of keys, 4 of values; half of each on a rank
    whole, held = numbers(16, 6), [[0, 1, 2, 3, 8, 9, 12, 13], [4, 5, 6, 7, 10, 11, 14, 15]]
    placement = infer(whole, cut(whole, held))
    assert held == positions(placement)
    said = "sharded along 0, matched by its numbers: rank 0 holds [0, 4), [8, 10), [12, 14); rank 1 holds [4, 8), [10, 12), [14, 16)"
    assert said == placement.name
    assert "" == placement.reading


def test_matched_parts_that_lie_on_two_ranks_and_places_on_none_are_said() -> None:
    whole = numbers(8, 6)
    placement = infer(whole, cut(whole, [[1, 2, 3], [1, 2, 3]]))
    assert placement.name.endswith("rank 1 holds [1, 4), some twice, 5 places on no rank")
    assert not placement.covers(whole.shape)


@settings(max_examples=60, deadline=None)
@given(
    dim=st.integers(0, 2),
    ranks=st.integers(2, 4),
    chunk=st.integers(1, 3),
    how=st.sampled_from(["contiguous", "strided", "zigzag", "blocks"]),
    seed=st.integers(0, 99),
)
def test_regular_parts_of_any_size_are_found_and_joined(dim: int, ranks: int, chunk: int, how: str, seed: int) -> None:
    part = 2 * chunk
    held: Held = {
        "contiguous": [[rank * part + i for i in range(part)] for rank in range(ranks)],
        "strided": [[i * ranks + rank for i in range(part)] for rank in range(ranks)],
        "zigzag": [
            [rank * chunk + i for i in range(chunk)] + [(2 * ranks - 1 - rank) * chunk + i for i in range(chunk)] for rank in range(ranks)
        ],
        "blocks": [[block * ranks * chunk + rank * chunk + i for block in range(2) for i in range(chunk)] for rank in range(ranks)],
    }[how]
    whole = np.moveaxis(numbers(ranks * part, 2, 3, seed=seed), 0, dim)
    parts = cut(whole, held, dim)
    placement = infer(whole, parts)
    assert (dim, held, ()) == (placement.dim, positions(placement), placement.also)
    assert np.array_equal(whole, placement.joined(parts, whole.shape))


@pytest.mark.parametrize("seed", range(12))
def test_any_order_is_matched_by_numbers(seed: int) -> None:
    order = np.random.default_rng(seed).permutation(12).tolist()
    whole, held = numbers(12, 8, seed=seed), [order[:5], order[5:]]
    assert held == positions(infer(whole, cut(whole, held)))


# the whole on every rank


def test_a_value_that_all_ranks_hold_is_replicated() -> None:
    whole = numbers(4, 5)
    placement = infer(whole, [whole] * 3)
    assert ("replicated", "replicated", 0.0) == (placement.kind, placement.name, placement.error)


def test_a_rank_with_other_numbers_is_said_and_gives_the_error() -> None:
    whole = numbers(40, 50)
    placement = infer(whole, [whole, 1.25 * whole])
    assert "whole shapes, and the ranks differ" == placement.name
    assert pytest.approx(0.25) == placement.error


def test_parts_of_a_sum_are_partial() -> None:
    first, second = numbers(6, 8), numbers(6, 8, seed=1)
    placement = infer(first + second, [first, second])
    assert "partial" == placement.kind
    assert placement.error < 1e-6
    assert np.allclose(first + second, placement.joined([first, second], (6, 8)))


def test_a_sum_whose_parts_are_mostly_one_rank_s_is_partial() -> None:
    first, second = numbers(60, 80), 0.02 * numbers(60, 80, seed=1)
    assert "partial" == infer(first + second, [first, second]).kind


def test_zeros_on_a_rank_are_its_part_of_the_sum() -> None:
    whole = numbers(6, 8)
    assert "partial" == infer(whole, [whole, np.zeros_like(whole)]).kind


def test_one_rank_alone_is_said() -> None:
    whole = numbers(3, 3)
    assert "on one rank" == infer(whole, [whole]).name


def test_what_is_broadcast_is_the_same_at_every_place() -> None:
    whole = np.broadcast_to(numbers(1, 1, 5, 7), (1, 4, 5, 7))
    parts = [whole[:, :1]] * 2
    placement = infer(whole, parts)
    assert ("replicated", 1) == (placement.kind, placement.dim)
    assert np.array_equal(whole, placement.joined(parts, whole.shape))
    assert np.array_equal(parts[1], placement.part(whole, 1))


def test_one_place_a_rank_of_numbers_that_differ_is_a_shard() -> None:
    whole = numbers(2, 5)
    assert "sharded along 0, contiguous" == infer(whole, [whole[:1], whole[1:]]).name


# what numbers cannot tell


def test_numbers_that_fit_several_readings_keep_them() -> None:
    half = numbers(4, 3)
    whole = np.concatenate([half, half])
    placement = infer(whole, [half, half])
    assert "sharded along 0, contiguous" == placement.name
    assert ("contiguous from the last rank",) == placement.also


def test_a_constant_fits_every_reading() -> None:
    placement = infer(np.zeros((8, 3)), [np.zeros((4, 3))] * 2)
    assert "sharded along 0, contiguous" == placement.name
    assert {"strided", "zigzag", "2 blocks, each contiguous", "contiguous from the last rank"} <= set(placement.also)


def test_where_nothing_fits_the_likely_reading_stands_in() -> None:
    whole = numbers(8, 3)
    parts = [whole[[0, 1, 6, 7]], numbers(4, 3, seed=1)]
    zigzag = infer(whole, cut(whole, READINGS["zigzag"][1]))
    plain, likely = infer(whole, parts), infer(whole, parts, zigzag)
    assert ("sharded along 0, contiguous; no reading fits", False) == (plain.name, plain.fits)
    assert ("sharded along 0, zigzag; no reading fits", False) == (likely.name, likely.fits)


def test_parts_that_were_matched_stand_in_too() -> None:
    weight, value, held = numbers(16, 6), numbers(16, 30, seed=1), [[0, 1, 2, 3, 8, 9, 12, 13], [4, 5, 6, 7, 10, 11, 14, 15]]
    matched = infer(weight, cut(weight, held))
    parts = cut(value + numbers(16, 30, seed=2), held)
    found = infer(value, parts, matched)
    assert (held, False, "") == (positions(found), found.fits, found.reading)
    assert f"{matched.name}; no reading fits" == found.name
    good = infer(value, cut(value, held), matched)
    assert (matched.name, (), "") == (good.name, good.also, good.reading)
    assert held != positions(infer(value, parts))


def test_what_was_matched_yields_to_a_reading_that_fits() -> None:
    weight, value = numbers(8, 6), numbers(8, 30, seed=1)
    matched = infer(weight, cut(weight, [[0, 3, 5, 6], [1, 2, 4, 7]]))
    assert "sharded along 0, contiguous" == infer(value, [value[:4], value[4:]], matched).name


def test_a_rank_of_four_that_is_off_hides_no_reading() -> None:
    whole = numbers(16, 30)
    parts = cut(whole, [[rank * 2, rank * 2 + 1, 14 - rank * 2, 15 - rank * 2] for rank in range(4)])
    parts[2] = parts[2] * 1.5
    assert "sharded along 0, zigzag" == infer(whole, parts).name


# integers, numbers that are none, nothing


@pytest.mark.parametrize("name", ["contiguous", "zigzag", "strided"])
def test_whole_numbers_are_placed_exactly(name: str) -> None:
    size, held = READINGS[name]
    whole = np.arange(size)[None]
    placement = infer(whole, cut(whole, held, 1))
    assert (f"sharded along 1, {name}", held) == (placement.name, positions(placement))


def test_whole_numbers_are_no_parts_of_a_sum() -> None:
    whole = np.arange(8)
    placement = infer(whole, [whole - 3, np.full(8, 3)])
    assert "replicated" == placement.kind
    assert placement.error > 0


def test_bits_are_placed_too() -> None:
    whole = np.random.default_rng(0).integers(0, 2, (8, 9)).astype(bool)
    assert "sharded along 0, strided" == infer(whole, [whole[::2], whole[1::2]]).name


def test_nan_and_infinity_are_left_out() -> None:
    whole = numbers(8, 3)
    whole[2], whole[5, 1] = np.nan, np.inf
    placement = infer(whole, [whole[::2], whole[1::2]])
    assert ("sharded along 0, strided", 0.0) == (placement.name, placement.error)


def test_nothing_but_nan_tells_no_reading() -> None:
    whole = np.full((8, 3), np.nan)
    placement = infer(whole, [whole[:4], whole[4:]])
    assert "sharded along 0, contiguous" == placement.name
    assert "zigzag" in placement.also


@pytest.mark.parametrize(
    ("whole", "parts", "name"),
    [
        ((8, 4), [(3, 4), (3, 4)], "its parts hold 6 of 8 places along dimension 0"),
        ((8, 4), [(4, 4), (5, 4)], "its parts hold 9 of 8 places along dimension 0"),
        ((8, 4), [(4, 2), (4, 2)], "its parts differ from the reference in 2 dimensions"),
        ((8, 4), [(4,), (4, 1)], "its parts have 1, 2 dimensions"),
        ((0, 4), [(1, 4), (1, 4)], "its parts hold 2 of 0 places along dimension 0"),
        ((0, 4), [(1, 4)], "its parts hold 1 of 0 places along dimension 0"),
        ((2, 4), [(0, 4), (0, 4)], "its parts hold 0 of 2 places along dimension 0"),
        ((4, 4), [(0, 4)], "its parts hold 0 of 4 places along dimension 0"),
    ],
)
def test_shapes_that_allow_no_reading_are_said(whole: tuple[int, ...], parts: list[tuple[int, ...]], name: str) -> None:
    placement = infer(numbers(*whole), [numbers(*part, seed=1 + rank) for rank, part in enumerate(parts)])
    assert ("unknown", name) == (placement.kind, placement.name)
    assert by_shapes(whole, parts) is None


def test_nothing_is_replicated() -> None:
    empty = np.zeros((0, 4), np.float32)
    assert ("replicated", 0.0) == (infer(empty, [empty, empty]).kind, infer(empty, [empty, empty]).error)
    assert "replicated" == infer(np.float32(3.0).reshape(()), [np.float32(3.0).reshape(())] * 2).name


# without numbers


def test_shapes_alone_give_the_plain_reading() -> None:
    found = by_shapes((2, 8), [(2, 4), (2, 4)])
    assert found is not None
    assert ("sharded along 1 by its shape; not checked", READINGS["contiguous"][1]) == (found.name, positions(found))
    whole = by_shapes((2, 8), [(2, 8), (2, 8)])
    assert whole is not None
    assert "of the whole shape; not checked" == whole.name


# two layouts of one tensor


def test_two_layouts_are_read_together() -> None:
    x, y = numbers(6, 8), numbers(6, 8, seed=1)
    ours, whole, theirs = infer_both([x[:3], x[3:]], [x[:, :4], x[:, 4:]])
    assert ("sharded along 0, contiguous", "sharded along 1, contiguous") == (ours.name, theirs.name)
    assert np.array_equal(x, whole)
    ours, whole, theirs = infer_both([x - y, y], [x[:3], x[3:]])
    assert ("partial", "sharded along 0, contiguous") == (ours.kind, theirs.name)
    assert np.allclose(x, whole)
    ours, whole, theirs = infer_both([x, 3 * y], [x, 0 * y])  # not the first rank's value as a sum of which the second adds nothing
    assert not theirs.adds_up or ours.adds_up
    ours, whole, theirs = infer_both([x, x], [x - y, y])
    assert ("replicated", "partial") == (ours.kind, theirs.kind)


def test_one_ranks_value_is_not_the_start_of_longer_parts() -> None:
    x, other = numbers(8, 3), numbers(4, 3, seed=1)
    _, whole, theirs = infer_both(np.split(x, 4), [x[:4], other])  # the second rank holds rows of another weight
    assert np.array_equal(whole, x)
    assert ("sharded along 0, contiguous; no reading fits", False) == (theirs.name, theirs.fits)


def test_one_layout_twice_is_laid_rank_by_rank() -> None:
    one, two = numbers(3, 4), numbers(3, 4, seed=1)
    ours, whole, theirs = infer_both([one, two], [one + 1e-3, two])
    assert ours == theirs and RANK_BY_RANK == ours.name
    assert np.array_equal(whole, np.concatenate([one, two], axis=1))


def test_heads_that_two_ranks_hold_are_one() -> None:
    x = numbers(4, 6)
    ours, whole, theirs = infer_both([x[:2], x[:2], x[2:], x[2:]], [x[:2], x[2:]])
    assert np.array_equal(whole, x)
    assert "sharded along 0, contiguous" == theirs.name
    assert [0, 1] == ours.positions[1].tolist()


def test_parts_padded_with_zeros_by_other_sizes() -> None:
    x = numbers(7, 3)
    pad = lambda part, size: np.concatenate([part, np.zeros((size - len(part), 3))])  # noqa: E731
    _, whole, theirs = infer_both([pad(x[:4], 6), pad(x[4:], 6)], [pad(x[:2], 3), pad(x[2:4], 3), pad(x[4:6], 3), pad(x[6:], 3)])
    assert np.array_equal(whole, x)
    assert "sharded along 0, contiguous, 2 places a rank, each part padded" == theirs.name


# ranks that form a grid

GRID = numbers(4, 6, 8)
FOUR = {
    "groups sharded along 0, contiguous; inside, sharded along 2, contiguous (groups 0, 1 | 2, 3)": [
        GRID[:2, :, :4], GRID[:2, :, 4:], GRID[2:, :, :4], GRID[2:, :, 4:],
    ],
    "groups sharded along 2, contiguous; inside, sharded along 0, contiguous (groups 0, 1 | 2, 3)": [
        GRID[:2, :, :4], GRID[2:, :, :4], GRID[:2, :, 4:], GRID[2:, :, 4:],
    ],
    "groups sharded along 1, contiguous; inside, the ranks of each group add up to it (groups 0, 1 | 2, 3)": [
        GRID[:, :3] - GRID[:, 3:], GRID[:, 3:], GRID[:, 3:] - 2.0 * GRID[:, :3], 2.0 * GRID[:, :3],
    ],
    "groups sharded along 1, contiguous; inside, the ranks of each group add up to it (groups 0, 2 | 1, 3)": [
        GRID[:, :3] - GRID[:, 3:], 2.0 * GRID[:, :3], GRID[:, 3:], GRID[:, 3:] - 2.0 * GRID[:, :3],
    ],
    "each group the whole; inside, the ranks of each group add up to it (groups 0, 1 | 2, 3)": [
        GRID - 0.3 * GRID[::-1], 0.3 * GRID[::-1], GRID - 3.0, np.full(GRID.shape, 3.0),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", FOUR)
def test_a_grid(name: str) -> None:
    parts = FOUR[name]
    found = infer(GRID, parts)
    assert ("nested", name) == (found.kind, found.name)
    assert found.covers(GRID.shape)
    assert np.allclose(found.joined(parts, GRID.shape), GRID)
    assert np.allclose(found.joined(found.divided(GRID, 4), GRID.shape), GRID)
    assert [part.shape for part in parts] == [part.shape for part in found.divided(GRID, 4)]
    assert found.adds_up == ("add up" in name)


def test_a_grid_that_leaves_places_out_is_none() -> None:
    parts = [GRID[:2, :, :4], GRID[:2, :, :4], GRID[2:, :, :4], GRID[2:, :, :4]]
    assert "nested" != infer(GRID, parts).kind


def test_parts_of_a_wrong_value_are_not_matched_to_what_they_resemble() -> None:
    x = numbers(16, 24)
    found = infer(x, [x[:8], x[[0, 0, 1, 1, 2, 2, 3, 3]] + 0.15 * numbers(8, 24, seed=3)])  # as causal attention with an offset makes
    assert ("sharded along 0, contiguous; no reading fits", False) == (found.name, found.fits)
    shuffled = np.random.default_rng(0).permutation(16)
    assert "matched" in infer(x, [x[shuffled[:8]], x[shuffled[8:]]]).name  # an order of its own leaves nothing out
    assert "matched" in infer(x, [x[:8], x[:8]]).name  # and a part that is there twice, to the bit, is one


def test_experts_without_tokens_are_read() -> None:
    rows = numbers(6, 4)
    ours, _, theirs = infer_both([rows, rows[:0]], [rows[:0], rows])
    assert ("sharded", [6, 0], [0, 6]) == (ours.kind, [at.size for at in ours.positions], [at.size for at in theirs.positions])


def grid_of_three(x: Array, *, adds_up: bool) -> list[Array]:
    """What 8 ranks hold: halves of the batch, in them zigzag halves of the tokens, in them equal or partial values."""
    parts = []
    for rank in range(8):
        batch, tokens = rank // 4, [[0, 1, 6, 7], [2, 3, 4, 5]][rank // 2 % 2]
        own = x[2 * batch : 2 * batch + 2][:, tokens]
        some = numbers(*own.shape, seed=rank // 2)
        parts.append((own - some if rank % 2 else some) if adds_up else own)
    return parts


@pytest.mark.parametrize("adds_up", [False, True])
def test_ranks_in_a_grid_of_three_dimensions(adds_up: bool) -> None:
    x = numbers(4, 8, 5)
    parts = grid_of_three(x, adds_up=adds_up)
    found = infer(x, parts)
    assert ("nested", True, adds_up) == (found.kind, found.fits, found.adds_up)
    assert np.allclose(x, found.joined(parts, x.shape), atol=1e-5)


def cut_three_times(x: Array, dims: tuple[int, ...], hows: tuple[str, ...]) -> list[Array]:
    """What 8 ranks hold: halves, in them halves, in them halves; of a dimension, of a sum, or the whole twice."""
    parts = [x]
    for dim, how in zip(dims, hows, strict=True):
        made = []
        for i, part in enumerate(parts):
            if how == "cut" and part.shape[dim] % 2 == 0:
                made += np.split(part, 2, axis=dim)
            elif how == "sum":
                some = numbers(*part.shape, seed=100 * dim + i)
                made += [some, part - some]
            else:
                made += [part, part]
        parts = made
    return parts


@pytest.mark.parametrize("noise", [0.0, 0.003, 0.1])
@pytest.mark.parametrize(
    "hows", [("cut",) * 3, ("cut", "whole", "cut"), ("cut", "cut", "sum"), ("whole", "cut", "cut"), ("cut", "sum", "cut")]
)
@pytest.mark.parametrize("dims", [(0, 1, 2), (2, 0, 1), (1, 1, 2)])
def test_grids_that_are_not_tried_would_not_have_been_taken(
    dims: tuple[int, ...], hows: tuple[str, ...], noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = numbers(4, 4, 6)
    parts = cut_three_times((x + noise * numbers(4, 4, 6, seed=7)).astype(np.float32), dims, hows)
    found = infer(x, parts)
    monkeypatch.setattr(nested, "_least_error", lambda whole, parts: 0.0)
    every = infer(x, parts)
    assert (every.kind, every.name, every.error) == (found.kind, found.name, found.error)


@pytest.mark.parametrize("dims", [(0, 1, 2), (2, 1, 0)])
def test_few_grids_are_tried_where_one_fits(dims: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    with_inner = nested._with_inner
    monkeypatch.setattr(nested, "_with_inner", lambda *asked: tried.append(1) or with_inner(*asked))
    x = numbers(4, 16, 32)
    assert "nested" == infer(x, cut_three_times(x + np.float32(0.002) * numbers(4, 16, 32, seed=7), dims, ("cut",) * 3)).kind
    assert len(tried) < 20


def test_whole_numbers_in_a_grid_must_all_agree() -> None:
    ids = np.random.default_rng(0).integers(0, 5, (4, 8))
    parts = grid_of_three(ids, adds_up=False)
    assert np.array_equal(ids, infer(ids, parts).joined(parts, ids.shape))
    parts[3] = (parts[3] + 1) % 5
    assert "unknown" == infer(ids, parts).kind


def test_rows_on_one_rank_may_lie_in_an_order_of_their_own() -> None:
    """As the tokens that came to an expert; equal rows each get a place."""
    x = np.concatenate([numbers(9, 6), numbers(9, 6)[:3]])
    order = np.random.default_rng(1).permutation(12)
    found = infer(x, [x[order] + np.float32(1e-6)])
    assert "matched" in found.name
    assert (True, False) == (found.covers(x.shape), found.twice)
    assert "on one rank" == infer(x, [numbers(12, 6, seed=5)]).name  # other rows are another value


def test_of_equal_slices_the_first_is_taken_and_near_ones_are_told_apart() -> None:
    x = numbers(300, 40)
    x[200] = x[100] + np.float32(1e-5) * numbers(40, seed=3)
    x[250] = x[40]
    order = np.random.default_rng(2).permutation(300)
    at = matched_places(x, x[order], 0)
    assert at is not None
    assert np.where(order == 250, 40, order).tolist() == at.tolist()


def test_one_value_of_two_layouts_is_no_whole_of_one_rank() -> None:
    """Which of the ranks' parts may be left out is not told by what rounding makes nearer."""
    x = numbers(12, 16)
    rounded = x + np.where(np.arange(12)[:, None] < 3, 0, 1e-3).astype(np.float32) * numbers(12, 16, seed=4)
    ours, whole, theirs = infer_both(np.split(x, 4), np.split(rounded, 2))
    assert np.array_equal(whole, x)
    assert ["sharded along 0, contiguous"] * 2 == [ours.name, theirs.name]


@pytest.mark.parametrize("others", [0.0, 1.0, np.nan])
def test_rows_of_each_rank_lie_beside_what_is_none_of_the_value(others: float) -> None:
    """As experts of a rank make the rows of the tokens that chose them, first; what they make of others is masked, or is anything."""
    x = numbers(12, 16)
    parts = [np.concatenate([x[at], others * numbers(12 - len(at), 16, seed=9)]) for at in ([2, 0, 1, 4, 3], [6, 5, 7, 8, 11, 9, 10])]
    found = infer(x, parts)
    assert ("sharded", True, False) == (found.kind, found.covers(x.shape), found.twice)
    assert np.array_equal(x, found.joined(parts, x.shape))
    parts[1][3] = numbers(16, seed=8)
    assert APART == infer(x, parts).name  # a row is on no rank
    assert APART == infer(x, [x, numbers(12, 16, seed=8)]).name  # a rank that is off


@pytest.mark.parametrize("layouts", [1, 2])
def test_a_wrong_value_lies_plainly_though_another_order_is_a_little_nearer(layouts: int) -> None:
    """Heads that share a head of keys may be so alike that those of a wrong value are nearer to each other's."""
    heads = numbers(4, 16)
    heads[1::2] = heads[::2] + numbers(2, 16, seed=1)
    wrong = heads.copy()
    wrong[::2] += 0.55 * (heads[1::2] - heads[::2])
    wrong[1::2] -= 0.55 * (heads[1::2] - heads[::2])
    found = infer_both(np.split(heads, 4), np.split(wrong, 2))[2] if layouts == 2 else infer(heads[:2], np.split(wrong[:2], 2))
    assert "sharded along 0, contiguous" == found.name
    assert 0.25 < found.error < 0.5
