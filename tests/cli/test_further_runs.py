"""`diff --again` and `diff --baseline`, as somebody types them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

from layerdiff import Recorder
from tests.cli.conftest import Run


def test_diff_takes_further_runs(run: Run, tmp_path: Path) -> None:
    for name, dtype in (("r", torch.float32), ("t", torch.float32), ("t2", torch.float32), ("b", torch.bfloat16)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8)).to(dtype)
        with torch.no_grad(), Recorder(tmp_path / f"{name}.h5", model):
            model(torch.ones(2, 8, dtype=dtype))
    done = run("diff", "r.h5", "t.h5", "--again", "t2.h5", "--baseline", "b.h5", "--json", "x.json", "-o", "x.ldiff", code=0)
    assert "again      t2.h5  all 2 calls have the same bits as in the first run" in done.stdout
    assert "baseline   b.h5  the target is 0× as far from the reference (median of 2 calls)" in done.stdout
    value = json.loads((tmp_path / "x.json").read_text())
    assert ({"calls": 2, "differ": 0}, "b.h5") == (
        {key: value["again"][key] for key in ("calls", "differ")},
        value["baseline"]["path"],
    )
    assert "again      t2.h5" in run("judge", "x.ldiff", code=0).stdout
    assert "gone.h5 does not exist" in run("diff", "r.h5", "t.h5", "--again", "gone.h5", code=2).stderr
