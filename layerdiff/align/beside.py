"""`Forms`: in which forms the two runs of one step have one thing, and two of its values laid beside each other."""

from __future__ import annotations

from collections.abc import Callable, Container
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
    ends: tuple[Packing, ...] = ()
    """One token of each request, which one has alone: logits are asked for of the last."""

    def same(self, reference: Shape, target: Shape) -> bool:
        """Whether values of these shapes are forms of one thing."""
        return same_form(reference, target) or self._row(reference, target) is not None

    def as_stored(self, reference: Shape, target: Shape) -> bool:
        """Whether values of these shapes have the same elements, one after the other."""
        return same_form(reference, target) and self._row(reference, target) is None and self._padded(reference, target) is None

    def common(self, reference: Shape, target: Shape) -> bool:
        """Whether values of these shapes have a part that is one thing."""
        return self.same(reference, target) or self.fillings.common(reference, target) is not None

    def beside(self, reference: Array, target: Array) -> tuple[Array, Array] | None:
        """What counts of two values, in one shape; None where they are not forms of one thing."""
        row = self._row(reference.shape, target.shape)
        if row is not None:
            batch, other = (reference, target) if row.padded == "reference" else (target, reference)
            tokens = row.of_batch(batch)
            both = tokens, row.of_row(other, row.rest(batch.shape))
            reference, target = both if row.padded == "reference" else both[::-1]
        elif (padded := self._padded(reference.shape, target.shape)) is not None:
            reference, target = padded.of_batch(reference), padded.of_batch(target)
        elif not same_form(reference.shape, target.shape):
            if self.fillings.common(reference.shape, target.shape) is None:
                return None
            reference, target = self.fillings.beside(reference, target)
        return reference, target.reshape(reference.shape)

    def counted(self, x: Array, side: str, reference: Shape, target: Shape) -> Array:
        """What counts of a value of one run, which they have in these shapes: in the reference's form, or as a row of places of that."""
        row = self._row(reference, target)
        if row is None:
            padded = self._padded(reference, target)
            return x.reshape(reference) if padded is None else padded.of_batch(x.reshape(reference))
        batch = reference if row.padded == "reference" else target
        return row.of_batch(x.reshape(batch)) if side == row.padded else row.of_row(x, row.rest(batch))

    def for_reference(self, target: Array, shape: Shape, own: Callable[[], Array]) -> Array:
        """The target's value in the reference's form; `own`: what the reference has itself, for what the target has nothing of."""
        return self.unpacked(target, shape, own).reshape(shape)

    def unpacked(self, target: Array, shape: Shape, own: Callable[[], Array]) -> Array:
        """The same of what one of the two has in a row; any other value as it is."""
        row = self._row(shape, target.shape)
        if row is None:
            return target
        return row.in_batch(target, own()) if row.padded == "reference" else row.in_row(target, own)

    def _row(self, reference: Shape, target: Shape) -> Packing | None:
        return next((row for row in (self.packing, *self.ends) if row is not None and row.same(reference, target)), None)

    def _padded(self, reference: Shape, target: Shape) -> Packing | None:
        """The packing that says which tokens count, of values that both runs have as a batch, and others not."""
        packing = self.packing
        if packing is None or not packing.row or packing.lines is None:
            return None
        return packing if reference == target and packing.is_batch(reference) else None

    def plain(self, x: Array, side: str, there: Array | None, sizes: Container[int]) -> Array:
        """A value that a program made without what does not count.

        `there`: what the other program makes at the aligned call; `sizes`: those of all that it makes, which are no filling.
        """
        if self.packing is not None:
            x = self.packing.tokens_only(x, side)
        if there is None or there.ndim != x.ndim:
            return self.fillings.without(x, side, sizes)
        return self.fillings.beside(x, there)[0] if side == "reference" else self.fillings.beside(there, x)[1]

    def token(self, shape: Shape, side: str, tokens: Shape) -> Shape:
        """One shape for all forms. `tokens`: the leading dimensions that one of the two has as one."""
        if self.packing is not None:
            shape = self.packing.as_row(shape, side)
        return canonical(shape, tokens)


AS_THEY_ARE: Final = Forms()
FormsAt = Callable[[int], Forms]
"""The forms of the step that a call of the target is part of."""


def as_they_are(_: int) -> Forms:
    """Of runs in which all things have one form, or forms that their shapes alone tell."""
    return AS_THEY_ARE
