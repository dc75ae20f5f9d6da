"""Placed values: kept in a file, refused where a file lies, looked up by site, and which rank stands out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from layerdiff.align.runs import Run
from layerdiff.errors import ComparisonError
from layerdiff.judge.tables import PLACED, Placing
from layerdiff.saved.comparison import Comparison
from layerdiff.saved.file import open_comparison, save
from layerdiff.saved.placements import PlacedValue, Placements, counted
from tests.comparisons import comparison
from tests.ranked import ATTENTION, NAN, Made, four_ranks, with_placed

INF = float("inf")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save(four_ranks(), tmp_path / "ranks.ldiff")


def value_at(made: Comparison, site: str) -> PlacedValue:
    row = next(row for row, text in enumerate(made.sites["site"]) if made.texts[int(text)] == site)
    found = Placements(made).of_value(row, "out")
    assert found is not None
    return found


def test_round_trip(path: Path) -> None:
    made, read = four_ranks(), open_comparison(path)
    assert 40 == len(read.placed["pair"])
    for name in PLACED:
        np.testing.assert_array_equal(read.placed[name], made.placed[name])
    assert made.to_json(sites=None) == read.to_json(sites=None)


def test_a_file_of_the_version_before_has_none(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["placed"]
        file.attrs["version"] = np.array([2, 0], "<i4")
    read = open_comparison(path)
    assert {name: 0 for name in PLACED} == {name: column.size for name, column in read.placed.items()}
    assert 0 == len(Placements(read))
    assert {} == counted(read)


def _set(name: str, value: float) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        file[f"placed/{name}"][5] = value

    return change


def _missing(file: h5py.File) -> None:
    del file["placed/rank"]


def _short(file: h5py.File) -> None:
    del file["placed/rank"]
    file["placed/rank"] = np.zeros(3, "<i4")


HOSTILE: dict[str, tuple[Callable[[h5py.File], None], str]] = {
    "pair": (_set("pair", 10**9), "placed/pair points outside the pairs"),
    "pair below": (_set("pair", -1), "placed/pair points outside the pairs"),
    "file": (_set("file", 4), "placed/file points outside the files of the target"),
    "file below": (_set("file", -1), "placed/file points outside the files of the target"),
    "rank": (_set("rank", -1), "placed/rank must not be below 0"),
    "agree": (_set("agree", 3), "placed/agree holds a code"),
    "kind": (_set("kind", 9), "placed/kind holds a code"),
    "dim": (_set("dim", -2), "placed/dim must not be below -1"),
    "dim above": (_set("dim", 64), "placed/dim must be below 64"),
    "text": (_set("placement", 10**6), "placed/placement points outside the texts"),
    "other text": (_set("also", -2), "placed/also points outside the texts"),
    "runs": (_set("holds", 1), "placed/holds holds a text that is no runs of places"),
    "missing": (_missing, "placed/rank is missing"),
    "length": (_short, "the columns of placed have different lengths"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile(path: Path, name: str) -> None:
    change, says = HOSTILE[name]
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(ComparisonError, match=says):
        open_comparison(path)


def test_a_dimension_that_the_value_lacks_has_no_size(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["placed/dim"][:] = 60
    assert value_at(open_comparison(path), f"{ATTENTION}.q_proj").size is None


def test_looked_up_by_site() -> None:
    made = four_ranks()
    value = value_at(made, f"{ATTENTION}.q_proj")
    assert ("out", Placing.SHARDED, 2, 512, None) == (value.position, value.kind, value.dim, value.size, value.agree)
    assert [(rank, (Run(128 * rank, 128, 1),)) for rank in range(4)] == [(part.rank, part.holds) for part in value.parts]
    assert [] == Placements(made).of_site(0)
    assert "contiguous" == value_at(made, f"{ATTENTION}.v_proj").also
    assert (False, True) == (value_at(made, ATTENTION).agree, value_at(made, f"{ATTENTION}.k_proj").agree)


def test_rows_in_any_order_are_the_same_values() -> None:
    made = four_ranks()
    turned = replace(made, placed={name: column[::-1] for name, column in made.placed.items()})
    assert made.to_json(sites=None) == turned.to_json(sites=None)


def test_counted_by_kind() -> None:
    assert {Placing.REPLICATED: 3, Placing.SHARDED: 5, Placing.PARTIAL: 1, Placing.UNKNOWN: 1} == counted(four_ranks())


@pytest.mark.parametrize(
    ("errors", "off"),
    [
        ([1e-7, 1.1e-7, 3e-1, 1e-7], [2]),
        ([1e-7, 1.1e-7, 9e-7, 1e-7], []),
        ([0.0, 0.0, 1e-3, 0.0], [2]),
        ([0.0, 0.0, 0.0, 0.0], []),
        ([1e-7, 3e-1], [1]),
        ([1e-7, 2e-7], []),
        ([1e-7, 1e-7, 3e-1, 2e-1], []),
        ([1e-7, 1e-7, 1e-7, 3e-1, INF], [3, 4]),
        ([NAN, NAN, NAN], []),
        ([NAN, 3e-1], []),
        ([1e-3], []),
    ],
)
def test_which_ranks_stand_out(errors: Sequence[float], off: list[int]) -> None:
    made = with_placed(comparison(layers=1), {"lm_head": Made(Placing.SHARDED, "sharded along 2, contiguous", errors, 2)})
    assert off == [part.rank for part in value_at(made, "lm_head").off]
