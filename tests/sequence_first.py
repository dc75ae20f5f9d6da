"""A model that has the tokens before the requests, [positions, requests, hidden], as training frameworks for large models have it.

The embedding is turned, projections are fused head by head, attention is one batch of all heads, a mask says True where nothing is to be
seen, and a module returns its result with what is to be added to it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from captures.llama import SmallLlama, rotate
from layerdiff.judge.tables import Source
from layerdiff.rows.tensor.pair import open_tensor
from layerdiff.rows.traces import Traces
from layerdiff.saved.comparison import Comparison
from layerdiff.trace.schema import CallKind

HIDDEN, LAYERS = 32, 2


class Core(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, q: Tensor, k: Tensor, v: Tensor, hidden_at: Tensor) -> Tensor:
        length, batch, heads, head = q.shape
        q, k, v = (part.reshape(length, batch * heads, head).transpose(0, 1) for part in (q, k, v))
        scores = torch.baddbmm(q.new_empty(batch * heads, length, length), q, k.transpose(1, 2), beta=0, alpha=self.scale)
        scores = scores.view(batch, heads, length, length).float().masked_fill(hidden_at, -10_000.0)
        mixed = torch.bmm(scores.softmax(-1).to(v.dtype).view(batch * heads, length, length), v)
        return mixed.view(batch, heads, length, head).permute(2, 0, 1, 3).reshape(length, batch, heads * head)


class Attention(nn.Module):
    def __init__(self, attention: nn.Module, fault: str) -> None:
        super().__init__()
        self.heads, self.head, self.o_proj, self.fault = attention.heads, HIDDEN // attention.heads, attention.o_proj, fault
        each = [proj.weight.view(self.heads, self.head, HIDDEN) for proj in (attention.q_proj, attention.k_proj, attention.v_proj)]
        self.linear_qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.linear_qkv.weight = nn.Parameter(torch.cat(each, 1).reshape(-1, HIDDEN).detach())
        self.core_attention = Core((0.5 if fault == "scale" else 1.0) * self.head**-0.5)

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor], hidden_at: Tensor) -> tuple[Tensor, None]:
        made = self.linear_qkv(x)
        q, k, v = made.view(*made.shape[:2], self.heads, 3 * self.head).chunk(3, -1)
        if self.fault == "split":
            k, v = v, k
        q, k = rotate(q, *angles), rotate(k, *angles)
        return self.o_proj(self.core_attention(q, k, v, hidden_at)), None


class MLP(nn.Module):
    def __init__(self, mlp: nn.Module, fault: str) -> None:
        super().__init__()
        self.down_proj, self.fault = mlp.down_proj, fault
        self.linear_fc1 = nn.Linear(HIDDEN, 2 * mlp.gate_proj.out_features, bias=False)
        self.linear_fc1.weight = nn.Parameter(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).detach())

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        gate, up = self.linear_fc1(x).chunk(2, -1)
        if self.fault == "halves":
            gate, up = up, gate
        return self.down_proj(functional.silu(gate) * up), None


class Layer(nn.Module):
    def __init__(self, layer: nn.Module, fault: str) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = layer.input_layernorm, layer.post_attention_layernorm
        self.self_attn, self.mlp, self.fault = Attention(layer.self_attn, fault), MLP(layer.mlp, fault), fault
        if fault == "epsilon":
            self.input_layernorm.variance_epsilon = 1e-5

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor], hidden_at: Tensor) -> Tensor:
        made, _ = self.self_attn(self.input_layernorm(x), angles, hidden_at)
        x = made if self.fault == "residual" else x + made
        return x + self.mlp(self.post_attention_layernorm(x))[0]


class SequenceFirst(nn.Module):
    """`fault` is of the last layer."""

    def __init__(self, model: SmallLlama, fault: str = "") -> None:
        super().__init__()
        self.embed_tokens, self.norm, self.lm_head, self.rotary_emb = model.embed_tokens, model.norm, model.lm_head, model.rotary_emb
        self.layers = nn.ModuleList(Layer(layer, fault if layer is model.layers[-1] else "") for layer in model.layers)

    def forward(self, ids: Tensor, hidden_at: Tensor) -> Tensor:
        x = self.embed_tokens(ids).transpose(0, 1).contiguous()
        cos, sin = (part.permute(2, 0, 1, 3) for part in self.rotary_emb(x, torch.arange(len(x))[None]))
        for layer in self.layers:
            x = layer(x, (cos, sin), hidden_at)
        return self.lm_head(self.norm(x)).transpose(0, 1).contiguous()


def opens_as_compared(comparison: Comparison) -> None:
    """Every value that modules hand on and that was compared by its bytes opens, as many elements on both sides."""
    traces, sites, pairs = Traces(), comparison.sites, comparison.pairs
    known = np.flatnonzero((sites["kind"][pairs["site"]] == CallKind.MODULE) & (pairs["source"] == Source.BYTES)).tolist()
    shown = [open_tensor(traces, comparison, pair) for pair in known]
    assert len(shown) > LAYERS and all(one.sides.reference.count == one.sides.target.count for one in shown)
    traces.close()
