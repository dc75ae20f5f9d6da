"""`RanksScreen`: which rank holds what of the values of one site, how far off each is, and the collectives inside the call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from time import monotonic
from typing import Any, ClassVar, Final

from textual import work
from textual.app import ComposeResult
from textual.message import Message
from textual.screen import Screen
from textual.worker import get_current_worker

from layerdiff.errors import LayerdiffError
from layerdiff.judge.tables import Placing
from layerdiff.progress import listening
from layerdiff.rows.cells import visible
from layerdiff.rows.ranks.held import map_lines, nothing_lines, title_lines, values_of
from layerdiff.rows.ranks.meeting_lines import meeting_lines
from layerdiff.rows.ranks.meetings import Meeting, Meetings, verdicts_of
from layerdiff.rows.section import said
from layerdiff.rows.sites.table import Rows
from layerdiff.rows.tones import Line, Tone, line
from layerdiff.rows.traces import Traces
from layerdiff.saved.placements import PlacedValue
from layerdiff.tui.actions import RANKS_ACTIONS, Action, bindings
from layerdiff.tui.screens.base import Drilled, Head, Left
from layerdiff.tui.widgets.footer import KeyBar
from layerdiff.tui.widgets.scrolled import ScrolledLines

_SOON_S: Final = 0.5
"""Before that nothing is said of how long reading takes."""
_TICK_S: Final = 0.25


def open_ranks(screen: Screen[Any], rows: Rows, row: int, traces: Traces) -> None:
    """Open what ranks hold of the site at `row`; says so where the target is one process."""
    if len(rows.comparison.target.files) < 2:
        screen.notify("the target is one process: ranks are those of a folder of traces", timeout=4)
        return
    screen.app.push_screen(RanksScreen(rows, row, traces))


class RanksHead(Head):
    """The site, and what stands out."""

    made: Any = None

    def lines_at(self, width: int) -> Sequence[Line]:
        """Two lines."""
        return () if self.made is None else self.made(width)


class RanksScreen(Drilled):
    """One site, by rank."""

    DEFAULT_CSS = """
    RanksScreen { layout: vertical; background: $background; }
    """
    ACTIONS: ClassVar[Sequence[Action]] = RANKS_ACTIONS
    WORDS = (
        ("sharded", "each rank holds a part along one dimension; the map shows which: █ all of a cell's places, ▓ ▒ ░ some, · none"),
        ("replicated", "every rank holds the whole"),
        ("groups ...", "the ranks form a grid: groups hold a part each, and the ranks of a group its part among themselves"),
        ("partial", "the ranks' values add up to the whole, so no rank has an error of its own"),
        ("together", "the logical tensor, put together of all parts, against the reference's"),
        ("closer", "the first places, one a cell, by the last digit of the rank that holds each"),
        ("✗", "a rank that is more than ten times as far off as the middle one, or that differs where it should be the same"),
        ("collectives", "in, out: the root mean square of what a rank put in and got; bars are as long as that, up to the largest"),
        ("fits as well", "another reading of the same numbers: they do not tell the two apart"),
    )
    BINDINGS = bindings(RANKS_ACTIONS)  # textual's way

    @dataclass
    class Met(Message):
        """The collectives inside a call, or why they cannot be read."""

        row: int
        found: list[Meeting] | str

    def __init__(self, rows: Rows, row: int, traces: Traces) -> None:
        super().__init__()
        self._meetings: Meetings | None = None
        self._reading = Lock()
        self._verdicts: dict[tuple[str, int, int], int] = {}
        self._values: list[PlacedValue] = []
        self._began = monotonic()
        self._met: list[Meeting] | str | None = None
        self._rows, self.row, self._traces = rows, row, traces

    def compose(self) -> ComposeResult:
        """Top to bottom."""
        yield RanksHead()
        yield ScrolledLines()
        yield KeyBar(RANKS_ACTIONS)

    def on_mount(self) -> None:
        """Show the site."""
        self.query_one(ScrolledLines).focus()
        self._ticking = self.set_interval(_TICK_S, self._tick)
        self._show(self.row)

    def _show(self, row: int) -> None:
        self.row = row
        self._met, self._began = None, monotonic()
        self._ticking.resume()
        self._place()
        self._words(from_top=True)
        self._meet(row)

    def _place(self) -> None:
        """What is known by now of the ranks' values."""
        comparison, row = self._rows.comparison, self.row
        name = self._rows.names.full(int(self._rows.tree.place_of[row]))
        values = values_of(comparison, self._rows.placements, row)
        head = self.query_one(RanksHead)
        head.made = lambda width: title_lines(comparison, row, name, values, width)
        head.refresh()
        self._values = values

    def compared_on(self) -> None:
        """Maps come as values are put together."""
        self._place()
        if self._met is not None:
            self._verdicts = verdicts_of(self._rows.comparison)
        self._words(from_top=False)

    def _words(self, *, from_top: bool) -> None:
        self.query_one(ScrolledLines).show(self._lines, from_top=from_top)

    def _lines(self, width: int) -> list[Line]:
        comparison = self._rows.comparison
        lines = map_lines(comparison, self.row, self._values, width)
        met: list[Line] = []
        if isinstance(self._met, str):
            met = said("  ∅", Tone.UNKNOWN, f"collectives are read from the traces: {visible(self._met)}", width)
        elif self._met is None and monotonic() - self._began > _SOON_S:
            met = [line(("  reading the collectives from the traces of all ranks", Tone.DIM)), self.pace.line(width)]
        elif self._met == [] and self._meetings and any(value.kind is Placing.PARTIAL for value in self._values):
            told = "no collective was issued inside this call: the parts of the sum are added up elsewhere, or nowhere"
            met = said("  ◇", Tone.NOTICE, told, width)
        elif self._met:
            outer = comparison.texts[int(comparison.sites["site"][self.row])] or ""
            met = meeting_lines(self._met, self._verdicts, width, outer=outer)
        return [*(lines or nothing_lines(comparison, self.row, width)), *([line()] if met else []), *met]

    def _tick(self) -> None:
        if self._met is None:
            self._words(from_top=False)
        else:
            self._ticking.pause()

    @work(thread=True, exclusive=True, group="met", exit_on_error=False)
    def _meet(self, row: int) -> None:
        try:
            with self._reading:
                if self._meetings is None:
                    with listening(self.hear):
                        self._meetings = Meetings(self._rows.comparison, self._traces)
                    self._verdicts = verdicts_of(self._rows.comparison)
                found: list[Meeting] | str = self._meetings.inside(row)
        except (LayerdiffError, OSError, Left) as error:
            found = str(error)
        except Exception as error:  # a fault of ours must reach the user as a sentence, not as a dead screen
            found = f"reading stopped: {type(error).__name__}: {error}"
        if not get_current_worker().is_cancelled:
            self.post_message(self.Met(row, found))

    def on_ranks_screen_met(self, message: Met) -> None:
        """Show them below the values."""
        if message.row == self.row:
            self._met = message.found
            self._words(from_top=False)

    # actions

    def action_next_site(self) -> None:
        """See actions."""
        self._step(1)

    def action_previous_site(self) -> None:
        """See actions."""
        self._step(-1)

    def _step(self, by: int) -> None:
        """To the next site, in execution order, some of whose values are placed."""
        tree = self._rows.tree
        place = int(tree.place_of[self.row]) + by
        while 0 <= place < len(tree):
            row = int(tree.row[place])
            if self._rows.placements.of_site(row):
                self._show(row)
                return
            place += by
        self.notify("this is the last site with values of ranks" if by > 0 else "this is the first site with values of ranks", timeout=2)

    def action_next_part(self) -> None:
        """See actions."""
        self.query_one(ScrolledLines).to_part(1)

    def action_previous_part(self) -> None:
        """See actions."""
        self.query_one(ScrolledLines).to_part(-1)
