"""Neighbouring elements rotated as complex numbers, the rows of the projections in that order, under names of their own: as the authors of
Llama wrote it, against rotations of halves.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from captures.llama import small_llama, tokens
from layerdiff import Recorder, compare_traces

HIDDEN = 32
RULES = r"""
[[rename]]
target = '(.*)\.attention\.w([qkvo])((?:/.*)?)'
reference = '\1.self_attn.\2_proj\3'
[[rename]]
target = '(.*)\.attention((?:/.*)?)'
reference = '\1.self_attn\2'
"""


class Attention(nn.Module):
    def __init__(self, attention: nn.Module, scale: float) -> None:
        super().__init__()
        self.heads, self.scale = attention.heads, scale
        self.wq, self.wk, self.wv, self.wo = attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj
        for proj in (self.wq, self.wk):
            halves = proj.weight.view(self.heads, 2, -1, HIDDEN)
            proj.weight = nn.Parameter(halves.transpose(1, 2).reshape(HIDDEN, HIDDEN).detach())

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        cos, sin = (part.chunk(2, -1)[0].transpose(1, 2).float() for part in rotary)
        q, k, v = (proj(x).view(*x.shape[:2], self.heads, -1) for proj in (self.wq, self.wk, self.wv))
        q, k, v = (part.transpose(1, 2) for part in (self.rotated(q, cos, sin), self.rotated(k, cos, sin), v))
        scores = q @ k.transpose(-1, -2) * self.scale * q.shape[-1] ** -0.5 + mask
        return self.wo((scores.float().softmax(-1).to(v.dtype) @ v).transpose(1, 2).flatten(2))

    @staticmethod
    def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(3).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, layer: nn.Module, scale: float) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm, self.mlp = layer.input_layernorm, layer.post_attention_layernorm, layer.mlp
        self.attention = Attention(layer.self_attn, scale)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        x = x + self.attention(self.input_layernorm(x), rotary, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


@pytest.mark.parametrize(
    ("scale", "dtype", "found"),
    [
        (1.0, torch.bfloat16, []),
        (1.25, torch.float32, ["layers.1.self_attn"]),
    ],
)
def test_rows_in_the_order_of_rotations_are_no_other_weights(tmp_path: Path, scale: float, dtype: torch.dtype, found: list[str]) -> None:
    (tmp_path / "rules.toml").write_text(RULES)
    model, other = small_llama(hidden=HIDDEN, layers=2), small_llama(hidden=HIDDEN, layers=2)
    other.layers = nn.ModuleList(Layer(layer, scale if number == 1 else 1.0) for number, layer in enumerate(other.layers))
    with torch.no_grad():
        for name, one in (("r.h5", model), ("t.h5", other.to(dtype))):
            with Recorder(tmp_path / name, one, operators=True):
                one(input_ids=tokens(batch=2))
    comparison = compare_traces(tmp_path / "r.h5", tmp_path / "t.h5", profile=tmp_path / "rules.toml")
    assert found == [origin.site.split("/")[0] for origin in comparison.origins]
    assert [] == [notice.statement for notice in comparison.notices if notice.defect]
