"""`layerdiff probe`: the order in which this machine's kernels add."""

from __future__ import annotations

import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from click import Option

from layerdiff.cli.command import Argument
from layerdiff.cli.parameters import PATH, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from layerdiff.arithmetic.orders.probe import Probe
    from layerdiff.replay.like import Recording
    from layerdiff.rows.tones import Line

PARAMETERS = (
    Argument(
        "things",
        "OPERATOR | SITE | PROBE.json [PROBE.json]",
        "What to probe, or probes to show: one, or two side by side.",
        nargs=-1,
        required=True,
    ),
    Option(["--shape", "shapes"], metavar="64x1024", multiple=True, help="Shape of an operand; once for each, in the operator's order."),
    Option(["--dtype"], metavar="NAME", default="float32", show_default=True, help="Of the operands."),
    Option(["--like"], metavar="TRACE", help="Shapes, strides and dtype of the call recorded at SITE."),
    Option(["--step"], metavar="N", type=int, help="With --like: the call of this forward, from 0."),
    Option(["--as", "form"], metavar="OPERATOR", help="Which operator a module:function is called like; sum or matmul without."),
    Option(["--dim", "dims"], metavar="N", type=int, multiple=True, help="Dimension that a sum or a softmax goes over; may be repeated."),
    Option(["--element"], metavar="ROW,COLUMN", help="The output to look at first."),
    Option(
        ["--trees"], metavar="N", type=int, default=4, show_default=True, help="At most so many orders, where outputs differ in theirs."
    ),
    Option(["--device"], metavar="NAME", default="cpu", show_default=True, help="As torch names it, such as cuda:0 or npu:0."),
    Option(["--threads"], metavar="N", type=int, help="Of torch on the host."),
    Option(["-o", "--output"], metavar="PROBE.json", type=PATH, help="Keep the probe."),
    Option(["--json"], metavar="FILE|-", help="Write the probe as JSON; - is stdout (the drawing is then on stderr)."),
)
_WIDEST: Final = 120
_NARROWEST: Final = 40
_PATIENCE_SECONDS: Final = 0.5


def run(
    things: tuple[str, ...],
    shapes: tuple[str, ...],
    dtype: str,
    like: str | None,
    step: int | None,
    form: str | None,
    dims: tuple[int, ...],
    element: str | None,
    trees: int,
    device: str,
    threads: int | None,
    output: Path | None,
    json: str | None,
) -> int:
    """Find the order in which a kernel of this machine adds.

    OPERATOR is sum, mean, dot, mv, mm, matmul, bmm, linear, addmm, baddbmm, conv1d to conv3d, softmax, log_softmax,
    layer_norm, rms_norm, all_reduce (started by torchrun), or module:function of your own.
    With --like TRACE, the operator recorded at SITE.
    """
    if like is None and all(_is_file(thing) for thing in things):
        if shapes or output is not None or json is not None:
            raise UsageError("Probes that are shown take no --shape, -o or --json.")
        return _show(things)
    if len(things) != 1:
        raise UsageError(f"Give one operator, or one or two files of probes: {' '.join(things)} is neither.")
    from layerdiff.cli.outputs import check_output

    check_output(output)
    check_output(json, "--json")
    probe = _probed(things[0], shapes, dtype, like, step, form, dims, element, trees, device, threads)
    return 0 if probe is None else _answer(probe, output, json)


def _is_file(thing: str) -> bool:
    return thing.endswith(".json") or Path(thing).is_file()


def _show(paths: tuple[str, ...]) -> int:
    from layerdiff.arithmetic.orders.probe import open_probe
    from layerdiff.cli.exits import OK
    from layerdiff.rows.order.probe import probe_lines, side_by_side

    if len(paths) > 2:
        raise UsageError(f"{len(paths)} probes: give one, or two to put side by side.")
    probes = [open_probe(path) for path in paths]
    _write(probe_lines(probes[0], _width()) if len(probes) == 1 else side_by_side(probes[0], probes[1], _width()))
    return OK


