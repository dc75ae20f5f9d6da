"""`layerdiff order`: how one call added up."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from click import Choice, Option

from layerdiff.cli.command import Argument
from layerdiff.cli.parameters import CHECKPOINT, PATH, UsageError

if TYPE_CHECKING:
    from layerdiff.arithmetic.orders.analysis import OrderReport
    from layerdiff.arithmetic.orders.tree import Tree

PARAMETERS = (
    Argument(
        "words",
        "TRACE SITE | REFERENCE TARGET SITE",
        "One trace or two; a site as diff prints it, or a module's path.",
        nargs=-1,
        required=True,
    ),
    Option(["--step"], metavar="N", type=int, help="Which forward of the root; else the first that has the site."),
    Option(["--occurrence"], metavar="N", type=int, help="Which call of the module in that step; else the first."),
    Option(["--rank"], metavar="N", type=int, help="Which rank's recording; else the first that has the site."),
    Option(["--tree", "trees"], metavar="PROBE.json", multiple=True, type=PATH, help="An order to try: of layerdiff probe, or a tree."),
    CHECKPOINT,
    Option(["--json"], metavar="FILE|-", help="Write the result as JSON; - is stdout (the text is then on stderr)."),
    Option(["-f", "--format", "format_name"], type=Choice(["text", "markdown"]), default="text", show_default=True, help="Of the text."),
    Option(["-o", "--output"], metavar="FILE", type=PATH, help="Write to a file instead of stdout."),
)
_DEFECTS: Final = ("broken", "defect", "unexplained")
_PATIENCE_SECONDS: Final = 0.5
_WIDTH: Final = 100
"""Cells of a line where no terminal says how wide it is."""


def run(
    words: tuple[str, ...],
    step: int | None,
    occurrence: int | None,
    rank: int | None,
    trees: tuple[Path, ...],
    checkpoints: tuple[Path, ...],
    json: str | None,
    format_name: str,
    output: Path | None,
) -> int:
    """Say in which order a call added up, or that no order did.

    For every operator that sums, recorded with --operators: the tests in order with their figures, the orders that were tried
    and how many results each makes bit for bit, which terms are missing or counted twice, and what would make two runs agree.
    Exits with 1 where the verdict is defect, unexplained or broken.
    """
    if len(words) not in (2, 3):
        raise UsageError(f"layerdiff order takes TRACE SITE, or REFERENCE TARGET SITE; these are {len(words)} arguments.")
    from layerdiff.cli.exits import DEFECT, OK
    from layerdiff.cli.outputs import check_output
    from layerdiff.cli.streams import out, talk

    check_output(output)
    check_output(json, "--json")
    *paths, site = words
    report = _analysed(paths, checkpoints, site, step, occurrence, rank, tuple(tree for path in trees for tree in _trees(path)))
    if json is not None:
        from layerdiff.report.order_json import order_as_json_text

        made = order_as_json_text(report)
        if json == "-":
            out(made)
        else:
            Path(json).write_text(made, encoding="utf-8")
    if output is not None:
        output.write_text(_said(report, format_name, None), encoding="utf-8")
        talk(f"wrote {output}")
    elif json == "-":
        from layerdiff.cli.streams import write_talk

        write_talk(_said(report, format_name, sys.stderr))
    else:
        out(_said(report, format_name, sys.stdout))
    return DEFECT if report.verdict in _DEFECTS else OK


def _analysed(
    paths: list[str],
    checkpoints: tuple[Path, ...],
    site: str,
    step: int | None,
    occurrence: int | None,
    rank: int | None,
    trees: tuple[tuple[str, Tree], ...],
) -> OrderReport:
    from layerdiff.checkpoint.weights import weights_of
    from layerdiff.judge.order.analysis import order_of_pair, order_of_trace
    from layerdiff.judge.pairs.as_one import as_compared
    from layerdiff.sides import Both
    from layerdiff.trace.reader import open_trace

    weights = weights_of(checkpoints)
    traces = [open_trace(path, weights=weights) for path in paths]
    with _patience():
        if len(traces) == 1:
            return order_of_trace(traces[0], site, step=step, occurrence=occurrence, rank=rank, trees=trees)
        both, _ = as_compared(Both(traces[0], traces[1]))
        return order_of_pair(both.reference, both.target, site, step=step, occurrence=occurrence, rank=rank, trees=trees)


@contextmanager
def _patience() -> Iterator[None]:
    """After half a second, say on a terminal that something is going on; nothing of it stays."""
    if not sys.stderr.isatty():
        yield
        return
    from threading import Timer

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from layerdiff.progress import listening

    said = TextColumn("adding it up again, in every order that is known")
    bar = Progress(said, BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True)
    task = bar.add_task("", total=None)
    soon = Timer(_PATIENCE_SECONDS, bar.start)
    soon.start()
    try:
        with listening(lambda done, total: bar.update(task, completed=done, total=total)):
            yield
    finally:
        soon.cancel()
        soon.join()
        bar.stop()


def _trees(path: Path) -> list[tuple[str, Tree]]:
    """The trees of a probe, the most frequent first, or the one that a file is. Raises UsageError for anything else."""
    import json

    from layerdiff.arithmetic.orders.probe import open_probe
    from layerdiff.arithmetic.orders.tree import TreeError, from_json
    from layerdiff.errors import LayerdiffError

    try:
        probe = open_probe(path)
    except LayerdiffError as error:
        try:
            return [(f"the tree of {path.name}", from_json(json.loads(path.read_text(encoding="utf-8"))))]
        except (TreeError, ValueError, RecursionError):
            raise UsageError(f"--tree {error}") from None
    names = [f"the probed tree of {probe.operator}"] + [f"tree {i} of {probe.operator}" for i in range(2, len(probe.trees) + 1)]
    return [(name, found.tree) for name, found in zip(names, probe.trees, strict=True)]


def _said(report: OrderReport, format_name: str, stream: TextIO | None) -> str:
    """The report as text: as wide as the terminal that `stream` is, coloured where it wants colour."""
    if format_name == "markdown":
        from layerdiff.report.order_markdown import order_markdown

        return order_markdown(report)
    import shutil

    from layerdiff.rows.order.report import order_lines, title_line
    from layerdiff.rows.tones import line
    from layerdiff.text.render import render, wants_color

    on_terminal = stream is not None and stream.isatty()
    width = min(160, max(60, shutil.get_terminal_size((_WIDTH, 24)).columns - 1)) if on_terminal else _WIDTH
    written = io.StringIO()
    color = stream is not None and wants_color(stream)
    render([title_line(report, width), line(), *order_lines(report, width)], written, color=color)
    return "".join(f"{text.rstrip()}\n" for text in written.getvalue().splitlines())
