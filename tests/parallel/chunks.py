"""Tasks of a process of the group: an interleaved pipeline. Each process has two chunks of the layers, and calls them one by one."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from layerdiff import Recorder

HIDDEN, LAYERS, EACH = 16, 8, 2


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.RMSNorm(HIDDEN, eps=1e-6), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.up(self.norm(x)).tanh()  # type: ignore[no-any-return]


class Chunk(nn.Module):
    """Some layers, which it counts from zero; the first has the embedding, the last the head.

    `wrong`: epsilon, of layer 6; offset: layer 0 in place of layer 4; `4 as 2`: the chunk that begins with layer 4 has those from 2 on.
    """

    def __init__(self, held: list[int], wrong: str = "", dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        embed, layers, head = nn.Embedding(50, HIDDEN), [Layer() for _ in range(LAYERS)], nn.Linear(HIDDEN, 50)
        if wrong == "epsilon":
            layers[6].norm.eps = 1e-2
        self.embed = embed if 0 in held else nn.Identity()
        first, _, other = wrong.partition(" as ")
        loaded = list(range(int(other), int(other) + len(held))) if other and held[0] == int(first) else held
        self.layers = nn.ModuleList(layers[0 if wrong == "offset" and number == 4 else number] for number in loaded)
        self.head = head if LAYERS - 1 in held else nn.Identity()
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)  # type: ignore[no-any-return]


def batches() -> list[Tensor]:
    return [torch.randint(0, 50, (2, 8), generator=torch.Generator().manual_seed(seed)) for seed in range(2)]


class Whole(nn.Module):
    """The model in a module of its own, as a language model has it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Chunk(list(range(LAYERS)))

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)  # type: ignore[no-any-return]


def record(path: Path, operators: bool, inside: bool = False) -> Path:
    model = Whole() if inside else Chunk(list(range(LAYERS)))
    with torch.no_grad(), Recorder(path, model, operators=operators, weights="used"):
        for ids in batches():
            model(ids)
    return path


class Halves:
    """Two models that are called one after the other: no chunks, though their layers have the same names."""

    def __init__(self) -> None:
        self.first, self.second = Chunk([0, 1]), Chunk([6, 7])

    def record(self, path: Path) -> Path:
        with torch.no_grad(), Recorder(path, operators=False, weights="used"):
            for ids in batches():
                self.second(self.first(ids))
        return path


def record_halves(rank: int, size: int, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    Halves().record(folder / f"rank{rank:05d}.h5")


def record_rank(rank: int, size: int, folder: Path, wrong: str, operators: bool, dtype: torch.dtype = torch.float32) -> None:
    """Chunk c of 4 is on rank c % size; the recorder is given no model, since there is none that is called."""
    folder.mkdir(exist_ok=True)
    numbers = range(rank, LAYERS // EACH, size)
    chunks = {number: Chunk(list(range(number * EACH, (number + 1) * EACH)), wrong, dtype) for number in numbers}
    with torch.no_grad(), Recorder(folder / f"rank{rank:05d}.h5", operators=operators, weights="used"):
        for ids in batches():
            for number, chunk in chunks.items():
                x = ids if number == 0 else torch.empty(*ids.shape, HIDDEN, dtype=dtype)
                if number:
                    dist.recv(x, (rank - 1) % size)
                y = chunk(x)
                if number < LAYERS // EACH - 1:
                    dist.send(y.contiguous(), (rank + 1) % size)