def _probed(
    thing: str,
    shapes: tuple[str, ...],
    dtype: str,
    like: str | None,
    step: int | None,
    form: str | None,
    dims: tuple[int, ...],
    element: str | None,
    trees: int,
    device: str,
    threads: int | None,
) -> Probe | None:
    """The probe; None on the ranks of a group that have nothing to say."""
    where = None if element is None else _numbers(element, ",", "--element")
    if like is not None:
        from layerdiff.replay.like import like as recorded
        from layerdiff.trace.reader import open_trace

        if shapes:
            raise UsageError("--like takes the shapes from the trace: leave --shape out.")
        recording = recorded(open_trace(like), thing, step=step)
    elif not shapes:
        raise UsageError(f"What shape have the operands of {thing}? layerdiff probe mm --shape 64x1024 --shape 1024x64")
    sizes = [_numbers(shape, "x", "--shape") for shape in shapes]
    try:
        from layerdiff.replay.probing import probe, probe_like
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UsageError(
            "probe runs a kernel of torch: pip install 'layerdiff[torch]', or the torch that your device's vendor gives."
        ) from None

    if thing == "all_reduce" and like is None:
        from layerdiff.replay.probing_group import group_of_environment, probe_all_reduce

        if len(sizes) != 1:
            raise UsageError("all_reduce has one operand: give --shape once.")
        with group_of_environment(device) as (rank, own):
            found = probe_all_reduce(sizes[0], dtype, device=own)
        return found if rank == 0 else None
    with _progress(thing) as told:
        if like is not None:
            found = probe_like(recording, device=device, threads=threads, element=where, most_trees=max(1, trees), progress=told)
            _warn(recording, found)
            return found
        return probe(
            thing,
            sizes,
            dtype,
            form=form,
            dims=dims or None,
            device=device,
            threads=threads,
            element=where,
            most_trees=max(1, trees),
            progress=told,
        )


def _warn(recording: Recording, found: Probe) -> None:
    """Say where the probe ran otherwise than the recording: an order depends on it."""
    from layerdiff.cli.streams import talk
    from layerdiff.rows.figures import amount

    here = found.device.partition(":")[0]
    if recording.device is not None and recording.device != here:
        talk(f"layerdiff: {recording.site} was recorded on {recording.device}, and probed on {here}; --device chooses another.")
    elif here == "cpu" and recording.threads is not None and recording.threads != found.threads:
        recorded = amount(recording.threads, "thread")
        talk(f"layerdiff: {recording.site} was recorded with {recorded}, and probed with {found.threads}; see --threads.")


@contextmanager
def _progress(thing: str) -> Iterator[Callable[[int], None] | None]:
    """How many calls were made, on a terminal, after half a second; how many there will be nobody knows."""
    import sys
    import time

    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from layerdiff.rows.cells import visible

    columns = (SpinnerColumn(), TextColumn(f"probing {escape(visible(thing))}: {{task.completed:,}} calls"), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task("probe", total=None)
    started = time.monotonic()

    def told(calls: int) -> None:
        if not bar.live.is_started and time.monotonic() - started > _PATIENCE_SECONDS:
            bar.start()
        bar.update(task, completed=calls)

    try:
        yield told
    finally:
        bar.stop()


def _numbers(text: str, apart: str, option: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(apart)]
    if not all(re.fullmatch(r"\d{1,12}", part) for part in parts):
        example = "64x1024" if apart == "x" else "0,3"
        raise UsageError(f"{option} {text}: give whole numbers, such as {example}.")
    return tuple(int(part) for part in parts)


def _answer(probe: Probe, output: Path | None, json: str | None) -> int:
    import sys

    from layerdiff.arithmetic.orders.probe import as_text, save_probe
    from layerdiff.cli.exits import OK
    from layerdiff.cli.streams import out
    from layerdiff.rows.order.probe import probe_lines

    if output is not None:
        save_probe(probe, output)
    if json == "-":
        out(as_text(probe))
    elif json is not None:
        save_probe(probe, Path(json))
    _write(probe_lines(probe, _width(sys.stderr.fileno() if json == "-" else None)), on_stderr=json == "-")
    return OK


def _width(descriptor: int | None = None) -> int:
    import os
    import sys

    try:
        columns = os.get_terminal_size(sys.stdout.fileno() if descriptor is None else descriptor).columns
        return min(_WIDEST, max(_NARROWEST, columns or 80))
    except (OSError, ValueError):
        return 80


def _write(lines: Iterable[Line], *, on_stderr: bool = False) -> None:
    import io
    import sys

    from layerdiff.cli.streams import out, write_talk
    from layerdiff.text.render import render, wants_color

    written = io.StringIO()
    render(lines, written, color=wants_color(sys.stderr if on_stderr else sys.stdout))
    (write_talk if on_stderr else out)(written.getvalue())
