"""A small Llama in one process or cut over several, in every usual way, and what goes wrong there.

A rank holds its parts of the same weights, and a collective is issued where its layout (captures/layouts.py) has one.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from captures.expert_layers import ExchangedExperts, MixtureOfExperts
from captures.kernels import PRODUCTS, Kernel, product, split_dropped
from captures.layouts import LENGTH, PAD_TO, Case, Cut, Mesh, Ranks, ids_of, weights_of
from captures.llama import RMSNorm, Rotary, rotate
from captures.processes import Processes
from layerdiff import Recorder

ON_QUERIES = 1.25
"""The part of the scores' scale that a case may put on the queries."""


class ColumnLinear(nn.Module):
    """Holds some rows of the weight: makes some channels of the result."""

    def __init__(self, cut: Cut, inputs: int, outputs: int, rows: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(cut.weight("weight", outputs, inputs)[rows].clone())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class RowLinear(nn.Module):
    """Holds some columns of the weight: makes a part of the sum. `reduces`: whether it adds the ranks' parts up itself."""

    def __init__(self, cut: Cut, inputs: int, outputs: int, columns: Tensor, *, reduces: bool) -> None:
        super().__init__()
        self.ranks, self.reduces = cut.tensor, reduces
        self.missing, self.every = cut.wrong("inner_sum_missing"), cut.wrong("inner_bias_every_rank" if reduces else "bias_every_rank")
        self.weight = nn.Parameter(cut.weight("weight", outputs, inputs)[:, columns].clone())
        self.bias = nn.Parameter(cut.weight("bias", outputs).clone()) if cut.case.bias else None

    def forward(self, x: Tensor) -> Tensor:
        first = self.ranks.rank == 0 or self.every
        y = F.linear(x, self.weight, self.bias if first else None)
        return self.ranks.sum(y) if self.reduces and not self.missing else y


class PartNorm(nn.Module):
    """RMSNorm of channels that lie on several ranks: the squares are added up over them."""

    def __init__(self, cut: Cut, channels: int, held: Tensor) -> None:
        super().__init__()
        self.ranks = Ranks() if cut.wrong("local_norm") else cut.tensor
        self.weight = nn.Parameter(cut.weight("weight", channels)[held].clone())

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        squares = self.ranks.sum(wide.pow(2).sum(-1, keepdim=True))
        return self.weight * (wide * torch.rsqrt(squares / (wide.shape[-1] * self.ranks.size) + 1e-6)).to(x.dtype)


class Mixing(nn.Module):
    """Attention itself. With tokens on several ranks the keys and values of all are gathered; `places` are this rank's."""

    def __init__(self, cut: Cut) -> None:
        super().__init__()
        self.ranks = cut.ranks if cut.case.kind == "context" else Ranks()
        self.ahead = 2 if cut.wrong("causal_offset") else 0
        self.scale = 1.001 if cut.wrong("score_scale") else 1.0 / ON_QUERIES if cut.case.scaled_query else 1.0

    def forward(self, q: Tensor, k: Tensor, v: Tensor, places: Tensor) -> Tensor:
        every = self.ranks.gather(places, 0)
        k, v = self.ranks.gather(k, 2), self.ranks.gather(v, 2)
        each = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)
        scores = (q @ k.transpose(-1, -2) * (self.scale * q.shape[-1] ** -0.5)).float()
        scores = scores.masked_fill(every[None, :] > (places + self.ahead if self.ahead else places)[:, None], float("-inf"))
        return (scores.softmax(-1).to(v.dtype) @ v).transpose(1, 2).flatten(2)


