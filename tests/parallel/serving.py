"""Tasks of a process of the group: a serving engine whose heads and hidden units are shared out, on requests that come and go."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from captures.llama import small_llama, tokens
from layerdiff import Recorder
from tests.engine import HIDDEN, LAYERS, Engine, serve

LENGTHS = (11, 18, 7)
STEPS = {
    "alone": [[(0, 11)], [(1, 18)], [(2, 7)]],
    "late": [[(0, 4)], [(0, 11), (1, 4)], [(1, 12), (2, 6)], [(2, 7), (1, 18)]],
    "mixed": [[(0, 8)], [(0, 11), (1, 4)], [(1, 12), (2, 6)], [(2, 7), (1, 18)]],
    "decoding": [[(1, 14)], [(1, 15), (0, 9)], [(0, 10), (1, 16)], [(1, 17), (0, 11), (2, 5)], [(1, 18), (2, 6)], [(2, 7)]],
}
"""Which request goes on to which length, in each forward; `late`, of which the first is not recorded."""


class Row(nn.Module):
    """A product whose terms are shared out, and the sum over ranks, if it is made."""

    def __init__(self, weight: Tensor, *, summed: bool = True) -> None:
        super().__init__()
        self.weight, self.summed = nn.Parameter(weight), summed

    def forward(self, x: Tensor) -> Tensor:
        y = functional.linear(x, self.weight)
        if self.summed:
            dist.all_reduce(y)
        return y


class Shared(Engine):
    """`wrong`: sum, the last layer adds up no attention; else faults of both layers (`Engine`), or of the last, of `rank 1 ` alone."""

    def __init__(self, rank: int, size: int, wrong: str) -> None:
        fault = wrong.removeprefix("rank 1 ") if rank == 1 or not wrong.startswith("rank 1 ") else ""
        first, _, last = fault.rpartition(", ")
        super().__init__(small_llama(hidden=HIDDEN, layers=LAYERS), (first, "" if wrong == "sum" else last))
        for number, layer in enumerate(self.layers):
            attention, mlp = layer.self_attn, layer.mlp
            attention.heads //= size
            for linear, parts in ((attention.qkv_proj, 3), (mlp.gate_up_proj, 2)):
                own = [whole.chunk(size)[rank] for whole in linear.weight.detach().chunk(parts)]
                linear.weight = nn.Parameter(torch.cat(own))
            summed = wrong != "sum" or number < LAYERS - 1
            attention.o_proj = Row(attention.o_proj.weight.detach().chunk(size, 1)[rank].clone(), summed=summed)
            mlp.down_proj = Row(mlp.down_proj.weight.detach().chunk(size, 1)[rank].clone())


def requests() -> list[Tensor]:
    return [row[:length] for row, length in zip(tokens(batch=len(LENGTHS)), LENGTHS, strict=True)]


def record_rank(
    rank: int, size: int, folder: Path, steps: str, operators: bool, wrong: str = "", dtype: torch.dtype = torch.float32
) -> None:
    folder.mkdir(exist_ok=True)
    engine = Shared(rank, size, wrong)
    table = engine.cos_sin_cache
    engine.to(dtype).cos_sin_cache = table
    late = {"steps": range(1, len(STEPS[steps]))} if steps == "late" else {}
    with torch.no_grad(), Recorder(folder / f"rank{rank:05d}.h5", engine, operators=operators, **late):
        serve(engine, requests(), STEPS[steps])


def record(path: Path, operators: bool, *, batch: bool) -> Path:
    """One process: a padded batch, or a forward a request."""
    model, each = small_llama(hidden=HIDDEN, layers=LAYERS), requests()
    with torch.no_grad(), Recorder(path, model, operators=operators):
        if batch:
            filled = [nn.utils.rnn.pad_sequence(of, batch_first=True) for of in (each, [torch.ones_like(one) for one in each])]
            model(input_ids=filled[0], attention_mask=filled[1])
        for ids in [] if batch else each:
            model(input_ids=ids[None])
    return path
