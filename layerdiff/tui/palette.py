"""Tones as colours, on a dark and on a light ground.

No meaning hangs on a shade of grey or on a background, because those are the first to go on a poor
terminal; where it has only 16 colours, a palette of those very 16 is used.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.theme import Theme

from layerdiff.rows.tones import RANKS, Line, Tone

if TYPE_CHECKING:
    from textual.app import App


class Ink(NamedTuple):
    """A foreground colour, perhaps bold."""

    color: str
    bold: bool = False


class Palette(NamedTuple):
    """Colours of one ground."""

    name: str
    dark: bool
    ground: str
    raised: str
    """Header, curve, detail."""
    cursor: str
    cursor_idle: str
    inks: dict[Tone, Ink]
    within: str
    """A bar that stays within what is allowed."""
    explained: str
    """That part where the bar goes on above it."""
    over: str
    fault: str
    heat: tuple[str, ...] = ()
    """From the least difference to the largest, farther from the ground with every step; empty where the terminal has too few colours."""


def _of_ranks(*colors: str) -> dict[Tone, Ink]:
    return {tone: Ink(color) for tone, color in zip(RANKS, colors, strict=True)}


DARK: Final = Palette(
    name="layerdiff-dark",
    dark=True,
    ground="#0f1218",
    raised="#161b24",
    cursor="#26364f",
    cursor_idle="#1d2430",
    inks={
        Tone.PLAIN: Ink("#cdd5e1"),
        Tone.DIM: Ink("#8791a5"),
        Tone.FAINT: Ink("#566074"),
        Tone.STRONG: Ink("#f2f5fa", True),
        Tone.TITLE: Ink("#f2f5fa", True),
        Tone.ACCENT: Ink("#6cb6ff", True),
        Tone.REFERENCE: Ink("#7cc4ff"),
        Tone.TARGET: Ink("#d3a4f5"),
        Tone.SAME: Ink("#7f9a92"),
        Tone.WITHIN: Ink("#5fc992"),
        Tone.INHERITED: Ink("#c8a061"),
        Tone.NOTICE: Ink("#f0c75e"),
        Tone.FAULT: Ink("#ff6b68", True),
        Tone.BROKEN: Ink("#ff5fb0", True),
        Tone.UNKNOWN: Ink("#8791a5"),
        **_of_ranks("#6ea8fe", "#f0a35e", "#63c9a0", "#c594f0", "#4fc3d9", "#e58fc4", "#d8c65c", "#9fb3c8"),
    },
    within="#4c9a7c",
    explained="#2d4f49",
    over="#c8954b",
    fault="#ff6b68",
    heat=("#2b2358", "#4c2a7d", "#7a2f86", "#a93b7e", "#d6516b", "#f1785a", "#f9ab62", "#fbe6a0"),
)

LIGHT: Final = Palette(
    name="layerdiff-light",
    dark=False,
    ground="#fbfbf9",
    raised="#f0f1ee",
    cursor="#d3e3f8",
    cursor_idle="#e6e9ec",
    inks={
        Tone.PLAIN: Ink("#262c36"),
        Tone.DIM: Ink("#646d7b"),
        Tone.FAINT: Ink("#9aa2ae"),
        Tone.STRONG: Ink("#0c1017", True),
        Tone.TITLE: Ink("#0c1017", True),
        Tone.ACCENT: Ink("#0b5cc4", True),
        Tone.REFERENCE: Ink("#0b63b5"),
        Tone.TARGET: Ink("#7d3fb0"),
        Tone.SAME: Ink("#5d7a70"),
        Tone.WITHIN: Ink("#12753d"),
        Tone.INHERITED: Ink("#8a5c0b"),
        Tone.NOTICE: Ink("#9c6a00", True),
        Tone.FAULT: Ink("#c4201d", True),
        Tone.BROKEN: Ink("#b3127a", True),
        Tone.UNKNOWN: Ink("#646d7b"),
        **_of_ranks("#2f6fd6", "#b8620d", "#1b8a5a", "#8b46c9", "#0f7f96", "#b83a86", "#8a7400", "#5b6b7d"),
    },
    within="#86bfa4",
    explained="#c4d9cd",
    over="#d9a04a",
    fault="#c4201d",
    heat=("#f7e6bd", "#f6cb8b", "#f0a766", "#e27f58", "#c75660", "#9f3a6d", "#6e2a6e", "#3a1b57"),
)

_DARK_16: Final = Palette(
    name="layerdiff-dark",
    dark=True,
    ground="#000000",
    raised="#000000",
    cursor="#0000aa",
    cursor_idle="#555555",
    inks={
        Tone.PLAIN: Ink("#aaaaaa"),
        Tone.DIM: Ink("#aaaaaa"),
        Tone.FAINT: Ink("#555555"),
        Tone.STRONG: Ink("#ffffff", True),
        Tone.TITLE: Ink("#ffffff", True),
        Tone.ACCENT: Ink("#55ffff", True),
        Tone.REFERENCE: Ink("#55ffff"),
        Tone.TARGET: Ink("#ff55ff"),
        Tone.SAME: Ink("#00aaaa"),
        Tone.WITHIN: Ink("#00aa00"),
        Tone.INHERITED: Ink("#aa5500"),
        Tone.NOTICE: Ink("#ffff55", True),
        Tone.FAULT: Ink("#ff5555", True),
        Tone.BROKEN: Ink("#ff55ff", True),
        Tone.UNKNOWN: Ink("#aaaaaa"),
        **_of_ranks("#5555ff", "#aa5500", "#00aa00", "#aa00aa", "#00aaaa", "#ff55ff", "#55ff55", "#aaaaaa"),
    },
    within="#00aa00",
    explained="#555555",
    over="#aa5500",
    fault="#ff5555",
)
_LIGHT_16: Final = Palette(
    name="layerdiff-light",
    dark=False,
    ground="#ffffff",
    raised="#ffffff",
    cursor="#55ffff",
    cursor_idle="#aaaaaa",
    inks={
        Tone.PLAIN: Ink("#000000"),
        Tone.DIM: Ink("#555555"),
        Tone.FAINT: Ink("#aaaaaa"),
        Tone.STRONG: Ink("#000000", True),
        Tone.TITLE: Ink("#000000", True),
        Tone.ACCENT: Ink("#0000aa", True),
        Tone.REFERENCE: Ink("#0000aa"),
        Tone.TARGET: Ink("#aa00aa"),
        Tone.SAME: Ink("#00aaaa"),
        Tone.WITHIN: Ink("#00aa00"),
        Tone.INHERITED: Ink("#aa5500"),
        Tone.NOTICE: Ink("#aa5500", True),
        Tone.FAULT: Ink("#aa0000", True),
        Tone.BROKEN: Ink("#aa00aa", True),
        Tone.UNKNOWN: Ink("#555555"),
        **_of_ranks("#0000aa", "#aa5500", "#00aa00", "#aa00aa", "#00aaaa", "#5555ff", "#555555", "#000000"),
    },
    within="#00aa00",
    explained="#aaaaaa",
    over="#aa5500",
    fault="#aa0000",
)
_RICH: Final = {palette.name: palette for palette in (DARK, LIGHT)}
_POOR: Final = {palette.name: palette for palette in (_DARK_16, _LIGHT_16)}
"""For terminals of 16 colours: those very colours, because the nearest to a soft hue is mostly a grey."""


def palette_of(app: App[Any]) -> Palette:
    """The palette of the app's theme on its terminal; other themes take the dark one."""
    poor = app.console.color_system in ("standard", "windows")
    return _POOR.get(app.theme, _DARK_16) if poor else _RICH.get(app.theme, DARK)


