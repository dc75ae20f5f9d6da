"""`align`: which call of the reference goes with which of the target, and why the others do not.

Names first (wrappers off, rules on), then steps, then modules by site, step and occurrence, then
operators inside paired modules. No value is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.alignment import Alignment, Calls, RenameRule
from layerdiff.align.names import pair_modules
from layerdiff.align.operators import pair_operators, regions_of
from layerdiff.align.proposals import propose
from layerdiff.align.reasons import unpaired
from layerdiff.align.rename import Renamer
from layerdiff.align.sites import NamedCalls, name_calls
from layerdiff.align.slots import OUTSIDE_STEPS, Slots, find_slots
from layerdiff.sides import Both


def align(reference: Calls, target: Calls, rules: Sequence[RenameRule] = (), steps: Sequence[tuple[int, int]] = ()) -> Alignment:
    """Pair the calls of two runs of one process each. `steps`: pairs of steps that are taken where input shapes do not tell.

    Raises ProfileError, naming the rule, where a rename rule is no regular expression or its
    replacement does not fit it.
    """
    sides, remarks = name_calls(Both(reference, target), Renamer(rules))
    slots = find_slots(sides, steps)
    modules = pair_modules(sides, slots)
    regions = regions_of(sides, slots, modules)
    operators = pair_operators(sides, regions)
    paired = np.concatenate([modules[0], operators[0]]), np.concatenate([modules[1], operators[1]])
    alone = unpaired(sides, slots, paired, regions)
    few = _few(sides, slots, modules[0].size)
    return Alignment(
        pairs=_in_order(*paired),
        reference_only=alone.reference,
        target_only=alone.target,
        sites=sides.map(lambda side: side.names),
        parents=sides.map(lambda side: side.parent),
        steps=slots.main_steps,
        steps_all=slots.main_steps_all,
        steps_told=slots.steps_told,
        remarks=(*([few] if few else []), *remarks, *slots.remarks),
        proposed=propose(sides) if few else (),
    )


def _in_order(reference: NDArray[np.int64], target: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.stack([reference, target], axis=1)[np.argsort(target, kind="stable")]


def _few(sides: Both[NamedCalls], slots: Slots, paired: int) -> str | None:
    """In words, that under half of the module calls of the smaller run pair; None where that is not so.

    Operator calls do not count: one computation is made of many operators or of few.
    """
    compared = [side.is_module & ~side.dropped & (slot != OUTSIDE_STEPS) for slot, side in zip(slots.slot, sides, strict=True)]
    inside = [int(np.count_nonzero(calls)) for calls in compared]
    if 2 * paired >= min(inside):
        return None
    return f"only {paired} module calls pair, of {inside[0]} in the reference and {inside[1]} in the target"
