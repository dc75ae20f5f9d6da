"""Every format that `layerdiff report -f` knows. A new one is a file beside this and a line in the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from layerdiff.report.json_text import as_json_text
from layerdiff.report.junit import as_junit
from layerdiff.report.markdown import as_markdown
from layerdiff.saved.comparison import Comparison

Reporter = Callable[[Comparison], str]

FORMATS: Final[dict[str, Reporter]] = {
    "markdown": as_markdown,
    "json": as_json_text,
    "junit": as_junit,
}
"""Name -> reporter, in the order in which they are listed."""
