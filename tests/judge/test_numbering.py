"""Layers that a stage counts for itself have the numbers of the whole model, under names of its own too."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from captures.llama import small_llama, tokens
from layerdiff import Recorder
from layerdiff.align.alignment import RenameRule
from layerdiff.judge.pairs.numbering import numbered_globally
from layerdiff.trace.reader import open_trace

RULES = [
    RenameRule(r"decoder\.blocks((?:[./].*)?)", r"layers\1"),
    RenameRule(r"(.*)\.pre_mlp_norm((?:/.*)?)", r"\1.post_attention_layernorm\2"),
]


class Stage(nn.Module):
    def __init__(self, layers: nn.ModuleList) -> None:
        super().__init__()
        self.decoder = nn.ModuleDict({"blocks": layers})

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.decoder["blocks"]:  # type: ignore[attr-defined]
            x = layer.pre_mlp_norm(x)
        return x


def test_of_a_stage_with_other_names(tmp_path: Path) -> None:
    model = small_llama(hidden=32, layers=4)
    with torch.no_grad(), Recorder(tmp_path / "r.h5", model):
        model(input_ids=tokens())
    for layer in model.layers:
        layer.pre_mlp_norm = layer.post_attention_layernorm
        del layer.post_attention_layernorm
    stage = Stage(model.layers[2:])
    with torch.no_grad(), Recorder(tmp_path / "t.h5", stage, operators=True):
        stage(torch.randn(2, 4, 32))
    ours, theirs = (open_trace(tmp_path / name).files for name in ("r.h5", "t.h5"))
    sites = numbered_globally(ours, theirs, RULES).target[0].site
    assert {"decoder.blocks.2.pre_mlp_norm", "decoder.blocks.3.pre_mlp_norm/aten.rsqrt.default#0"} <= set(sites)
    assert "decoder.blocks.0.pre_mlp_norm" in set(numbered_globally(ours, theirs).target[0].site)
