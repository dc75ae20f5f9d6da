from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryFile

import pytest

import layerdiff
from layerdiff.cli.exits import main
from layerdiff.diagnose.findings import Notice
from layerdiff.judge.tables import Verdict
from layerdiff.saved.file import save
from tests.comparisons import comparison

NORM = "model.layers.3.input_layernorm"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that start in another folder find the package, installed or not."""
    monkeypatch.setenv("PYTHONPATH", str(Path(layerdiff.__file__).parent.parent))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `layerdiff` in this process, in a folder of its own, without a terminal: what it says, and its exit code."""

    def run_layerdiff(*arguments: object, cwd: Path = tmp_path, code: int | None = None) -> subprocess.CompletedProcess[str]:
        command = ["layerdiff", *map(str, arguments)]
        with TemporaryFile("w+", encoding="utf-8") as out, TemporaryFile("w+", encoding="utf-8") as err, monkeypatch.context() as around:
            around.chdir(cwd)
            around.setattr(sys, "argv", command)
            around.setattr(sys, "stdin", StringIO())
            with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
                main()
            said = [stream.seek(0) or stream.read() for stream in (out, err)]
        return _checked(subprocess.CompletedProcess(command, int(ended.value.code or 0), *said), code)

    return run_layerdiff


@pytest.fixture
def start(tmp_path: Path) -> Run:
    """The same in a process of its own, for what takes hold of its process: a recording, imports of the user's."""

    def start_layerdiff(*arguments: object, cwd: Path = tmp_path, code: int | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "layerdiff", *map(str, arguments)]
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)
        return _checked(done, code)

    return start_layerdiff


def _checked(done: subprocess.CompletedProcess[str], code: int | None) -> subprocess.CompletedProcess[str]:
    if code is not None:
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


@pytest.fixture
def defect(tmp_path: Path) -> Path:
    made = comparison(layers=6, faults={NORM: Verdict.DEFECT}, notices=[Notice("dtype-mismatch", "float32 against bfloat16")])
    return save(made, tmp_path / "defect.ldiff")


@pytest.fixture
def fine(tmp_path: Path) -> Path:
    return save(comparison(layers=3), tmp_path / "fine.ldiff")
