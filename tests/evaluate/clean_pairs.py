"""Pairs of runs without a fault: none may have an origin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from layerdiff import Recorder
from tests.evaluate.models import ARCHITECTURES, LONG, MEDIUM, SMALL, Size, build, inputs


@dataclass(frozen=True)
class Pair:
    """Two recordings and what is known of them."""

    name: str
    make: Callable[[Path, Path], None]


def record(path: Path, run: Callable[[], object], model: torch.nn.Module) -> None:
    with Recorder(path, model), torch.no_grad():
        run()


def _pair(architecture: str, size: Size, seed: int, variation: str, spread: float) -> Pair:
    def make(reference: Path, target: Path) -> None:
        ours, given = build(architecture, size, seed, spread=spread), inputs(size, seed, padded=variation == "padded bf16")
        record(reference, lambda: ours(**given), ours)
        attention = "sdpa" if "sdpa" in variation else "eager"
        theirs = build(architecture, size, seed, attention, spread=spread)
        if "bf16" in variation:
            theirs = theirs.bfloat16()
        if "fp16" in variation:
            theirs = theirs.half()
        if "fp64" in variation:
            theirs = theirs.double()
        with torch.autocast("cpu", torch.bfloat16, enabled=variation == "autocast"):
            threads = torch.get_num_threads()
            torch.set_num_threads(1 if variation == "threads" else threads)
            record(target, lambda: theirs(**given), theirs)
            torch.set_num_threads(threads)

    return Pair(f"{architecture} {size.hidden}x{size.layers}x{size.length} seed {seed} spread {spread} {variation}", make)


def _decode(architecture: str, size: Size, seed: int, dtype: torch.dtype) -> Pair:
    def make(reference: Path, target: Path) -> None:
        for path, kind in ((reference, torch.float32), (target, dtype)):
            model = build(architecture, size, seed).to(kind)
            ids = inputs(size, seed)["input_ids"]

            def run(model: torch.nn.Module = model, ids: torch.Tensor = ids) -> None:
                cache = model(input_ids=ids[:, :-4], use_cache=True).past_key_values
                for step in range(4, 0, -1):
                    last = ids[:, -step : -step + 1 or None]
                    cache = model(input_ids=last, past_key_values=cache, use_cache=True).past_key_values

            record(path, run, model)

    return Pair(f"{architecture} {size.hidden}x{size.layers} seed {seed} decode {str(dtype).removeprefix('torch.')}", make)


VARIATIONS = ("bf16", "fp16", "fp64", "sdpa", "sdpa bf16", "autocast", "padded bf16", "threads")


def clean_pairs(
    *, seeds: range, sizes: tuple[Size, ...] = (SMALL, MEDIUM, LONG), spreads: tuple[float, ...] = (1.0, 3.0)
) -> Iterator[Pair]:
    """Every architecture in every harmless variation."""
    for architecture in ARCHITECTURES:
        for size in sizes:
            for seed in seeds:
                for spread in spreads:
                    for variation in VARIATIONS:
                        if not (architecture == "own llama" and "sdpa" in variation):
                            yield _pair(architecture, size, seed, variation, spread)
                if architecture in ("llama", "qwen3-moe", "mixtral"):
                    for dtype in (torch.float32, torch.bfloat16):
                        yield _decode(architecture, size, seed, dtype)
