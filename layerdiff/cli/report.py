"""`layerdiff report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from click import Option

from layerdiff.cli.parameters import CHECKPOINT, FIRST, MAYBE_PROFILE, MAYBE_TARGET, PATH, UsageError

if TYPE_CHECKING:
    from layerdiff.saved.comparison import Comparison

_FORMATS = "markdown, json, junit or bundle"
PARAMETERS = (
    FIRST,
    MAYBE_TARGET,
    Option(["-f", "--format", "format_name"], metavar="FORMAT", default="markdown", show_default=True, help=f"{_FORMATS}."),
    Option(["-o", "--output"], metavar="FILE", type=PATH, help="Write to a file instead of stdout; for a bundle, a new folder."),
    Option(["--site", "chosen"], metavar="SITE", multiple=True, help="Bundle: this call instead of the origins; may be repeated."),
    Option(["--order", "orders"], metavar="SITE", multiple=True, help="Markdown: how this operator call added up; may be repeated."),
    Option(["--sites"], metavar="N", type=int, default=10, show_default=True, help="Bundle: at most so many origins."),
    MAYBE_PROFILE,
    CHECKPOINT,
)


def run(
    first: str,
    target: str | None,
    format_name: str,
    output: Path | None,
    chosen: tuple[str, ...],
    orders: tuple[str, ...],
    sites: int,
    profile: str | None,
    checkpoints: tuple[Path, ...],
) -> int:
    """Write the findings as markdown, JSON, JUnit or a bundle.

    For an issue tracker, a script, a CI system; a bundle is a folder that runs each faulty operator call again,
    on any device, with its recorded operands. Exits as diff does.
    """
    from layerdiff.cli.comparing import compared_or_saved
    from layerdiff.cli.exits import code_of
    from layerdiff.cli.outputs import check_output
    from layerdiff.cli.streams import out, talk
    from layerdiff.report.formats import FORMATS

    bundle = format_name == "bundle"
    reporter = FORMATS.get(format_name)
    if reporter is None and not bundle:
        raise UsageError(f"There is no format {format_name!r}. Choose one of {', '.join([*FORMATS, 'bundle'])}.")
    if bundle and output is None:
        raise UsageError("A bundle is a folder: name one with -o FOLDER.")
    if chosen and not bundle:
        raise UsageError("--site chooses what is bundled: it needs -f bundle.")
    if orders and format_name != "markdown":
        raise UsageError(f"--order adds to markdown, not to {format_name}; layerdiff order --json writes it as JSON.")
    if not bundle:
        check_output(output)
    comparison = compared_or_saved(first, target, profile, checkpoints)
    if bundle:
        from layerdiff.report.bundle import said, write_bundle

        assert output is not None
        written = write_bundle(comparison, output, sites=chosen, limit=max(0, sites))
        talk(said(written, comparison, chosen=bool(chosen)))
        return code_of(comparison)
    assert reporter is not None
    made = _with_orders(comparison, orders) if orders else reporter(comparison)
    if output is None:
        out(made)
    else:
        output.write_text(made, encoding="utf-8")
        talk(f"wrote {output}")
    return code_of(comparison)


def _with_orders(comparison: Comparison, sites: tuple[str, ...]) -> str:
    """The markdown, with how the calls at these sites added up."""
    from layerdiff.checkpoint.weights import weights_of
    from layerdiff.judge.order.analysis import order_of_pair
    from layerdiff.judge.pairs.as_one import as_compared
    from layerdiff.report.markdown import as_markdown
    from layerdiff.sides import Both
    from layerdiff.trace.reader import open_trace

    if comparison.reference is None:
        raise UsageError("--order adds a call of two runs up again; layerdiff order TRACE SITE asks that of one.")
    weights = weights_of(comparison.checkpoints)
    traces, _ = as_compared(Both(*(open_trace(side.path, weights=weights) for _, side in comparison.sides)))
    return as_markdown(comparison, orders=[order_of_pair(traces.reference, traces.target, site) for site in sites])
