"""`Chunks`: steps of a root that stand as one, as whoever joins them says (`trace/joining.py` makes the tables)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from layerdiff.sides import Both
from layerdiff.trace.along import First, Layout, Shape
from layerdiff.trace.tokens import Tokens

Spot = tuple[str, int, int, str]
"""Where a value stands in a step: module, occurrence, role and position."""


@dataclass(frozen=True)
class Chunks:
    """Steps of a root that are one.

    Attributes:
        roots: its calls, in order.
        layout: of their tokens.
        expected: the shapes that the other run may have at a place.
        inputs: what the root's inputs are called, in both runs: by it their steps go together.
        tokens: which token of both runs stands where, where the whole is a row.
        begun: whether the run had tokens of these requests before anything was recorded.
        before: what a root of this run would have been handed had it not had those tokens itself, as the other was, by position: the value
            of which it is the first places.
    """

    roots: tuple[int, ...]
    layout: Layout
    expected: Mapping[Spot, Sequence[Shape]] = field(default_factory=dict)
    inputs: str = ""
    tokens: Both[Tokens] | None = None
    begun: bool = False
    before: Mapping[str, tuple[int, First]] = field(default_factory=dict)
