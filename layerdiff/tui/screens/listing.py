"""`ListingScreen`: which sites of the comparison are listed: searched for, origins alone, sorted, all unfolded.

Leaving one of these keeps the cursor on its site where that is still listed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from layerdiff.rows.sites.listing import Sort
from layerdiff.rows.sites.table import Rows
from layerdiff.saved.comparison import Comparison
from layerdiff.tui.messages import Progress, Rejudge
from layerdiff.tui.screens.comparing import ComparingScreen
from layerdiff.tui.widgets.table import SiteTable

if TYPE_CHECKING:
    from layerdiff.tui.widgets.search import SearchBox


class ListingScreen(ComparingScreen):
    """A screen with a table of sites."""

    table: SiteTable

    def __init__(self, source: Comparison | Iterable[Progress], *, rejudge: Rejudge | None) -> None:
        super().__init__(source, rejudge=rejudge)
        self.rows: Rows | None = None

    def words(self) -> None:
        """Say around the table what it lists."""
        raise NotImplementedError

    @property
    def _row(self) -> int | None:
        if self.rows is None or not len(self.rows):
            return None
        return self.rows.row(min(self.table.cursor, len(self.rows) - 1))

    def _view_changed(self, row: int | None) -> None:
        """Draw the table anew and keep the cursor on its site."""
        if self.rows is None:
            return
        line_of = self.rows.find(row) if row is not None else 0
        self.table.changed(line_of or 0)
        self.words()

    def action_toggle_all(self) -> None:
        """See actions."""
        if self.rows is not None:
            row = self._row
            self.rows.show(sort=Sort.EXECUTION, only_origins=False, query="")
            self.rows.toggle_all()
            self._view_changed(row)

    def action_sort(self) -> None:
        """See actions."""
        if self.rows is not None:
            row, orders = self._row, list(Sort)
            self.rows.show(sort=orders[(orders.index(self.rows.sort) + 1) % len(orders)])
            self._view_changed(row if self.rows.sort is Sort.EXECUTION else None)

    def action_only_origins(self) -> None:
        """See actions."""
        if self.rows is not None:
            row = self._row
            self.rows.show(only_origins=not self.rows.only_origins)
            if not len(self.rows):
                self.table.nothing = self.rows.nothing()
            self._view_changed(row)

    def action_search(self) -> None:
        """See actions."""
        from layerdiff.tui.widgets.search import SearchBox

        if self.rows is not None and not self.query(SearchBox):
            box = SearchBox(self.rows.query)
            self.mount(box)
            box.focus()

    def on_search_box_typed(self, message: SearchBox.Typed) -> None:
        """List what matches so far."""
        if self.rows is not None:
            self.rows.show(query=message.query)
            self.table.nothing = self.rows.nothing()
            self._view_changed(None)

    def on_search_box_left(self, message: SearchBox.Left) -> None:
        """Keep the list, or drop it."""
        from layerdiff.tui.widgets.search import SearchBox

        self.query(SearchBox).remove()
        self.table.focus()
        if self.rows is not None and not message.keep:
            row = self._row
            self.rows.show(query="")
            self._view_changed(row)
