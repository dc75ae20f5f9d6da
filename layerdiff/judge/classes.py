"""The class of a module, from its type's name, and what each class may do to a difference.

`rounding` counts unit roundoffs of the coarser dtype, `summing` those of fp32 (sums are accumulated
in fp32 whatever the dtype): together, what a correct module may add to the relative difference of an
output. `gain` is how much it may magnify the difference of its inputs. Calibrated on fault-free pairs;
docs/verdicts.md has the figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FP32_ROUNDOFF: Final = 2.0**-24
STATISTICS_ROUNDOFF: Final = 2.0**-20
"""How far recorded statistics of equal values may lie apart: they are float32 sums themselves, in each device's own order."""


@dataclass(frozen=True)
class ModuleClass:
    """A kind of module."""

    name: str
    rounding: float
    summing: float
    gain: float


EMBEDDING: Final = ModuleClass("embedding", 2, 0, 2)
NORM: Final = ModuleClass("norm", 2, 16, 4)
LINEAR: Final = ModuleClass("linear", 2, 64, 8)
ACTIVATION: Final = ModuleClass("activation", 2, 8, 4)
ROTARY: Final = ModuleClass("rotary", 2, 64, 8)
ATTENTION: Final = ModuleClass("attention", 2, 64, 8)
OTHER: Final = ModuleClass("other", 4, 64, 16)
GLUE: Final = ModuleClass("glue", 4, 64, 8)
"""What a module with recorded children does itself, where its type says nothing more."""

CLASSES: Final = (EMBEDDING, NORM, LINEAR, ACTIVATION, ROTARY, ATTENTION, OTHER, GLUE)

_BY_WORD: Final = (
    ("rotary", ROTARY),
    ("rope", ROTARY),
    ("embedding", EMBEDDING),
    ("norm", NORM),
    ("attention", ATTENTION),
    ("attn", ATTENTION),
    ("linear", LINEAR),
    ("conv", LINEAR),
    ("relu", ACTIVATION),
    ("gelu", ACTIVATION),
    ("silu", ACTIVATION),
    ("swish", ACTIVATION),
    ("sigmoid", ACTIVATION),
    ("tanh", ACTIVATION),
    ("activation", ACTIVATION),
    ("dropout", ACTIVATION),
    ("identity", ACTIVATION),
)


def module_class(type_name: str | None, *, has_children: bool) -> ModuleClass:
    """The class of a module of type `type_name`; `has_children`: whether calls inside it were recorded and paired."""
    lowered = (type_name or "").lower()
    if has_children and ("attention" in lowered or "attn" in lowered):
        return ATTENTION  # the softmax is its own, between the projections
    if has_children:
        return GLUE
    return next((found for word, found in _BY_WORD if word in lowered), OTHER)
