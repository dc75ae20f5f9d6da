"""What a statement says beside the numbers: where NaNs are, and attributes that differ, as a lead and not as a proof."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from captures.recording import HOME
from layerdiff.compare import compare_traces
from layerdiff.record.recorder import Recorder


def statement(case: str) -> str:
    (origin,) = compare_traces(HOME / case / "reference.h5", HOME / case / "target.h5").origins
    return origin.statement


def test_nans_are_located_and_the_rest_is_compared() -> None:
    """The first three tokens of 18 are masked: three rows of 64 elements."""
    assert statement("masked_row") == (
        "what it hands to layers.0.self_attn.o_proj (in[0]) is NaN at 192 of 1152 elements where the reference is finite: "
        "rows 0..2 of dim 1 are wholly NaN; the other elements agree exactly; its inputs and weights agree"
    )


def test_an_attribute_that_differs_is_a_lead() -> None:
    lead = "attribute differs: base is 500000, reference 10000 (likely cause, not proven)"
    assert statement("rope_base").startswith(f"{lead}; out[1] differs by ")


class Gate(nn.Module):
    """Scores, and the best of them."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x.topk(self.count, -1).values


class Weigh(nn.Module):
    def forward(self, x: Tensor, best: Tensor) -> Tensor:
        return x * best.sum(-1, keepdim=True)


class Gated(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.gate, self.weigh = Gate(count), Weigh()

    def forward(self, x: Tensor) -> Tensor:
        return self.weigh(*self.gate(x))


def test_inputs_of_other_shapes_are_not_said_to_agree(tmp_path: Path) -> None:
    for name, count in (("r", 2), ("t", 3)):
        model = Gated(count)
        with Recorder(tmp_path / f"{name}.h5", model):
            model(torch.linspace(-1.0, 2.0, 20).reshape(4, 5))
    (origin,) = compare_traces(tmp_path / "r.h5", tmp_path / "t.h5").origins
    assert "weigh" == origin.site
    assert origin.statement.endswith("what else comes in agrees, and in[1] could not be compared, having other shapes")