class Attention(nn.Module):
    def __init__(self, cut: Cut) -> None:
        super().__init__()
        case, self.cut = cut.case, cut
        size = self.size = case.hidden // case.heads
        ranks = cut.tensor
        heads, kv_heads = ranks.places(case.heads), torch.arange(case.kv_heads)
        kv_heads = kv_heads[ranks.rank * case.kv_heads // ranks.size :][: max(1, case.kv_heads // ranks.size)]
        q, k = _rows(heads, size), _rows(kv_heads, size)
        width, kv_width = case.heads * size, case.kv_heads * size
        rows = torch.cat([q, width + k, width + kv_width + k])
        if cut.wrong("fused_one_block"):
            rows = ranks.rank * rows.numel() + torch.arange(rows.numel())
        if cut.wrong("duplicate_shard"):
            rows = torch.cat([torch.arange(q.numel()), rows[q.numel() :]])
        self.parts = [q.numel(), k.numel(), k.numel()]
        self.separate = case.separate
        total = width + 2 * kv_width
        if case.separate:
            for name, part in zip(("q_proj", "k_proj", "v_proj"), rows.split(self.parts), strict=True):
                setattr(self, name, ColumnLinear(cut.at("qkv_proj"), case.hidden, total, part))
        else:
            self.qkv_proj = ColumnLinear(cut.at("qkv_proj"), case.hidden, total, rows)
        if case.query_norm:
            self.q_norm = PartNorm(cut.at("q_norm"), width, q)
        self.mixing = Mixing(cut)
        self.o_proj = RowLinear(cut.at("o_proj"), width, case.hidden, q, reduces=False)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], places: Tensor) -> Tensor:
        cut, ranks = self.cut, self.cut.tensor
        sequence = cut.case.kind == "sequence"
        if sequence:
            x = ranks.gather(x, 1, range(ranks.size)[::-1] if cut.wrong("gather_order") else None)
        q, k, v = (self.q_proj(x), self.k_proj(x), self.v_proj(x)) if self.separate else self.qkv_proj(x).split(self.parts, -1)
        if cut.case.query_norm:
            q = self.q_norm(q)
        q, k, v = (part.unflatten(-1, (-1, self.size)).transpose(1, 2) for part in (q, k, v))
        q, k = rotate(q, *rotary), rotate(k, *rotary)
        y = self.o_proj(self.mixing(q * ON_QUERIES if cut.case.scaled_query else q, k, v, places))
        if cut.wrong("sum_missing"):
            return y
        y = ranks.sum_and_cut(y, 1) if sequence else ranks.sum(y)
        return ranks.sum(y) if cut.wrong("sum_twice") else y


class SwiGLU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up


class MLP(nn.Module):
    def __init__(self, cut: Cut) -> None:
        super().__init__()
        case, self.ranks, self.sequence = cut.case, cut.tensor, cut.case.kind == "sequence"
        held = self.ranks.places(case.inner)
        self.gate_up_proj = ColumnLinear(cut.at("gate_up_proj"), case.hidden, 2 * case.inner, torch.cat([held, case.inner + held]))
        self.act_fn = SwiGLU()
        outside = self.sequence or cut.wrong("residual_every_rank")  # then the layer adds up
        self.down_proj = RowLinear(cut.at("down_proj"), case.inner, case.hidden, held, reduces=not outside)

    def forward(self, x: Tensor) -> Tensor:
        if self.sequence:
            x = self.ranks.gather(x, 1)
        y = self.down_proj(self.act_fn(self.gate_up_proj(x)))
        return self.ranks.sum_and_cut(y, 1) if self.sequence else y


class Layer(nn.Module):
    def __init__(self, cut: Cut) -> None:
        super().__init__()
        self.ranks = cut.tensor
        self.every = cut.wrong("residual_every_rank")
        self.input_layernorm = _norm(cut.at("input_layernorm"))
        self.self_attn = Attention(cut.at("self_attn"))
        self.post_attention_layernorm = _norm(cut.at("post_attention_layernorm"), 2e-6 if cut.wrong("epsilon") else 1e-6)
        kind = MLP if not cut.case.experts else ExchangedExperts if cut.case.exchanged else MixtureOfExperts
        self.mlp = kind(cut.at("mlp"))

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], places: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotary, places)
        y = x + self.mlp(self.post_attention_layernorm(x))
        return self.ranks.sum(y) if self.every else y


class Embedding(nn.Module):
    """Holds the rows of some ids: others read as zero, and the ranks' results are added up."""

    def __init__(self, cut: Cut) -> None:
        super().__init__()
        self.ranks, case = cut.tensor, cut.case
        held = self.ranks.places(case.vocabulary)
        self.first = int(held[0])
        self.weight = nn.Parameter(cut.weight("weight", case.vocabulary, case.hidden)[held].clone())

    def forward(self, ids: Tensor) -> Tensor:
        local = ids - self.first
        mine = (local >= 0) & (local < self.weight.shape[0])
        y = F.embedding(local * mine, self.weight) * mine[..., None]
        return self.ranks.sum(y)


