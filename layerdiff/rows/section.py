"""Parts of a long text of lines: a heading with a rule, a labelled text that goes on under itself, a bar."""

from __future__ import annotations

from typing import Final

from layerdiff.rows.cells import cell_width, fit, shorten, wrap
from layerdiff.rows.tones import Line, Tone, line

LABEL: Final = 15
"""Cells of a label, with the margin before it."""
_MARGIN: Final = 2


def heading(title: str, width: int, note: str = "", tone: Tone = Tone.TITLE) -> Line:
    """`── title ── note ──────`, as wide as the screen; the note only where it fits."""
    room = width - cell_width(title) - 7
    note = note if note and cell_width(note) + 4 <= room else ""
    used = 4 + cell_width(title) + (cell_width(note) + 4 if note else 0)
    between = ("── ", Tone.FAINT) if note else ("", Tone.FAINT)
    return line(
        ("── ", Tone.FAINT), (shorten(title, max(1, width - 5)), tone), " ", between, (note, Tone.DIM), " " if note else "",
        ("─" * max(0, width - used), Tone.FAINT),
    )  # fmt: skip


def labelled(label: str, text: str, width: int, *, tone: Tone = Tone.PLAIN, lines: int = 8) -> list[Line]:
    """A label, then a text that goes on under itself."""
    pieces = wrap(text, max(10, width - LABEL), lines=lines) or [""]
    heads = [" " * _MARGIN + fit(label, LABEL - _MARGIN), *[" " * LABEL] * (len(pieces) - 1)]
    return [line((head, Tone.DIM), (piece, tone)) for head, piece in zip(heads, pieces, strict=True)]


def said(head: str, head_tone: Tone, text: str, width: int, *, tone: Tone = Tone.PLAIN, lines: int = 8) -> list[Line]:
    """A head, then a text that goes on under itself."""
    indent = cell_width(head) + 2
    first, *rest = wrap(text, max(10, width - indent), lines=lines) or [""]
    return [line((head, head_tone), (f"  {first}" if first else "", tone)), *(line(" " * indent, (more, tone)) for more in rest)]


def bar(share: float, cells: int) -> tuple[str, str]:
    """The part that is filled, and the rest; full only where the share is 1, empty only where it is 0."""
    filled = cells if share >= 1 else min(cells - 1, max(1 if share > 0 else 0, round(share * cells)))
    return "━" * filled, "─" * (cells - filled)
