"""Texts from traces made harmless in markdown. Names come from files that strangers wrote, and a report is pasted into a tracker.

Everything first goes through `rows.cells.visible`, so no control or bidi character is left. Then
nothing may act: no markup, no HTML, no table cell, no mention (`@name`), no reference (`#12`), no link.
Characters are escaped as entities and not with backslashes where a table would read the backslash
itself.
"""

from __future__ import annotations

import re
from typing import Final

from layerdiff.rows.cells import visible

_ENTITIES: Final = {character: f"&#{ord(character)};" for character in "\\|`<>&*[]~$^"}
_OUTER_UNDERSCORE: Final = re.compile(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
"""One that may open or close emphasis; inside a word it is a letter like any other."""
_BREAK: Final = "<!-- -->"
"""An empty comment inside a word: invisible, and trackers then see no mention, reference or link."""
_LINKS: Final = re.compile(r"(@|#|://|www(?=\.)|GH(?=-\d)|mailto(?=:)|xmpp(?=:))", re.IGNORECASE)
_PLAIN_CODE: Final = re.compile(r"[A-Za-z0-9 ._/:,;#@()\[\]{}<>=+*&^%$~!?'\"-]+")


def text(value: str) -> str:
    """`value` as a piece of a sentence or of a table cell."""
    parts = _LINKS.split(visible(value))
    for i, part in enumerate(parts):
        if i % 2:  # what _LINKS matched
            parts[i] = f":/{_BREAK}/" if part == "://" else part + _BREAK
        else:
            escaped = "".join(_ENTITIES.get(character, character) for character in part)
            parts[i] = _OUTER_UNDERSCORE.sub("&#95;", escaped)
    return "".join(parts)


def code(value: str) -> str:
    """`value` in a code span, on one line, in a sentence or a table cell."""
    shown = visible(value)
    if _PLAIN_CODE.fullmatch(shown) and shown == shown.strip():
        return f"`{shown}`"
    return f"<code>{text(value)}</code>"


def fenced(value: str, language: str = "") -> str:
    """Lines in a fenced block that nothing in them can close."""
    lines = [visible(line) for line in value.split("\n")]
    longest = max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])
