"""`Page`: a screen of text over the layers screen: help, notices, all of one site, the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import ModalScreen

from layerdiff.rows.cells import cell_width, wrap
from layerdiff.rows.tones import Line, Tone, line
from layerdiff.tui.widgets.lines import LinesView
from layerdiff.tui.widgets.scrolled import ScrolledLines

Text = Sequence[Line] | Callable[[int], Sequence[Line]]
"""What a page shows: lines that go on below themselves where they are too long, or what makes them for so many cells."""


class PageText(ScrolledLines):
    """Lines that scroll; long ones go on below themselves."""

    DEFAULT_CSS = "PageText { background: $panel; }"
    MARGIN = 2
    RAISED = True

    def __init__(self, text: Text) -> None:
        super().__init__(lambda width: [piece for one in _lines(text, width) for piece in _wrapped(one, max(10, width))])


def _lines(text: Text, width: int) -> Sequence[Line]:
    return text(max(10, width)) if callable(text) else text


def _wrapped(source: Line, width: int) -> list[Line]:
    if source.width <= width:
        return [source]
    if len(source.segments) != 1 and source.segments:
        # Several tones: the last one takes the rest, indented under itself.
        *head, last = source.segments
        used = sum(cell_width(segment.text) for segment in head)
        if used < width * 2 // 3:
            first, *rest = wrap(last.text, width - used, lines=500) or [""]
            return [line(*head, (first, last.tone)), *(line(" " * used, (text, last.tone)) for text in rest)]
    tone = source.segments[-1].tone if source.segments else Tone.PLAIN
    indent = " " * (len(source.plain) - len(source.plain.lstrip(" ")))
    return [line((f"{indent}{text.lstrip(' ')}", tone)) for text in wrap(source.plain, width - len(indent), lines=500)]


class PageHead(LinesView):
    """The title of a page."""

    DEFAULT_CSS = "PageHead { height: 2; }"


class Page(ModalScreen[None]):
    """A titled page; escape, enter or q goes back."""

    DEFAULT_CSS = """
    Page { align: center middle; background: $panel; }
    Page > #sheet { width: 100%; max-width: 150; height: 100%; background: $panel; layout: vertical; }
    """
    BINDINGS = [Binding("escape,q,enter", "dismiss", show=False)]  # noqa: RUF012  # textual's way

    def __init__(self, title: str, lines: Text) -> None:
        super().__init__()
        self._title, self._text = title, lines

    def compose(self) -> ComposeResult:
        """A title over the text."""
        from textual.containers import Container

        with Container(id="sheet"):
            yield PageHead()
            yield PageText(self._text)

    def on_mount(self) -> None:
        """Say how to leave."""
        self.query_one(PageHead).show([line(("  " + self._title, Tone.TITLE), ("   esc goes back", Tone.DIM))])
        self.query_one(PageText).focus()