def theme_of(palette: Palette) -> Theme:
    """The palette as a textual theme, for the widgets that are textual's own."""
    ink = {tone: palette.inks[tone].color for tone in palette.inks}
    return Theme(
        name=palette.name,
        primary=ink[Tone.ACCENT],
        secondary=ink[Tone.TARGET],
        accent=ink[Tone.ACCENT],
        foreground=ink[Tone.PLAIN],
        background=palette.ground,
        surface=palette.raised,
        panel=palette.raised,
        success=ink[Tone.WITHIN],
        warning=ink[Tone.NOTICE],
        error=ink[Tone.FAULT],
        dark=palette.dark,
        variables={
            "scrollbar": ink[Tone.FAINT],
            "scrollbar-background": palette.ground,
            "scrollbar-corner-color": palette.ground,
            "scrollbar-hover": ink[Tone.DIM],
            "scrollbar-active": ink[Tone.ACCENT],
            "scrollbar-background-hover": palette.ground,
            "scrollbar-background-active": palette.ground,
        },
    )


@lru_cache(maxsize=512)
def color_style(color: str | None, ground: str, bold: bool = False) -> Style:
    """A style of two colours."""
    return Style(color=color, bgcolor=ground, bold=bold)


def tone_style(palette: Palette, tone: Tone, ground: str) -> Style:
    """The style of a tone on a ground."""
    ink = palette.inks[tone]
    return color_style(ink.color, ground, ink.bold)


def strip_of(line: Line, palette: Palette, ground: str, width: int, *, before: Segment | None = None) -> Strip:
    """A line as a strip of `width` cells on one ground, perhaps with a segment before it."""
    segments = [Segment(text, tone_style(palette, tone, ground)) for text, tone in line.segments]
    if before is not None:
        segments.insert(0, before)
    return Strip(segments).adjust_cell_length(width, color_style(None, ground))
