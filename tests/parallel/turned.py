"""Tasks of a process of the group: tensor parallelism, and sequence parallelism, of a model that has the tokens before the requests."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from captures.llama import small_llama, tokens
from layerdiff import Recorder
from tests.sequence_first import HIDDEN, LAYERS, SequenceFirst


class Columns(nn.Module):
    """Makes its part of the results; `parts`: the tokens are in so many parts on the ranks, and gathered first."""

    def __init__(self, weight: Tensor, parts: int) -> None:
        super().__init__()
        self.weight, self.parts = nn.Parameter(weight.detach().clone()), parts

    def forward(self, x: Tensor) -> Tensor:
        if self.parts > 1:
            every = x.new_empty(self.parts * len(x), *x.shape[1:])
            dist.all_gather_into_tensor(every, x.contiguous())
            x = every
        return x @ self.weight.t()


class Rows(nn.Module):
    """Adds up what the ranks make; each keeps its part of the tokens where they are in parts."""

    def __init__(self, weight: Tensor, parts: int, *, alone: bool) -> None:
        super().__init__()
        self.weight, self.parts, self.alone = nn.Parameter(weight.detach().clone()), parts, alone

    def forward(self, x: Tensor) -> Tensor:
        made = x @ self.weight.t()
        if self.parts > 1:
            own = made.new_empty(len(made) // self.parts, *made.shape[1:])
            dist.reduce_scatter_tensor(own, made.contiguous())
            return own
        if not self.alone:
            dist.all_reduce(made)
        return made


class OnRanks(SequenceFirst):
    def __init__(self, rank: int, size: int, fault: str, *, in_parts: bool) -> None:
        super().__init__(small_llama(hidden=HIDDEN, layers=LAYERS), fault)
        self.rank, self.parts = rank, size if in_parts else 1
        for number, layer in enumerate(self.layers):
            attention, mlp, alone = layer.self_attn, layer.mlp, fault == "missing" and number == LAYERS - 1
            attention.linear_qkv = Columns(attention.linear_qkv.weight.chunk(size)[rank], self.parts)  # heads in a row
            attention.o_proj = Rows(attention.o_proj.weight.chunk(size, 1)[rank], self.parts, alone=alone)
            attention.heads //= size
            halves = [half.chunk(size)[rank] for half in mlp.linear_fc1.weight.chunk(2)]
            mlp.linear_fc1 = Columns(torch.cat(halves), self.parts)
            mlp.down_proj = Rows(mlp.down_proj.weight.chunk(size, 1)[rank], self.parts, alone=False)
        self.lm_head = Columns(self.lm_head.weight, self.parts)

    def forward(self, ids: Tensor, hidden_at: Tensor) -> Tensor:
        x = self.embed_tokens(ids).transpose(0, 1).contiguous()
        cos, sin = (part.permute(2, 0, 1, 3) for part in self.rotary_emb(x, torch.arange(len(x))[None]))
        x = x.chunk(self.parts)[self.rank % self.parts].contiguous()
        for layer in self.layers:
            x = layer(x, (cos, sin), hidden_at)
        return self.lm_head(self.norm(x)).transpose(0, 1).contiguous()


def record_rank(rank: int, size: int, folder: Path, operators: bool, fault: str, dtype: torch.dtype, in_parts: bool) -> None:
    folder.mkdir(exist_ok=True)
    model, ids = OnRanks(rank, size, fault, in_parts=in_parts).to(dtype), tokens(batch=3)
    hidden_at = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
    with torch.no_grad(), Recorder(folder / f"rank{rank:05d}.h5", model, operators=operators):
        model(ids, hidden_at)
    dist.barrier()


def record(path: Path, operators: bool) -> Path:
    model = small_llama(hidden=HIDDEN, layers=LAYERS)
    with torch.no_grad(), Recorder(path, model, operators=operators):
        model(input_ids=tokens(batch=3))
    return path
