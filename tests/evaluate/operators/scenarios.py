"""How a model is run: what it is given, and in which steps."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.evaluate.models import VOCABULARY, Size
from tests.evaluate.operators.families import Family

STEPS = 3
"""Tokens decoded after the prefill."""


def _ids(size: Size, seed: int) -> Tensor:
    return torch.randint(1, VOCABULARY, (size.batch, size.length), generator=torch.Generator().manual_seed(2000 + seed))


def _result(out: Any) -> Tensor:
    if isinstance(out, Tensor):
        return out
    logits = getattr(out, "logits", None)
    return out.last_hidden_state if logits is None else logits


def prefill(model: Any, family: Family, size: Size, seed: int) -> Tensor:
    return _result(model(input_ids=_ids(size, seed)))


def padded(model: Any, family: Family, size: Size, seed: int, *, garbage: int = 0) -> Tensor:
    """Padding on the left of the first row; `garbage` is the token that lies there."""
    ids, mask = _ids(size, seed), torch.ones(size.batch, size.length, dtype=torch.long)
    mask[0, : size.length // 4] = 0
    return _result(model(input_ids=ids.masked_fill(mask == 0, garbage), attention_mask=mask))


def decode(model: Any, family: Family, size: Size, seed: int) -> Tensor:
    """A prefill, then tokens one at a time against the cache."""
    ids, outs = _ids(size, seed), []
    cache = model.new_cache(size.batch) if family.own else None
    named = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"  # by version of transformers
    pieces = [ids[:, :-STEPS], *ids[:, -STEPS:].split(1, dim=1)]
    for piece in pieces:
        if family.own:
            outs.append(model(input_ids=piece, cache=cache))
        else:
            out = model(input_ids=piece, use_cache=True, **{named: cache})
            cache = out.past_key_values
            outs.append(out.logits)
    return torch.cat(outs, 1)


def trained(model: Any, family: Family, size: Size, seed: int) -> Tensor:
    """In train mode: dropout draws from the generator's state of a seed."""
    model.train()
    for module in model.modules():  # families differ in which of theirs drop by default
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.1
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.1
    torch.manual_seed(3000 + seed)
    return prefill(model, family, size, seed)


SCENARIOS: dict[str, Callable[..., Tensor]] = {"prefill": prefill, "padded": padded, "decode": decode, "trained": trained}
