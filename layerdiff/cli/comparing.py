"""A comparison for a command: of two traces, with a progress bar on a terminal, or read from a file.

The bar appears after half a second, on stderr, and leaves nothing behind.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

from layerdiff.cli.parameters import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from layerdiff.compare import Progress
    from layerdiff.saved.comparison import Comparison

_PATIENCE_SECONDS: Final = 0.5


def compared(reference: str, target: str, profile: str, *, trust: tuple[str, ...] = (), checkpoints: tuple[Path, ...] = ()) -> Comparison:
    """Compare two traces to the end."""
    from layerdiff.compare import compare_in_steps, compare_traces

    if not sys.stderr.isatty():
        return compare_traces(reference, target, profile=profile, trust=trust, checkpoints=checkpoints)
    return _with_bar(compare_in_steps(reference, target, profile=profile, trust=trust, checkpoints=checkpoints))


def _with_bar(steps: Iterator[Progress]) -> Comparison:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("comparing both runs"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task("read", total=None)
    started = time.monotonic()
    shown = False
    try:
        for step in steps:
            last = step
            if not shown and time.monotonic() - started > _PATIENCE_SECONDS:
                bar.start()
                shown = True
            bar.update(task, completed=step.done, total=step.total)
    finally:
        if shown:
            bar.stop()
    return last.comparison


def saved(path: str, profile: str | None) -> Comparison:
    """A comparison from its file, judged again where a profile is given."""
    from layerdiff.saved.file import open_comparison

    comparison = open_comparison(path)
    if profile is None:
        return comparison
    from layerdiff.verdicts import judge_again

    return judge_again(comparison, profile=profile)


def compared_or_saved(first: str, target: str | None, profile: str | None, checkpoints: tuple[Path, ...] = ()) -> Comparison:
    """`RUN.ldiff`, or two traces."""
    if target is not None:
        return compared(first, target, profile or "strict", checkpoints=checkpoints)
    _refuse(checkpoints)
    return saved(first, profile)


def _refuse(checkpoints: tuple[Path, ...]) -> None:
    if checkpoints:
        raise UsageError("--checkpoint goes with two traces: a saved comparison has its own, as diff was given them.")


def in_steps_or_saved(
    first: str, target: str | None, profile: str | None, checkpoints: tuple[Path, ...] = ()
) -> Iterator[Progress] | Comparison:
    """As `compared_or_saved`, for a screen that fills in. What cannot be read is raised here, before there is a screen."""
    if target is None:
        _refuse(checkpoints)
        return saved(first, profile)
    from layerdiff.compare import compare_in_steps

    steps = compare_in_steps(first, target, profile=profile or "strict", checkpoints=checkpoints)
    return chain([next(steps)], steps)
