"""`diff` and everything that takes two traces, from traces made with the writer alone."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import layerdiff
from layerdiff.saved.file import open_comparison
from tests.cli.conftest import Run
from tests.trace.writing import write_model

SHAPE = (1, 16, 64)
GENERATOR = np.random.default_rng(0)
INPUT = GENERATOR.standard_normal(SHAPE).astype(np.float32)
OUTPUTS = [GENERATOR.standard_normal(SHAPE).astype(np.float32) for _ in range(3)]
NAMES = ["norm", "attention", "mlp"]


def trace(path: Path, *, wrong: bool = False, names: list[str] = NAMES) -> Path:
    """A root with three children; where `wrong`, the second one's output is 5% too large and the third follows."""
    scales = [1.0, 1.05, 1.05] if wrong else [1.0, 1.0, 1.0]
    outputs = [(output * scale).astype(np.float32) for output, scale in zip(OUTPUTS, scales, strict=True)]
    return write_model(path, {name: ("Linear", output) for name, output in zip(names, outputs, strict=True)}, inputs=INPUT)


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    return trace(tmp_path / "reference.h5")


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    return trace(tmp_path / "wrong.h5", wrong=True)


def test_a_trace_against_itself_is_identical(run: Run, reference: Path) -> None:
    done = run("diff", reference, reference, "--json", "-", code=0)
    value = json.loads(done.stdout)
    assert (value["verdict"], value["defect"], value["origins"], value["sites"]) == ("identical", False, [], [])
    assert value["sites_total"] == 4


def test_a_wrong_layer_is_found(run: Run, reference: Path, wrong: Path) -> None:
    done = run("diff", reference, wrong, "-o", "run.ldiff", "--json", "out.json", code=1)
    assert "attention" in done.stdout
    value = json.loads((wrong.parent / "out.json").read_text())
    schema = json.loads(files("layerdiff.saved").joinpath("comparison.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(value)
    assert [origin["site"] for origin in value["origins"]] == ["attention"]
    assert value["profile"]["name"] == "strict"
    assert open_comparison(wrong.parent / "run.ldiff").to_json() == value


def test_every_way_to_say_it_gives_the_same(run: Run, reference: Path, wrong: Path) -> None:
    plain = run("diff", reference, wrong, "-o", "run.ldiff", code=1).stdout
    assert run("show", reference, wrong, code=1).stdout == plain
    assert run(reference, wrong, code=1).stdout == plain
    assert run("run.ldiff", code=1).stdout == plain
    assert run("judge", "run.ldiff", code=1).stdout == plain
    report = run("report", reference, wrong, code=1).stdout
    assert report.startswith("## layerdiff: ")
    assert run("report", "run.ldiff", code=1).stdout == report


def test_a_saved_comparison_opens_without_its_traces(run: Run, reference: Path, wrong: Path) -> None:
    before = run("diff", reference, wrong, "-o", "run.ldiff", code=1).stdout
    reference.unlink()
    wrong.unlink()
    assert run("show", "run.ldiff", code=1).stdout == before
    run("judge", "run.ldiff", "--profile", "relaxed", code=1)


def test_nothing_paired_is_unusable(run: Run, reference: Path, tmp_path: Path) -> None:
    """Modules alone may pair by the root; without a root in common nothing does."""
    other = write_model(tmp_path / "other.h5", {}, inputs=INPUT, steps=0)
    done = run("diff", reference, other, code=2)
    assert done.stdout == ""
    assert "without calls" in done.stderr


def test_an_unwritable_answer_is_no_verdict(run: Run, reference: Path, wrong: Path) -> None:
    assert "missing/out.json" in run("diff", reference, wrong, "--json", "missing/out.json", code=2).stderr
    assert "missing/run.ldiff" in run("diff", reference, wrong, "-o", "missing/run.ldiff", code=2).stderr


def test_assert_same(reference: Path, wrong: Path) -> None:
    assert layerdiff.assert_same(reference, reference).defect is False
    with pytest.raises(AssertionError, match="attention") as raised:
        layerdiff.assert_same(reference, wrong, profile="relaxed")
    assert raised.value.comparison.profile["name"] == "relaxed"  # type: ignore[attr-defined]
