"""Traces that lack something, or that ask for something that must not be done: judged as far as possible, and said."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import layerdiff
from captures.kernels import Kernel
from layerdiff.arithmetic import registry
from layerdiff.arithmetic.contract import Contract, Spread
from layerdiff.compare import compare_traces
from layerdiff.judge.tables import Verdict
from layerdiff.saved.comparison import Comparison
from layerdiff.trace.arguments import Arguments
from tests.programs import IDS, Decoder, Record, decoder, judged, random, record, rewritten, seeded

X = random(4, 6)


@pytest.fixture(scope="module")
def reference(write: Record) -> Path:
    return write(decoder(), IDS)


@pytest.fixture(scope="module")
def faulty(write: Record) -> Path:
    return write(decoder(epsilon), IDS)


def epsilon(model: Decoder) -> None:
    model.layers[1].input_layernorm.variance_epsilon = 1e-5


def sites(comparison: Comparison) -> list[str]:
    return [origin.site for origin in comparison.origins]


def at(comparison: Comparison, site: str) -> tuple[str, str]:
    """Verdict and statement of a site."""
    row = next(row for row, text in enumerate(comparison.sites["site"].tolist()) if comparison.texts[text] == site)
    statement = comparison.sites["statement"][row]
    return Verdict(int(comparison.sites["verdict"][row])).label, (comparison.texts[int(statement)] or "") if statement >= 0 else ""


EPSILON = "layers.1.input_layernorm/aten.add.Tensor#0"


# operands and weights that were not kept


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {"keep": "statistics"}),
        ({}, {"weights": "none"}),
        ({"weights": "none"}, {"weights": "none"}),
        ({"weights": "none", "fingerprints": False}, {"weights": "none", "fingerprints": False}),
        ({}, {"keep": "full:2KB"}),
        ({}, {"modules": "layers.1*"}),
    ],
    ids=["statistics", "weights of one", "weights", "no fingerprints", "budget", "some modules"],
)
def test_what_was_not_kept_does_not_hide_a_scalar(write: Record, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    clean = compare_traces(write(decoder(), IDS, **ours), write(decoder(), IDS, **theirs))
    assert ([], False) == (sites(clean), clean.defect)
    assert [EPSILON] == sites(compare_traces(write(decoder(), IDS, **ours), write(decoder(epsilon), IDS, **theirs)))


def test_statistics_on_both_sides_are_judged_by_thresholds(write: Record) -> None:
    options = {"keep": "statistics"}
    clean = compare_traces(write(decoder(), IDS, **options), write(decoder(dtype=torch.bfloat16), IDS, **options))
    assert ([], False) == (sites(clean), clean.defect)
    comparison = compare_traces(write(decoder(), IDS, **options), write(decoder(epsilon), IDS, **options))
    assert ["layers.1.input_layernorm"] == sites(comparison)
    assert "threshold" in comparison.origins[0].rule
    verdict, statement = at(comparison, EPSILON)
    assert "not-comparable" == verdict
    assert "statistics only" in statement


def test_weights_that_were_not_kept_are_named(write: Record, reference: Path) -> None:
    comparison = compare_traces(write(decoder(), IDS, weights="none"), write(decoder(epsilon), IDS, weights="none"))
    verdict, statement = at(comparison, "norm/aten.mul.Tensor#1")
    assert ("not-comparable", True) == (verdict, "the bytes of norm.weight were not recorded" in statement)


# calls recorded half


def test_a_model_that_raises(write: Record, reference: Path, tmp_path: Path) -> None:
    def failing(model: Decoder) -> None:
        def forward(x: Tensor) -> Tensor:
            torch.relu(x)
            raise ValueError("out of memory, say")

        model.layers[1].mlp.forward = forward  # type: ignore[method-assign]

    with pytest.raises(ValueError, match="out of memory"):
        record(tmp_path / "half.h5", decoder(failing), IDS)
    for pair in ((reference, tmp_path / "half.h5"), (tmp_path / "half.h5", reference), (tmp_path / "half.h5", tmp_path / "half.h5")):
        comparison = compare_traces(*pair)
        assert [] == sites(comparison)
        assert "identical" == at(comparison, "layers.0.mlp.down_proj")[0]
    with pytest.raises(ValueError, match="out of memory"):
        record(tmp_path / "faulty.h5", decoder(lambda model: (failing(model), epsilon(model))), IDS)
    assert [EPSILON] == sites(compare_traces(reference, tmp_path / "faulty.h5"))


def test_an_operator_that_raised_and_was_caught(write: Record, reference: Path) -> None:
    def trying(model: Decoder) -> None:
        forward = model.layers[1].mlp.forward

        def tried(x: Tensor) -> Tensor:
            with pytest.raises(RuntimeError):
                torch.mm(x[0], torch.zeros(3, 3))
            return forward(x)

        model.layers[1].mlp.forward = tried  # type: ignore[method-assign]

    comparison = compare_traces(reference, write(decoder(trying), IDS))
    assert ([], False) == (sites(comparison), comparison.defect)


# operators of others


class Custom(nn.Module):
    """Two operators of a namespace that nobody else has, between two linear layers."""

    def __init__(self, by: float = 2.0, *, add: float = 0.0) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.by, self.add = by, add

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.ops.layerdiff_tests.scaled(self.first(x) + self.add, self.by))


@pytest.fixture(scope="module")
def library() -> Any:
    made = torch.library.Library("layerdiff_tests", "DEF")
    made.define("scaled(Tensor x, float by) -> Tensor")
    made.impl("scaled", lambda x, by: (x.double() * by).to(x.dtype), "CPU")
    yield made
    made._destroy()


def test_an_operator_of_another_namespace_is_not_run(write: Record, library: Any) -> None:
    ours = write(seeded(Custom()), X)
    same = compare_traces(ours, write(seeded(Custom()), X))
    assert (Verdict.IDENTICAL, []) == (same.verdict, sites(same))
    coarse = compare_traces(ours, write(seeded(Custom()).bfloat16(), X.bfloat16()))
    assert ([], False) == (sites(coarse), coarse.defect)
    verdict, statement = at(coarse, "/layerdiff_tests.scaled.default#0")
    assert ("not-comparable", True) == (verdict, "--trust-ops layerdiff_tests" in statement)


def test_an_operator_that_is_trusted_is_run(write: Record, library: Any) -> None:
    ours, theirs = write(seeded(Custom()), X), write(seeded(Custom()).bfloat16(), X.bfloat16())
    assert "not-comparable" != at(compare_traces(ours, theirs, trust=["layerdiff_tests"]), "/layerdiff_tests.scaled.default#0")[0]
    other = write(seeded(Custom(by=3.0)).bfloat16(), X.bfloat16())
    assert ["/layerdiff_tests.scaled.default#0"] == sites(compare_traces(ours, other, trust=["layerdiff_tests"]))


def test_a_fault_before_an_operator_that_is_not_run(write: Record, library: Any) -> None:
    comparison = compare_traces(write(seeded(Custom(add=1e-3)), X), write(seeded(Custom(add=2e-3)), X))
    assert ["/aten.add.Tensor#0"] == sites(comparison)


def test_a_contract_of_ones_own(write: Record, library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a few lines of numpy another operator is judged as torch's are: its meaning, its arithmetic, and its own replay."""
    monkeypatch.setattr(registry, "_registered", {})

    def exact(arguments: Arguments) -> tuple[np.ndarray, ...]:
        x, by = arguments.args
        return (x * by,)

    def spread(arguments: Arguments, results: tuple[np.ndarray, ...], accumulator: Any) -> tuple[Spread, ...]:
        return (Spread(np.zeros(()), accumulator.unit * np.abs(results[0])),)

    layerdiff.register_contract("layerdiff_tests.scaled", Contract(exact, spread))
    ours = write(seeded(Custom()), X)
    coarse = compare_traces(ours, write(seeded(Custom()).bfloat16(), X.bfloat16()))
    assert ([], False) == (sites(coarse), coarse.defect)
    assert "inherited" == at(coarse, "/layerdiff_tests.scaled.default#0")[0]
    other = compare_traces(ours, write(seeded(Custom(by=2.5)), X))
    assert ["/layerdiff_tests.scaled.default#0"] == sites(other)
    assert "scaled(2.5), reference" in other.origins[0].statement.replace("layerdiff_tests.", "")
    model = seeded(Custom())
    wrong = Kernel(model, ("layerdiff_tests.scaled.default",), lambda func, args, kwargs, result: result * (1 + 1e-3))
    (origin,) = compare_traces(ours, write(model, X, below=[wrong])).origins
    assert ("/layerdiff_tests.scaled.default#0", True) == (origin.site, origin.rule.startswith("own replay"))

    def failing(arguments: Arguments) -> tuple[np.ndarray, ...]:
        raise ZeroDivisionError("not today")

    layerdiff.register_contract("layerdiff_tests.scaled", Contract(failing, spread))
    comparison = compare_traces(ours, write(seeded(Custom()).bfloat16(), X.bfloat16()))
    assert [] == sites(comparison)
    verdict, statement = at(comparison, "/layerdiff_tests.scaled.default#0")
    assert "not today" in statement
    assert "not-comparable" == verdict


