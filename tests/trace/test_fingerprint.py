from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerdiff.trace.fingerprint import BLOCK_SEEDS, BLOCK_WORDS, WORD_SEEDS, fingerprint, splitmix64

MASK = (1 << 64) - 1


def slow_splitmix64(seed: int, n: int) -> int:
    z = (seed + (n + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def slow_fingerprint(data: bytes) -> tuple[int, int]:
    """The formula of the module's docstring in Python's own integers."""
    data += b"\0" * (-len(data) % 4)
    halves = []
    for half in (0, 1):
        total = 0
        for n in range(len(data) // 4):
            word = int.from_bytes(data[4 * n : 4 * n + 4], "little", signed=True)
            block, i = divmod(n, BLOCK_WORDS)
            total += (slow_splitmix64(BLOCK_SEEDS[half], block) | 1) * word * (slow_splitmix64(WORD_SEEDS[half], i) | 1)
        halves.append(total & MASK)
    return halves[0], halves[1]


def test_splitmix64_is_the_published_generator() -> None:
    # The first outputs for the seed 1234567, from the reference implementation.
    assert [6457827717110365317, 3203168211198807973, 9817491932198370423] == splitmix64(1234567, 0, 3).tolist()


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 4095, 4 * BLOCK_WORDS - 1, 4 * BLOCK_WORDS, 4 * BLOCK_WORDS + 1, 9 * BLOCK_WORDS + 2])
def test_the_formula(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    assert slow_fingerprint(data.tobytes()) == fingerprint(data)


@given(st.binary(max_size=64))
def test_the_formula_on_any_bytes(data: bytes) -> None:
    assert slow_fingerprint(data) == fingerprint(np.frombuffer(data, np.uint8))


def test_block_weights_beyond_their_first_group() -> None:
    blocks = 4097
    data = np.zeros(blocks * BLOCK_WORDS, np.int32)
    data[-1] = 5
    expected = tuple(
        (slow_splitmix64(BLOCK_SEEDS[half], blocks - 1) | 1) * 5 * (slow_splitmix64(WORD_SEEDS[half], BLOCK_WORDS - 1) | 1) & MASK
        for half in (0, 1)
    )
    assert expected == fingerprint(data)


@pytest.mark.parametrize("shape", [(4, 300), (3, BLOCK_WORDS)])
def test_swapped_rows_differ(shape: tuple[int, int]) -> None:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    swapped = values[[1, 0, *range(2, shape[0])]].copy()
    assert fingerprint(values) != fingerprint(swapped)


def test_flipped_signs_differ() -> None:
    values = np.random.default_rng(0).standard_normal(40000).astype(np.float32)
    seen = {fingerprint(values)}
    for i, j in [(0, 1), (0, BLOCK_WORDS), (17, 39999), (BLOCK_WORDS, 2 * BLOCK_WORDS)]:
        flipped = values.copy()
        flipped[[i, j]] *= -1
        seen.add(fingerprint(flipped))
    seen.add(fingerprint(-values))
    assert 6 == len(seen)


def test_signs_of_sixteen_bit_and_wide_values() -> None:
    for dtype in (np.uint16, np.uint64):
        values = np.random.default_rng(0).integers(0, 1 << 15, 1000).astype(dtype)
        top = dtype(1 << (8 * values.itemsize - 1))
        one, two, all_ = values.copy(), values.copy(), values ^ top
        one[3] ^= top
        two[[3, 400]] ^= top
        assert 4 == len({fingerprint(v) for v in (values, one, two, all_)})


def test_the_last_byte_counts() -> None:
    data = np.zeros(4 * BLOCK_WORDS + 3, np.uint8)
    before = fingerprint(data)
    data[-1] = 1
    assert before != fingerprint(data)
