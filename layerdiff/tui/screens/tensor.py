"""`TensorScreen`: one pair of values of a site, as closely as one can look.

Values are read from the traces by a worker, a pass at a time, and shown as they come; the grid reads the few
elements on view itself. Where a trace is not there, the numbers that the comparison keeps are shown, and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from textual import events, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.message import Message
from textual.worker import get_current_worker

from layerdiff.errors import LayerdiffError
from layerdiff.rows.cells import cell_width, shorten, visible, wrap
from layerdiff.rows.sites.table import Rows
from layerdiff.rows.tensor.elements import element_lines
from layerdiff.rows.tensor.examined import Examined, examine
from layerdiff.rows.tensor.grid import flat_of, no_element
from layerdiff.rows.tensor.measures import stored_lines
from layerdiff.rows.tensor.pair import open_tensor
from layerdiff.rows.tensor.put_together import of_ranks, ranks_of
from layerdiff.rows.tones import Line, Tone, line, mark
from layerdiff.rows.traces import Traces
from layerdiff.rows.values import pairs_of, position, value_name
from layerdiff.tui.actions import TENSOR_ACTIONS, Action, bindings
from layerdiff.tui.screens.base import Drilled, Head, Selected
from layerdiff.tui.widgets.axes import ProfilePane
from layerdiff.tui.widgets.footer import KeyBar
from layerdiff.tui.widgets.grid import GridPane
from layerdiff.tui.widgets.lines import LinesView
from layerdiff.tui.widgets.measures import NumbersPane
from layerdiff.tui.widgets.pane import Pane
from layerdiff.tui.widgets.picture import PicturePane
from layerdiff.tui.widgets.search import SearchBox
from layerdiff.tui.widgets.tabs import Tabs
from layerdiff.tui.widgets.worst import WorstPane

PANES: Final = ("numbers", "picture", "worst", "profile", "grid")
_UPPER: Final = PANES[:2]
_SPLIT: Final = (100, 30)
"""From this size on, numbers and picture stay above the other panes."""


class Status(LinesView):
    """What is under the cursor."""

    DEFAULT_CSS = "Status { height: 2; }"
    indent = 1


class TensorScreen(Drilled):
    """Numbers, picture, worst elements, profiles and grid of one pair of values."""

    DEFAULT_CSS = """
    TensorScreen { layout: vertical; background: $background; }
    TensorScreen #upper { height: 1fr; }
    TensorScreen.-split #upper { height: 17; }
    TensorScreen NumbersPane, TensorScreen PicturePane { width: 1fr; height: 1fr; }
    TensorScreen.-split NumbersPane { width: 52; }
    TensorScreen WorstPane, TensorScreen ProfilePane, TensorScreen GridPane { height: 1fr; }
    """
    ACTIONS: ClassVar[Sequence[Action]] = TENSOR_ACTIONS
    WORDS = (
        ("relative L2", "|target - reference| / |reference|, both as vectors"),
        ("ulps", "how many numbers of the coarser dtype lie from one to the other"),
        ("class", "finite, nan, inf or -inf; elements where it differs are in no number and come first among the worst"),
        ("picture", "a cell is the largest |Δ| of its elements, on a log scale of at most 3 decades"),
        ("profile", "for each index of an axis the L2 of the difference over that of the reference"),
        ("sample", "of more than 16,777,216 elements every k-th row is measured; the grid shows any element"),
    )
    BINDINGS = [  # noqa: RUF012  # textual's way
        *bindings(TENSOR_ACTIONS),
        Binding("up,k", "move(-1, 0)", show=False),
        Binding("down,j", "move(1, 0)", show=False),
        Binding("left,h", "move(0, -1)", show=False),
        Binding("right,l", "move(0, 1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home,g", "end(False)", show=False),
        Binding("end,G", "end(True)", show=False),
    ]

    @dataclass
    class Measured(Message):
        """A pass over the values was made."""

        pair: int
        part: int | None
        examined: Examined

    @dataclass
    class Unreadable(Message):
        """The values cannot be shown; `why` is a sentence for the user."""

        pair: int
        why: str

    def __init__(self, rows: Rows, row: int, traces: Traces, *, pair: int | None = None) -> None:
        """The values of the site at `row`; `pair` is the one to begin with, else the one that decided, else the first."""
        super().__init__()
        self._rows, self._row, self._traces = rows, row, traces
        self._pairs = pairs_of(rows.comparison, row).tolist()
        decided = int(rows.comparison.sites["pair"][row])
        wanted = pair if pair is not None else decided
        self._at = self._pairs.index(wanted) if wanted in self._pairs else 0
        self.active = "worst"
        self._lower = "worst"
        self.examined: Examined | None = None
        self._part: int | None = None
        """Of a value of ranks: the number of the one that is shown by itself."""

    @property
    def pair(self) -> int | None:
        """The pair of values that is shown."""
        return self._pairs[self._at] if self._pairs else None

    def compose(self) -> ComposeResult:
        """Top to bottom."""
        yield Head()
        yield Tabs()
        with Horizontal(id="upper"):
            yield NumbersPane(id="numbers")
            yield PicturePane(id="picture")
        yield WorstPane(id="worst")
        yield ProfilePane(id="profile")
        yield GridPane(id="grid")
        yield Status()
        yield KeyBar(TENSOR_ACTIONS)

    def on_mount(self) -> None:
        """Begin to read, once the screen is painted: a worker would hold the interpreter meanwhile."""
        if len(self._rows.comparison.placed["pair"]):
            self.query_one(KeyBar).promote("next_rank", "each rank")
        self._lay_out()
        self._words()
        self.call_after_refresh(self._begin)

    def on_resize(self, event: events.Resize) -> None:
        """Split the screen where it is large enough."""
        self.set_class(event.size.width >= _SPLIT[0] and event.size.height >= _SPLIT[1], "-split")
        self._lay_out()
        self.call_after_refresh(self._words)

    # reading

    def _begin(self) -> None:
        self.examined = None
        self.query_one(NumbersPane).instead = None
        for pane in self.query(Pane):
            pane.examine(None)
        self._words()
        if self.pair is None:
            self._say("no value of this call was recorded on both sides")
        else:
            self._measure(self.pair, self._part)

    @work(thread=True, exclusive=True, group="tensor", exit_on_error=False)
    def _measure(self, pair: int, part: int | None) -> None:
        worker = get_current_worker()
        try:
            for examined in examine(open_tensor(self._traces, self._rows.comparison, pair, part=part)):
                if worker.is_cancelled:
                    return
                self.post_message(self.Measured(pair, part, examined))
        except (LayerdiffError, OSError, ValueError) as error:
            self.post_message(self.Unreadable(pair, str(error)))
        except Exception as error:  # a fault of ours must reach the user as a sentence, not as a dead screen
            self.post_message(self.Unreadable(pair, f"measuring stopped: {type(error).__name__}: {error}"))

    def on_tensor_screen_measured(self, message: Measured) -> None:
        """Show what came."""
        if message.pair == self.pair and message.part == self._part:
            self.examined = message.examined
            for pane in self.query(Pane):
                pane.examine(message.examined)
            self._words()

    def on_tensor_screen_unreadable(self, message: Unreadable) -> None:
        """Say why, beside what the comparison keeps."""
        if message.pair == self.pair:
            self._say(message.why)

    def compared_on(self) -> None:
        """Another verdict; and values of ranks that can be put together only now."""
        refused = self.query_one(NumbersPane).instead is not None
        if refused and self.pair is not None and of_ranks(self._rows.comparison, self.pair):
            self._begin()
        else:
            self._words()

    def _say(self, why: str) -> None:
        comparison, pair, pane = self._rows.comparison, self.pair, self.query_one(NumbersPane)

        def instead(width: int) -> list[Line]:
            lines = [line((text, Tone.NOTICE)) for text in wrap(f"∅ {visible(why)}", width, lines=8)]
            kept = [] if pair is None else [line(), line(("kept by the comparison", Tone.DIM)), *stored_lines(comparison, pair, width)]
            return lines + kept

        pane.instead = instead
        if not self.has_class("-split"):
            self.action_pane("numbers")
        pane.refresh()
        self._words()

    # words

    def _lay_out(self) -> None:
        split = self.has_class("-split")
        self.query_one("#upper").display = split or self.active in _UPPER
        for pane in self.query(Pane):
            name = pane.id or ""
            pane.display = name in (*_UPPER, self._lower) if split else name == self.active
            pane.set_class(name == self.active, "-active")
            pane.refresh()

    def _words(self) -> None:
        width = self.app.size.width
        head, lines = self.query_one(Head), self._head(width)
        head.styles.height = max(2, len(lines))
        head.show(lines)
        tabs = self.query_one(Tabs)
        tabs.active = self.active
        known = self.examined
        tabs.measuring(None if known is None or known.done == known.total else (known.done, known.total))
        self._status()

    def _head(self, width: int) -> list[Line]:
        rows, row = self._rows, self._row
        shown = mark(int(rows.comparison.sites["verdict"][row]))
        place = int(rows.tree.place_of[row])
        right = f"{shown.glyph} {shown.word} "
        name = shorten(rows.names.full(place), max(8, width - cell_width(right) - 3), at="middle")
        kind = rows.names.type(place) or ""
        room = width - cell_width(name) - cell_width(right) - 4
        kind = f"  {kind}" if kind and kind != name and cell_width(kind) + 2 < room else ""
        gap = " " * max(1, width - 1 - cell_width(name) - cell_width(kind) - cell_width(right))
        first = line((f" {name}", Tone.TITLE), (kind, Tone.DIM), gap, (right, shown.tone))
        if self.pair is None:
            return [first]
        comparison = rows.comparison
        reference, target = (value_name(comparison, self.pair, side) for side in ("reference", "target"))
        of = f"  value {self._at + 1} of {len(self._pairs)}" if len(self._pairs) > 1 else ""
        second = line(
            (f" {position(comparison, self.pair)}  ", Tone.STRONG), ("reference ", Tone.DIM), (reference.text, Tone.REFERENCE),
            ("  ⇄  target ", Tone.DIM), (target.text, Tone.TARGET), (of, Tone.DIM),
        )  # fmt: skip
        made_of = self.examined.tensor.made_of if self.examined is not None else ""
        third = [line((f" {made_of}", Tone.NOTICE)).clipped(width)] if made_of else []
        return [first, second.clipped(width), *third]

    def _status(self) -> None:
        pane, width = self._pane, max(10, self.app.size.width - 2)
        lines: list[Line] | None = None
        try:
            lines = pane.status(width)
            element = pane.element if lines is None else None
            if element is not None and self.examined is not None:
                lines = element_lines(self.examined.tensor, self.examined.tensor.element(element), width)
        except (LayerdiffError, OSError, ValueError) as error:
            lines = [line(("✗ ", Tone.FAULT), visible(str(error)))]
        self.query_one(Status).show(lines or [])

    # actions

    @property
    def _pane(self) -> Pane:
        return self.query_one(f"#{self.active}", Pane)

    def action_pane(self, name: str) -> None:
        """See actions."""
        self.active = name
        if name not in _UPPER:
            self._lower = name
        self._lay_out()
        self._words()
        self.call_after_refresh(self._status)  # a pane that was hidden knows its size by then

    def action_next_pane(self) -> None:
        """See actions."""
        self.action_pane(PANES[(PANES.index(self.active) + 1) % len(PANES)])

    def action_previous_pane(self) -> None:
        """See actions."""
        self.action_pane(PANES[PANES.index(self.active) - 1])

    def on_tabs_chosen(self, message: Tabs.Chosen) -> None:
        """The name of a pane was clicked."""
        self.action_pane(message.name)

    def on_pane_moved(self, message: Pane.Moved) -> None:
        """The mouse chose something."""
        if message.pane.id and message.pane.id != self.active:
            self.action_pane(message.pane.id)
        self._status()
        if message.chosen:
            self.action_open()

    def action_move(self, down: int, right: int) -> None:
        """The cursor of the pane."""
        self._pane.move(down, right)
        self._status()

    def action_page(self, down: int) -> None:
        """A page of the pane."""
        self._pane.page(down)
        self._status()

    def action_end(self, last: bool) -> None:
        """The first or last of the pane."""
        self._pane.end(last=last)
        self._status()

    def action_open(self) -> None:
        """See actions."""
        element = self._pane.element
        if element is not None and self.active != "grid":
            self.query_one(GridPane).select(element)
            self.action_pane("grid")
            self.call_after_refresh(self._to, element)

    def _to(self, element: int) -> None:
        self.query_one(GridPane).select(element)
        self._status()

    def action_shown(self) -> None:
        """See actions."""
        words = self.query_one(GridPane).show_next()
        if self.active != "grid":
            self.action_pane("grid")
        self.notify(f"the grid shows {words}", timeout=2)

    def action_next_value(self) -> None:
        """See actions."""
        self._to_value(1)

    def action_previous_value(self) -> None:
        """See actions."""
        self._to_value(-1)

    def _to_value(self, by: int) -> None:
        if len(self._pairs) > 1:
            self._at, self._part = (self._at + by) % len(self._pairs), None
            self._begin()

    def action_next_rank(self) -> None:
        """See actions."""
        ranks = [] if self.pair is None else ranks_of(self._rows.comparison, self.pair)
        if len(ranks) < 2:
            self.notify("this value is not made up of several ranks", timeout=3)
            return
        after = 0 if self._part is None else self._part + 1
        self._part = after if after < len(ranks) else None
        self._begin()

    def selected(self) -> Selected | None:
        """The site shown."""
        return Selected(self._rows, self._row, self._traces)

    def action_go_to(self) -> None:
        """See actions."""
        if self.examined is not None and not self.query(SearchBox):
            box = SearchBox("", hint=f"an index: {self.examined.tensor.name(self.examined.tensor.count - 1).strip('[]')} is the last")
            self.mount(box)
            box.focus()

    def on_search_box_typed(self, message: SearchBox.Typed) -> None:
        """Go there as soon as the index is whole; one number alone may still become one."""
        if self.examined is not None and message.query.count(",") + 1 >= len(self.examined.tensor.shape):
            self._to_index(message.query)

    def _to_index(self, typed: str) -> bool:
        """Show an element by its index; False where there is none."""
        flat = None if self.examined is None else flat_of(typed, self.examined.tensor)
        if flat is None:
            return False
        if self.active != "grid":
            self.action_pane("grid")
        self._to(flat)
        return True

    def on_search_box_left(self, message: SearchBox.Left) -> None:
        """Done with typing."""
        typed = self.query(SearchBox).first().value.strip()
        if message.keep and typed and self.examined is not None and not self._to_index(typed):
            self.notify(no_element(typed, self.examined.tensor), markup=False, timeout=5)
        self.query(SearchBox).remove()
        self.set_focus(None)
