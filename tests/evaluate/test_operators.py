"""The bench itself, without a judge: a fault changes what its model returns, and a variation does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.evaluate.operators.attention import Steps, use
from tests.evaluate.operators.catalogue import EVERYWHERE, TWO, fault, faults
from tests.evaluate.operators.exactly import change, effect
from tests.evaluate.operators.families import FAMILIES, TINY, Place, build
from tests.evaluate.operators.harmless import variations
from tests.evaluate.operators.routing import Loop, Routing, loop, route
from tests.evaluate.operators.scenarios import SCENARIOS

MODELS = ("mini", "qwen3-moe", "bert")


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    before = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    yield
    transformers.utils.logging.set_verbosity(before)


@pytest.mark.parametrize("family", MODELS)
def test_every_fault_changes_the_results_and_a_trap_does_not(family: str) -> None:
    reference: dict[Any, Tensor] = {}
    effects = {one.name: (one, effect(one, family, TINY, 1, reference)) for one in faults()}
    hidden = [name for name, (one, size) in effects.items() if size is not None and not one.trap and not size > 1e-9]
    assert [] == hidden
    assert [] == [name for name, (one, size) in effects.items() if size is not None and one.trap and size > 1e-12]


@pytest.mark.parametrize("family", MODELS)
def test_no_variation_changes_the_results(family: str) -> None:
    reference: dict[Any, Tensor] = {}
    changes = {one.name: change(one, family, TINY, reference) for one in variations() if one.equal_in_float64}
    assert {} == {name: size for name, size in changes.items() if size is not None and size > 1e-13}


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("family", "scenario"), [("llama", "padded"), ("llama", "decode"), ("qwen3-moe", "decode"), ("mixtral", "padded")])
def test_replaced_steps_make_the_calls_of_transformers(family: str, scenario: str) -> None:
    def calls(*, replaced: bool) -> tuple[list[str], Tensor]:
        model = build(family, TINY, 0)
        for k in range(TINY.layers if replaced else 0):
            place = Place(model, FAMILIES[family], k)
            use(place.at("attention"), Steps())
            if place.has("experts"):
                loop(place.at("experts"), Loop())
            if family == "qwen3-moe":
                route(place.at("router"), Routing())
        run = SCENARIOS[scenario](FAMILIES[family], TINY, 0)
        with Operators() as mode, torch.no_grad():
            return mode.seen, run(model)

    (theirs, right), (ours, same) = calls(replaced=False), calls(replaced=True)
    assert theirs == ours
    assert torch.equal(right, same)


def test_the_catalogue_names_enough_and_each_once() -> None:
    names = [one.name for one in faults()]
    assert len(names) == len(set(names))
    assert [] == [name for name in (*names, *(one.name for one in variations())) if set(name) & set(",*?[")]  # an option has them as globs
    assert len([name for name in names if not name.startswith("kernel")]) >= 40
    assert len(list(variations())) >= 15
    for name in (*EVERYWHERE, *(name for pair in TWO for name in pair)):
        assert fault(name).name == name
