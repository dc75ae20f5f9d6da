"""Exit codes, and the one place where an exception becomes a message on stderr and a code.

0 no defect, 1 a defect, 2 usage or unreadable input or nothing paired, 130 interrupted: so is a terminal that was left or stopped
before all was compared, since half a comparison is no answer. An error of our own making is 2 as well and never 1: a CI gate must not
read a crash as a verdict.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

from layerdiff.cli.streams import stand_in, talk
from layerdiff.errors import LayerdiffError

if TYPE_CHECKING:
    from layerdiff.saved.comparison import Comparison

OK: Final = 0
DEFECT: Final = 1
UNUSABLE: Final = 2
INTERRUPTED: Final = 130


def code_of(comparison: Comparison) -> int:
    """The code that says whether a comparison is a defect; one in which nothing could be compared is unusable."""
    if comparison.verdict.label == "not-comparable":
        return UNUSABLE
    return DEFECT if comparison.defect else OK


def guarded(run: Callable[..., int]) -> Callable[..., NoReturn]:
    """A command whose `run` returns its code; errors become messages and codes here."""

    @functools.wraps(run)
    def command(*arguments: Any, **options: Any) -> NoReturn:
        sys.exit(_answer(functools.partial(run, *arguments, **options)))

    return command


def _answer(run: Callable[[], int]) -> int:
    try:
        return run()
    except LayerdiffError as error:
        talk(f"layerdiff: {error}")
    except OSError as error:
        talk(f"layerdiff: {_described(error)}")
    except KeyboardInterrupt:
        talk("layerdiff: interrupted")
        return INTERRUPTED
    except Exception:
        import traceback

        talk(f"{traceback.format_exc()}layerdiff: this is a bug in layerdiff; please report it with the lines above.")
    return UNUSABLE


def _described(error: OSError) -> str:
    if error.filename is None or not error.strerror:
        return str(error)
    return f"{error.filename}: {error.strerror}."


def main() -> None:
    """The `layerdiff` command."""
    stand_in()
    try:
        import click

        from layerdiff.cli.app import app

        try:
            sys.exit(app.main(prog_name="layerdiff", standalone_mode=False))
        except click.ClickException as error:
            error.show()
            sys.exit(UNUSABLE)
        except click.Abort:  # what click makes of an interrupt
            sys.exit(INTERRUPTED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