def test_operators_that_this_machine_lacks(write: Record, library: Any, tmp_path: Path) -> None:
    """Compared by a process in which nobody has defined them."""
    paths = [write(seeded(Custom()), X), write(seeded(Custom()).bfloat16(), X.bfloat16())]
    script = """
import json, sys
from layerdiff.compare import compare_traces
comparison = compare_traces(*sys.argv[1:3])
print(json.dumps([comparison.defect, [origin.site for origin in comparison.origins]]))
"""
    done = subprocess.run([sys.executable, "-c", script, *map(str, paths)], capture_output=True, text=True, check=True)
    assert [False, []] == json.loads(done.stdout)


def changed_texts(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("aten.silu.default", "aten.silu.default_of_tomorrow", "this machine lacks the operator"),
        ("aten.silu.default", "aten.from_file.default", "it opens a file"),
        ("aten.silu.default", "npu.silu.default", "--trust-ops npu"),
        ("aten.silu.default", "os.system.default", "--trust-ops os"),
        ("aten.silu.default", "not a name", "no name of an operator"),
        ("aten.silu.default", "aten.repeat.default", ""),
        ("aten.silu.default", "aten.log_softmax.int", ""),
        ("aten.silu.default", "aten.rand.default", ""),
    ],
)
@pytest.mark.parametrize("side", ["target", "both"])
def test_operators_that_are_not_run(reference: Path, tmp_path: Path, old: str, new: str, reason: str, side: str) -> None:
    other = rewritten(reference, tmp_path / "other.h5", changed_texts(old, new))
    comparison = compare_traces(other if side == "both" else reference, other)
    verdict, statement = at(comparison, f"layers.0.mlp/{new}#0")
    assert reason in statement or verdict != "not-comparable" or "does not run" in statement
    assert verdict in (["identical", "not-comparable"] if side == "both" else ["not-comparable", "defect", "unexplained"])
    assert {"layers.0.mlp", "layers.1.mlp"} >= {site.partition("/")[0] for site in sites(comparison)}
    if side == "both":
        assert [] == sites(comparison)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('{"tensor": "in[0]"}, 1e-06', '{"tensor": "in[7]"}, 1e-06'),
        ('{"tensor": "in[0]"}, 1e-06', "[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]], 1e-06"),
        ('{"tensor": "in[0]"}, 1e-06', '{"code": "__import__"}, 1e-06'),
        ('{"tensor": "in[0]"}, 1e-06', '{"tensor": "in[0]"}, "x"'),
        ('{"arguments": ', '{"nothing": '),
        ("[-1], true", "[99], true"),
        ("[2, 6, 16]", "[2, 99999999999, 16]"),
        ("[2, 6, 16]", "[2, 6, -16]"),
        ('"writes": ["in[0]"]', '"writes": ["in[5]"]'),
        ('"args": [', '"args": 3, "more": ['),
        ('"args": [', '"args": null, "more": ['),
        ('"kwargs": {', '"kwargs": 3, "more": {'),
        ('"kwargs": {', '"kwargs": [], "more": {'),
        ("1e-06", "9" * 400),
        ("1e-06", "1e400"),
        ("1e-06", '{"tuple": {"a": 1}}'),
        ("aten.mul.Tensor", "mul"),
        ("aten.mean.dim", ""),
    ],
)
def test_pictures_that_cannot_be_followed(reference: Path, faulty: Path, tmp_path: Path, old: str, new: str) -> None:
    other = rewritten(reference, tmp_path / "other.h5", changed_texts(old, new))
    fault = rewritten(faulty, tmp_path / "fault.h5", changed_texts(old, new))
    for pair in ((reference, other), (other, faulty), (other, fault)):
        compare_traces(*pair)


def test_results_without_bound_are_not_made(write: Record, tmp_path: Path) -> None:
    class Full(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.full((4, 6), 2.0)

    ours = write(Full(), X)
    other = rewritten(ours, tmp_path / "other.h5", changed_texts("[4, 6], 2.0", "[4000000, 6000000], 2.0"))
    assert [] == sites(compare_traces(other, other))
    compare_traces(ours, other)
    last = judged(other, other)
    assert "not-comparable" == next(own.verdict for own in last.own.values() if "4000000" in own.statement)


def test_a_file_that_a_trace_names_is_not_made(reference: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    other = rewritten(
        reference,
        tmp_path / "other.h5",
        lambda text: text.replace("aten.silu.default", "aten.from_file.default").replace(
            '{"arguments": {"args": [{"tensor": "in[0]"}]', json.dumps({"arguments": {"args": [str(made), True, 8]}})[:-2] + ""
        ),
    )
    compare_traces(reference, other)
    compare_traces(other, other)
    assert not made.exists()
