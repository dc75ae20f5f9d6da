from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from layerdiff.diagnose.findings import Notice, Origin
from layerdiff.errors import ComparisonError, NotATraceError
from layerdiff.judge.tables import PAIRS, SITES, Texts, Verdict
from layerdiff.saved import stored_columns
from layerdiff.saved.comparison import Comparison
from layerdiff.saved.file import open_comparison, save
from layerdiff.saved.stored_texts import StoredTexts, encode
from tests.comparisons import comparison, of_size

NORM = "model.layers.3.input_layernorm"


@pytest.fixture
def made() -> Comparison:
    return comparison(
        layers=6,
        faults={NORM: Verdict.DEFECT, "model.layers.4.mlp": Verdict.BROKEN},
        notices=[Notice("dtype-mismatch", "float32 against bfloat16", "model", False)],
        reference_only=["model.layers.5.mlp"],
        remarks=["stripped `module.`"],
        rename={"model.layers.2.mlp": "naïve/\x1b[31m|<b>\ud800"},
    )


@pytest.fixture
def path(made: Comparison, tmp_path: Path) -> Path:
    return save(made, tmp_path / "run.ldiff")


def test_round_trip(made: Comparison, path: Path) -> None:
    read = open_comparison(path)
    for field in ("reference", "target", "profile", "notices", "origins", "alignment"):
        assert getattr(read, field) == getattr(made, field), field
    for name in SITES:
        np.testing.assert_array_equal(read.sites[name], made.sites[name])
    for name in PAIRS:
        np.testing.assert_array_equal(read.pairs[name], made.pairs[name])
    assert read.texts.all() == made.texts.all()
    assert read.to_json(sites=None) == made.to_json(sites=None)
    assert (read.verdict, read.defect) == (Verdict.BROKEN, True)


def test_non_finite_numbers_of_an_origin_come_back(tmp_path: Path) -> None:
    origin = Origin(0, "", Verdict.BROKEN, "out", "nan", float("inf"), None, "rule", True, rank=3, cause="x")
    read = open_comparison(save(replace(comparison(layers=1), origins=(origin,)), tmp_path / "x.ldiff"))
    assert read.origins == (origin,)


def test_no_sites_at_all(tmp_path: Path) -> None:
    empty = replace(
        comparison(layers=1),
        texts=Texts(),
        sites={name: np.empty(0, dtype) for name, dtype in SITES.items()},
        pairs={name: np.empty(0, dtype) for name, dtype in PAIRS.items()},
    )
    read = open_comparison(save(empty, tmp_path / "x.ldiff"))
    assert len(read.sites["site"]) == 0
    assert read.verdict is Verdict.NOT_COMPARABLE


def test_file_is_plain(path: Path) -> None:
    with h5py.File(path, "r") as file:
        found: list[tuple[str, Any]] = []
        file.visititems(lambda name, item: found.append((name, item)))
        for name, item in found:
            assert len(item.attrs) == 0, name
            if isinstance(item, h5py.Dataset):
                assert item.dtype.kind in "iuf" and item.ndim == 1, name
    assert [file.name for file in path.parent.iterdir()] == ["run.ldiff"]  # and nothing temporary


def test_saving_again_replaces_the_file_whole(path: Path) -> None:
    before = open_comparison(path)
    save(comparison(layers=2), path)
    assert len(open_comparison(path).sites["site"]) < len(before.sites["site"])
    assert before.texts[int(before.sites["site"][0])] == ""  # what was opened is not disturbed


def test_unwritable_folder(made: Comparison, tmp_path: Path) -> None:
    with pytest.raises(ComparisonError, match=r"Cannot save the comparison to .*missing/x\.ldiff"):
        save(made, tmp_path / "missing" / "x.ldiff")


def test_name_taken_by_a_folder(made: Comparison, tmp_path: Path) -> None:
    (tmp_path / "x.ldiff").mkdir()
    with pytest.raises(ComparisonError, match="Is a directory"):
        save(made, tmp_path / "x.ldiff")
    assert [file.name for file in tmp_path.iterdir()] == ["x.ldiff"]


def test_not_there(tmp_path: Path) -> None:
    with pytest.raises(ComparisonError, match=r"nothing\.ldiff does not exist. `layerdiff diff"):
        open_comparison(tmp_path / "nothing.ldiff")


