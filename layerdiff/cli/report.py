"""`layerdiff report`."""

from __future__ import annotations

from pathlib import Path

from click import Option

from layerdiff.cli.parameters import FIRST, MAYBE_PROFILE, MAYBE_TARGET, PATH, UsageError

PARAMETERS = (
    FIRST,
    MAYBE_TARGET,
    Option(["-f", "--format", "format_name"], metavar="FORMAT", default="markdown", show_default=True, help="markdown, json or junit."),
    Option(["-o", "--output"], metavar="FILE", type=PATH, help="Write to a file instead of stdout."),
    MAYBE_PROFILE,
)


def run(first: str, target: str | None, format_name: str, output: Path | None, profile: str | None) -> int:
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
