"""What sites are called on a screen: relative to the enclosing call in a tree, in full in a list, a range for a fold."""

from __future__ import annotations

import re

import numpy as np

from layerdiff.rows.cells import visible
from layerdiff.rows.sites.tree import Tree
from layerdiff.saved.comparison import Comparison

_NUMBERS = re.compile(r"(\d+)")


class Names:
    """Names of the places of one comparison; texts are made visible here, once for all faces."""

    def __init__(self, comparison: Comparison, tree: Tree) -> None:
        sites = comparison.sites
        self._texts = comparison.texts
        self._tree = tree
        self._site, self._type = sites["site"], sites["type"]
        self._step, self._occurrence, self._rank = sites["step"], sites["occurrence"], sites["rank"]
        self.several_steps = bool(len(tree)) and int(np.min(self._step)) != int(np.max(self._step))

    def site(self, place: int) -> str:
        """The site as the contracts have it, not made visible."""
        return self._texts[int(self._site[self._tree.row[place]])] or ""

    def type(self, place: int) -> str | None:
        """The module's class, visible."""
        name = self._texts[int(self._type[self._tree.row[place]])]
        return None if name is None else visible(name)

    def step(self, place: int) -> int:
        """Which forward the call belongs to."""
        return int(self._step[self._tree.row[place]])

    def template(self, place: int) -> str:
        """The site with every number replaced: siblings of one template may fold into one line."""
        return _NUMBERS.sub("#", self.site(place))

    def short(self, place: int) -> str:
        """The name inside the enclosing call: `layers.3`, `q_proj`, `aten.mm.default#0`; at the top the full one."""
        above = int(self._tree.parent[place])
        return visible(self._bare(place, above)) + self._marks(place, at_top=above < 0)

    def full(self, place: int) -> str:
        """The whole site, with step, call and rank where they are needed to tell."""
        return visible(self.site(place) or self._root(place)) + self._marks(place, at_top=True)

    def fold(self, first: int, last: int) -> str:
        """One name for a run of siblings: `layers.4..31`."""
        above = int(self._tree.parent[first])
        if self._bare(first, above) == self._bare(last, above):
            one, other = self.short(first), self.short(last)
        else:
            one, other = visible(self._bare(first, above)), visible(self._bare(last, above))
        a, b = _NUMBERS.split(one), _NUMBERS.split(other)
        if len(a) != len(b):
            return f"{one} .. {other}"
        return "".join(x if x == y else f"{x}..{y}" for x, y in zip(a, b, strict=True))

    def inside(self, place: int, above: int) -> str:
        """The name of `place` as seen from the enclosing `above`, however deep."""
        return visible(self._bare(place, above)) + self._marks(place, at_top=False)

    def _root(self, place: int) -> str:
        return self._texts[int(self._type[self._tree.row[place]])] or "(root)"

    def _bare(self, place: int, above: int) -> str:
        site = self.site(place)
        if not site:
            return self._root(place)
        outer = self.site(above) if above >= 0 else ""
        if outer and site.startswith(outer) and site[len(outer) : len(outer) + 1] in (".", "/"):
            return site[len(outer) + 1 :]
        return site.lstrip("/") if site.startswith("/") else site

    def _marks(self, place: int, *, at_top: bool) -> str:
        row = int(self._tree.row[place])
        text = ""
        if at_top and self.several_steps:
            text += f" step {int(self._step[row])}"
        if self._occurrence[row] > 0:
            text += f" call {int(self._occurrence[row])}"
        if self._rank[row] >= 0:
            text += f" rank {int(self._rank[row])}"
        return text
