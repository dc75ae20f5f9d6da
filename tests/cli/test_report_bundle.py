"""`layerdiff report -f bundle`, as somebody types it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from captures.kernels import PRODUCTS, Kernel, product, split_dropped
from layerdiff import Recorder
from tests.cli.conftest import Run


def record(path: Path, *, faulty: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 8, bias=False))
    x = torch.randn(16, 64)
    with torch.no_grad():
        if faulty:
            with Kernel(model[0], PRODUCTS, product(split_dropped)), Recorder(path, model, operators=True):
                model(x)
        else:
            with Recorder(path, model, operators=True):
                model(x)


def test_a_bundle_of_two_traces_and_of_a_saved_comparison(run: Run, tmp_path: Path) -> None:
    record(tmp_path / "r.h5", faulty=False)
    record(tmp_path / "t.h5", faulty=True)
    done = run("report", "r.h5", "t.h5", "-f", "bundle", "-o", "bundle", code=1)
    assert "" == done.stdout
    assert "bundle/01-0-aten.mm.default-0: python reproduce.py\n" == done.stderr
    names = {path.name for path in (tmp_path / "bundle" / "01-0-aten.mm.default-0").iterdir()}
    assert {"call.json", "operands.safetensors", "recorded.safetensors", "reproduce.py", "origin.md"} == names
    assert (tmp_path / "bundle" / "report.md").read_text().startswith("## layerdiff: ")
    run("diff", "r.h5", "t.h5", "-o", "run.ldiff", code=1)
    done = run("report", "run.ldiff", "-f", "bundle", "-o", "one", "--site", "0/aten.t.default#0", code=1)
    assert "one/01-0-aten.t.default-0: python reproduce.py\n" == done.stderr
    (tmp_path / "t.h5").unlink()
    done = run("report", "run.ldiff", "-f", "bundle", "-o", "gone", code=1)
    assert "the target trace t.h5 is not there" in done.stderr


def test_a_bundle_needs_a_folder(run: Run, defect: Path) -> None:
    assert "name one with -o FOLDER" in run("report", defect, "-f", "bundle", code=2).stderr
    assert "needs -f bundle" in run("report", defect, "--site", "x", code=2).stderr
    assert "markdown, json, junit, bundle" in run("report", defect, "-f", "pdf", code=2).stderr
