"""`layerdiff order` over recorded runs: what it prints, what it writes, its exit codes, and what it says where it cannot."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
import torch
from torch import nn

from layerdiff import Recorder
from layerdiff.arithmetic.orders.order import blocks
from layerdiff.arithmetic.orders.probe import FoundTree, Probe, save_probe
from tests.cli.conftest import Run
from tests.programs import random, seeded
from tests.summing_runs import MM, PART, TERMS, record


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("summed")
    return record(folder / "reference.h5"), record(folder / "target.h5", lost=True)


def test_a_product_of_one_trace(run: Run, runs: tuple[Path, Path]) -> None:
    done = run("order", runs[0], MM, code=0)
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f" {MM}") and lines[0].endswith(("≡ order-exact", "≈ order-consistent"))
    assert "── the tests ── in the order asked · ▸ decided" in done.stdout
    assert f"[48, {TERMS}] fp32 · [{TERMS}, 48] fp32 → [48, 48] fp32" in done.stdout
    assert "\x1b" not in done.stdout and "" == done.stderr
    assert [] == [line for line in lines if len(line) > 100]


def test_a_module_is_its_summing_call(run: Run, runs: tuple[Path, Path]) -> None:
    assert run("order", runs[0], "proj", code=0).stdout == run("order", runs[0], MM, code=0).stdout


def test_a_lost_part_is_a_defect_of_the_target(run: Run, runs: tuple[Path, Path], tmp_path: Path) -> None:
    done = run("order", *runs, MM, "--json", tmp_path / "order.json", code=1)
    assert f"[{PART}, {2 * PART})" in done.stdout
    assert done.stdout.index("▐ reference ▌") < done.stdout.index("▐ target ▌")
    value = json.loads((tmp_path / "order.json").read_text())
    schema = json.loads(files("layerdiff.saved").joinpath("order.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(value)
    assert ("defect", "k-range-missing") == (value["verdict"], value["analyses"][1]["cause"])
    assert value["analyses"][0]["verdict"] in ("order-exact", "order-consistent")


def test_json_on_stdout_leaves_the_text_to_stderr(run: Run, runs: tuple[Path, Path]) -> None:
    done = run("order", runs[1], MM, "--json", "-", code=1)
    assert "layerdiff.order/1" == json.loads(done.stdout)["schema"]
    assert "── the tests ──" in done.stderr


def test_markdown_into_a_file(run: Run, runs: tuple[Path, Path], tmp_path: Path) -> None:
    done = run("order", *runs, MM, "-f", "markdown", "-o", tmp_path / "order.md", code=1)
    assert "" == done.stdout and f"wrote {tmp_path / 'order.md'}" in done.stderr
    assert (tmp_path / "order.md").read_text().startswith("## Reduction order: defect at `proj/aten.mm.default#0`")


def tried(done: str) -> int:
    """How many orders were tried in the first way."""
    said: str = json.loads(done)["analyses"][0]["tried"][0]
    return int(said.partition(" ")[0])


def test_a_tree_is_tried_beside_the_known_orders(run: Run, runs: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(json.dumps(blocks(TERMS, 100).tree().to_json()))
    known = tried(run("order", runs[0], MM, "--json", "-", code=0).stdout)
    assert known + 1 == tried(run("order", runs[0], MM, "--tree", tmp_path / "mine.json", "--json", "-", code=0).stdout)


def test_every_tree_of_a_probe_is_tried(run: Run, runs: tuple[Path, Path], tmp_path: Path) -> None:
    trees = tuple(FoundTree(blocks(TERMS, size).tree(), (0, 0), 48) for size in (100, 101))
    shapes = ((48, TERMS), (TERMS, 48))
    probe = Probe(
        "mm", shapes, ("float32", "float32"), "float32", (48, 48), trees, 0, "fused", "cpu", "a processor", "2.0", 1, 9, 9, 0.1
    )  # fmt: skip
    save_probe(probe, tmp_path / "probe.json")
    known = tried(run("order", runs[0], MM, "--json", "-", code=0).stdout)
    assert known + 2 == tried(run("order", runs[0], MM, "--tree", tmp_path / "probe.json", "--json", "-", code=0).stdout)


@pytest.mark.parametrize("content", ["{}", "not json", '{"leaves": 2, "nodes": [[0, 5]]}'])
def test_a_file_that_is_no_tree(run: Run, runs: tuple[Path, Path], tmp_path: Path, content: str) -> None:
    (tmp_path / "bad.json").write_text(content)
    done = run("order", runs[0], MM, "--tree", tmp_path / "bad.json", code=2)
    assert "layerdiff: --tree" in done.stderr and "bad.json" in done.stderr


def test_an_unknown_site_names_close_ones(run: Run, runs: tuple[Path, Path]) -> None:
    done = run("order", runs[0], "proj/aten.mm.default#1", code=2)
    assert f"Close to it: {MM}" in done.stderr


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ((), "layerdiff order takes TRACE SITE, or REFERENCE TARGET SITE"),
        ((MM, "x", "y"), "layerdiff order takes TRACE SITE, or REFERENCE TARGET SITE"),
        (("proj", "--step", "7"), "was not called at step 7"),
        (("act",), "act is a module whose output is no single sum"),
        (("proj", "-f", "html"), "'html' is not one of"),
    ],
)
def test_what_cannot_be_asked(run: Run, runs: tuple[Path, Path], extra: tuple[str, ...], said: str) -> None:
    assert said in run("order", runs[0], *extra, code=2).stderr


def test_a_trace_without_operators_says_how_to_record(run: Run, tmp_path: Path) -> None:
    path = record(tmp_path / "modules.h5", operators=False)
    assert "record with --operators" in run("order", path, "proj", code=2).stderr


def test_a_trace_without_bytes_says_so(run: Run, tmp_path: Path) -> None:
    path = record(tmp_path / "statistics.h5", keep="statistics")
    assert "--keep" in run("order", path, MM, code=2).stderr


def test_a_report_may_hold_it(run: Run, runs: tuple[Path, Path]) -> None:
    done = run("report", *runs, "--order", MM, code=1)
    heads = [line for line in done.stdout.splitlines() if line.startswith("#")]
    assert heads.index(f"### Reduction order: defect at `{MM}`") == heads.index("### Evidence") + 1
    assert "#### Target" in heads
    assert "--order adds to markdown, not to junit" in run("report", *runs, "-f", "junit", "--order", MM, code=2).stderr


def test_a_call_that_was_given_other_numbers_is_not_called_harmless(run: Run) -> None:
    """The activation stands on the other operand: each run multiplies what it has rightly."""
    folder = Path(__file__).parents[2] / "captures" / "gate_up_swap"
    said = run("order", folder / "reference.h5", folder / "target.h5", "layers.1.mlp/aten.mul.Tensor#0", code=0).stdout
    assert "Each run is right on its own operands; in[0], in[1] differ: what differs came in." in said
    assert "Nothing needs doing" not in said


def test_an_order_that_the_results_do_not_tell_is_not_named(run: Run, tmp_path: Path) -> None:
    model, x = seeded(nn.Linear(64, 16)), random(20, 64)
    paths = [tmp_path / "r.h5", tmp_path / "t.h5"]
    for path, dtype in zip(paths, (torch.float32, torch.bfloat16), strict=True):
        with torch.no_grad(), Recorder(path, model.to(dtype), operators=True):
            model(x.to(dtype))
    said = run("order", *paths, "", code=0).stdout
    assert "too few results tell orders apart" in said
    assert "in another order" not in said
    assert "operands; in[0], in[1], in[2] differ: what differs came in." in " ".join(said.split())
