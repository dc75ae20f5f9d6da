"""Parts of a value on disk against the whole: the same answer as in memory, for every regular reading, and one flipped bit is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from layerdiff.align.placement import PAD, Placement
from layerdiff.align.placements import readings
from layerdiff.judge.pairs.stored_parts import same_parts
from layerdiff.measure.equality import BLOCK_BYTES
from layerdiff.trace.reader import StoredValue, open_trace
from tests.trace.writing import write_model

SHAPES: list[tuple[tuple[int, ...], int]] = [
    ((24, 3), 0),  # all in one block
    ((5, 24), 1),  # the innermost dimension, four bytes wide
    ((600, 24, 40), 1),  # several blocks of rows
    ((24, 30_000), 0),  # one row of several blocks
    ((3, 24, 15_001), 1),  # several such rows, of no whole number of words
]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_every_regular_reading_is_told_from_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], dim: int, dtype: str
) -> None:
    monkeypatch.setattr("layerdiff.judge.pairs.stored_parts.ROWS_BYTES", 1 << 20)
    whole = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    large = whole.nbytes // int(np.prod(shape[:dim])) > BLOCK_BYTES
    seen = set()
    for number, (name, at) in enumerate([*readings(24, [6] * 4), *readings(24, [3, 9, 12]), *readings(24, [12] * 4)]):
        placement = Placement("sharded", name, dim, tuple(at))
        parts = [np.ascontiguousarray(placement.part(whole, rank)) for rank in range(len(at))]
        flipped = [part.copy() for part in parts]
        for rank, part in enumerate(flipped):
            part.reshape(-1).view(np.uint8)[[0, -1][rank % 2]] ^= 1
        stored = _stored(tmp_path / f"{number}.h5", whole, [*parts, *flipped])
        same, other = stored[1 : len(at) + 1], stored[len(at) + 1 :]
        told = not any(np.any(one == PAD) for one in at) and not (large and name == "strided")  # elements far apart are not read one by one
        assert same_parts(placement, shape, stored[0], same) == told, name
        for rank in range(len(at)):
            assert not same_parts(placement, shape, stored[0], [*same[:rank], other[rank], *same[rank + 1 :]]), (name, rank)
        seen.add(name)
    assert len(seen) > 6


def test_what_is_not_all_there_or_has_another_dtype_is_not_the_same(tmp_path: Path) -> None:
    whole = np.arange(24, dtype=np.float32).reshape(8, 3)
    halves = tuple(np.arange(i, i + 4) for i in (0, 4))
    stored = _stored(tmp_path / "a.h5", whole, [whole[:4], whole[4:], whole[4:].astype(np.float16), whole, whole[4:, :2]])
    assert same_parts(Placement("sharded", "", 0, halves), whole.shape, stored[0], stored[1:3])
    assert not same_parts(Placement("sharded", "", 0, halves), whole.shape, stored[0], [stored[1], stored[3]])
    assert not same_parts(Placement("sharded", "", 0, halves), whole.shape, stored[0], [stored[1], None])
    assert not same_parts(Placement("sharded", "", 0, halves), whole.shape, stored[0], [stored[1], stored[5]])
    assert not same_parts(Placement("sharded", "", 0, halves[:1]), whole.shape, stored[0], stored[1:2])
    assert same_parts(Placement("replicated", ""), whole.shape, stored[0], [stored[4], stored[4]])
    assert not same_parts(Placement("replicated", ""), whole.shape, stored[0], [stored[4], stored[1]])
    assert not same_parts(Placement("partial", ""), whole.shape, stored[0], [stored[4]])


def _stored(path: Path, whole: NDArray[Any], parts: list[NDArray[Any]]) -> list[StoredValue]:
    modules = {str(i): ("Linear", x) for i, x in enumerate([whole, *parts])}
    file = open_trace(write_model(path, modules, inputs=np.zeros(1, np.float32))).files[0]
    found = [file.stored(value + 1) for value in range(len(modules))]
    return [one for one in found if one is not None]
