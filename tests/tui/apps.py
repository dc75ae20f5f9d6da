"""Apps over synthetic comparisons."""

from __future__ import annotations

from layerdiff.diagnose.findings import Notice
from layerdiff.judge.tables import Verdict
from layerdiff.saved.comparison import Comparison
from layerdiff.tui.app import LayerdiffApp
from tests.comparisons import comparison

NORM = "model.layers.3.input_layernorm"
ACT = "model.layers.20.mlp.act_fn"
NOTICE = Notice("dtype-mismatch", "reference float32, target bfloat16 at 422 of 422 sites")


def faulty(profile: str = "strict") -> Comparison:
    """Two faults; the second only under the strict profile."""
    faults = {NORM: Verdict.DEFECT} | ({ACT: Verdict.UNEXPLAINED} if profile == "strict" else {})
    return comparison(faults=faults, notices=[NOTICE], profile=profile)


def faulty_app(*, dark: bool = True) -> LayerdiffApp:
    """The app over it, with both profiles."""
    return LayerdiffApp(faulty(), rejudge=lambda _, profile: faulty(profile), dark=dark)
