"""Synthetic comparisons with many ranks: the Llama of tests/comparisons, some of whose values are made up of parts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from layerdiff.align.runs import runs_of, text_of
from layerdiff.judge.tables import PLACED, Placing, Verdict
from layerdiff.saved.comparison import Comparison
from tests.comparisons import comparison

NAN = math.nan


@dataclass(frozen=True)
class Made:
    """How the output of a site is made up. `holds`: for each rank the places of `dim`."""

    kind: Placing
    name: str
    errors: Sequence[float]
    dim: int = -1
    holds: Sequence[Sequence[int]] | None = None
    agree: bool | None = None
    also: str | None = None


def contiguous(size: int, ranks: int) -> list[list[int]]:
    """Equal parts in a row."""
    part = size // ranks
    return [list(range(rank * part, (rank + 1) * part)) for rank in range(ranks)]


def zigzag(size: int, ranks: int) -> list[list[int]]:
    """Two chunks a rank, one from each end."""
    chunks = np.arange(size).reshape(2 * ranks, -1).tolist()
    return [chunks[rank] + chunks[2 * ranks - 1 - rank] for rank in range(ranks)]


def fused(size: int, ranks: int, blocks: int) -> list[list[int]]:
    """A part of each of several blocks."""
    places = np.arange(size).reshape(blocks, ranks, -1).transpose(1, 0, 2).reshape(ranks, -1)
    return [part.tolist() for part in places]


def strided(size: int, ranks: int) -> list[list[int]]:
    """Every `ranks`-th place."""
    return [list(range(rank, size, ranks)) for rank in range(ranks)]


def replicated(*errors: float, agree: bool = True) -> Made:
    """The whole on every rank."""
    return Made(Placing.REPLICATED, "replicated" if agree else "whole shapes, and the ranks differ", errors, agree=agree)


def partial(ranks: int) -> Made:
    """Parts of a sum."""
    return Made(Placing.PARTIAL, "partial: the ranks add up to it", [NAN] * ranks)


SHAPE = (1, 128, 512)
"""Of every output in tests/comparisons."""

ATTENTION = "model.layers.3.self_attn"
LAYER = "model.layers.3"


def four_ranks(*, q_proj: Sequence[float] = (1.2e-7, 1.1e-7, 3e-1, 1.3e-7), faults: Mapping[str, Verdict] | None = None) -> Comparison:
    """Four ranks: layer 3 with every kind of placement, and rank 2 of q_proj off."""
    placed = {
        "model.embed_tokens": replicated(0.0, 0.0, 0.0, 0.0),
        f"{LAYER}.input_layernorm": replicated(1e-7, 1e-7, 1e-7, 1e-7),
        ATTENTION: replicated(2e-7, 2e-7, 2e-7, 9e-3, agree=False),
        f"{ATTENTION}.q_proj": Made(Placing.SHARDED, "sharded along 2, contiguous", q_proj, 2, contiguous(512, 4)),
        f"{ATTENTION}.k_proj": Made(
            Placing.SHARDED, "sharded along 2, contiguous, each part on 2 ranks in a row", [1e-7] * 4, 2,
            [part for part in contiguous(512, 2) for _ in range(2)], agree=True,
        ),
        f"{ATTENTION}.v_proj": Made(
            Placing.SHARDED, "sharded along 2, strided", [1e-7, 2e-7, 1e-7, 1e-7], 2, strided(512, 4), also="contiguous",
        ),
        f"{ATTENTION}.o_proj": partial(4),
        f"{LAYER}.mlp": Made(Placing.SHARDED, "sharded along 1, zigzag", [0.0] * 4, 1, zigzag(128, 4)),
        f"{LAYER}.mlp.gate_proj": Made(
            Placing.SHARDED, "sharded along 2, 2 blocks, each contiguous", [3e-7, 4e-7, 3e-7, 3e-7], 2, fused(512, 4, 2),
        ),
        f"{LAYER}.mlp.up_proj": Made(Placing.UNKNOWN, "its parts hold 500 of 512 places along dimension 2", [NAN] * 4),
    }  # fmt: skip
    faults = {f"{ATTENTION}.q_proj": Verdict.UNEXPLAINED} if faults is None else faults
    return with_placed(comparison(layers=5, identical_layers=0, faults=faults), placed)


def with_placed(made: Comparison, outputs: Mapping[str, Made]) -> Comparison:
    """`made` against a folder of rank files, with the outputs of sites placed."""
    texts, rows = made.texts, []
    row_of = {texts[int(text)]: row for row, text in reversed(list(enumerate(made.sites["site"])))}
    together = made.pairs["rel_l2"].copy()
    for site, value in outputs.items():
        known = [error for error in value.errors if not math.isnan(error)]
        together[row_of[site]] = math.sqrt(sum(error**2 for error in known) / len(known)) if known else 2.5e-7
        for rank, error in enumerate(value.errors):
            held = None if value.holds is None else text_of(runs_of(np.array(value.holds[rank], np.intp)))
            agree = 2 if value.agree is None else int(value.agree)
            name, also = texts.intern(value.name), texts.intern(value.also)
            rows.append((row_of[site], rank, rank, name, int(value.kind), value.dim, texts.intern(held), also, error, agree))
    columns = list(zip(*rows, strict=True))
    placed = {name: np.array(column, dtype) for (name, dtype), column in zip(PLACED.items(), columns, strict=True)}
    ranks = max(len(value.errors) for value in outputs.values())
    files = tuple(f"rank{rank:05d}.h5" for rank in range(ranks))
    target = replace(made.target, path="target", files=files, label=f"LlamaForCausalLM bf16 cuda x{ranks}")
    return replace(made, placed=placed, target=target, pairs={**made.pairs, "rel_l2": together})
