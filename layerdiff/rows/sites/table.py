"""`Rows`: the table of sites as a screen shows it. A line is worded only when somebody asks for it.

The state of the view (what is unfolded, sort, filter, search) lives here; the cursor does not. Rows are
named by their row in the table of sites, which no view changes, so that a face can keep its cursor on
a site across every change of the view and of the judgement.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from layerdiff.diagnose.findings import Origin
from layerdiff.judge.tables import Verdict
from layerdiff.rows.cells import cell_width, fit, shorten, visible
from layerdiff.rows.figures import amount, count, figure, ratio
from layerdiff.rows.sites.columns import Columns, columns, heading
from layerdiff.rows.sites.judged import Judged, judged
from layerdiff.rows.sites.listing import Sort, listing, matching
from layerdiff.rows.sites.names import Names
from layerdiff.rows.sites.outline import Lines, Outline
from layerdiff.rows.sites.tree import tree_of
from layerdiff.rows.tones import Line, Segment, Tone, line, mark
from layerdiff.saved.comparison import Comparison
from layerdiff.saved.placements import Placements
from layerdiff.trace.schema import CallKind

_INDENT: Final = 2
_DEEPEST_INDENT: Final = 12
_OPENED_AT_FIRST: Final = 8
"""Origins that are in view when a comparison is first shown."""


class Rows:
    """Lines of one comparison. `len(rows)` lines, each made by `line(i)`."""

    def __init__(self, comparison: Comparison, *, width: int = 120) -> None:
        self.width = width
        self.sort = Sort.EXECUTION
        self.only_origins = False
        self.query = ""
        self._flat: Lines | None = None
        self._replace(comparison)

    def _replace(self, comparison: Comparison) -> None:
        self.comparison = comparison
        self._placements: Placements | None = None
        self.tree = tree_of(comparison.sites["parent"])
        self.seen: Judged = judged(comparison, self.tree)
        self.names = Names(comparison, self.tree)
        self._outline = Outline(comparison, self.tree, self.seen, self.names)
        self._open_at_first()

    def judged(self, comparison: Comparison) -> None:
        """Show another judgement of the same sites, or the next state of a running one; the view stays as it is."""
        same = np.array_equal(comparison.sites["parent"], self.comparison.sites["parent"])
        if not same:
            self._replace(comparison)
        else:
            self.comparison = comparison
            self._placements = None
            self.seen = judged(comparison, self.tree)
            self.names = Names(comparison, self.tree)
            self._outline.judge(comparison, self.seen, self.names)
        self._flat = None

    def _open_at_first(self) -> None:
        """Down to the first call with several children, and every origin while they are few."""
        family = self.tree.children(-1)
        top = int(family[0]) if len(family) else -1
        while top >= 0 and self.tree.has_children(top):
            self._outline.open(top)
            inner = [int(p) for p in self.tree.children(top)[:64] if self.tree.has_children(int(p))]
            top = inner[0] if len(inner) == 1 else -1
        for place in list(self.seen.origin_at)[:_OPENED_AT_FIRST]:
            self._outline.reveal(place)

    @property
    def placements(self) -> Placements:
        """How ranks make up the values of each site."""
        if self._placements is None:
            self._placements = Placements(self.comparison)
        return self._placements

    # what is on view

    @property
    def flat(self) -> bool:
        """Whether the view is a list of whole sites instead of the tree."""
        return bool(self.query) or self.only_origins or self.sort is not Sort.EXECUTION

    @property
    def _lines(self) -> Lines:
        if not self.flat:
            return self._outline.lines
        if self._flat is None:
            places = listing(self.comparison, self.tree, self.seen, sort=self.sort, only_origins=self.only_origins, query=self.query)
            self._flat = Lines(places, places, np.ones(len(places), np.int64))
        return self._flat

    def __len__(self) -> int:
        return len(self._lines.first)

    def show(self, *, sort: Sort | None = None, only_origins: bool | None = None, query: str | None = None) -> None:
        """Change what is listed; None leaves a part as it is."""
        self.sort = self.sort if sort is None else sort
        self.only_origins = self.only_origins if only_origins is None else only_origins
        self.query = self.query if query is None else query
        self._flat = None

    def row(self, index: int) -> int:
        """The row of the site on line `index`; of a fold, its first."""
        return int(self.tree.row[self._lines.first[index]])

    def span(self, index: int) -> tuple[int, int]:
        """Rows of the first and of the last site that line `index` stands for; equal unless it is a fold."""
        lines = self._lines
        return int(self.tree.row[lines.first[index]]), int(self.tree.row[lines.last[index]])

    def members(self, index: int) -> list[int] | range:
        """Places of the siblings that line `index` stands for."""
        first, last = int(self._lines.first[index]), int(self._lines.last[index])
        part = self.tree.child_slice(first, last)
        return range(first, first + 1) if isinstance(part, slice) else part.tolist()

    def find(self, row: int) -> int | None:
        """The line that shows a row, or that hides it in a fold or a closed call; None where a flat view leaves it out."""
        place = int(self.tree.place_of[row])
        if not self.flat:
            return self._outline.find(place) if len(self) else None
        at = np.flatnonzero(self._lines.first == place)
        return int(at[0]) if at.size else None

    def reveal(self, row: int) -> int:
        """Bring a row into view, in the tree, opening whatever hides it; its line."""
        self.show(sort=Sort.EXECUTION, only_origins=False, query="")
        place = int(self.tree.place_of[row])
        self._outline.reveal(place)
        return self._outline.find(place)

    # folding

    def arrow_cell(self, index: int) -> int | None:
        """The cell of the arrow that folds and unfolds line `index`; None where there is none."""
        return self._indent(int(self._lines.first[index])) if self._arrow(index).strip() else None

    def is_fold(self, index: int) -> bool:
        """Whether line `index` is a run of siblings."""
        return bool(self._lines.size[index] > 1)

    def open(self, index: int) -> int:
        """Unfold line `index`, or go to its first child if it is open; the line to select next."""
        place = int(self._lines.first[index])
        if self.flat:
            return self.reveal(self.row(index))
        if self.is_fold(index):
            self._outline.unfold_run(place, int(self._lines.last[index]))
        elif self.tree.has_children(place):
            if self._outline.is_open(place):
                return min(index + 1, len(self) - 1)
            self._outline.open(place)
        return index

    def close(self, index: int) -> int:
        """Fold line `index`, or the run it was unfolded from, or go to its parent; the line to select next."""
        place = int(self._lines.first[index])
        if self.flat:
            return index
        if self.tree.has_children(place) and not self.is_fold(index) and self._outline.is_open(place):
            self._outline.close(place)
        elif self._outline.fold_run(place):
            pass
        elif self.tree.parent[place] >= 0:
            place = int(self.tree.parent[place])
        return self._outline.find(place)

    def toggle(self, index: int) -> int:
        """Unfold what is folded and fold what is not; the line to select next."""
        place = int(self._lines.first[index])
        if not self.flat and not self.is_fold(index) and self.tree.has_children(place) and self._outline.is_open(place):
            self._outline.close(place)
            return self._outline.find(place)
        if not self.flat and not self.is_fold(index) and not self.tree.has_children(place):
            return index
        return self.open(index)

    def toggle_all(self) -> None:
        """Every site on its line, or back to the first view."""
        if self._outline.all_open:
            self._outline.close_all()
            self._open_at_first()
        else:
            self._outline.open_all()

    # going places

    def origin_rows(self) -> list[int]:
        """Rows of the origins, in execution order."""
        return [int(self.tree.row[place]) for place in self.seen.origin_at]

    def next_origin(self, row: int | None, *, back: bool = False) -> int | None:
        """The origin after (or before) a row, around the end; None where there is none."""
        places = list(self.seen.origin_at)
        if not places:
            return None
        here = -1 if row is None else int(self.tree.place_of[row])
        beyond = [p for p in places if (p < here if back else p > here)]
        chosen = beyond or places
        return int(self.tree.row[chosen[-1] if back else chosen[0]])

    def same_site(self, row: int, *, back: bool = False) -> int | None:
        """The next (or previous) call of a row's site: another step, or another call within the step."""
        site = np.asarray(self.comparison.sites["site"])
        places = np.sort(self.tree.place_of[np.flatnonzero(site == site[row])])
        at = int(np.searchsorted(places, self.tree.place_of[row])) + (-1 if back else 1)
        return int(self.tree.row[places[at]]) if 0 <= at < len(places) else None

    # words

    @property
    def columns(self) -> Columns:
        """Widths at the present width of the screen."""
        return columns(self.width, self.seen.codes)

    def heading(self) -> Line:
        """The line above the table."""
        return heading(self.columns, listed=self.sort.value if self.flat and self.sort is not Sort.EXECUTION else None)

    def line(self, index: int) -> Line:
        """Line `index`, exactly `width` cells."""
        widths = self.columns
        first, last, members = (int(column[index]) for column in self._lines)
        end = int(self.tree.end[last])
        shown = mark(self.verdict(index))
        inside = self.seen.origins_inside(first, end)
        is_origin = first in self.seen.origin_at
        segments = self._site_cell(index, first, members, widths.site, bold=is_origin, noted=inside > 0)
        gap = Segment("  ")
        number = Tone.PLAIN if is_origin else Tone.DIM
        if widths.difference:
            value = fit(self._difference(first, last, members), widths.difference, align="right")
            segments += [gap, Segment(value, number)]
        if widths.ratio:
            worst = self.seen.worst_ratio(first, end)
            over = worst is not None and worst > 1 and shown.tone in (Tone.FAULT, Tone.BROKEN, Tone.NOTICE)
            value = fit(ratio(worst), widths.ratio, align="right")
            segments += [gap, Segment(value, shown.tone if over else number)]
        word = f"{shown.glyph} {shown.word}"
        finding, tone = self._finding(first, last, members, inside)
        segments.append(gap)
        if widths.verdict:
            segments += [Segment(fit(word, widths.verdict), shown.tone), gap, Segment(fit(finding, widths.finding), tone)]
        else:
            word = shorten(word, widths.finding)
            room = widths.finding - cell_width(word)
            text = f"  {finding}" if finding and room > 6 else ""
            segments += [Segment(word, shown.tone), Segment(fit(text, room), tone)]
        return Line(tuple(segments))

    def verdict(self, index: int) -> int:
        """The verdict that line `index` shows, as its code."""
        lines = self._lines
        return int(self.seen.worst[self.tree.child_slice(int(lines.first[index]), int(lines.last[index]))].max())

    def _indent(self, place: int) -> int:
        return 0 if self.flat else min(int(self.tree.depth[place]), _DEEPEST_INDENT) * _INDENT

    def _arrow(self, index: int) -> str:
        place = int(self._lines.first[index])
        if self.flat:
            return ""
        if self.is_fold(index):
            return "▸ "
        if not self.tree.has_children(place):
            return "  "
        return "▾ " if self._outline.is_open(place) else "▸ "

    def _site_cell(self, index: int, first: int, members: int, cells: int, *, bold: bool, noted: bool) -> list[Segment]:
        indent = min(self._indent(first), cells // 3)
        arrow = self._arrow(index)
        name = self.names.full(first) if self.flat else self.fold_name(index) if members > 1 else self.names.short(first)
        room = cells - indent - len(arrow)
        text = shorten(name, room, at="middle")
        tone = Tone.STRONG if bold or noted else Tone.DIM if members > 1 else Tone.PLAIN
        made = [Segment(" " * indent + arrow, Tone.FAINT if not noted else Tone.DIM), Segment(text, tone)]
        left = room - cell_width(text)
        kind = self.names.type(first) if not self.flat and members == 1 and left > 2 else None
        if kind and kind != name and not name.startswith(f"{kind} ") and cell_width(kind) + 2 <= left:
            made.append(Segment(f"  {kind}", Tone.FAINT))
            left -= 2 + cell_width(kind)
        return [*made, Segment(" " * left)]

    def fold_name(self, index: int) -> str:
        """The name of a run of siblings: `layers.4..31`, `6 operator calls`."""
        first, last, members = (int(column[index]) for column in self._lines)
        operators = self.comparison.sites["kind"][self.tree.row[first]] != CallKind.MODULE
        return amount(members, "operator call") if operators else self.names.fold(first, last)

    def _kinds_of(self, first: int, last: int) -> str:
        """Which operators a run holds: `pow, mean, rsqrt, mul`; empty for modules."""
        rows = self.tree.row[self.tree.child_slice(first, last)]
        if self.comparison.sites["kind"][rows[0]] == CallKind.MODULE:
            return ""
        found = dict.fromkeys(self.comparison.sites["operator"][rows[:200]].tolist())
        names = dict.fromkeys((self.comparison.texts[text] or "").removeprefix("aten.").split(".")[0] for text in found)
        return visible(", ".join(name for name in names if name))

    def _difference(self, first: int, last: int, members: int) -> str:
        if members > 1:
            values = self.seen.difference[self.tree.child_slice(first, last)]
            known = values[~np.isnan(values)]
            value, sign = (float(known.max()) if known.size else None), ""
        else:
            number = float(self.seen.difference[first])
            value, sign = (None if np.isnan(number) else number), "~" if self.seen.estimated[first] else ""
        if value == np.inf:
            return "nan"
        return sign + figure(value)

    def _finding(self, first: int, last: int, members: int, inside: int) -> tuple[str, Tone]:
        if members > 1:
            return self._kinds_of(first, last) or f"{count(members)} folded", Tone.FAINT
        origin = self.seen.origin_at.get(first)
        if origin is not None:
            more = f" (+{inside - 1} inside)" if inside > 1 else ""
            return visible(origin.statement) + more, Tone.PLAIN
        if inside:
            text = f"{amount(inside, 'origin')} inside"
            if inside == 1:
                place = int(np.searchsorted(self.seen.origins_upto, self.seen.origins_upto[first] + 1)) - 1
                text += f": {self.names.inside(place, first)}"
            return text, Tone.PLAIN
        said = self.statement(int(self.tree.row[first]))
        alone = self.seen.incomparable_inside(first + 1, int(self.tree.end[first])) if not said else 0
        return (f"{count(alone)} not comparable inside" if alone else said), Tone.DIM

    def statement(self, row: int) -> str:
        """What the judge, or the alignment, says of a row; empty if nothing."""
        sites = self.comparison.sites
        text = visible(self.comparison.texts[int(sites["statement"][row])] or "")
        if self.comparison.reference is None:
            return text
        for column, side in (("reference_call", "target"), ("target_call", "reference")):
            if sites[column][row] < 0 and sites["verdict"][row] == Verdict.NOT_COMPARABLE:
                return f"{side} only: {text}" if text else f"{side} only"
        return text

    def origins_of(self, row: int) -> list[Origin]:
        """Every origin of one call (one a value)."""
        return [origin for origin in self.comparison.origins if origin.row == row]

    def hidden(self) -> str:
        """What the view leaves out, and which key shows it."""
        total = len(self.tree)
        if self.flat:
            return self._left_out(total)
        folded = self._lines.size[self._lines.size > 1]
        alone = len(self) - folded.size
        parts = [f"all {amount(total, 'site')} on view" if alone == total else f"{count(alone)} of {amount(total, 'site')} on view"]
        if folded.size:
            parts.append(f"{count(int(folded.sum()))} folded")
        inside = total - alone - int(folded.sum())
        if inside:
            parts.append(f"{count(inside)} in closed calls · x opens all")
        return " · ".join(parts)

    def _left_out(self, total: int) -> str:
        here = len(self)
        parts = []
        if self.query and self.only_origins:
            found = matching(self.comparison, self.tree, self.query).size
            parts.append(f"{count(here)} of {amount(len(self.seen.origin_at), 'origin')} match {visible(self.query)!r}")
            parts.append(f"{amount(found - here, 'other matching site')} hidden: o shows them, esc shows all")
        elif self.only_origins:
            parts.append(f"{amount(here, 'origin')}, {count(total - here)} other sites hidden: o shows them")
        elif self.query:
            verb = "matches" if here == 1 else "match"
            parts.append(f"{count(here)} of {amount(total, 'site')} {verb} {visible(self.query)!r}: esc shows all")
        if self.sort is not Sort.EXECUTION:
            parts.append(f"by {self.sort.value}: s changes it")
        return " · ".join(parts)

    def nothing(self) -> Line:
        """What stands in the place of an empty list."""
        if not self.query:
            return line(("no origin", Tone.STRONG), (": o lists all sites again", Tone.DIM))
        if not self.only_origins:
            return line(("no site matches", Tone.DIM))
        found = matching(self.comparison, self.tree, self.query).size
        others = (
            f": {amount(found, 'other site')} {'does' if found == 1 else 'do'}, o shows them"
            if found
            else ", and no other site: o lists all"
        )
        return line(("no origin matches", Tone.STRONG), (others, Tone.DIM))
