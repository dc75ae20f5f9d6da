"""`layerdiff report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layerdiff.cli.parameters import First, MaybeProfile, MaybeTarget, UsageError


def run(
    first: First,
    target: MaybeTarget = None,
    format_name: Annotated[str, typer.Option("-f", "--format", metavar="FORMAT", help="markdown, json or junit.")] = "markdown",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to a file instead of stdout.", show_default=False)
    ] = None,
    profile: MaybeProfile = None,
) -> int:
    """Write the findings as markdown, JSON or JUnit.

    For an issue tracker, a script, or a CI system. Exits as diff does.
    """
    from layerdiff.cli.comparing import compared_or_saved
    from layerdiff.cli.exits import code_of
    from layerdiff.cli.streams import out, talk
    from layerdiff.report.formats import FORMATS

    reporter = FORMATS.get(format_name)
    if reporter is None:
        raise UsageError(f"There is no format {format_name!r}. Choose one of {', '.join(FORMATS)}.")
    comparison = compared_or_saved(first, target, profile)
    written = reporter(comparison)
    if output is None:
        out(written)
    else:
        output.write_text(written, encoding="utf-8")
        talk(f"wrote {output}")
    return code_of(comparison)
