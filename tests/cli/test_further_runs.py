"""`diff` with `--again`, `--baseline` and `--checkpoint`, as somebody types them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
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


def test_commands_take_a_checkpoint(run: Run, tmp_path: Path) -> None:
    for name in ("r", "t"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.LayerNorm(8, eps=1e-5 if name == "r" else 1e-3), nn.Linear(8, 8))
        with torch.no_grad(), Recorder(tmp_path / f"{name}.h5", model, operators=True, weights="checkpoint"):
            model(torch.ones(2, 8) * torch.arange(8))
    (tmp_path / "loaded").mkdir()
    save_file(model.state_dict(), tmp_path / "loaded" / "model.safetensors")
    without = run("diff", "r.h5", "t.h5", code=1).stdout
    assert "2 of 3 calls that differ judged by thresholds: the bytes of 1." in without
    assert "weight bytes not recorded, pass --checkpoint" in without
    assert "epsilon 0.001, reference 1e-05 (fitted" in without
    done = run("diff", "r.h5", "t.h5", "--checkpoint", "loaded", "-o", "x.ldiff", code=1).stdout
    assert "not recorded" not in done
    assert "layerdiff show r.h5 t.h5 --checkpoint loaded" in done
    run("report", "x.ldiff", "-f", "bundle", "-o", "bundle", "--site", "1/aten.addmm.default#0", code=1)
    bundled = [tensor for path in (tmp_path / "bundle").rglob("*.safetensors") for tensor in load_file(path).values()]
    assert any(np.array_equal(model[1].bias.detach(), tensor) for tensor in bundled)
    assert "order-" in run("order", "r.h5", "t.h5", "1/aten.addmm.default#0", "--checkpoint", "loaded", code=0).stdout
    assert "a saved comparison has its own" in run("show", "x.ldiff", "--checkpoint", "loaded", code=2).stderr
    assert "gone is not there" in run("diff", "r.h5", "t.h5", "--checkpoint", "gone", code=2).stderr
    (tmp_path / "loaded" / "model.safetensors").unlink()  # what was saved is shown all the same
    assert "native_layer_norm([8], 0.001), reference native_layer_norm([8], 1e-05)" in run("show", "x.ldiff", code=1).stdout
