"""`OperatorsScreen`: the calls inside one module call above, the evidence for the chosen one below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.message import Message
from textual.screen import Screen
from textual.worker import get_current_worker

from layerdiff.rows.calls.detail import call_detail
from layerdiff.rows.calls.listing import call_columns, call_heading, enclosing, inside, is_operator, list_title
from layerdiff.rows.calls.record import CallRecord, Producers, record_of
from layerdiff.rows.sites.table import Rows
from layerdiff.rows.tones import Line, Tone, line
from layerdiff.rows.traces import Traces
from layerdiff.sides import Both
from layerdiff.tui.actions import OPERATOR_ACTIONS, Action, bindings
from layerdiff.tui.screens.base import Drilled, Head, Selected
from layerdiff.tui.widgets.calls import CallList
from layerdiff.tui.widgets.footer import KeyBar
from layerdiff.tui.widgets.lines import LinesView
from layerdiff.tui.widgets.rule import Rule


class Heading(LinesView):
    """Names of the columns."""

    DEFAULT_CSS = "Heading { height: 1; }"
    raised = False
    indent = 2


class Evidence(LinesView):
    """All that is known of the chosen call, as far as it fits."""

    DEFAULT_CSS = "Evidence { height: 1fr; }"
    indent = 1


def open_operators(screen: Screen[Any], rows: Rows, row: int, traces: Traces) -> None:
    """Open the calls around an operator, or inside a module; says so where there are none."""
    module = enclosing(rows, row) if is_operator(rows, row) else row
    calls = [] if module is None else inside(rows, module)
    if module is None or not calls:
        screen.notify("no call was recorded inside this one: record with --operators", timeout=4)
        return
    if not any(is_operator(rows, call) for call in calls):
        screen.notify("no operator call was recorded right inside this module: record with --operators, or open a module inside", timeout=4)
        return
    screen.app.push_screen(OperatorsScreen(rows, module, traces, chosen=row if row != module else None))


class OperatorsScreen(Drilled):
    """What each side ran inside one module call."""

    DEFAULT_CSS = """
    OperatorsScreen { layout: vertical; background: $background; }
    """
    ACTIONS: ClassVar[Sequence[Action]] = OPERATOR_ACTIONS
    WORDS = (
        ("▸", "a module call among the operators; enter shows its own calls"),
        ("- and +", "in the reference only, in the target only"),
        ("Δ in, Δ out", "the largest relative L2 difference of what comes in, and of what goes out"),
        ("×allowed", "measured over allowed, by the rule named below"),
        ("ladder", "the tests that led to the verdict; ▸ is the one that decided"),
        ("made by", "the call that made an operand, or the parameter that it is"),
    )
    BINDINGS = [  # noqa: RUF012  # textual's way
        *bindings(OPERATOR_ACTIONS),
        Binding("right,l", "open", show=False),
        Binding("left,h", "outer", show=False),
    ]

    @dataclass
    class Recorded(Message):
        """What the traces say of a call."""

        row: int
        record: Both[CallRecord | str]

    def __init__(self, rows: Rows, module: int, traces: Traces, *, chosen: int | None = None) -> None:
        """The calls inside the call at row `module`; the cursor on `chosen`, else on the first origin."""
        super().__init__()
        self._rows, self._module, self._traces = rows, module, traces
        self._producers = Producers()
        self._chosen = chosen
        self._calls: list[int] = []
        self._records: dict[int, Both[CallRecord | str]] = {}

    def compose(self) -> ComposeResult:
        """Top to bottom."""
        yield Head()
        yield Heading()
        yield CallList()
        yield Rule()
        yield Evidence()
        yield KeyBar(OPERATOR_ACTIONS)

    def on_mount(self) -> None:
        """List the calls."""
        self.query_one(CallList).focus()
        self._show(self._module, self._chosen)

    def on_resize(self) -> None:
        """Every width is shared anew."""
        self.call_after_refresh(self._words)

    def _show(self, module: int, chosen: int | None) -> None:
        rows = self._rows
        self._module, self._calls = module, inside(rows, module)
        if chosen not in self._calls:
            origins = [call for call in self._calls if self._has_origin(call)]
            chosen = origins[0] if origins else self._calls[0] if self._calls else None
        self.query_one(CallList).show(rows, self._calls, self._calls.index(chosen) if chosen is not None else 0)
        self._words()

    def _has_origin(self, row: int) -> bool:
        place = int(self._rows.tree.place_of[row])
        return self._rows.seen.origins_inside(place, int(self._rows.tree.end[place])) > 0

    def _words(self) -> None:
        width = self.app.size.width
        self.query_one(Head).show(list_title(self._rows, self._module, self._calls, width))
        listed = self.query_one(CallList)
        listed.styles.max_height = max(3, min(len(self._calls), (self.app.size.height - 5) // 2))
        self.query_one(Heading).show([call_heading(call_columns(self._rows, self._calls, max(20, width - 3)))])
        self._evidence()

    @property
    def row(self) -> int | None:
        """The chosen call."""
        return self.query_one(CallList).row

    def _evidence(self) -> None:
        row, pane = self.row, self.query_one(Evidence)
        if row is None:
            pane.show(())
            return
        place = int(self._rows.tree.place_of[row])
        self.query_one(Rule).say(self._rows.names.short(place))
        if row not in self._records:
            self._read(row)
        lines = call_detail(self._rows, row, self._records.get(row), max(20, self.app.size.width - 2))
        height = pane.size.height
        if 0 < height < len(lines):
            lines = [*lines[: height - 1], line((f"… {len(lines) - height + 1} more lines: a", Tone.DIM))]
        pane.show(lines)

    @work(thread=True, exclusive=True, group="record", exit_on_error=False)
    def _read(self, row: int) -> None:
        record = record_of(self._traces, self._producers, self._rows.comparison, row)
        if not get_current_worker().is_cancelled:
            self.post_message(self.Recorded(row, record))

    def on_operators_screen_recorded(self, message: Recorded) -> None:
        """Show it beside what the comparison says."""
        self._records[message.row] = message.record
        if message.row == self.row:
            self._evidence()

    def on_call_list_moved(self, message: CallList.Moved) -> None:
        """Another call was chosen."""
        self._evidence()

    def on_call_list_opened(self, message: CallList.Opened) -> None:
        """A double click is enter."""
        self.action_open()

    # actions

    def action_open(self) -> None:
        """See actions."""
        row = self.row
        if row is None:
            return
        if not is_operator(self._rows, row) and inside(self._rows, row):
            self._show(row, None)
        else:
            self.action_values()

    def selected(self) -> Selected | None:
        """The chosen call."""
        return None if self.row is None else Selected(self._rows, self.row, self._traces)

    def action_outer(self) -> None:
        """See actions."""
        above = enclosing(self._rows, self._module)
        if above is None:
            self.notify("this is the outermost call", timeout=2)
        else:
            self._show(above, self._module)

    def action_next_origin(self) -> None:
        """See actions."""
        self._to_origin(back=False)

    def action_previous_origin(self) -> None:
        """See actions."""
        self._to_origin(back=True)

    def _to_origin(self, *, back: bool) -> None:
        found = self._rows.next_origin(self.row, back=back)
        if found is None:
            self.notify("there is no origin", timeout=3)
            return
        module = enclosing(self._rows, found)
        if module is not None:
            self._show(module, found)

    def action_details(self) -> None:
        """See actions."""
        if self.row is not None:
            place = int(self._rows.tree.place_of[self.row])
            head: list[Line] = [line((self._rows.names.full(place), Tone.TITLE)), line()]
            self.page("Call", [*head, *call_detail(self._rows, self.row, self._records.get(self.row), 4000)])
