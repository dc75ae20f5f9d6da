"""`layerdiff record`: a script run with the recorder around it, without touching the script."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layerdiff.cli.parameters import UsageError

CONTEXT_SETTINGS = {"allow_interspersed_args": False}  # what follows SCRIPT belongs to it, `--` or not


def run(
    command: Annotated[list[str], typer.Argument(metavar="-- SCRIPT [ARGS]", help="The script and its arguments.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="OUT.h5", help="The trace to write.", show_default=False)],
    module: Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is the name of a module, as with python -m.")] = False,
    modules: Annotated[
        str | None,
        typer.Option("--modules", metavar="GLOB,...", help="Only these module paths; * also matches dots.", show_default=False),
    ] = None,
    types: Annotated[
        str | None, typer.Option("--types", metavar="GLOB,...", help="Only modules of these classes.", show_default=False)
    ] = None,
    steps: Annotated[
        str | None, typer.Option("--steps", metavar="0,3:5", help="Only these forwards, from 0, ends excluded.", show_default=False)
    ] = None,
    ranks: Annotated[str | None, typer.Option("--ranks", metavar="0,1", help="Only these ranks.", show_default=False)] = None,
    keep: Annotated[
        str | None,
        typer.Option("--keep", metavar="[GLOB=]POLICY,...", help="full, statistics, or a budget such as full:2GB.", show_default=False),
    ] = None,
    weights: Annotated[str | None, typer.Option("--weights", metavar="none|used|all", help="Weights to keep.", show_default=False)] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say how much would be recorded, and record nothing.")] = False,
) -> int:
    """Record every layer of the model that a script runs.

    Exits with the script's own code.
    """
    script, *arguments = command
    if script == "-m":
        if not arguments:
            raise UsageError("-m needs the name of a module: layerdiff record -o OUT.h5 -- -m MODULE ARGS")
        module, script, arguments = True, arguments[0], arguments[1:]
    from layerdiff.record.script import run_script

    options = {"modules": modules, "types": types, "steps": steps, "ranks": ranks, "keep": keep, "weights": weights}
    given = {name: value for name, value in options.items() if value is not None}
    return run_script(output, script, arguments, is_module=module, plan=plan, **given)
