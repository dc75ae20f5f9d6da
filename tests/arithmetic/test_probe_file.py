"""A probe's JSON: there and back, and refused where it is anything else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from layerdiff.arithmetic.orders.probe import FoundTree, Probe, open_probe, probe_from_json, save_probe
from layerdiff.arithmetic.orders.probing import ProbeError
from tests.arithmetic.trees import blocks, sequential

PROBE = Probe(
    operator="mm",
    shapes=((64, 100), (100, 64)),
    dtypes=("float32", "float32"),
    result_dtype="float32",
    shape=(64, 64),
    trees=(FoundTree(blocks(100, 32), (0, 0), 4000), FoundTree(sequential(100), (63, 0), 90)),
    outputs_elsewhere=6,
    products="fused",
    device="cpu",
    device_name="x86_64 AVX512",
    torch="2.13.0",
    threads=2,
    calls=40,
    probes=900,
    seconds=0.125,
    notes=("6 outputs at the border: no tree",),
)


def test_there_and_back(tmp_path: Path) -> None:
    save_probe(PROBE, tmp_path / "p.json")
    assert PROBE == open_probe(tmp_path / "p.json")
    assert blocks(100, 32) == PROBE.tree
    text = (tmp_path / "p.json").read_text()
    assert text.isascii() and text.endswith("}\n")


def changed(**changes: Any) -> Any:
    return {**json.loads(json.dumps(PROBE.to_json())), **changes}


DEEP: Any = []
for _ in range(900):
    DEEP = [DEEP]
WRONG = [
    ("layerdiff.probe/1", {"schema": "layerdiff.probe/2"}),
    ("layerdiff.probe/1", {"schema": None}),
    ("`trees`", {"trees": {}}),
    ("`trees`", {"trees": [{"element": [0], "outputs": 1, "leaves": 1, "nodes": []}] * 65}),
    ("trees", {"trees": []}),
    ("object", {"trees": [3]}),
    ("1000000000000 terms", {"trees": [{"element": [0, 0], "outputs": 1, "leaves": 10**12, "nodes": []}]}),
    ("each term", {"trees": [{"element": [0, 0], "outputs": 1, "leaves": 3, "nodes": [[0, 1]]}]}),
    ("come before", {"trees": [{"element": [0, 0], "outputs": 1, "leaves": 3, "nodes": [[0, 1], [3, -1]]}]}),
    ("list of numbers", {"trees": [{"element": [0, 0], "outputs": 1, "leaves": 3, "nodes": [[0, 1.0], [3, 2]]}]}),
    ("list of numbers", {"trees": [{"element": [0, 0], "outputs": 1, "leaves": 3, "nodes": DEEP}]}),
    ("`element`", {"trees": [{"element": [-1], "outputs": 1, "leaves": 1, "nodes": []}]}),
    ("`outputs`", {"trees": [{"element": [0], "outputs": True, "leaves": 1, "nodes": []}]}),
    ("`shapes`", {"shapes": [[1 << 70]]}),
    ("`shapes`", {"shapes": [DEEP]}),
    ("`shapes`", {"shapes": "64x64"}),
    ("`shape`", {"shape": [0.5]}),
    ("dtype", {"dtypes": ["float32\x1b[31m"]}),
    ("dtype", {"result_dtype": 3}),
    ("`operator`", {"operator": "x" * 401}),
    ("`notes`", {"notes": [1]}),
    ("`seconds`", {"seconds": "nan"}),
    ("`seconds`", {"seconds": float("nan")}),
    ("`seconds`", {"seconds": -1}),
    ("`calls`", {"calls": 1 << 62}),
    ("`products`", {"products": "sometimes"}),
    ("`products`", {"products": ["fused"]}),
]


@pytest.mark.parametrize(("said", "changes"), WRONG)
def test_what_is_refused(said: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ProbeError) as refusal:
        probe_from_json(changed(**changes))
    assert said in str(refusal.value)
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize("missing", sorted(PROBE.to_json()))
def test_nothing_may_be_missing(missing: str) -> None:
    data = changed()
    del data[missing]
    with pytest.raises(ProbeError):
        probe_from_json(data)


@pytest.mark.parametrize("data", [None, [], 3, "layerdiff.probe/1", {}])
def test_other_json_is_no_probe(data: Any) -> None:
    with pytest.raises(ProbeError, match="is no probe"):
        probe_from_json(data)


@pytest.mark.parametrize("content", ["", "{", "[" * 100_000, "\x00", '{"schema": "layerdiff.comparison/1"}'])
def test_other_files_are_no_probes(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(ProbeError, match=r"x\.json"):
        open_probe(tmp_path / "x.json")


def test_a_changed_field_changes_the_probe() -> None:
    assert PROBE != replace(PROBE, threads=3)
    assert replace(PROBE, threads=3) == probe_from_json(changed(threads=3))
