"""What attention was given and what it made, read from what modules hand on, and held against the reference's form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.diagnose.evidence import LARGEST, Evidence, Numbers
from layerdiff.judge.attention_forms import Form, Given, Told, held_against_form
from layerdiff.sides import Both
from layerdiff.trace.schema import Role

ATTENTIONS: Final = "attention: relative L2 to what the reference's form makes of the target's queries, keys and values"
_PROJECTION: Final = re.compile(r"^(?:w|to_|lin_|linear_|proj_)?(q|k|v)(?:$|_|uery|ey|alue)")
_FUSED: Final = re.compile(r"qkv|query_key_value|c_attn|in_proj")
_TABLE: Final = re.compile(r"(?:position_embeddings|rotary\w*)\[([01])\]$|(?:^|\.)(cos|sin)$")
_HEADS: Final = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead")
_SCALE: Final = ("scaling", "scale", "softmax_scale", "norm_factor", "scale_attn")


def told_of_attention(
    evidence: Evidence, row: int, made: int, numbers: Numbers, most: int, likely: Form | None = None
) -> list[Told | None]:
    """What is told of attention on each rank; nothing where it is not known what it is given.

    `made`: the pair of what it hands to its last product. `most`: scores that are computed; of more, some queries are looked at.
    `likely`: the form of modules like this one.
    """
    roundoffs = evidence.roundoffs(made)
    if roundoffs is None or evidence.pairs["count"][made] > LARGEST:
        return []
    named = dict(_named(evidence, row, made))
    read = {name: ranks for name, pair in named.items() if (ranks := numbers(pair)) or name != "mask"}
    if len({len(ranks) for ranks in read.values()}) != 1 or not ({"q", "k", "v"} <= set(read) or "qkv" in read):
        return []
    attributes = evidence.attributes(row).reference
    scales = [float(value) for name in _SCALE if isinstance(value := attributes.get(name), int | float) and not isinstance(value, bool)]
    found: list[Told | None] = []
    for every in zip(*read.values(), strict=True):
        both = [{name: getattr(both, side) for name, both in zip(read, every, strict=True)} for side in ("reference", "target")]
        dims = list(_dims(attributes, both[0]))
        candidates = [(dim, one) for dim in dims for one in _alike(both, dim)]
        told = (held_against_form(one.reference, one.target, [dim], scales[:1], roundoffs, most, likely) for dim, one in candidates)
        found.append(next((one for one in told if one is not None), None))
    return found


def _dims(attributes: dict[str, Any], values: dict[str, NDArray[Any]]) -> Iterator[int]:
    """How many channels a head may have."""
    whole = {name: value for name, value in attributes.items() if "head" in name and type(value) is int and value > 0}
    named = [value for name, value in whole.items() if "dim" in name or "size" in name]
    shared = [values["made"].shape[-1] // value for name, value in whole.items() if name in _HEADS and values["made"].ndim]
    yield from dict.fromkeys(dim for dim in [*named, *shared, *([values["cos"].shape[-1]] if "cos" in values else [])] if dim > 0)


def _alike(both: list[dict[str, NDArray[Any]]], dim: int) -> Iterator[Both[Given]]:
    """What both runs may have been given; of a product that makes queries, keys and values in one there are several ways to lie."""
    for reference, target in zip(*(_as_given(values, dim) for values in both), strict=False):
        if reference is not None and target is not None and reference.queries.shape == target.queries.shape:
            yield Both(reference, target)


def _named(evidence: Evidence, row: int, made: int) -> Iterator[tuple[str, int]]:
    """(what it is, pair): `q`, `k`, `v` or `qkv`, `made`, and where there are some `cos`, `sin`, `mask`. Of several the last counts."""
    pairs, texts = evidence.pairs, evidence.texts
    for pair in evidence.pairs_of(row):
        position = texts[int(pairs["position"][pair])] or ""
        table = _TABLE.search(position)
        if pairs["role"][pair] == Role.INPUT and table is not None:
            yield table[2] or ("cos", "sin")[int(table[1])], pair
        elif pairs["role"][pair] == Role.INPUT and position.endswith("attention_mask"):
            yield "mask", pair
    for child in evidence.children(row):
        name = (texts[int(evidence.sites["site"][child])] or "").rpartition(".")[2].lower()
        outputs = [pair for pair in evidence.pairs_of(child) if pairs["role"][pair] == Role.OUTPUT and pairs["count"][pair] <= LARGEST]
        if len(outputs) == 1 and (_FUSED.search(name) or _PROJECTION.match(name)) and child != int(pairs["site"][made]):
            projection = _PROJECTION.match(name)
            yield "qkv" if _FUSED.search(name) or projection is None else projection[1], outputs[0]
    yield "made", made


def _as_given(values: dict[str, NDArray[Any]], dim: int) -> list[Given | None]:
    """In each way that projections may lie; None where it is not told what is which, or where forms do not fit each other."""
    made = _rows(values["made"], None)
    if made is None or any(x.dtype.kind != "f" for name, x in values.items() if name != "mask"):
        return []
    batch, tokens, width = made.shape
    tables = [values[name].astype(np.float64) for name in ("cos", "sin") if name in values]
    if any(x.ndim < 2 or x.shape[-2] != tokens or x.size != x.shape[-1] * tokens * (x.shape[0] if x.ndim == 3 else 1) for x in tables):
        return []
    tables = [x.reshape(-1, tokens, x.shape[-1]) for x in tables]
    if tables and (len(tables) != 2 or tables[0].shape != tables[1].shape or len(tables[0]) not in (1, batch)):
        return []
    mask = values.get("mask")
    if mask is not None and (mask.ndim != 4 or mask.shape[0] not in (1, batch) or mask.shape[1] != 1 or mask.shape[2:] != (tokens, tokens)):
        return []
    seen = mask if mask is None else mask.astype(np.float64 if mask.dtype.kind == "f" else np.bool_)
    cos, sin = tables or (None, None)
    found: list[Given | None] = []
    for projections in _projections(values, width, dim):
        parts = [_rows(x, tokens) for x in projections]
        q, k, v = parts if len(parts) == 3 else (None, None, None)
        fits = q is not None and k is not None and v is not None and q.shape == made.shape and k.shape == v.shape
        found.append(Given(q, k, v, made, cos, sin, seen) if fits else None)  # type: ignore[arg-type]  # told by `fits`
    return found


def _projections(values: dict[str, NDArray[Any]], width: int, dim: int) -> Iterator[list[NDArray[Any]]]:
    """Queries, keys and values; of one product all queries come first, or those that share keys lie before these."""
    if "qkv" not in values:
        yield [values[name] for name in "qkv"]
        return
    fused = values["qkv"]
    both = (fused.shape[-1] - width) // 2
    if both <= 0 or 2 * both + width != fused.shape[-1]:
        return
    yield np.split(fused, [width, width + both], axis=-1)
    if width % dim == both % dim == 0 and width % both == 0:
        groups = fused.reshape(*fused.shape[:-1], both // dim, -1, dim)
        yield [x.reshape(*fused.shape[:-1], -1) for x in np.split(groups, [groups.shape[-2] - 2, groups.shape[-2] - 1], axis=-2)]


def _rows(x: NDArray[Any], tokens: int | None) -> NDArray[np.float64] | None:
    """(batch, tokens, channels), of tokens in a row a batch of one, of heads with theirs beside each other."""
    x = x.astype(np.float64)
    if x.ndim == 4 and tokens is not None:
        x = x if x.shape[1] == tokens else np.swapaxes(x, 1, 2)
        x = x.reshape(*x.shape[:2], -1)
    x = x[None] if x.ndim == 2 else x
    return x if x.ndim == 3 and x.size and tokens in (None, x.shape[1]) else None
