"""How a model is run: what it is given, and in which steps.

A scenario makes the inputs when it is asked for, and returns what runs a model on them: recorded calls are the model's alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.evaluate.models import VOCABULARY, Size
from tests.evaluate.operators.families import Family

Run = Callable[[Any], Tensor]
"""Runs a model and returns its results, of all steps together."""
STEPS = 3
"""Tokens decoded after the prefill."""


def _ids(size: Size, seed: int) -> Tensor:
    return torch.randint(1, VOCABULARY, (size.batch, size.length), generator=torch.Generator().manual_seed(2000 + seed))


def _result(out: Any) -> Tensor:
    if isinstance(out, Tensor):
        return out
    logits = getattr(out, "logits", None)
    return out.last_hidden_state if logits is None else logits


def prefill(family: Family, size: Size, seed: int) -> Run:
    ids = _ids(size, seed)
    return lambda model: _result(model(input_ids=ids))


def padded(family: Family, size: Size, seed: int, *, garbage: int = 0) -> Run:
    """Padding on the left of the first row; `garbage` is the token that lies there."""
    mask = torch.ones(size.batch, size.length, dtype=torch.long)
    mask[0, : size.length // 4] = 0
    ids = _ids(size, seed).masked_fill(mask == 0, garbage)
    return lambda model: _result(model(input_ids=ids, attention_mask=mask))


def decode(family: Family, size: Size, seed: int) -> Run:
    """A prefill, then tokens one at a time against the cache."""
    ids = _ids(size, seed)
    pieces = [ids[:, :-STEPS].contiguous(), *(token.contiguous() for token in ids[:, -STEPS:].split(1, dim=1))]

    def run(model: Any) -> Tensor:
        if family.own:
            cache = model.new_cache(size.batch)
            return torch.cat([model(input_ids=piece, cache=cache) for piece in pieces], 1)
        named = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"  # by version of transformers
        cache, outs = None, []
        for piece in pieces:
            out = model(input_ids=piece, use_cache=True, **{named: cache})
            cache = out.past_key_values
            outs.append(out.logits)
        return torch.cat(outs, 1)

    return run


def trained(family: Family, size: Size, seed: int) -> Run:
    """In train mode: dropout draws from the generator's state of a seed."""
    forward = prefill(family, size, seed)

    def run(model: Any) -> Tensor:
        model.train()
        for module in model.modules():  # families differ in which of theirs drop by default
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.1
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = 0.1
        torch.manual_seed(3000 + seed)
        return forward(model)

    return run


SCENARIOS: dict[str, Callable[..., Run]] = {"prefill": prefill, "padded": padded, "decode": decode, "trained": trained}
