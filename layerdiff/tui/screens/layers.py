"""`LayersScreen`: the first screen. The curve above, the tree below, what is known of the selected site at the bottom.

This screen owns the view; `ListingScreen` owns what is listed, `ComparingScreen` the comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult

from layerdiff.rows.cells import visible
from layerdiff.rows.sites.detail import detail
from layerdiff.rows.sites.header import about, answer, title
from layerdiff.rows.sites.listing import Sort
from layerdiff.rows.sites.table import Rows
from layerdiff.rows.tones import Line, Segment, Tone, line
from layerdiff.saved.comparison import Comparison
from layerdiff.trace.schema import CallKind
from layerdiff.tui.actions import LAYERS_ACTIONS, Action, bindings
from layerdiff.tui.messages import Failed, Finished, Progress, Progressed, Rejudge
from layerdiff.tui.screens.base import BaseScreen, Head, Selected
from layerdiff.tui.screens.listing import ListingScreen
from layerdiff.tui.widgets.curve import CurveView
from layerdiff.tui.widgets.footer import KeyBar
from layerdiff.tui.widgets.lines import LinesView
from layerdiff.tui.widgets.rule import Rule
from layerdiff.tui.widgets.table import SiteTable

if TYPE_CHECKING:
    from layerdiff.rows.traces import Traces


class Columns(LinesView):
    """The heading of the table."""

    DEFAULT_CSS = "Columns { height: 1; }"
    raised = False
    indent = 2


class Detail(LinesView):
    """The selected site."""

    DEFAULT_CSS = "Detail { height: 7; }"
    indent = 1


class LayersScreen(ListingScreen):
    """Where two runs part."""

    DEFAULT_CSS = """
    LayersScreen { layout: vertical; background: $background; }
    LayersScreen.-short CurveView { height: 6; }
    LayersScreen.-short Detail { height: 4; }
    LayersScreen.-tiny CurveView, LayersScreen.-tiny Detail { display: none; }
    """
    ACTIONS: ClassVar[Sequence[Action]] = LAYERS_ACTIONS
    BINDINGS = bindings(LAYERS_ACTIONS)  # textual's way
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (18, "-short"), (32, "-tall")]  # noqa: RUF012  # textual's way

    def __init__(self, source: Comparison | Iterable[Progress], *, rejudge: Rejudge | None) -> None:
        super().__init__(source, rejudge=rejudge)
        self._touched = False
        """The user moved: the first origin does not pull the cursor any more."""
        self.failed = False
        """Comparing ended in an error."""
        self._opened: Traces | None = None

    def compose(self) -> ComposeResult:
        """Top to bottom."""
        yield Head()
        yield CurveView()
        yield Columns()
        yield SiteTable()
        yield Rule()
        yield Detail()
        yield KeyBar()

    def on_mount(self) -> None:
        """Show what there is, or start comparing."""
        self.table, self.curve, self.rule = self.query_one(SiteTable), self.query_one(CurveView), self.query_one(Rule)
        self.table.focus()
        if self.comparison is not None:
            self._begin(self.comparison)
        else:
            self.table.nothing = line(("opening both traces", Tone.DIM))
            self.compare()

    def on_resize(self) -> None:
        """Every width is shared anew."""
        self.call_after_refresh(self.words)

    # comparing

    def on_progressed(self, message: Progressed) -> None:
        """Verdicts came in."""
        if self.rows is None:
            self._begin(message.comparison)
        else:
            self.replace(message.comparison)
        self.rule.progress(message.done, message.total)
        origins = self.rows.origin_rows() if self.rows is not None else []
        if origins and not self._touched:
            self._touched = True
            self._go(origins[0])

    def on_finished(self, message: Finished) -> None:
        """Nothing more comes."""
        self.comparing, self.complete = None, not message.stopped
        self.rule.finish()
        if self.rows is None:
            self.table.nothing = line(("stopped before anything was compared", Tone.DIM))
            self.table.repaint()
        elif message.stopped:
            self.notify("stopped; what was compared stays", timeout=4)
        self.words()
        self._tell_above()

    def on_failed(self, message: Failed) -> None:
        """A worker gave up."""
        self.comparing = None
        self.rule.finish()
        text = visible(message.what)
        self.failed = self.failed or message.fatal
        if message.fatal and self.rows is None:
            self.table.nothing = line(("✗ ", Tone.FAULT), (text, Tone.PLAIN))
            self.table.repaint()
            self.query_one(Head).show([line((" layerdiff", Tone.TITLE)), line((" ✗ cannot compare", Tone.FAULT))])
        else:
            self.notify(text, severity="error", markup=False, timeout=10)

    # the comparison

    def _begin(self, comparison: Comparison) -> None:
        self.comparison = comparison
        self.rows = Rows(comparison, width=max(10, self.app.size.width - 3))
        if len(comparison.target.files) > 1:
            self.query_one(KeyBar).promote("ranks", "ranks")
        if (comparison.sites["kind"] == CallKind.OPERATOR).any():
            self.query_one(KeyBar).promote("calls", "calls")
        origins = self.rows.origin_rows()
        self._touched = bool(origins)
        cursor = self.rows.find(origins[0]) if origins else 0
        self.table.nothing = line(("no sites: neither run has a call", Tone.DIM))
        self.table.show(self.rows, cursor or 0)
        self.words()

    def replace(self, comparison: Comparison) -> None:
        """The same numbers with more, or other, verdicts."""
        if self.rows is None:
            return
        row = self._row
        self.comparison = comparison
        self.rows.judged(comparison)
        self.curve.changed()
        self._view_changed(row)
        self._tell_above()

    def _tell_above(self) -> None:
        for screen in self.app.screen_stack:
            if isinstance(screen, BaseScreen) and screen is not self:
                screen.compared_on()

    def _go(self, row: int | None) -> None:
        """Bring a site into view and select it."""
        if self.rows is None or row is None:
            return
        if self.rows.flat and (index := self.rows.find(row)) is not None:
            self.table.select(index)
            return
        self.table.changed(self.rows.reveal(row))
        self.words()

    def words(self) -> None:
        """Everything around table and curve."""
        if self.rows is None or self.comparison is None:
            return
        width = self.app.size.width
        pending = self.comparing is not None
        said = answer(self.comparison, pending=pending)
        self.query_one(Head).show([title(self.comparison, width), Line((Segment(" "), *said.segments))])
        self.query_one(Columns).show([self.rows.heading()])
        self.rule.say(self.rows.hidden())
        self._selected()

    def on_site_table_moved(self, message: SiteTable.Moved) -> None:
        """The cursor stands elsewhere."""
        self._selected()

    def _selected(self) -> None:
        rows, row = self.rows, self._row
        pane = self.query_one(Detail)
        if rows is None or row is None:
            pane.show(())
            return
        index = min(self.table.cursor, len(rows) - 1)
        self.curve.follow(rows, *rows.span(index))
        if pane.display:
            pane.show(self._fitted(detail(rows, index, max(20, self.app.size.width - 2), most=2), pane.size.height))

    def _fitted(self, lines: list[Line], height: int) -> Sequence[Line]:
        if len(lines) <= height or height < 1:
            return lines
        more = line((f"… {len(lines) - height + 1} more lines: a", Tone.DIM))
        return [*lines[: height - 1], more]

    # actions

    def on_key(self, event: events.Key) -> None:
        """Any key but escape is a sign that the user has taken over."""
        self._touched = True

    def action_next_origin(self) -> None:
        """See actions."""
        self._to_origin(self.rows.next_origin(self._row) if self.rows else None)

    def action_previous_origin(self) -> None:
        """See actions."""
        self._to_origin(self.rows.next_origin(self._row, back=True) if self.rows else None)

    def action_first_origin(self) -> None:
        """See actions."""
        self._to_origin(self.rows.next_origin(None) if self.rows else None)

    def _to_origin(self, row: int | None) -> None:
        if row is None:
            self.notify("no origin so far" if self.comparing else "there is no origin", timeout=3)
        self._go(row)

    def action_open(self) -> None:
        """See actions."""
        if self.rows is None or not len(self.rows):
            return
        index = self.table.cursor
        row = self.rows.row(index)
        if not self.rows.flat and not self.rows.is_fold(index) and not self._unfolds(row):
            self._closer(row)
        elif self.rows.flat:
            self._go_in_tree(row)
        else:
            self._folded(self.rows.toggle(index))

    def _unfolds(self, row: int) -> bool:
        """Whether enter unfolds a call: where modules ran inside it. One with nothing but operators is opened closer."""
        from layerdiff.rows.calls.listing import has_modules

        return self.rows is not None and has_modules(self.rows, row)

    def _closer(self, row: int) -> None:
        """What a call that does not unfold is opened as: an operator among its neighbours, a module with its values."""
        if self.rows is None:
            return
        from layerdiff.rows.calls.listing import has_calls, is_operator

        if is_operator(self.rows, row) or has_calls(self.rows, row):
            self.action_calls()
        else:
            self.action_values()

    def selected(self) -> Selected | None:
        """The site under the cursor; its traces are opened when they are first read."""
        if self.rows is None or (row := self._row) is None:
            return None
        if self._opened is None:
            from layerdiff.rows.traces import Traces

            self._opened = Traces()
        return Selected(self.rows, row, self._opened)

    def on_unmount(self) -> None:
        """Close what was opened."""
        if self._opened is not None:
            self._opened.close()

    def _go_in_tree(self, row: int) -> None:
        if self.rows is not None:
            self.table.changed(self.rows.reveal(row))
            self.words()

    def on_curve_view_jumped(self, message: CurveView.Jumped) -> None:
        """A column of the curve was clicked."""
        self._go(message.row)

    def on_site_table_opened(self, message: SiteTable.Opened) -> None:
        """A double click is enter."""
        self.action_open()

    def action_unfold(self) -> None:
        """See actions."""
        if self.rows is not None and len(self.rows):
            self._folded(self.rows.open(self.table.cursor))

    def action_fold(self) -> None:
        """See actions."""
        if self.rows is not None and len(self.rows):
            self._folded(self.rows.close(self.table.cursor))

    def action_fold_or_unfold(self) -> None:
        """See actions."""
        if self.rows is not None and len(self.rows):
            self._folded(self.rows.toggle(self.table.cursor))

    def _folded(self, cursor: int) -> None:
        self.table.changed(cursor)
        if self.rows is not None:
            self.rule.say(self.rows.hidden())
            self.query_one(Columns).show([self.rows.heading()])

    def action_next_call(self) -> None:
        """See actions."""
        self._to_call(back=False)

    def action_previous_call(self) -> None:
        """See actions."""
        self._to_call(back=True)

    def _to_call(self, *, back: bool) -> None:
        row = self._row
        if self.rows is None or row is None:
            return
        found = self.rows.same_site(row, back=back)
        if found is None:
            self.notify(f"no {'earlier' if back else 'later'} call of this site", timeout=3)
        self._go(found)

    def action_details(self) -> None:
        """See actions."""
        if self.rows is not None and len(self.rows):
            rows, at = self.rows, self.table.cursor
            self.page("Site", lambda width: detail(rows, at, 4000, table=width))

    def action_about(self) -> None:
        """See actions."""
        if self.comparison is not None:
            self.page("Notices and alignment", about(self.comparison))

    def action_report(self) -> None:
        """See actions."""
        if self.comparison is None:
            return
        from layerdiff.report.markdown import as_markdown

        text = as_markdown(self.comparison)
        tones = {"#": Tone.TITLE, "|": Tone.PLAIN}
        self.page("Report (markdown)", [line((visible(part), tones.get(part[:1], Tone.PLAIN))) for part in text.splitlines()])

    def action_help(self) -> None:
        """See actions."""
        from layerdiff.tui.screens.help import help_lines

        self.page("Help", help_lines())

    def action_back(self) -> None:
        """See actions."""
        if self.comparing is not None:
            self.comparing.cancel()
        elif self.rows is not None and self.rows.flat:
            row = self._row
            self.rows.show(sort=Sort.EXECUTION, only_origins=False, query="")
            if row is not None:
                self._go_in_tree(row)
            else:
                self._view_changed(None)
