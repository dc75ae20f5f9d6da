"""`layerdiff probe`: what it prints, keeps and refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from layerdiff.arithmetic.orders.probe import open_probe, save_probe
from layerdiff.rows.order.probe import probe_lines
from tests.arithmetic.test_probe_file import PROBE
from tests.cli.conftest import Run
from tests.replay.test_like import record_summing

MM = ("probe", "mm", "--shape", "16x64", "--shape", "64x8")


def test_a_probe_is_drawn_and_kept(run: Run, tmp_path: Path) -> None:
    done = run(*MM, "--threads", "1", "-o", "p.json", code=0)
    kept = open_probe(tmp_path / "p.json")
    assert ("mm", ((16, 64), (64, 8)), 64, 1) == (kept.operator, kept.shapes, kept.tree.leaves, kept.threads)
    assert "".join(line.plain + "\n" for line in probe_lines(kept)) == done.stdout
    assert done.stderr == ""
    assert done.stdout == run("probe", "p.json", code=0).stdout


def test_json_on_stdout(run: Run) -> None:
    done = run("probe", "sum", "--shape", "4x96", "--dim", "1", "--dtype", "bfloat16", "--json", "-", code=0)
    data = json.loads(done.stdout)
    assert ("layerdiff.probe/1", "sum", [[4, 96]], ["bfloat16"], 96) == (
        data["schema"],
        data["operator"],
        data["shapes"],
        data["dtypes"],
        data["trees"][0]["leaves"],
    )
    assert "sum [4, 96] bfloat16\n" in done.stderr


def test_two_probes(run: Run, tmp_path: Path) -> None:
    save_probe(PROBE, tmp_path / "a.json")
    text = json.loads((tmp_path / "a.json").read_text())
    text["trees"] = text["trees"][1:]
    (tmp_path / "b.json").write_text(json.dumps(text))
    assert "= the same order\n" in run("probe", "a.json", "a.json", code=0).stdout
    done = run("probe", "a.json", "b.json", code=0)
    assert "≠ another order: 34 partial sums in common, of 99 and 99\n" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_showing_probes_loads_no_torch(start: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_probe(PROBE, tmp_path / "a.json")
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    start("probe", "a.json", "a.json", code=0)
    assert "probe runs a kernel of torch: pip install 'layerdiff[torch]'" in start(*MM, code=2).stderr


def test_a_function_of_the_user(start: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_kernels.py").write_text(
        "import torch\n"
        "def backward(x):\n"
        "    total = torch.zeros(x.shape[0])\n"
        "    for k in reversed(range(x.shape[1])):\n"
        "        total = total + x[:, k]\n"
        "    return total\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    done = start("probe", "my_kernels:backward", "--shape", "4x32", "--dim", "1", code=0)
    assert done.stdout.startswith("my_kernels:backward [4, 32] float32\n")
    assert "one chain of 32, last term first\n" in done.stdout


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_summing(tmp_path_factory.mktemp("like") / "like.h5")


def test_a_recorded_call(run: Run, recorded: Path, tmp_path: Path) -> None:
    done = run("probe", "--like", recorded, "up", "-o", "p.json", "--threads", 2, code=0)
    assert "addmm [16] [10, 48] [48, 16] float32" == done.stdout.splitlines()[0]
    assert 49 == open_probe(tmp_path / "p.json").tree.leaves
    assert "up/aten.addmm.default#0 was recorded with 1 thread, and probed with 2; see --threads." in done.stderr


def test_a_recorded_call_that_is_none(run: Run, recorded: Path) -> None:
    assert "Did you mean 'up/aten.addmm.default#0'?" in run("probe", "--like", recorded, "up/aten.addmm.default#1", code=2).stderr
    assert "gone.h5 does not exist" in run("probe", "--like", "gone.h5", "up", code=2).stderr
    assert "takes the shapes from the trace" in run("probe", "--like", recorded, "up", "--shape", "4", code=2).stderr


WRONG = [
    (("probe", "mm"), "What shape have the operands of mm?"),
    (("probe", "mm", "--shape", "4by4"), "--shape 4by4: give whole numbers, such as 64x1024."),
    (("probe", "mm", "--shape", "4x4"), "mm has 2 operands; 1 shapes were given."),
    ((*MM, "--element", "1;2"), "--element 1;2: give whole numbers, such as 0,3."),
    ((*MM, "--device", "nothing"), "The device 'nothing' cannot be used"),
    (("probe", "mm", "sum", "--shape", "4"), "Give one operator"),
    (("probe", "a.json", "b.json", "c.json"), "3 probes: give one, or two"),
    (("probe", "a.json", "--shape", "4"), "take no --shape"),
    (("probe", "gone.json"), "gone.json: No such file or directory."),
    (("probe", "all_reduce", "--shape", "4"), "torchrun"),
    (("probe",), "Usage: layerdiff probe"),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG)
def test_wrong_arguments(run: Run, arguments: tuple[str, ...], said: str) -> None:
    done = run(*arguments, code=2)
    assert said in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_a_file_that_is_no_probe(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"schema": "layerdiff.comparison/1"}')
    assert "x.json: This JSON of the schema 'layerdiff.comparison/1' is no probe" in run("probe", "x.json", code=2).stderr
