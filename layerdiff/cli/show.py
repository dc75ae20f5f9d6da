"""`layerdiff show`, which is also `layerdiff REFERENCE TARGET`."""

from __future__ import annotations

from layerdiff.cli.parameters import First, MaybeProfile, MaybeTarget


def run(first: First, target: MaybeTarget = None, profile: MaybeProfile = None) -> int:
    """Browse where two runs part, in the terminal.

    Without a terminal it prints the summary, and exits as diff does.
    """
    from layerdiff.cli.streams import is_terminal

    if is_terminal():
        return browse(first, target, profile)
    from layerdiff.cli.answering import answer
    from layerdiff.cli.comparing import compared_or_saved

    return answer(compared_or_saved(first, target, profile))


def browse(first: str, target: str | None, profile: str | None) -> int:
    """The terminal. Quitting it is 0, whatever it showed: whoever quits has seen the verdict."""
    from layerdiff.cli.comparing import in_steps_or_saved
    from layerdiff.cli.exits import OK, UNUSABLE
    from layerdiff.compare import judge_again
    from layerdiff.tui.app import LayerdiffApp

    app = LayerdiffApp(in_steps_or_saved(first, target, profile), rejudge=lambda comparison, name: judge_again(comparison, profile=name))
    app.run()
    return UNUSABLE if app.return_code else OK
