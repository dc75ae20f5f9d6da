"""`OrderScreen`: how one operator call added up, and why that is a defect or only another order.

The call is added up again from the traces, by a thread that nothing waits for: it stops where it next says how far it is, and neither
escape nor leaving the program may take until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from time import monotonic
from typing import Any, ClassVar, Final

from textual import events, work
from textual.app import ComposeResult
from textual.message import Message
from textual.screen import Screen

from layerdiff.arithmetic.orders.analysis import OrderReport
from layerdiff.errors import LayerdiffError
from layerdiff.progress import listening
from layerdiff.rows.calls.listing import is_operator
from layerdiff.rows.cells import cell_width, shorten, visible, wrap
from layerdiff.rows.order.of_row import order_of_row
from layerdiff.rows.order.report import Side, order_lines, sides_of, title_line
from layerdiff.rows.sites.table import Rows
from layerdiff.rows.tones import Line, Tone, line
from layerdiff.rows.traces import Traces
from layerdiff.tui.actions import ORDER_ACTIONS, Action, bindings
from layerdiff.tui.screens.base import Drilled, Head, Left
from layerdiff.tui.widgets.footer import KeyBar
from layerdiff.tui.widgets.scrolled import ScrolledLines

_SOON_S: Final = 0.5
"""Before that it is not said how long it takes."""
_TICK_S: Final = 0.25
_TONES: Final = {"both": Tone.ACCENT, "reference": Tone.REFERENCE, "target": Tone.TARGET}


def open_order(screen: Screen[Any], rows: Rows, row: int, traces: Traces) -> None:
    """Open how the call at `row` added up; says so where it is no operator call."""
    if not is_operator(rows, row):
        screen.notify("only an operator call adds up: choose one (c lists those inside a module)", timeout=4)
        return
    name = rows.names.full(int(rows.tree.place_of[row]))
    screen.app.push_screen(OrderScreen(name, lambda: order_of_row(traces, rows.comparison, row)))


class OrderHead(Head):
    """The call and its verdict, and whose sum is shown."""

    report: OrderReport | None = None
    name_of_call = ""
    side: Side = "both"
    _targets: tuple[tuple[int, int, Side], ...] = ()

    @dataclass
    class Chosen(Message):
        """A side was clicked."""

        side: Side

    def lines_at(self, width: int) -> Sequence[Line]:
        """Two lines."""
        if self.report is None:
            return [line((f" {shorten(self.name_of_call, max(1, width - 2), at='middle')}", Tone.TITLE))]
        sides = sides_of(self.report)
        title = title_line(self.report, width)
        if len(sides) == 1:
            operands = visible(self.report.analyses[0].operands.replace("->", "→"))
            return [title, line((f" {operands}", Tone.DIM)).clipped(width)]
        segments: list[tuple[str, Tone]] = []
        at, targets = 0, []
        for name in sides:
            here = name == self.side
            label = "both together" if name == "both" else name
            segments += [
                ("▐" if here else " ", _TONES[name]),
                (label, _TONES[name] if here else Tone.DIM),
                ("▌" if here else " ", _TONES[name]),
            ]
            targets.append((at, at + cell_width(label) + 2, name))
            at += cell_width(label) + 2
        self._targets = tuple(targets)
        return [title, line(*segments).clipped(width)]

    def on_click(self, event: events.Click) -> None:
        """Choose the side under the pointer."""
        for first, end, side in self._targets:
            if event.y == 1 and first <= event.x < end:
                self.post_message(self.Chosen(side))


class OrderScreen(Drilled):
    """One call, added up again."""

    DEFAULT_CSS = """
    OrderScreen { layout: vertical; background: $background; }
    """
    ACTIONS: ClassVar[Sequence[Action]] = ORDER_ACTIONS
    WORDS = (
        ("tests", "asked in this order; the first that decides gives the verdict, and is marked ▸"),
        ("candidate", "an order of additions and the arithmetic of each: run again on the recorded operands, and held against the bits"),
        ("tell orders apart", "results whose exact value lies so near the middle between two numbers that the order decides"),
        ("gap", "how many results the next best candidate misses: what makes a name sure"),
        ("σ, sigma", "the spread that rounding makes of this sum, by formula"),
        ("rms, largest", "error over sigma: root mean square, and the largest of all results"),
        ("chain", "how many additions one after the other would make this error"),
        ("c", "how much of a stretch of terms is missing (-1) or counted twice (+1)"),
    )
    BINDINGS = bindings(ORDER_ACTIONS)  # textual's way

    @dataclass
    class Analysed(Message):
        """The call was added up again."""

        report: OrderReport

    @dataclass
    class Failed(Message):
        """It cannot be; `why` is a sentence for the user."""

        why: str

    def __init__(self, name: str, analyse: Callable[[], OrderReport]) -> None:
        """`name` of the call; `analyse` adds it up again, and is run by a worker. It may raise LayerdiffError."""
        super().__init__()
        self._name_of_call, self._analyse = name, analyse
        self._began = monotonic()
        self.report: OrderReport | None = None
        self.why: str | None = None
        self.side: Side = "both"

    def compose(self) -> ComposeResult:
        """Top to bottom."""
        head = OrderHead()
        head.name_of_call = self._name_of_call
        yield head
        yield ScrolledLines()
        yield KeyBar(self._useful())

    def _useful(self) -> Sequence[Action]:
        """The actions that do something: without a report there is nothing to turn or to scroll, and of one side nothing to turn."""
        useless = {"next_part", "next_side"} if self.report is None else {"next_side"} if len(sides_of(self.report)) == 1 else set()
        return [action for action in ORDER_ACTIONS if action.name not in useless]

    def on_mount(self) -> None:
        """Begin, once the screen is painted."""
        self.query_one(ScrolledLines).focus()
        self._ticking = self.set_interval(_TICK_S, self._words)
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self._began = monotonic()
        self._run()

    @work(exclusive=True, group="order", exit_on_error=False)
    async def _run(self) -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        found: list[Message] = []
        width = max(1, self.size.width - 3)

        def add_up() -> None:
            found.append(self._outcome(width))
            with suppress(RuntimeError):  # the program was left meanwhile
                loop.call_soon_threadsafe(done.set)

        Thread(target=add_up, daemon=True, name="layerdiff-order").start()
        await done.wait()
        self.post_message(found[0])

    def _outcome(self, width: int) -> Message:
        """What the screen is told, from the thread."""
        try:
            with listening(self.hear):
                report = self._analyse()
            order_lines(report, width)  # what takes long to word is remembered
            return self.Analysed(report)
        except (LayerdiffError, OSError, Left) as error:
            return self.Failed(str(error))
        except Exception as error:  # a fault of ours must reach the user as a sentence, not as a dead screen
            return self.Failed(f"the analysis stopped: {type(error).__name__}: {error}")

    def on_order_screen_analysed(self, message: Analysed) -> None:
        """Show it."""
        self.report = message.report
        self._finish()

    def on_order_screen_failed(self, message: Failed) -> None:
        """Say why."""
        self.why = message.why
        self._finish()

    def _finish(self) -> None:
        self._ticking.stop()
        self.query_one(KeyBar).offer(self._useful())
        self._words()

    def _words(self) -> None:
        head = self.query_one(OrderHead)
        head.report, head.side = self.report, self.side
        head.refresh()
        self.query_one(ScrolledLines).show(self._lines)

    def _lines(self, width: int) -> list[Line]:
        if self.report is not None:
            return order_lines(self.report, width, side=self.side)
        if self.why is not None:
            return [line((text, Tone.NOTICE)) for text in wrap(f"∅ {visible(self.why)}", width, lines=12)]
        said = line(("adding it up again, in every order that is known: sums made", Tone.DIM))
        return [said] if monotonic() - self._began < _SOON_S else [said, line(), self.pace.line(width)]

    # actions

    def action_next_side(self) -> None:
        """See actions."""
        self._turn(1)

    def action_previous_side(self) -> None:
        """See actions."""
        self._turn(-1)

    def _turn(self, by: int) -> None:
        if self.report is None:
            return
        sides = sides_of(self.report)
        self.side = sides[(sides.index(self.side) + by) % len(sides)]
        self._words()

    def action_next_part(self) -> None:
        """See actions."""
        self.query_one(ScrolledLines).to_part(1)

    def action_previous_part(self) -> None:
        """See actions."""
        self.query_one(ScrolledLines).to_part(-1)

    def on_order_head_chosen(self, message: OrderHead.Chosen) -> None:
        """A side was clicked."""
        self.side = message.side
        self._words()

    def action_back(self) -> None:
        """Back to the screen below; what is not done yet is dropped."""
        self.workers.cancel_node(self)
        super().action_back()