class Head(nn.Module):
    """Holds the rows of some ids, and after them zeros up to the size that all ranks have."""

    def __init__(self, cut: Cut) -> None:
        super().__init__()
        case = cut.case
        held = cut.tensor.places(case.vocabulary)
        multiple = PAD_TO if case.padded_head else 1
        self.real = -(-case.vocabulary // cut.tensor.size)
        rows = -(-self.real // multiple) * multiple if cut.tensor.size > 1 else self.real
        weight = cut.weight("weight", case.vocabulary, case.hidden)[held]
        self.weight = nn.Parameter(F.pad(weight, (0, 0, 0, rows - held.numel())))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class Llama(nn.Module):
    """The model of a rank. A stage of a pipeline numbers its layers from zero."""

    def __init__(self, cut: Cut) -> None:
        super().__init__()
        case = cut.case
        self.cut, self.stages = cut, cut.mesh.stages
        self.first, self.last = self.stages.rank == 0, self.stages.rank == self.stages.size - 1
        held = self.stages.places(case.layers).tolist()
        if cut.wrong("stage_offset"):
            held = list(range(len(held)))
        if self.first:
            self.embed_tokens = Embedding(cut.at("embed_tokens"))
        self.rotary_emb = Rotary(case.hidden // case.heads, 10_000.0)
        self.layers = nn.ModuleList(Layer(replace(cut.at(f"layers.{layer}"), layer=layer)) for layer in held)
        if self.last:
            self.norm = _norm(cut.at("norm"))
            self.lm_head = Head(cut.at("lm_head"))

    def _stage(self, step: int) -> int:
        """The rank that holds the same part of a stage before or after."""
        at = self.stages.rank + step
        return self.stages.members[at] if self.stages.members else at

    def forward(self, ids: Tensor) -> Tensor:
        cut, ranks = self.cut, self.cut.tensor
        ids = ids[cut.mesh.replicas.places(ids.shape[0])] if cut.mesh.replicas.size > 1 else ids
        places = torch.arange(ids.shape[1])
        if cut.case.kind == "context":
            chunks = places.chunk(2 * cut.ranks.size)
            places = torch.cat([chunks[cut.ranks.rank], chunks[-1 - cut.ranks.rank]])
            ids = ids[:, places]
        positions = cut.ranks.places(LENGTH) if cut.wrong("contiguous_positions") else places
        if self.first:
            x = self.embed_tokens(ids)
        else:
            x = torch.empty(*ids.shape, cut.case.hidden, dtype=self.layers[0].input_layernorm.weight.dtype)
            dist.recv(x, self._stage(-1))
        rotary = self.rotary_emb(x, positions[None])
        sequence = cut.case.kind == "sequence"
        if sequence:
            x = x[:, ranks.places(LENGTH)]
        for layer in self.layers:
            x = layer(x, rotary, places)
        if not self.last:
            dist.send(x.contiguous(), self._stage(1))
            return x
        x = self.norm(x)
        logits = self.lm_head(ranks.gather(x, 1) if sequence else x)
        if ranks.size == 1:
            return logits
        whole = ranks.gather(logits, -1)
        if not cut.wrong("vocabulary_padding"):
            whole = whole.unflatten(-1, (ranks.size, -1))[..., : self.lm_head.real].flatten(-2)
        return whole[..., : cut.case.vocabulary].contiguous()


def _rows(heads: Tensor, size: int) -> Tensor:
    """The channels of some heads."""
    return (heads[:, None] * size + torch.arange(size)).flatten()


def _norm(cut: Cut, epsilon: float = 1e-6) -> RMSNorm:
    norm = RMSNorm(cut.case.hidden, epsilon)
    norm.weight = nn.Parameter(cut.weight("weight", cut.case.hidden).clone())
    return norm


def model_of(case: Case, ranks: Ranks = Ranks()) -> Llama:  # noqa: B008  # frozen
    """The model of one rank, with its faults but for a kernel's."""
    model = Llama(Cut(case, ranks, Mesh.of(case, ranks), weights=weights_of(case))).eval()
    for fault in case.faults:
        if fault.name == "weight_off" and fault.rank == ranks.rank:
            with torch.no_grad():
                model.layers[fault.layer].self_attn.o_proj.weight[3].mul_(-1.0)
    return model


def record_rank(rank: int, size: int, path: Path, case: Case, operators: bool = False) -> None:
    """One forward of a rank, recorded to `path`."""
    model = model_of(case, Ranks(rank, size))
    broken = [fault for fault in case.faults if fault.name == "kernel_off" and fault.rank == rank]
    kernel = Kernel(model.layers[broken[0].layer].mlp.gate_up_proj, PRODUCTS, product(split_dropped)) if broken else nullcontext()
    torch.manual_seed(0)
    with kernel, Recorder(path, model, operators=operators, weights="used"), torch.no_grad():
        model(ids_of(case))


def make_capture(folder: Path, case: Case, size: int) -> None:
    """As `record_ranks`, with processes of its own."""
    with Processes(size) as processes:
        record_ranks(folder, case, size, processes)


def _record_rank_of(rank: int, size: int, folder: Path, case: Case, operators: bool) -> None:
    record_rank(rank, size, folder / f"rank{rank:05d}.h5", case, operators)


def record_ranks(
    folder: Path, case: Case, size: int, processes: Processes, *, reference: Case | None = None, operators: bool = False
) -> tuple[Path, Path]:
    """Record `reference` in this process, and `case` on `size` ranks, into `folder`: its reference.h5 and target/."""
    target = folder / "target"
    target.mkdir(parents=True, exist_ok=True)
    record_rank(0, 1, folder / "reference.h5", case.alone if reference is None else reference, operators)
    processes.run(_record_rank_of, target, case, operators, size=size)
    return folder / "reference.h5", target
