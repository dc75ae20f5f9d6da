"""A small Llama that is given a prompt in one piece, or in chunks that a cache carries on, and faults of the way in which it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from captures.llama import HEADS, MLP, VOCABULARY, RMSNorm, Rotary, rotate
from layerdiff import Recorder
from layerdiff.compare import compare_traces
from layerdiff.judge.tables import Verdict
from layerdiff.saved.comparison import Comparison

HIDDEN, LAYERS = 32, 2


class Cache:
    """Keys and values of all tokens so far, put behind each other; or, of a `size`, written to their places."""

    def __init__(self, size: int = 0) -> None:
        self.size, self.length = size, 0
        self.entries: dict[int, tuple[Tensor, Tensor]] = {}
        self.counts: dict[int, Tensor] = {}

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if not self.size:
            known = self.entries.get(layer)
            both = (keys, values) if known is None else (torch.cat([known[0], keys], 2), torch.cat([known[1], values], 2))
            self.entries[layer] = both
            return both
        count, (batch, heads, _, width) = keys.shape[2], keys.shape
        empty = keys.new_zeros(batch, heads, self.size, width)
        cached = self.entries.setdefault(layer, (empty, empty.clone()))
        seen = self.counts.setdefault(layer, torch.zeros((), dtype=torch.long))
        at = torch.arange(count) + seen
        seen.add_(count)
        for entry, new in zip(cached, (keys, values), strict=True):
            entry.index_copy_(2, at, new)
        return cached[0][:, :, : self.length + count], cached[1][:, :, : self.length + count]


class Attention(nn.Module):
    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer, self.fault = layer, ""
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor, cache: Cache) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (proj(x).view(batch, length, HEADS, -1).transpose(1, 2) for proj in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, *rotary), rotate(k, *rotary)
        k, v = cache.update(self.layer, k, v)
        before = k.shape[2] - length
        if self.fault == "forgotten" and before:
            k, v, mask = k[:, :, before:], v[:, :, before:], mask[..., before:]
        if self.fault == "stale" and before:
            k = torch.cat([k[:, :, :before].roll(1, 2), k[:, :, before:]], 2)
        scores = q @ k.transpose(-1, -2) * (HIDDEN // HEADS) ** -0.5 + mask
        mixed = scores.float().softmax(-1).to(v.dtype) @ v
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, HIDDEN))


class Layer(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.fault = ""
        self.input_layernorm, self.self_attn = RMSNorm(HIDDEN), Attention(number)
        self.post_attention_layernorm, self.mlp = RMSNorm(HIDDEN), MLP(HIDDEN, 48)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor, cache: Cache) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotary, mask, cache)
        made = self.mlp(self.post_attention_layernorm(x))
        if self.fault == "dropped":
            made = torch.cat([made[:, :-1], torch.zeros_like(made[:, -1:])], 1)
        return x + made


class Chunked(nn.Module):
    """`last`: makes logits of the last token alone."""

    def __init__(self, *, last: bool = False) -> None:
        super().__init__()
        self.fault, self.last = "", last
        self.embed_tokens, self.rotary_emb = nn.Embedding(VOCABULARY, HIDDEN), Rotary(HIDDEN // HEADS, 10_000.0)
        self.layers = nn.ModuleList(Layer(number) for number in range(LAYERS))
        self.norm, self.lm_head = RMSNorm(HIDDEN), nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, input_ids: Tensor, cache: Cache) -> Tensor:
        x, (before, length) = self.embed_tokens(input_ids), (cache.length, input_ids.shape[1])
        positions = torch.arange(before, before + length)
        rotated = positions - before if self.fault == "positions" and before else positions
        last = positions + 1 if self.fault == "mask" and before else positions
        last = positions - before if self.fault == "local" else last
        later = torch.arange(before + length)[None] > last[:, None]
        mask = torch.zeros(later.shape, dtype=x.dtype).masked_fill(later, torch.finfo(x.dtype).min)[None, None]
        rotary = self.rotary_emb(x, rotated[None])
        for layer in self.layers:
            x = layer(x, rotary, mask, cache)
        cache.length += length
        x = self.norm(x)
        return self.lm_head(x[:, -1:] if self.last else x)  # type: ignore[no-any-return]


def chunked(**options: bool) -> Chunked:
    """The model with the weights of seed 0."""
    torch.manual_seed(0)
    model = Chunked(**options)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape))
    return model


def prompt(length: int, batch: int = 1) -> Tensor:
    """Token ids, shape (batch, length)."""
    return torch.randint(0, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(1))


def record(path: Path, model: Chunked, ids: Tensor, pieces: Sequence[int], *, operators: bool, size: int = 0) -> None:
    """Record the prompt in pieces of these sizes."""
    cache, begin = Cache(size), 0
    with torch.no_grad(), Recorder(path, model, operators=operators):
        for count in pieces:
            model(ids[:, begin : begin + count], cache)
            begin += count


def compared(
    folder: Path,
    ours: Sequence[int],
    theirs: Sequence[int],
    change: Callable[[Chunked], object] = lambda model: None,
    *,
    operators: bool,
    dtype: torch.dtype = torch.float32,
    batch: int = 1,
    size: int = 0,
    both: bool = False,
    last: bool = False,
) -> Comparison:
    """A model that runs a prompt in pieces of the sizes `ours` and, changed, of the sizes `theirs`.

    `size`: of the target's cache; of `both` runs'.
    """
    ids = prompt(sum(theirs), batch)
    record(folder / "r.h5", chunked(last=last), ids, ours, operators=operators, size=size if both else 0)
    change(model := chunked(last=last).to(dtype))
    record(folder / "t.h5", model, ids, theirs, operators=operators, size=size)
    return compare_traces(folder / "r.h5", folder / "t.h5")


class Pooled(nn.Module):
    """Hands on a mean over tokens beside them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed_tokens, self.pool, self.proj = nn.Embedding(97, 16), nn.Module(), nn.Linear(16, 16)
        self.pool.forward = lambda x: x.mean(1, keepdim=True)  # type: ignore[method-assign]

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed_tokens(input_ids)
        self.pool(x)
        return self.proj(x)  # type: ignore[no-any-return]


def assert_mean_is_not_compared(folder: Path, ours: Sequence[Tensor], theirs: Sequence[Tensor], *, operators: bool) -> None:
    """Tokens in pieces of two kinds are no fault, and means over pieces are none of each other's."""
    for name, pieces in (("r.h5", ours), ("t.h5", theirs)):
        with torch.no_grad(), Recorder(folder / name, model := Pooled(), operators=operators):
            for piece in pieces:
                model(piece)
    comparison = compare_traces(folder / "r.h5", folder / "t.h5")
    assert not comparison.defect and not comparison.origins
    if not operators:
        row = next(row for row, site in enumerate(comparison.sites["site"].tolist()) if comparison.texts[site] == "pool")
        assert Verdict.NOT_COMPARABLE == comparison.sites["verdict"][row]
