"""Where ranks that were given the same stop being so: the trace that a sum which no rank issues leaves without a reference.

Only said, and never a fault: values may be cut over ranks at any place of a program. It takes a norm of one name that is given the
same on all ranks in some layers and not in later ones, which no layout does by itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)")


@dataclass(frozen=True)
class Norm:
    """A call of a norm that several ranks ran with the same weights; `same`: they were given the same bits."""

    site: str
    step: int
    same: bool
    file: int
    call: int


def parting(norms: Sequence[Norm]) -> tuple[Norm, str] | None:
    """The first norm that is not given the same, and what is said there; None where the ranks do not part for good.

    Args:
        norms: in the order of the run, of one step.
    """
    ends = [i for i, norm in enumerate(norms) if norm.same]
    if not ends or ends[-1] + 1 == len(norms) or len(ends) != ends[-1] + 1:  # never, always, or back and forth
        return None
    before, after = norms[: len(ends)], norms[len(ends) :]
    layers = {_NUMBER.sub("*", norm.site) for norm in before} & {_NUMBER.sub("*", norm.site) for norm in after}
    if not any("*" in layer for layer in layers):
        return None
    last, first = before[-1], after[0]
    said = (
        f"every rank is given the same up to {last.site}, and from here on each rank something else: "
        "a sum or gather between them may be missing; a comparison with a reference tells"
    )
    return first, said
