"""Which trials are run: every fault and variation over models, sizes, seeds, layers and dtypes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from tests.evaluate.operators.catalogue import EVERYWHERE, TWO, fault, faults
from tests.evaluate.operators.families import FAMILIES
from tests.evaluate.operators.harmless import variations
from tests.evaluate.operators.trial import Outcome, References, Setting, try_faults, try_harmless


def _matches(name: str, globs: str) -> bool:
    return any(fnmatchcase(name, glob.strip()) for glob in globs.split(","))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What to run."""

    kinds: str = "*"
    """Globs, separated by commas; so are those of models."""
    models: str = "*"
    dtypes: tuple[str, ...] = ("fp32", "bf16")
    seeds: tuple[int, ...] = (0,)
    sizes: tuple[str, ...] = ("small", "wide")
    layers: tuple[int, ...] = (0, -1)
    """Layers in which faults are put; negative ones count from the last."""

    def settings(self) -> Iterator[Setting]:
        """Every model that was chosen; a pretrained one has one size and no seed."""
        for name, family in FAMILIES.items():
            if _matches(name, self.models):
                chosen = [(self.sizes[0], 0)] if family.pretrained else [(size, seed) for size in self.sizes for seed in self.seeds]
                yield from (Setting(name, size, seed) for size, seed in chosen)

    def wants(self, kind: str) -> bool:
        """Whether the kind of fault or variation was chosen."""
        return _matches(kind, self.kinds)

    def layers_of(self, setting: Setting) -> list[int]:
        """The layers that a model of this size has."""
        count = setting.shape.layers
        return list(dict.fromkeys(layer % count for layer in self.layers if -count <= layer < count))


def single(folder: Path, choice: Choice) -> Iterator[Outcome]:
    """One fault at a time."""
    references = References(folder)
    for setting in choice.settings():
        for kind in filter(lambda one: choice.wants(one.name), faults()):
            for layer in choice.layers_of(setting):
                for dtype in choice.dtypes:
                    if dtype == "fp32" or kind.survives_bf16:
                        outcome = try_faults(references, setting, [(kind, layer)], dtype, kind.name)
                        if outcome is not None:
                            yield outcome


def two(folder: Path, choice: Choice) -> Iterator[Outcome]:
    """Two faults in one model, the first in its first layer, the second in its last."""
    references = References(folder)
    for setting in choice.settings():
        for first, second in TWO:
            row = f"{first} + {second}"
            for dtype in choice.dtypes if choice.wants(row) else ():
                chosen = [(fault(first), 0), (fault(second), setting.shape.layers - 1)]
                if dtype == "fp32" or all(one.survives_bf16 for one, _ in chosen):
                    outcome = try_faults(references, setting, chosen, dtype, row)
                    if outcome is not None:
                        yield outcome


def everywhere(folder: Path, choice: Choice) -> Iterator[Outcome]:
    """One fault in every layer."""
    references = References(folder)
    for setting in choice.settings():
        for name in EVERYWHERE:
            row = f"{name} everywhere"
            for dtype in choice.dtypes if choice.wants(row) else ():
                kind = fault(name)
                if dtype == "fp32" or kind.survives_bf16:
                    outcome = try_faults(references, setting, [(kind, k) for k in range(setting.shape.layers)], dtype, row)
                    if outcome is not None:
                        yield outcome


def harmless(folder: Path, choice: Choice) -> Iterator[Outcome]:
    """Every variation that is no fault."""
    references = References(folder)
    for setting in choice.settings():
        for variation in filter(lambda one: choice.wants(one.name), variations()):
            outcome = try_harmless(references, setting, variation)
            if outcome is not None:
                yield outcome
