from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import layerdiff
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
def run(tmp_path: Path) -> Run:
    """Run `layerdiff` in a process of its own, in a folder of its own, without a terminal."""

    def run_layerdiff(*arguments: object, cwd: Path = tmp_path, code: int | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "layerdiff", *map(str, arguments)]
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)
        if code is not None:
            assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    return run_layerdiff


@pytest.fixture
def defect(tmp_path: Path) -> Path:
    made = comparison(layers=6, faults={NORM: Verdict.DEFECT}, notices=[Notice("dtype-mismatch", "float32 against bfloat16")])
    return save(made, tmp_path / "defect.ldiff")


@pytest.fixture
def fine(tmp_path: Path) -> Path:
    return save(comparison(layers=3), tmp_path / "fine.ldiff")
