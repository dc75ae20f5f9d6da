"""Which steps are compared: the end that the two runs have in common, so that a warm-up forward is left out.

The longest common suffix decides. A longer common run elsewhere takes its place only where the runs
have different numbers of steps: one that went on decoding would otherwise shift every step of the
other by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from layerdiff.sides import Both

NOT_RECORDED: Final = "(not recorded)"
_MOST_CELLS: Final = 50_000_000
"""Runs longer than this product of steps are compared by their end alone."""

Steps = Sequence[tuple[int, str]]
"""(step, input shapes of its root) in order."""


@dataclass(frozen=True)
class PairedSteps:
    """The steps of one root that are compared."""

    pairs: tuple[tuple[int, int], ...]
    """(reference step, target step)."""
    remarks: tuple[str, ...] = ()
    told: bool = True
    """Whether input shapes told which."""


def pair_steps(reference: Steps, target: Steps, root: str, otherwise: Sequence[tuple[int, int]] = ()) -> PairedSteps:
    """Pair the steps of one root; `root` is its site, for the remarks.

    `otherwise`: the pairs where shapes tell nothing: a later stage of a pipeline is given hidden states, and an earlier one tells.
    """
    named = f" of {root}" if root else ""
    shapes = Both([text for _, text in reference], [text for _, text in target])
    first = _common_run(shapes)
    if first is None:  # names of arguments differ where a wrapper takes *args: sizes alone decide
        first = _common_run(shapes.map(lambda side: [_sizes_alone(text) for text in side]))
    if first is None and otherwise:
        known = Both({step for step, _ in reference}, {step for step, _ in target})
        return PairedSteps(tuple((r, t) for r, t in otherwise if r in known.reference and t in known.target), (), told=False)
    if first is None:
        if not reference or len(reference) != len(target):
            counts = f"{len(reference)} in the reference, {len(target)} in the target"
            return PairedSteps((), (f"no step{named} has the same input shapes in both runs ({counts}): none is compared",), told=False)
        said = f"no step{named} has the same input shapes in both runs; as there are equally many, they are paired by position"
        return PairedSteps(tuple((r, t) for (r, _), (t, _) in zip(reference, target, strict=True)), (said,), told=False)
    start, length = first
    ours, theirs = (side[at : at + length] for side, at in ((reference, start.reference), (target, start.target)))
    pairs = tuple((r, t) for (r, _), (t, _) in zip(ours, theirs, strict=True))
    remarks = [
        remark
        for name, every, kept in (("reference", reference, ours), ("target", target, theirs))
        if (remark := _left_out(name, named, every, kept)) is not None
    ]
    return PairedSteps(pairs, tuple(remarks))


def _left_out(side: str, named: str, every: Steps, kept: Steps) -> str | None:
    chosen = {step for step, _ in kept}
    left = [(step, text) for step, text in every if step not in chosen]
    if not left:
        return None
    step, text = left[0]
    shapes = f" ({text})" if text else ""
    if len(left) == 1:
        return f"step {step}{named} of the {side}{shapes} is outside the compared steps"
    return f"{len(left)} steps{named} of the {side} are outside the compared steps, the first of them step {step}{shapes}"


def _common_run(texts: Both[list[str]]) -> tuple[Both[int], int] | None:
    """(where it starts, its length): the common suffix, or a longer run elsewhere where the numbers of steps differ; None for none."""
    numbers: dict[str, int] = {}
    r, t = (np.array([numbers.setdefault(text, len(numbers)) for text in side], np.int64) for side in texts)
    shorter = min(len(r), len(t))
    differing = np.flatnonzero(r[len(r) - shorter :] != t[len(t) - shorter :])
    suffix = shorter if not len(differing) else shorter - 1 - int(differing[-1])
    best, length = Both(len(r) - suffix, len(t) - suffix), suffix
    if len(r) != len(t) and suffix < shorter and len(r) * len(t) <= _MOST_CELLS:
        run = np.zeros(len(t) + 1, np.int64)  # run[j]: length of the common run that ends at the target's step j - 1
        for i, number in enumerate(r.tolist()):
            run[1:] = np.where(t == number, run[:-1] + 1, 0)
            longest = int(run.max())
            if longest > length or (longest == length > suffix):
                end = int(np.flatnonzero(run == longest)[-1])
                best, length = Both(i + 1 - longest, end - longest), longest
    return (best, length) if length else None


def _sizes_alone(text: str) -> str:
    """The sizes in "in[0] 1x8, in.mask 1x8" without names, in a fixed order."""
    return ", ".join(sorted(part.split(" ")[-1] for part in text.split(", ")))


def every_step(steps: Steps) -> tuple[str, ...]:
    """The texts by number of step; `NOT_RECORDED` for those between that no trace holds."""
    known = dict(steps)
    return tuple(known.get(step, NOT_RECORDED) for step in range(max(known, default=-1) + 1))
