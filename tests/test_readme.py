"""What the README says is so: its snippet shows a changed weight, and it lists every verdict."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from layerdiff import Recorder
from layerdiff.judge.tables import Verdict
from layerdiff.rows.tones import MARKS

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_snippet_shows_a_weight_that_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model, inputs = nn.Sequential(nn.Linear(8, 8)), {"input": torch.ones(2, 8)}
    with torch.no_grad():
        with Recorder("reference.h5", model):
            model(**inputs)
        model[0].weight.mul_(1.5)
        with pytest.raises(AssertionError):
            exec(compile(snippet, "README.md", "exec"), {"model": model, "inputs": inputs})
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith(" defect") and not said[0].endswith(" no defect")
    assert said[1].startswith("weight-differs 0.weight is not the same weight in both runs")


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict is not Verdict.PENDING])
def test_the_table_has_every_verdict(verdict: Verdict) -> None:
    assert f"| `{MARKS[verdict].glyph}` {MARKS[verdict].word} |" in README
