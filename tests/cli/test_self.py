"""`diff TARGET --self`: one trace of many ranks, with the faces and exit codes of any comparison."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from layerdiff.saved.file import open_comparison
from tests.cli.conftest import Run
from tests.ranks import Rank
from tests.trace.writing import write_model

PARTS = [np.random.default_rng(rank).standard_normal(64).astype(np.float32) for rank in range(2)]


def target(folder: Path, *, wrong: bool = False) -> Path:
    """Two ranks with one all_reduce; where `wrong`, rank 1 kept its own part."""
    for number in range(2):
        rank = Rank(folder, number, 2)
        total = (PARTS[0] + PARTS[1]).astype(np.float32)
        rank.issue("all_reduce", [PARTS[number]], [PARTS[1] if wrong and number else total], op="sum", module="layers.0.mlp")
        rank.module("norm", "LlamaRMSNorm", total, total / 2, {"weight": np.ones(64, np.float32)})
        rank.close()
    return folder


def test_ranks_that_agree_are_no_defect(run: Run, tmp_path: Path) -> None:
    said = run("diff", target(tmp_path / "target"), "--self", code=0).stdout
    assert "checked    2 of 2 collective calls, 2 of 4 module calls given the same as on another rank" in said
    assert "No defect: 2 collective calls made what the ranks put in makes" in said
    assert "reference" not in said


def test_a_wrong_rank_is_named_by_every_face(run: Run, tmp_path: Path) -> None:
    folder = target(tmp_path / "target", wrong=True)
    done = run("diff", folder, "--self", "--json", "-", "-o", tmp_path / "kept.ldiff", code=1)
    told = json.loads(done.stdout)
    jsonschema.validate(told, json.loads((files("layerdiff") / "saved" / "comparison.schema.json").read_text()))
    (origin,) = told["origins"]
    assert (None, True) == (told["reference"], told["defect"])
    assert ("layers.0.mlp/c10d.all_reduce#0", 1, "collective-mismatch") == (origin["site"], origin["rank"], origin["cause"])
    assert "nothing was added to it" in done.stderr
    (site,) = [site for site in told["sites"] if site["verdict"] == "defect"]
    assert ("collective", 1) == (site["kind"], site["rank"])

    markdown = run("report", tmp_path / "kept.ldiff", code=1).stdout
    assert "collective-mismatch" in markdown and f"layerdiff diff {folder} --self" in markdown
    assert "collective-mismatch" in run("report", tmp_path / "kept.ldiff", "-f", "json", code=1).stdout
    assert "<failure" in run("report", tmp_path / "kept.ldiff", "-f", "junit", code=1).stdout
    assert "no reference" not in run("show", tmp_path / "kept.ldiff", code=1).stdout  # no terminal: the summary
    again = run("judge", tmp_path / "kept.ldiff", "--profile", "relaxed", code=1).stdout
    assert "profile    relaxed" in again
    assert "there is none" in run("report", tmp_path / "kept.ldiff", "-f", "bundle", "-o", tmp_path / "bundle", code=2).stderr


def test_a_kept_check_is_read_as_it_was(tmp_path: Path) -> None:
    from layerdiff.checking import check_ranks

    made = check_ranks(target(tmp_path / "target", wrong=True))
    read = open_comparison(made.save(tmp_path / "kept.ldiff"))
    assert made.to_json(sites=None) == read.to_json(sites=None)
    assert None is read.reference


async def test_the_terminal_shows_what_ranks_say_of_each_other(tmp_path: Path) -> None:
    from layerdiff.checking import check_ranks
    from layerdiff.tui.app import LayerdiffApp

    kept = open_comparison(check_ranks(target(tmp_path / "target", wrong=True)).save(tmp_path / "kept.ldiff"))
    app = LayerdiffApp(kept)
    async with app.run_test(size=(120, 40)) as pilot:

        async def shown(*keys: str) -> str:
            await pilot.press(*keys)
            await pilot.app.workers.wait_for_complete()
            await pilot.pause()
            return app.export_screenshot().replace("&#160;", " ")

        home = await shown("x")
        assert "no reference" in home and "layers.0.mlp/c10d.all_reduce#0" in home and "target only" not in home
        assert "held against each other" in await shown("r")
        assert "Notices" in await shown("escape", "i")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["target", "target", "--self"], "--self takes one trace"),
        (["target"], "diff compares two traces"),
        (["target", "--self", "--again", "target"], "--again needs a reference"),
        (["target", "--self", "--baseline", "target"], "--baseline needs a reference"),
        (["one.h5", "--self"], "is the trace of one process"),
        (["target/rank00000.h5", "--self"], "holds one of 2 ranks"),
    ],
)
def test_what_does_not_go_together_is_refused(run: Run, tmp_path: Path, arguments: list[str], said: str) -> None:
    target(tmp_path / "target")
    write_model(tmp_path / "one.h5", {"norm": ("Linear", PARTS[0])}, inputs=PARTS[0])
    assert said in run("diff", *arguments, code=2).stderr


def test_a_comparison_with_a_reference_says_it_too(run: Run, tmp_path: Path) -> None:
    total = (PARTS[0] + PARTS[1]).astype(np.float32)
    folder = target(tmp_path / "target", wrong=True)
    write_model(tmp_path / "reference.h5", {"norm": ("LlamaRMSNorm", total / 2)}, inputs=total)
    done = run("diff", tmp_path / "reference.h5", folder, "--json", "-", code=1)
    origins = json.loads(done.stdout)["origins"]
    assert [("layers.0.mlp/c10d.all_reduce#0", 1, "collective-mismatch")] == [
        (origin["site"], origin["rank"], origin["cause"]) for origin in origins if origin["operator"] == "c10d.all_reduce"
    ]
