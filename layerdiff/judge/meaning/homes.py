"""`Homes`: in which body a finding of meaning lies."""

from __future__ import annotations

from collections.abc import Sequence

from layerdiff.judge.local import Local
from layerdiff.judge.programs.bodies import Body, Pair
from layerdiff.judge.tables import Verdict
from layerdiff.sides import Both


class Homes:
    """The body of each call of both sides: of what is dissolved in one, that."""

    def __init__(self, all_bodies: Sequence[Body]) -> None:
        self._bodies: Both[dict[int, Pair]] = Both({}, {})
        for body in all_bodies:
            for known, items, dissolved, own in zip(self._bodies, body.items, body.dissolved, body.calls, strict=True):
                known.update(dict.fromkeys((*items, *dissolved, own), body.calls))

    def of(self, local: Local) -> Pair | None:
        """The body of a finding; None where its call is in none."""
        reference, target = local.calls
        return self._bodies.target.get(target) if target >= 0 else self._bodies.reference.get(reference)


def is_meaning(local: Local) -> bool:
    """Whether a finding says that two programs compute something else."""
    return not local.notice and "meaning" in local.evidence and local.verdict != Verdict.BROKEN
