"""Lines of rows written to a stream: plain, or with colour where the stream is a terminal that wants it.

rich is imported only for colour, so that a pipe pays nothing for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final, TextIO

from layerdiff.rows.tones import Line, Tone

_STYLES: Final = {
    Tone.DIM: "bright_black",
    Tone.FAINT: "bright_black",
    Tone.STRONG: "bold",
    Tone.TITLE: "bold",
    Tone.ACCENT: "bold blue",
    Tone.REFERENCE: "cyan",
    Tone.TARGET: "magenta",
    Tone.SAME: "green",
    Tone.WITHIN: "green",
    Tone.INHERITED: "yellow",
    Tone.NOTICE: "bold yellow",
    Tone.FAULT: "bold red",
    Tone.BROKEN: "bold magenta",
    Tone.UNKNOWN: "bright_black",
}


def wants_color(stream: TextIO) -> bool:
    """Whether the stream is a terminal that is not dumb, and NO_COLOR is not set to anything."""
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def render(lines: Iterable[Line], stream: TextIO, *, color: bool | None = None) -> None:
    """Write the lines, a newline after each; `color` None is as the stream wants.

    What the encoding of the stream lacks is written as `?`.
    """
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = _colored(lines) if (wants_color(stream) if color is None else color) else "".join(line.plain + "\n" for line in lines)
    stream.write(text.encode(encoding, "replace").decode(encoding))


def _colored(lines: Iterable[Line]) -> str:
    from rich.color import ColorSystem
    from rich.style import Style

    styles = {tone: Style.parse(style) for tone, style in _STYLES.items()}
    plain = Style.null()
    return "".join(
        "".join(styles.get(tone, plain).render(text, color_system=ColorSystem.STANDARD) for text, tone in line.segments) + "\n"
        for line in lines
    )