def test_folder(tmp_path: Path) -> None:
    with pytest.raises(ComparisonError, match="it is no file"):
        open_comparison(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PNG", b'{"schema": 1}' * 1000])
def test_not_hdf5(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.ldiff").write_bytes(content)
    with pytest.raises(ComparisonError, match="is not a saved comparison: it is no HDF5 file"):
        open_comparison(tmp_path / "x.ldiff")


@pytest.mark.parametrize(
    ("format_", "says"),
    [
        ("layerdiff.trace", "is a trace, and a comparison needs two"),
        ("other", "is an HDF5 file, and not"),
        (7, "is an HDF5 file, and not"),
        (None, "is an HDF5 file, and not"),
    ],
)
def test_another_format(path: Path, format_: object, says: str) -> None:
    with h5py.File(path, "r+") as file:
        del file.attrs["format"]
        if format_ is not None:
            file.attrs["format"] = np.bytes_(format_)
    with pytest.raises(ComparisonError, match=says):
        open_comparison(path)


def test_another_version(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["version"] = np.array([3, 1], "<i4")
    with pytest.raises(ComparisonError, match=r"version 3\.1 of its format; this layerdiff reads version 2"):
        open_comparison(path)


def test_a_later_minor_version_is_read(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["version"] = np.array([2, 9], "<i4")
        file["sites/new_in_1_9"] = np.zeros(3)
    assert len(open_comparison(path).origins) == 2


def test_cut_short_anywhere(path: Path) -> None:
    whole = path.read_bytes()
    for length in np.linspace(0, len(whole) - 1, 60).astype(int):
        path.write_bytes(whole[:length])
        with pytest.raises(ComparisonError):
            open_comparison(path)


def test_a_file_that_another_program_compressed(made: Comparison, path: Path) -> None:
    with h5py.File(path, "r+") as file:
        for name in ("text/offset", "sites/parent", "sites/verdict", "pairs/rel_l2"):
            column = file[name][:]
            del file[name]
            file.create_dataset(name, data=column, chunks=(7,), compression="gzip")
    read = open_comparison(path)
    for name in SITES:
        np.testing.assert_array_equal(read.sites[name], made.sites[name])
    for name in PAIRS:
        np.testing.assert_array_equal(read.pairs[name], made.pairs[name])
    assert read.texts.all() == made.texts.all()


def test_columns_are_aligned_and_cannot_be_written_to(path: Path) -> None:
    read = open_comparison(path)
    for column in [*read.sites.values(), *read.pairs.values()]:
        assert column.flags.aligned
        assert not column.flags.writeable


def test_a_column_past_the_end_of_the_file(path: Path) -> None:
    """As where the file is cut short after its structure was checked."""
    with h5py.File(path, "r") as file, pytest.raises(NotATraceError, match="is cut short: sites/step goes on after byte"):
        stored_columns._fill(np.empty(64, np.uint8), file, path.stat().st_size - 16, "sites/step")


def _set(name: str, row: int, value: int) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        file[name][row] = value

    return change


def _json(change: Callable[[Any], object]) -> Callable[[h5py.File], None]:
    def rewrite(file: h5py.File) -> None:
        value = json.loads(file["comparison/json"][:].tobytes())
        change(value)
        del file["comparison/json"]
        file["comparison/json"] = np.frombuffer(json.dumps(value).encode(), "u1")

    return rewrite


def _replace(name: str, data: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[name]
        if data is not None:
            file[name] = data

    return change


def _link(name: str, link: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[name]
        file[name] = link

    return change


HOSTILE: dict[str, tuple[Callable[[h5py.File], None], str]] = {
    "verdict": (_set("sites/verdict", 0, 55), "sites/verdict holds a code"),
    "kind": (_set("sites/kind", 0, 9), "sites/kind holds a code"),
    "source": (_set("pairs/source", 0, 9), "pairs/source holds a code"),
    "step": (_set("sites/step", 3, -2), "sites/step must not be below -1"),
    "rank": (_set("sites/rank", 3, -2), "sites/rank must not be below -1"),
    "text": (_set("sites/site", 3, 10**6), "sites/site points outside the texts"),
    "text below": (_set("sites/rule", 3, -2), "sites/rule points outside the texts"),
    "pair": (_set("sites/pair", 3, 10**9), "sites/pair points outside"),
    "pair's site": (_set("pairs/site", 3, -1), "pairs/site points outside"),
    "parent": (_set("sites/parent", 3, 10**9), "sites/parent points outside"),
    "itself": (_set("sites/parent", 3, 3), "its own ancestor"),
    "file": (_set("sites/target_file", 3, 5), "sites/target_file points outside"),
    "count": (_set("pairs/count", 3, -5), "pairs/count must not be below 0"),
    "worst": (_set("pairs/worst", 3, -2), "pairs/worst must not be below -1"),
    "shape": (_set("pairs/target_shape", 3, 0), "no shape"),
    "offset": (_set("text/offset", 1, 10**9), "text/offset must grow"),
    "length": (_replace("sites/step", np.zeros(3, "<i4")), "different lengths"),
    "dtype": (_replace("sites/step", np.zeros(3, "<f8")), "must be one-dimensional int32"),
    "missing": (_replace("pairs/rel_l2", None), "pairs/rel_l2 is missing"),
    "soft link": (_link("sites/step", h5py.SoftLink("/sites/rank")), "soft or external link"),
    "external link": (_link("sites/step", h5py.ExternalLink("/etc/passwd", "/x")), "soft or external link"),
    "json": (_replace("comparison/json", np.frombuffer(b"{", "u1")), "is damaged: its description"),
    "json list": (_replace("comparison/json", np.frombuffer(b"[]", "u1")), "is damaged: its description"),
    "deep json": (_replace("comparison/json", np.frombuffer(b"[" * 100_000, "u1")), "is damaged: its description"),
    "no target": (_json(lambda value: value.pop("target")), "KeyError: 'target'"),
    "odd origin": (_json(lambda value: value["origins"][0].update(site=7)), "a text was expected, not int"),
    "odd verdict": (_json(lambda value: value["origins"][0].update(verdict=77)), "77 is not a valid Verdict"),
    "odd row": (_json(lambda value: value["origins"][0].update(row=10**9)), "origin points outside the sites"),
    "odd evidence": (_json(lambda value: value["origins"][0].update(evidence=[])), "an object was expected"),
    "odd flag": (_json(lambda value: value["notices"][0].update(defect="no")), "true or false was expected"),
}


def test_a_step_may_be_beyond_the_number_of_texts(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["sites/step"][:] = 10**6
    assert 10**6 == open_comparison(path).sites["step"][0]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile(path: Path, name: str) -> None:
    change, says = HOSTILE[name]
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(ComparisonError, match=says):
        open_comparison(path)


def test_a_cycle_of_many(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        n = file["sites/parent"].size
        file["sites/parent"][:] = (np.arange(n) + 1) % n
    with pytest.raises(ComparisonError, match="its own ancestor"):
        open_comparison(path)


def test_the_longest_chain_is_no_cycle(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        n = file["sites/parent"].size
        file["sites/parent"][:] = np.arange(n) + 1
        file["sites/parent"][n - 1] = -1
    assert open_comparison(path).sites["parent"][0] == 1


def test_random_damage_is_an_error_or_a_comparison(path: Path) -> None:
    whole = path.read_bytes()
    generator = np.random.default_rng(7)
    refused = 0
    for _ in range(150):
        damaged = bytearray(whole)
        for place in generator.integers(0, min(len(whole), 60_000), 8):
            damaged[place] = int(generator.integers(0, 256))
        path.write_bytes(damaged)
        try:
            open_comparison(path).to_json()
        except ComparisonError:
            refused += 1
    assert refused > 0


def test_texts_are_decoded_when_looked_at() -> None:
    texts = Texts(["", "a", "naïve", "\ud800", "層"])
    stored = StoredTexts(*encode(texts), "x")
    assert len(stored) == 5
    assert [stored[i] for i in (-1, 0, 4, 2)] == [None, "", "層", "naïve"]
    assert stored._decoded.keys() == {0, 4, 2}
    assert stored.intern("naïve") == 2
    assert stored.intern("new") == 5
    assert stored.intern(None) == -1
    assert (len(stored), stored[5]) == (6, "new")


def test_texts_that_are_no_utf8() -> None:
    stored = StoredTexts(np.array([0, 2], "<u8"), np.array([0xFF, 0x61], "u1"), "x")
    assert stored[0] == "\ufffda"


def test_a_hundred_thousand_sites_open_fast(tmp_path: Path) -> None:
    path = save(of_size(100_000), tmp_path / "large.ldiff")
    raw = bytearray(path.stat().st_size)

    def seconds(action: Callable[[], object]) -> float:
        start = time.perf_counter()
        action()
        return time.perf_counter() - start

    def read_raw() -> None:
        fd = os.open(path, os.O_RDONLY)
        os.readv(fd, [raw])
        os.close(fd)

    opened = min(seconds(lambda: open_comparison(path)) for _ in range(5))
    floor = min(seconds(read_raw) for _ in range(5))
    assert opened < 0.06 + 10 * floor  # the goal, with room for a busy machine
