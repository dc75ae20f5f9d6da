"""Names of the same place in every layer, as one: `layers.*.input_layernorm (5), norm`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

from layerdiff.rows.cells import visible
from layerdiff.rows.figures import amount

_NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)")
_MOST: Final = 6


def pattern_of(name: str) -> str:
    """A module path, or what says one, with * for the numbers of layers and experts."""
    return _NUMBER.sub("*", name)


def tallied(names: Iterable[str]) -> str:
    """Patterns of names in the order in which they first come, with how often where that is more than once."""
    patterns = Counter(pattern_of(name) or "the root" for name in names)
    said = [visible(name) + (f" ({number})" if number > 1 else "") for name, number in patterns.items()]
    more = f" and {amount(len(said) - _MOST, 'other name')}" if len(said) > _MOST else ""
    return f"{', '.join(said[:_MOST])}{more}"
