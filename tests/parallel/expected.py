"""How the values of each layout lie on its ranks, written by hand: rules of (glob of the site, value, placement), the first that fits.

A placement is its name; `parts` of a list is a matched one, by the places of each rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from captures.layouts import Case
from layerdiff.align.runs import read_runs
from layerdiff.saved.comparison import Comparison
from layerdiff.trace.schema import CallKind

LAYOUTS: dict[str, Case] = {
    "tensor": Case(),
    "tensor-separate": Case(separate=True, bias=True),
    "tensor-query-norm": Case(query_norm=True, padded_head=True, kv_heads=4),
    "sequence": Case("sequence", padded_head=True),
    "context": Case("context"),
    "experts": Case("experts", experts=8),
    "exchanged": Case("experts", experts=8, exchanged=True),
    "pipeline": Case("pipeline", layers=4),
}
GRIDS: dict[str, Case] = {"replicas": Case(replicas=2), "stages": Case(stages=2, layers=4)}
"""Layouts of four ranks, two by two."""


@dataclass(frozen=True)
class Parts:
    """Places of a dimension that each rank holds, in its order, as (begin, end)."""

    dim: int
    runs: tuple[tuple[tuple[int, int], ...], ...]


Where = str | Parts
Rule = tuple[str, str, Where]

REPLICATED, PARTIAL, ALONE = "replicated", "partial: the ranks add up to it", "on one rank"


def along(dim: int, how: str = "contiguous") -> str:
    return f"sharded along {dim}, {how}"


def _fused(dim: int, size: int) -> Parts:
    """Rows of 32 of queries, 16 of keys and 16 of values: at four ranks two share a head of keys."""
    if size == 2:
        return Parts(dim, (((0, 16), (32, 40), (48, 56)), ((16, 32), (40, 48), (56, 64))))
    first, second = ((32, 40), (48, 56)), ((40, 48), (56, 64))
    return Parts(dim, (((0, 8), *first), ((8, 16), *first), ((16, 24), *second), ((24, 32), *second)))


def rules(name: str, size: int) -> list[Rule]:
    """Of a layout on `size` ranks."""
    shared = "contiguous" if size == 2 else "contiguous, each part on 2 ranks in a row"
    end = "contiguous, padded at the end"
    each = f"contiguous, {49 if size == 2 else 25} places a rank, each part padded"
    zigzag, blocks = "zigzag", "2 blocks, each contiguous"
    tensor: list[Rule] = [
        ("embed_tokens", "weight", along(0)),
        ("*.qkv_proj", "weight", _fused(0, size)),
        ("*.qkv_proj", "out", _fused(2, size)),
        ("*.q_proj", "weight", along(0)),
        ("*.q_proj", "out", along(2)),
        ("*.[kv]_proj", "weight", along(0, shared)),
        ("*.[kv]_proj", "out", along(2, shared)),
        ("*.q_norm", "weight", along(0)),
        ("*.q_norm", "*", along(2)),
        ("*.mixing", "in[[]0]", along(1)),
        ("*.mixing", "in[[][12]]", along(1, shared)),
        ("*.mixing", "out", along(2)),
        ("*.gate_up_proj", "weight", along(0, blocks)),
        ("*.gate_up_proj", "out", along(2, blocks)),
        ("*.act_fn", "in[[]0]", along(2, blocks)),
        ("*.act_fn", "out", along(2)),
        ("*.[od]*_proj", "in[[]0]", along(2)),
        ("*.[od]*_proj", "weight", along(1)),
        ("*.o_proj", "out", PARTIAL),
    ]
    whole: list[Rule] = [("*", "*", REPLICATED)]
    if name in ("tensor", "tensor-separate"):
        return [*tensor, ("lm_head", "weight", along(0, end)), ("lm_head", "out", along(2, end)), *whole]
    if name == "tensor-query-norm":
        head: list[Rule] = [("lm_head", "weight", along(0, each)), ("lm_head", "out", along(2, each))]
        thirds = "3 blocks, each contiguous"
        fused: list[Rule] = [("*.qkv_proj", "weight", along(0, thirds)), ("*.qkv_proj", "out", along(2, thirds))]
        return [*fused, ("*.mixing", "in[[][12]]", along(1)), *tensor, *head, *whole]
    if name == "sequence":
        between: list[Rule] = [
            ("*.down_proj", "out", PARTIAL),
            ("*norm", "weight", REPLICATED),
            ("*norm", "*", along(1)),
            ("layers.*.self_attn", "in[[]0]", along(1)),
            ("layers.*.self_attn", "out", along(1)),
            ("layers.*.mlp", "*", along(1)),
            ("layers.[01]", "in[[]0]", along(1)),
            ("layers.[01]", "out", along(1)),
        ]
        return [*tensor, ("lm_head", "weight", along(0, each)), ("lm_head", "out", along(2, each)), *between, *whole]
    if name == "context":
        return [
            ("", "in[[]0]", REPLICATED),
            ("*", "weight", REPLICATED),
            ("rotary_emb", "out*", along(2, zigzag)),
            ("layers.*", "in[[]1][[]*]", along(2, zigzag)),
            ("layers.*.mixing", "in[[]3]", along(0, zigzag)),
            ("layers.*.mixing", "in*", along(2, zigzag)),
            ("layers.*", "in[[]2]", along(0, zigzag)),
            ("*", "*", along(1, zigzag)),
        ]
    if name == "experts":
        return [("*.experts", "gate_up", along(0)), ("*.experts", "down", along(0)), ("*.experts", "out", PARTIAL), *whole]
    if name == "exchanged":
        return [("*.experts.*", "*", ALONE), ("*.gate", "weight", REPLICATED), ("*.gate", "*", along(0)), *whole]
    assert name == "pipeline"
    # Each stage hands its own hidden states to the rotary embedding, which takes their dtype alone: one of them is the reference's.
    return [
        ("rotary_emb", "in[[]0]", ALONE),
        ("rotary_emb", "*", REPLICATED),
        ("", "in[[]0]", REPLICATED),
        ("*", "*", ALONE),
    ]


def expected(made: list[Rule], site: str, value: str) -> Where:
    for sites, values, where in made:
        if fnmatchcase(site, sites) and fnmatchcase(value, values):
            return where
    raise AssertionError(f"no rule for {site} {value}")


def placements(comparison: Comparison) -> dict[tuple[str, str], Where]:
    """Of every value of a module; other readings are said in its name."""
    columns, texts = comparison.placed, comparison.texts
    found: dict[tuple[str, str], Where] = {}
    for row, pair in enumerate(columns["pair"].tolist()):
        site = int(comparison.pairs["site"][pair])
        if comparison.sites["kind"][site] != CallKind.MODULE:
            continue
        key = texts[int(comparison.sites["site"][site])] or "", texts[int(comparison.pairs["position"][pair])] or ""
        name, also = texts[int(columns["placement"][row])] or "", texts[int(columns["also"][row])]
        known = found.get(key)
        if "matched by its numbers" in name:
            runs = tuple((run.start, run.start + run.places) for run in read_runs(texts[int(columns["holds"][row])]) or ())
            before = known if isinstance(known, Parts) else Parts(int(columns["dim"][row]), ())
            found[key] = replace(before, runs=(*before.runs, runs))
        else:
            found[key] = name if also is None else f"{name}; or {also}"
    return found
