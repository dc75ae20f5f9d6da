"""Tasks of a process of the group: a pipeline of torch's own, which runs a batch in pieces, and the first once before, for the shapes."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from captures.llama import small_llama, tokens
from layerdiff import Recorder

BATCH, LAYERS = 4, 4


class Stage(nn.Module):
    """Some of the layers, under their names in the whole; the first has the embedding, the last the head."""

    def __init__(self, rank: int, size: int, epsilon: float) -> None:
        super().__init__()
        model, each = small_llama(hidden=32, layers=LAYERS), LAYERS // size
        model.layers[2].input_layernorm.variance_epsilon = epsilon
        self.layers = nn.ModuleDict({str(number): model.layers[number] for number in range(rank * each, (rank + 1) * each)})
        self.rotary_emb = model.rotary_emb
        self.embed_tokens = model.embed_tokens if rank == 0 else None
        self.norm, self.lm_head = (model.norm, model.lm_head) if rank == size - 1 else (None, None)

    def forward(self, x: Tensor) -> Tensor:
        if self.embed_tokens is not None:
            x = self.embed_tokens(x)
        length = x.shape[1]
        rotary = self.rotary_emb(x, torch.arange(length)[None])
        mask = torch.full((1, 1, length, length), float("-inf"), dtype=x.dtype).triu(1)
        for layer in self.layers.values():
            x = layer(x, rotary, mask)
        return x if self.norm is None else self.lm_head(self.norm(x))  # type: ignore[no-any-return, misc]


def record_rank(rank: int, size: int, folder: Path, pieces: int, operators: bool, epsilon: float) -> None:
    folder.mkdir(exist_ok=True)
    stage = Stage(rank, size, epsilon)
    schedule = ScheduleGPipe(PipelineStage(stage, rank, size, torch.device("cpu")), pieces)
    with torch.no_grad(), Recorder(folder / f"rank{rank:05d}.h5", stage, operators=operators):
        schedule.step(*([tokens(batch=BATCH)] if rank == 0 else []))
    dist.barrier()


def record(path: Path, operators: bool) -> Path:
    """One process, all at once."""
    model = small_llama(hidden=32, layers=LAYERS)
    with torch.no_grad(), Recorder(path, model, operators=operators):
        model(input_ids=tokens(batch=BATCH))
    return path
