"""What a command that compared something leaves: the kept comparison, the JSON, the summary, the exit code."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from layerdiff.cli.exits import code_of
from layerdiff.cli.streams import out, write_talk

if TYPE_CHECKING:
    from layerdiff.saved.comparison import Comparison


def answer(comparison: Comparison, *, keep: Path | None = None, json: str | None = None, sites: int | None = 10_000) -> int:
    """Write what was asked for, say the summary, return the code. With JSON on stdout the summary is talk."""
    from layerdiff.report.json_text import as_json_text

    try:
        if keep is not None:
            comparison.save(keep)
        if json == "-":
            out(as_json_text(comparison, sites=sites))
        elif json is not None:
            Path(json).write_text(as_json_text(comparison, sites=sites), encoding="utf-8")
    finally:  # what was found is said even where it could not be kept
        summarise(comparison, on_stderr=json == "-")
    return code_of(comparison)


def summarise(comparison: Comparison, *, on_stderr: bool = False) -> None:
    """The summary, coloured where a terminal reads it."""
    from layerdiff.text.render import render, wants_color
    from layerdiff.text.summary import summary

    written = io.StringIO()
    render(summary(comparison), written, color=wants_color(sys.stderr if on_stderr else sys.stdout))
    (write_talk if on_stderr else out)(written.getvalue())
