"""`layerdiff record`: a script run with the recorder around it, without touching the script."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from click import Option

from layerdiff.cli.command import Argument
from layerdiff.cli.parameters import PATH, UsageError

if TYPE_CHECKING:
    from layerdiff.record.plan import Plan
    from layerdiff.record.script import Recorded

PARAMETERS = (
    Argument("command", "-- SCRIPT [ARGS]", "The script and its arguments.", nargs=-1, required=True),
    Option(["-o", "--output"], metavar="OUT.h5", type=PATH, required=True, help="The trace to write."),
    Option(["-m", "--module"], is_flag=True, help="SCRIPT is the name of a module, as with python -m."),
    Option(["--modules"], metavar="GLOB,...", help="Only these module paths; * also matches dots."),
    Option(
        ["--operators"],
        metavar="[GLOB,...]",
        is_flag=False,
        flag_value="*",
        help="Record every operator with its operands, or those inside these module paths. Put -- before SCRIPT.",
    ),
    Option(["--types"], metavar="GLOB,...", help="Only modules of these classes."),
    Option(["--steps"], metavar="0,3:5", help="Only these forwards, from 0, ends excluded."),
    Option(["--ranks"], metavar="0,1", help="Only these ranks."),
    Option(["--keep"], metavar="[GLOB=]POLICY,...", help="full, statistics, or a budget such as full:2GB."),
    Option(
        ["--weights"],
        metavar="none|used|all|checkpoint",
        help="Weights to keep; used with --operators, else none. checkpoint: buffers only.",
    ),
    Option(["--plan"], is_flag=True, help="Say how much would be recorded, and record nothing."),
)
CONTEXT_SETTINGS = {"allow_interspersed_args": False}  # what follows SCRIPT belongs to it, `--` or not


def run(
    command: tuple[str, ...],
    output: Path,
    module: bool,
    modules: str | None,
    operators: str | None,
    types: str | None,
    steps: str | None,
    ranks: str | None,
    keep: str | None,
    weights: str | None,
    plan: bool,
) -> int:
    """Record every layer of the model that a script runs.

    Exits with the script's own code.
    """
    script = list(command)
    if script[0] == "-m":
        module, script = True, script[1:]
    if not script:
        raise UsageError("-m needs the name of a module: layerdiff record -o OUT.h5 -- -m MODULE ARGS")
    selected = {
        "modules": modules,
        "operators": operators,
        "types": types,
        "steps": steps,
        "ranks": _numbers(ranks),
        "keep": keep,
        "weights": weights,
    }
    options = {name: value for name, value in selected.items() if value is not None}
    try:
        from layerdiff.record.script import plan_script, run_script
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from layerdiff.errors import TorchMissingError

        raise TorchMissingError from None

    if not plan:
        return run_script(output, script, module=module, options=options, told=_recorded)
    planned, code = plan_script(output, script, module=module, options=options)
    return code or _say(planned)


def _numbers(ranks: str | None) -> list[int] | None:
    if ranks is None:
        return None
    parts = [part.strip() for part in ranks.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"--ranks {ranks}: give the numbers of processes, such as 0 or 0,1.")
    return [int(part) for part in parts]


def _recorded(done: Recorded) -> None:
    from layerdiff.cli.streams import talk
    from layerdiff.rows.figures import amount, size

    for name, globs in done.unmatched.items():
        talk(f"layerdiff: --{name} {','.join(globs)} matched no {'class' if name == 'types' else 'module'} of the models that ran")
    holds = f"{amount(done.calls, 'call')}, {amount(done.steps, 'step')}, {size(done.path.stat().st_size)}"
    talk(f"layerdiff: {done.path}: {holds}")


def _say(plan: Plan) -> int:
    from layerdiff.cli.exits import OK, UNUSABLE
    from layerdiff.cli.streams import out, talk
    from layerdiff.rows.figures import amount, count, size

    if not plan.calls:
        talk("layerdiff: no forward of a module ran, so there is nothing to plan.")
        return UNUSABLE
    room = "" if plan.free_bytes is None else f", and {size(plan.free_bytes)} are free: it {'fits' if plan.fits else 'DOES NOT FIT'}"
    out(
        f"{amount(plan.steps, 'step')} ran, of the first forward alone:\n"
        f"  calls   {count(plan.calls)}\n"
        f"  values  {count(plan.values)}, {count(plan.kept)} with their bytes\n"
        f"  bytes   {size(plan.value_bytes)} of values, about {size(plan.index_bytes)} of index\n"
        f"  disk    {size(plan.total_bytes)} a forward{room}\n"
    )
    return OK
