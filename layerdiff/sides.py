"""`Both`: one thing of the reference and the same thing of the target, so that they cannot be swapped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Both(Generic[T]):
    """A pair with names instead of positions. Iterates reference first."""

    reference: T
    target: T

    def map(self, function: Callable[[T], U]) -> Both[U]:
        """Apply `function` to the reference, then to the target."""
        return Both(function(self.reference), function(self.target))

    def __iter__(self) -> Iterator[T]:
        yield self.reference
        yield self.target
