"""Text in terminal cells: what is shown of a character, how wide it is, and how a text is shortened.

Names come from files that strangers wrote. `visible` is the one place where they are made safe: after it a
text holds no control, bidi or other invisible character, so it cannot move the cursor, colour the
screen or read otherwise than it is. Nothing after it interprets markup.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Final, Literal

ELLIPSIS: Final = "…"
_LONGEST: Final = 2000
"""Characters of a name that any screen looks at; the rest is behind an ellipsis."""
_DISPUTED: Final = (
    (0x1100, 0x11FF),  # Hangul parts that join
    (0x2630, 0x2637),  # wide since Unicode 16, like the next five
    (0x268A, 0x268F),
    (0x3164, 0x3164),
    (0x31E4, 0x31E5),
    (0x4DC0, 0x4DFF),
    (0xD7B0, 0xD7FF),
    (0xFFA0, 0xFFA0),
    (0x1D300, 0x1D376),
    (0x1F1E6, 0x1F1FF),  # letters that pair up as flags
    (0x1F3FB, 0x1F3FF),  # skin tones
)
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def visible(text: str) -> str:
    """`text` with everything invisible written as an escape (`\\x1b`, `\\u202e`), cut at 2000 characters."""
    if len(text) > _LONGEST:
        text = text[: _LONGEST // 2] + ELLIPSIS + text[-_LONGEST // 2 :]
    if text.isprintable() and (text.isascii() or not any(map(_unsteady, text))):
        return text
    return "".join(_escaped(c) if not c.isprintable() or _unsteady(c) else c for c in text)


def _escaped(character: str) -> str:
    code = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


@lru_cache(maxsize=4096)
def _unsteady(character: str) -> bool:
    """Whether terminals disagree about the width of a printable character: marks that combine, joiners, selectors."""
    if character < "\u0300":
        return False
    if unicodedata.category(character) in ("Mn", "Me", "Mc"):
        return True
    code = ord(character)
    return any(first <= code <= last for first, last in _DISPUTED)


def cell_width(text: str) -> int:
    """Terminal cells of a text that went through `visible`."""
    if text.isascii():
        return len(text)
    return sum(map(_cells, text))


@lru_cache(maxsize=4096)
def _cells(character: str) -> int:
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _head(text: str, cells: int) -> str:
    """The longest beginning of `text` that fits."""
    if text.isascii():
        return text[:cells]
    used = 0
    for i, character in enumerate(text):
        used += _cells(character)
        if used > cells:
            return text[:i]
    return text


def _tail(text: str, cells: int) -> str:
    return _head(text[::-1], cells)[::-1] if cells > 0 else ""


def shorten(text: str, cells: int, *, at: Literal["middle", "end"] = "end") -> str:
    """`text` in at most `cells` cells, with an ellipsis where something is left out."""
    if cells <= 0:
        return ""
    if cell_width(text) <= cells:
        return text
    if at == "end":
        return _head(text, cells - 1) + ELLIPSIS
    left = (cells - 1) * 2 // 5
    return _head(text, left) + ELLIPSIS + _tail(text, cells - 1 - left)


def fit(text: str, cells: int, *, align: Literal["left", "right"] = "left", at: Literal["middle", "end"] = "end") -> str:
    """`text` in exactly `cells` cells: shortened or padded."""
    text = shorten(text, cells, at=at)
    padding = " " * (cells - cell_width(text))
    return text + padding if align == "left" else padding + text


def wrap(text: str, cells: int, *, lines: int) -> list[str]:
    """`text` over at most `lines` lines, broken at spaces where there are any; the last one ends in an ellipsis if cut."""
    out: list[str] = []
    rest = text
    while rest and len(out) < lines:
        if cell_width(rest) <= cells or len(out) == lines - 1:
            out.append(shorten(rest, cells))
            break
        piece = _head(rest, cells + 1)
        cut = piece.rfind(" ")
        if cut > cells // 3:
            out.append(rest[:cut])
            rest = rest[cut + 1 :].lstrip()
        else:
            piece = _head(rest, cells) or rest[0]
            out.append(piece)
            rest = rest[len(piece) :]
    return out
