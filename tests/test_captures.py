"""The worked examples: what is found in each is what its expected.json says, no more and no less."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from captures.__main__ import make, names
from captures.recording import HOME
from layerdiff.arithmetic.orders.probe import open_probe
from layerdiff.compare import compare_traces
from layerdiff.judge.order.analysis import order_of_pair
from layerdiff.saved.comparison import Comparison
from layerdiff.trace.reader import open_trace

RANKS = ["bias_every_rank", "clean_tp4_bf16", "expert_offset", "fused_qkv_one_block", "missing_all_reduce", "zigzag_positions"]
KEPT = [name for name in names() if (HOME / name / "reference.h5").exists() and name != "minilm"]


def found(comparison: Comparison) -> dict[str, object]:
    origins = [{"site": o.site, "value": o.value, "verdict": o.verdict.label, "cause": o.cause} for o in comparison.origins]
    kinds = [notice.kind for notice in comparison.notices]
    return {"verdict": comparison.verdict.label, "defect": comparison.defect, "origins": origins, "notices": kinds}


def target_of(folder: Path) -> Path:
    """The target's trace: a file, or a folder of one file a rank."""
    return folder / "target" if (folder / "target").is_dir() else folder / "target.h5"


def expected(name: str) -> dict[str, object]:
    text = json.loads((HOME / name / "expected.json").read_text())
    assert text.pop("what")
    text.pop("orders", None)
    return dict(text)


def orders(name: str) -> dict[str, str]:
    """What `layerdiff order` must say of a capture: the site, the verdict of both, what must be among the names that hold."""
    return dict(json.loads((HOME / name / "expected.json").read_text()).get("orders", {}))


def test_the_kept_captures_are_these() -> None:
    modules = ["clean_bf16", "epsilon", "masked_row", "rope_base"]
    operators = ["attention_scale", "bf16_partial_sums", "dropped_split_k", "gate_up_swap", "int8_weights", "split_k"]
    operators += ["probed_mm", "ring_bf16"]
    assert KEPT == sorted([*modules, *operators, *RANKS])
    assert RANKS == [name for name in KEPT if target_of(HOME / name).is_dir()]


@pytest.mark.parametrize("name", KEPT)
def test_what_is_found_is_what_is_expected(name: str) -> None:
    assert found(compare_traces(HOME / name / "reference.h5", target_of(HOME / name))) == expected(name)
    for trace in (HOME / name).rglob("*.h5"):
        assert trace.stat().st_size < 1_000_000


@pytest.mark.parametrize("name", [name for name in KEPT if orders(name)])
def test_the_order_is_what_is_expected(name: str) -> None:
    must = orders(name)
    traces = [open_trace(HOME / name / f"{side}.h5") for side in ("reference", "target")]
    trees = ()
    if "tree" in must:
        probe = open_probe(HOME / name / must["tree"])
        trees = ((f"the probed tree of {probe.operator}", probe.tree),)
    report = order_of_pair(*traces, must["site"], trees=trees)
    assert must["verdict"] == report.verdict
    for one in report.analyses:
        if one.side in must:
            assert must[one.side] in {name for won in one.winners for name in (won.name, *won.also)}
    assert must.get("cause") in (None, report.analyses[1].cause)


@pytest.mark.parametrize("name", ["epsilon", "minilm", "dropped_split_k", "missing_all_reduce"])
def test_made_anew_it_is_the_same(name: str, tmp_path: Path) -> None:
    folder = make(name, tmp_path)
    assert found(compare_traces(folder / "reference.h5", target_of(folder))) == expected(name)
