"""`record`: a script that knows nothing of it, its arguments, its streams and its exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from layerdiff.trace.reader import open_trace
from tests.cli.conftest import Run

SCRIPT = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8))
if "--scale" in sys.argv:
    model[1].weight.data *= 1.5
with torch.no_grad():
    model(torch.ones(2, 8))
    model(torch.zeros(2, 8))
print("arguments", sys.argv[1:])
sys.exit(int(sys.argv[-1]) if sys.argv[-1].isdecimal() else 0)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "infer.py"
    path.write_text(SCRIPT)
    return path


def test_a_fault_is_found_between_two_recorded_scripts(start: Run, script: Path) -> None:
    done = start("record", "-o", "reference.h5", "--", script.name, code=0)
    assert done.stdout == "arguments []\n"
    start("record", "-o", "target.h5", "--", script.name, "--scale", code=0)
    found = start("diff", "reference.h5", "target.h5", code=1)
    assert "weight-differs" in found.stdout
    assert "8 of 8 calls paired, 2 steps compared" in found.stdout
    assert start("diff", "reference.h5", "reference.h5", code=0).stdout != ""


def test_the_scripts_own_arguments_and_code(start: Run, script: Path) -> None:
    """What follows the script is the script's, with `--` or without, even options that layerdiff has too."""
    done = start("record", "-o", "x.h5", script.name, "-o", "y", "--plan", "--help", "7", code=7)
    assert done.stdout == "arguments ['-o', 'y', '--plan', '--help', '7']\n"
    start("inspect", "x.h5", code=0)


@pytest.mark.parametrize("arguments", [("--", "-m", "infer", "a")])
def test_a_module(start: Run, script: Path, arguments: tuple[str, ...]) -> None:
    assert start("record", "-o", "x.h5", *arguments, code=0).stdout == "arguments ['a']\n"
    start("inspect", "x.h5", code=0)


def test_selections_reach_the_recorder(start: Run, script: Path) -> None:
    start(
        "record", "-o", "x.h5", "--steps", "1:", "--types", "Linear", "--keep", "statistics", "--weights", "none", "--", script.name, code=0
    )
    out = start("inspect", "x.h5", code=0).stdout
    assert "step 1" in out and "step 0" not in out
    assert "0 B kept" in out


def test_operators_all_or_of_some_modules(start: Run, script: Path, tmp_path: Path) -> None:
    start("record", "-o", "all.h5", "--operators", "--", script.name, code=0)
    start("record", "-o", "some.h5", "--operators", "1", "--", script.name, code=0)
    found = {name: open_trace(tmp_path / name).files[0] for name in ("all.h5", "some.h5")}
    sites = {name: {file.site(call) for call in range(len(file.calls))} for name, file in found.items()}
    assert {"0", "0/aten.addmm.default#0", "1/aten.native_layer_norm.default#0"} <= sites["all.h5"]
    assert {"1/aten.native_layer_norm.default#0"} == {site for site in sites["some.h5"] if "aten" in site and "(outside)" not in site}
    out = start("record", "-o", "x.h5", "--operators", "--plan", "--", script.name, code=0).stdout
    assert "  calls   4\n" not in out, "operators are counted, too"


def test_a_plan_counts_and_writes_nothing(start: Run, script: Path, tmp_path: Path) -> None:
    out = start("record", "-o", "x.h5", "--plan", "--", script.name, code=0).stdout
    assert "  calls   4\n" in out
    assert "it fits\n" in out
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".pyc" and path.name != "__pycache__") == ["infer.py"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("-o", "x.h5", "--steps", "x", "--", "infer.py"), "is no step"),
        (("-o", "x.h5", "--keep", "some", "--", "infer.py"), "is no keep policy"),
        (("-o", "x.h5", "--weights", "few", "--", "infer.py"), "is not one of"),
        (("-o", "x.h5", "--ranks", "x", "--", "infer.py"), "give the numbers of processes"),
        (("-o", "missing/x.h5", "--", "infer.py"), "does not exist"),
        (("-o", "x.h5", "--", "gone.py"), "There is no script gone.py"),
    ],
)
def test_what_cannot_start_is_said_before_the_script_runs(run: Run, script: Path, arguments: tuple[str, ...], says: str) -> None:
    done = run("record", *arguments, code=2)
    assert says in done.stderr
    assert done.stdout == ""


def test_a_script_that_raises(start: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("raise ValueError('its own error')")
    done = start("record", "-o", "x.h5", "--", "bad.py", code=1)
    assert "ValueError: its own error" in done.stderr
    assert "layerdiff/cli" not in done.stderr


def test_without_torch_one_line_says_how_to_get_it(start: Run, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('No module named torch', name='torch')")
    (tmp_path / "infer.py").write_text("print('never run')")
    done = start("record", "-o", "x.h5", "--", "infer.py", code=2)
    needs = "record needs torch: pip install 'layerdiff[torch]', or the torch that your device's vendor gives."
    assert (done.stdout, done.stderr) == ("", f"layerdiff: {needs}\n")
    command = [sys.executable, "-c", "from layerdiff import Recorder"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stderr
    assert said.splitlines()[-1] == f"layerdiff.errors.TorchMissingError: {needs}"
    caught = "try:\n    from layerdiff import Recorder\nexcept ImportError:\n    print('no recorder')"
    assert subprocess.run([sys.executable, "-c", caught], cwd=tmp_path, capture_output=True, text=True).stdout == "no recorder\n"


def test_the_end_of_a_recording_is_said_in_a_line(start: Run, script: Path, tmp_path: Path) -> None:
    """Two forwards of a Sequential with three children."""
    done = start("record", "-o", "x.h5", "--", script.name, code=0)
    kilobytes = round((tmp_path / "x.h5").stat().st_size / 1000)
    assert done.stderr == f"layerdiff: x.h5: 8 calls, 2 steps, {kilobytes} kB\n"
    assert start("record", "-o", "y.h5", "--steps", "1", "--", script.name, code=0).stderr.startswith("layerdiff: y.h5: 4 calls, 1 step, ")


def test_globs_that_match_nothing_are_said(start: Run, script: Path) -> None:
    said = start("record", "-o", "x.h5", "--modules", "1,*.attn", "--types", "LayerNorm,RMSNorm", "--", script.name, code=0).stderr
    assert said.splitlines()[:2] == [
        "layerdiff: --modules *.attn matched no module of the models that ran",
        "layerdiff: --types RMSNorm matched no class of the models that ran",
    ]
