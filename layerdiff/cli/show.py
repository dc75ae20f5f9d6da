"""`layerdiff show`, which is also `layerdiff REFERENCE TARGET`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layerdiff.cli.parameters import CHECKPOINT, FIRST, MAYBE_PROFILE, MAYBE_TARGET

if TYPE_CHECKING:
    from pathlib import Path

    from layerdiff.saved.comparison import Comparison

PARAMETERS = (FIRST, MAYBE_TARGET, MAYBE_PROFILE, CHECKPOINT)


def run(first: str, target: str | None, profile: str | None, checkpoints: tuple[Path, ...]) -> int:
    """Browse where two runs part, in the terminal.

    Without a terminal it prints the summary. Exits as diff does; with 130
    where the terminal is left, or stopped, before all is compared.
    """
    from layerdiff.cli.streams import is_terminal, leave

    if is_terminal():
        leave(browse(first, target, profile, checkpoints))
    from layerdiff.cli.answering import answer
    from layerdiff.cli.comparing import compared_or_saved

    return answer(compared_or_saved(first, target, profile, checkpoints))


def browse(first: str, target: str | None, profile: str | None, checkpoints: tuple[Path, ...] = ()) -> int:
    """The terminal. The code is that of what it showed last, as of diff; a comparison that was left on the way has no answer."""
    import gc
    import os

    gc.disable()  # until the first paint, when the app switches it on again: a fifth of the time to it
    if target is None:  # a file is shown without linear algebra, and numpy starts threads for it that spin beside the first paint
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from layerdiff.cli.comparing import in_steps_or_saved
    from layerdiff.cli.exits import INTERRUPTED, UNUSABLE, code_of
    from layerdiff.tui.app import LayerdiffApp

    shown = in_steps_or_saved(first, target, profile, checkpoints)
    app = LayerdiffApp(shown, rejudge=_rejudge)
    app.run()
    if app.return_code:
        return UNUSABLE
    return code_of(app.comparison) if app.complete and app.comparison is not None else INTERRUPTED


def _rejudge(comparison: Comparison, profile: str) -> Comparison:
    from layerdiff.verdicts import judge_again  # not needed for the first paint

    return judge_again(comparison, profile=profile)
