"""`Setting` and `BodyVerdict`: what judging a body is given besides the body, and what it says.

The constants here were measured on harmless runs and on faults; docs/verdicts.md says which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.beside import Forms, FormsAt, as_they_are
from layerdiff.judge.local import Local
from layerdiff.judge.programs.constants import as_mask, unmasked
from layerdiff.judge.programs.noise import Rounding
from layerdiff.judge.programs.padding import without_padding
from layerdiff.replay.recorded import Recorded
from layerdiff.sides import Both

Array = NDArray[Any]
Cut = tuple[tuple[int, int], str]
"""Where a value crosses: a pair of calls (a child that is handed it, or the body's own that returns it), and the position."""
NOTHING: Final = 1e-9
"""Meaning up to here is float64's own rounding. docs/verdicts.md says where the margin comes from."""
BELOW_ROUNDING: Final = 2.0**-20
"""Meaning up to here is said and not convicted, unless a scalar or a constant that differs is its cause."""
COARSE_RATIO: Final = 2.0
"""The same, where the program itself shows a value that is kept coarser than the run declares.

A little over what harmless pairs reached in the trial of which docs/verdicts.md speaks.
"""
RATIO: Final = 4.0
"""How many times its predicted spread a recorded value may lie from its own program."""
FLIP: Final = 4.0
"""How many spreads of its operand may lie between two decisions that rounding alone tells apart."""


@dataclass
class BodyVerdict:
    """What is said of one body."""

    findings: list[Local] = field(default_factory=list)
    opaque: list[tuple[int, str]] = field(default_factory=list)
    """The target's calls that could not be run, and why."""
    unheld: set[int] = field(default_factory=set)
    """Those of them whose partner could not be run either: what they make was taken for both, and held against nothing."""
    compared: int = 0
    """Cuts."""
    same: int = 0
    """Cuts of the same wiring: nothing was run for them."""


@dataclass(frozen=True)
class Setting:
    """What judging a body needs besides the body."""

    runs: Both[Recorded]
    contents: Callable[[Recorded, int], Array]
    expected_dtype: Mapping[str, str]
    """The dtype map: the target's dtype for each of the reference's, by majority."""
    rounding: Rounding
    padded: NDArray[np.bool_] | None = None
    """Shape (batch, keys): the positions of this step that are padding."""
    forms_at: FormsAt = as_they_are
    """In which forms the two runs have the values of each step."""
    laid: bool = False
    """Whether the target's program is the reference's, with values of its own laid over it: then every cut is held against it."""

    def beside(self, forms: Forms, reference: Array, target: Array) -> tuple[Array, Array] | None:
        """What counts of two values of a cut, as it is compared; None where they are not forms of one thing."""
        found = forms.beside(reference, target)
        return None if found is None else self.alike(*found)

    def alike(self, reference: Array, target: Array) -> tuple[Array, Array]:
        """Two values of one shape with masks in one form, and at padded positions the same."""
        target = as_mask(target, reference)
        return unmasked(without_padding(reference, target, self.padded)), unmasked(target)
