"""The check of the bench itself that needs no judge: run in float64 with casts to float32 left out, what does a change change?"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.evaluate.models import Size
from tests.evaluate.operators.families import FAMILIES, Place, build
from tests.evaluate.operators.fault import Fault
from tests.evaluate.operators.harmless import Harmless
from tests.evaluate.operators.scenarios import SCENARIOS


class InDouble(TorchDispatchMode):
    """Asks for float64 wherever float32 is asked for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        wide = {name: torch.float64 if value is torch.float32 else value for name, value in (kwargs or {}).items()}
        return func(*(torch.float64 if value is torch.float32 else value for value in args), **wide)


def outputs(model: torch.nn.Module, family: str, size: Size, scenario: str, *contexts: Any, **options: Any) -> Tensor:
    """What the model returns, in float64."""
    run = SCENARIOS[scenario](FAMILIES[family], size, 0, **options)
    with contextlib.ExitStack() as stack:
        stack.enter_context(InDouble())
        for context in contexts:
            stack.enter_context(context)
        stack.enter_context(torch.no_grad())
        return run(model.double())


def distance(a: Tensor, b: Tensor) -> float:
    """How far apart, relative to the largest number; infinite where one is no number."""
    if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
        return float("inf")
    return float((a - b).abs().max() / a.abs().max())


def effect(fault: Fault, family: str, size: Size, k: int, reference: dict[Any, Tensor]) -> float | None:
    """How much a fault changes the results; None where the model has no such place. `reference` keeps what was run."""
    if fault.families and family not in fault.families:
        return None
    model = build(family, size, 0, fault.attention)
    place = Place(model, FAMILIES[family], k)
    with torch.no_grad():
        if fault.put(place) is None:
            return None
    key = (family, fault.scenario, fault.attention)
    if key not in reference:
        reference[key] = outputs(build(family, size, 0, fault.attention), family, size, fault.scenario)
    return distance(reference[key], outputs(model, family, size, fault.scenario, *(run() for run in place.runs)))


def change(variation: Harmless, family: str, size: Size, reference: dict[Any, Tensor]) -> float | None:
    """How much a variation changes the results; None where the model has no such place."""
    if variation.families and family not in variation.families:
        return None
    model = build(family, size, 0, variation.attention, loop=variation.loop)
    contexts: list[Any] = []
    with torch.no_grad():
        for k in range(size.layers):
            place = Place(model, FAMILIES[family], k)
            if variation.put is not None and not variation.put(place):
                return None
            contexts += [run() for run in place.runs]
    key = (family, variation.scenario, "eager")
    if key not in reference:
        reference[key] = outputs(build(family, size, 0), family, size, variation.scenario)
    return distance(reference[key], outputs(model, family, size, variation.scenario, *contexts, **dict(variation.options)))
