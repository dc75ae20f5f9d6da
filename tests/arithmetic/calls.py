"""A torch call replayed by its contract: what every calibration test does."""

from __future__ import annotations

import numpy as np
import torch

from layerdiff.arithmetic.own import replay_call
from layerdiff.arithmetic.registry import contract_of
from layerdiff.arithmetic.verdict import Own
from layerdiff.trace.arguments import Arguments, Token


def decoded(thing):
    if isinstance(thing, torch.Tensor):
        return thing.detach().double().numpy().copy() if thing.is_floating_point() else thing.detach().numpy().copy()
    if isinstance(thing, torch.dtype):
        return Token("dtype", str(thing).removeprefix("torch."))
    if isinstance(thing, list):
        return [decoded(item) for item in thing]
    return thing


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def results_of(made) -> list[torch.Tensor]:
    return [x for x in (made if isinstance(made, (tuple, list)) else (made,)) if isinstance(x, torch.Tensor)]


def replayed(operator, *args, change=None, accumulator=None, **kwargs) -> Own:
    """The ladder's word on `operator(*args, **kwargs)`; `change` spoils the list of results first (in place)."""
    contract = contract_of(str(operator))
    assert contract is not None, f"{operator} has no contract"
    arguments = Arguments(tuple(decoded(x) for x in args), {name: decoded(x) for name, x in kwargs.items()})
    results = results_of(operator(*args, **kwargs))
    recorded = [decoded(x) for x in results]
    if change is not None:
        change(recorded)
    return replay_call(contract, arguments, recorded, [name_of(x.dtype) for x in results], accumulator)


def rounded(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """float64 numbers as a tensor of `dtype` would hold them."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(dtype).double().numpy()
