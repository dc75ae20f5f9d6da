"""`like`: the shapes, dtype, strides and dimensions of a recorded call, for a probe of the same operator here.

Only numbers are taken from the trace, and a name that is looked up in a fixed table: nothing in it is imported or run. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from layerdiff.arithmetic.orders.probing import ProbeError
from layerdiff.errors import TraceError
from layerdiff.replay.recorded import Operation, Recorded
from layerdiff.trace.arguments import Arguments, decode
from layerdiff.trace.reader import Trace, TraceFile
from layerdiff.trace.schema import CallKind

_FORMS: Final = {
    "aten.mm": "mm", "aten.bmm": "bmm", "aten.matmul": "matmul", "aten.mv": "mv", "aten.dot": "dot", "aten.linear": "linear",
    "aten.addmm": "addmm", "aten.baddbmm": "baddbmm", "aten.sum": "sum", "aten.mean": "mean", "aten._softmax": "softmax",
    "aten.softmax": "softmax", "aten._log_softmax": "log_softmax", "aten.log_softmax": "log_softmax",
    "aten.native_layer_norm": "layer_norm", "aten.layer_norm": "layer_norm", "aten._fused_rms_norm": "rms_norm",
    "aten.rms_norm": "rms_norm", "aten.convolution": "convolution", "aten._convolution": "convolution",
}  # fmt: skip


@dataclass(frozen=True)
class Recording:
    """A recorded call as a probe needs it.

    Attributes:
        site: of the call.
        form: one of `replay.probing.OPERATORS`, or `convolution`, whose `settings` are stride, padding, dilation and groups.
        shapes, strides: of its operands, in order.
        dtype: of its operands.
        dims: that it goes over; None for all, or where the operator has none to choose.
        device: the run's accelerator, by torch's name of its kind, `cpu` where it had none; None where that was not recorded.
        threads: of the run on the host.
    """

    site: str
    form: str
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    dtype: str
    dims: tuple[int, ...] | None = None
    settings: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int] | None = None
    device: str | None = None
    threads: int | None = None


class _Operand(int):
    """The number of a value among arguments, which are numbers too."""


def like(trace: Trace, site: str, *, step: int | None = None) -> Recording:
    """The first call at `site` (in `step`, where given): an operator's, or the one of a module's operators that sums.

    Raises ProbeError where there is none, or one whose sum has no known form; names what could be meant.
    """
    sites: list[str] = []
    for file in trace.files:
        for call in range(len(file.calls)):
            if step is not None and int(file.calls.step[call]) != step:
                continue
            name = file.site(call)
            if name == site:
                return _found(file, call)
            sites.append(name)
    close = get_close_matches(site, list(dict.fromkeys(sites)), n=1, cutoff=0.5)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    raise ProbeError(f"{trace.path} has no call at {site!r}{'' if step is None else f' in step {step}'}.{meant}")


def _found(file: TraceFile, call: int) -> Recording:
    recorded = Recorded(file)
    if int(file.calls.kind[call]) == CallKind.OPERATOR:
        return _recording(recorded, call)
    inside = [one for one in _operators(recorded, call) if _form(recorded.operation(one))]
    if len(inside) == 1:
        return _recording(recorded, inside[0])
    if not inside:
        raise ProbeError(
            f"{file.site(call)!r} is a module, and no operator that sums was recorded inside. Record with --operators, "
            f"and name the operator's site."
        )
    listed = ", ".join(repr(file.site(one)) for one in inside[:6])
    raise ProbeError(f"{file.site(call)!r} is a module with {len(inside)} operators that sum. Name one: {listed}.")


def _operators(recorded: Recorded, call: int) -> Iterator[int]:
    for child in recorded.children[call]:
        if recorded.is_module(child):
            yield from _operators(recorded, child)
        else:
            yield child


def _form(operation: Operation) -> str | None:
    return _FORMS.get(operation.name.rpartition(".")[0])


def _recording(recorded: Recorded, call: int) -> Recording:
    operation = recorded.operation(call)
    file, site = recorded.file, recorded.file.site(call)
    form = _form(operation)
    if form is None:
        known = ", ".join(sorted(set(_FORMS.values())))
        raise ProbeError(f"{site!r} is {operation.name}, and no sum that can be probed by a recorded call: {known}.")
    try:
        args = decode(operation.picture, lambda position: _Operand(operation.inputs[position]))
    except (TraceError, KeyError):
        raise ProbeError(f"The arguments of {site!r} were not recorded whole. Record the run again, or probe with --shape.") from None
    operands = [int(one) for one in args.args if isinstance(one, _Operand)]
    operands = operands[:2] if form == "convolution" else operands[:1] if form in _SINGLE else operands
    shapes = tuple(file.shape(value) for value in operands)
    dtypes = {file.dtype_name(value) for value in operands}
    if len(dtypes) != 1:
        raise ProbeError(f"The operands of {site!r} are {' and '.join(sorted(dtypes)) or 'none'}; a probe gives all of them one dtype.")
    strides = tuple(recorded.place(value).strides for value in operands)
    settings = _settings(args) if form == "convolution" else None
    return Recording(site, form, shapes, strides, dtypes.pop(), _dims(form, args), settings, *_machine(file))


def _machine(file: TraceFile) -> tuple[str | None, int | None]:
    """Kind of device and number of threads of the run, where they were recorded."""
    environment = file.meta.get("environment")
    environment = environment if isinstance(environment, dict) else {}
    devices, flags = environment.get("devices"), environment.get("flags")
    kinds = [one.get("type") for one in devices if isinstance(one, dict)] if isinstance(devices, list) else []
    device = next((kind for kind in reversed(kinds) if isinstance(kind, str)), None)
    threads = flags.get("num_threads") if isinstance(flags, dict) else None
    return device, threads if type(threads) is int else None


_SINGLE: Final = ("sum", "mean", "softmax", "log_softmax", "layer_norm", "rms_norm")


def _whole(thing: Any) -> tuple[int, ...] | None:
    if type(thing) is int:
        return (thing,)
    if isinstance(thing, (list, tuple)) and len(thing) <= 8 and all(type(one) is int for one in thing):
        return tuple(thing)
    return None


def _dims(form: str, args: Arguments) -> tuple[int, ...] | None:
    if form not in ("sum", "mean", "softmax", "log_softmax"):
        return None
    given = args.args[1] if len(args.args) > 1 else args.kwargs.get("dim")
    return _whole(given) or None


def _settings(args: Arguments) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    """Stride, padding, dilation and groups of a convolution. Raises ProbeError for one that is transposed."""
    given = list(args.args[3:9])
    if len(given) < 6 or given[3] is not False:
        raise ProbeError("A transposed convolution adds another number of terms for each output: it cannot be probed.")
    stride, padding, dilation = (_whole(one) for one in given[:3])
    groups = given[5]
    bound = 1 << 16
    if stride is None or padding is None or dilation is None or type(groups) is not int or not 1 <= groups < bound:
        raise ProbeError("The settings of the convolution were not recorded whole.")
    if any(not 0 <= one < bound for one in (*stride, *padding, *dilation)):
        raise ProbeError("The settings of the convolution are no whole numbers of a sensible size.")
    return stride, padding, dilation, groups
