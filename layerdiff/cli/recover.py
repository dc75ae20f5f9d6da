"""`layerdiff recover`."""

from __future__ import annotations

from pathlib import Path

from layerdiff.cli.command import Argument
from layerdiff.cli.parameters import PATH

PARAMETERS = (Argument("path", "NAME.h5.part", "What a killed recording left.", type=PATH),)


def run(path: Path) -> int:
    """Make a trace of a recording that was killed.

    Prints its path.
    """
    from layerdiff.cli.exits import OK
    from layerdiff.cli.streams import out, talk
    from layerdiff.rows.cells import visible
    from layerdiff.trace.recover import recover

    trace = recover(path)
    talk(f"recovered everything that was journaled; `layerdiff inspect {trace}` describes it")
    out(f"{visible(str(trace))}\n")
    return OK
