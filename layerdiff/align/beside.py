"""`Forms`: in which forms the two runs of one step have one thing, and two of its values laid beside each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from numpy.typing import NDArray

from layerdiff.align.filling import NOTHING_FILLED, Fillings
from layerdiff.align.forms import Shape, canonical, same_form
from layerdiff.align.packing import Packing

Array = NDArray[Any]


@dataclass(frozen=True)
class Forms:
    """What the two runs have otherwise, and is no difference."""

    fillings: Fillings = NOTHING_FILLED
    """Sizes that one of the two filled up."""
    packing: Packing | None = None
    """Tokens that one has in a row, and the other as a padded batch."""

    def same(self, reference: Shape, target: Shape) -> bool:
        """Whether values of these shapes are forms of one thing."""
        return same_form(reference, target) or (self.packing is not None and self.packing.same(reference, target))

    def common(self, reference: Shape, target: Shape) -> bool:
        """Whether values of these shapes have a part that is one thing."""
        return self.same(reference, target) or self.fillings.common(reference, target) is not None

    def beside(self, reference: Array, target: Array) -> tuple[Array, Array] | None:
        """What counts of two values, in one shape; None where they are not forms of one thing."""
        if not same_form(reference.shape, target.shape):
            if self.packing is not None and self.packing.same(reference.shape, target.shape):
                if self.packing.padded == "reference":
                    reference = self.packing.row(reference)
                else:
                    target = self.packing.row(target)
            elif self.fillings.common(reference.shape, target.shape) is not None:
                reference, target = self.fillings.beside(reference, target)
            else:
                return None
        return reference, target.reshape(reference.shape)

    def counted(self, x: Array, shape: Shape) -> Array:
        """What counts of a value of either run: in the reference's form, that is `shape`, or as a row where that has padding."""
        if self.packing is not None and self.packing.padded == "reference":
            shape = self.packing.as_row(shape)
        return (x if self.packing is None or x.size == math.prod(shape) else self.packing.row(x)).reshape(shape)

    def for_reference(self, target: Array, shape: Shape, own: Callable[[], Array]) -> Array:
        """The target's value in the reference's form; `own`: what the reference has itself, for what the target has nothing of."""
        return self.unpacked(target, shape, own).reshape(shape)

    def unpacked(self, target: Array, shape: Shape, own: Callable[[], Array]) -> Array:
        """The same of tokens that one of the two has in a row; any other value as it is."""
        if self.packing is None or same_form(shape, target.shape) or not self.packing.same(shape, target.shape):
            return target
        return self.packing.in_batch(target, own()) if self.packing.padded == "reference" else self.packing.row(target)

    def plain(self, x: Array, side: str) -> Array:
        """A value that a program made without what does not count."""
        if self.packing is not None and self.packing.padded == side:
            x = self.packing.tokens_only(x)
        return self.fillings.without(x, side)

    def token(self, shape: Shape, side: str, tokens: Shape) -> Shape:
        """One shape for all forms. `tokens`: the leading dimensions that one of the two has as one."""
        if self.packing is not None and self.packing.padded == side:
            shape = self.packing.as_row(shape)
        return canonical(shape, tokens)


AS_THEY_ARE: Final = Forms()
FormsAt = Callable[[int], Forms]
"""The forms of the step that a call of the target is part of."""


def as_they_are(_: int) -> Forms:
    """Of runs in which all things have one form, or forms that their shapes alone tell."""
    return AS_THEY_ARE
