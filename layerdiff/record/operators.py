"""`OperatorMode`: every ATen call of a run as a row, with its operands as they were before it and its results after.

The mode lies above all others, so it sees what the model asked for, and what comes back of whatever really ran. It hands on the
call unchanged and returns the very result. Its own computing is not seen: a mode is off while it handles a call.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from layerdiff.record.calls import Call, Calls
from layerdiff.record.keep import Policy
from layerdiff.record.quiet import quiet
from layerdiff.record.sink import Edge, Sink
from layerdiff.record.structure import picture_arguments, picture_result
from layerdiff.record.tensors import is_ordinary, plain
from layerdiff.trace.schema import ABSENT, CallKind, CallRow, CallStatus, Role, ValueKind

_UNWRITTEN: Final = frozenset({"empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "empty_permuted"})
_MAX_TEXT: Final = 200


class _Known:
    """What is known of an overload."""

    __slots__ = ("name", "random", "unwritten", "written")

    def __init__(self, overload: Any) -> None:
        namespace, _, base = overload._schema.name.partition("::")
        self.name = f"{namespace}.{base}.{overload._overloadname}"
        self.unwritten = base in _UNWRITTEN
        self.random = torch.Tag.nondeterministic_seeded in overload.tags
        self.written: list[tuple[int, str]] = [
            (i, argument.name)
            for i, argument in enumerate(overload._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]


class OperatorMode(TorchDispatchMode):
    """Records operators into `calls`. `failed` is told of an error of our own; the model never is."""

    def __init__(self, calls: Calls, sink: Sink, failed: Callable[[Exception], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls = calls
        self._sink = sink
        self._failed = failed
        self._known: dict[Any, _Known] = {}
        self._lines: dict[tuple[CodeType, int], str] = {}
        self._library: dict[CodeType, bool] = {}
        self._stopped = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._stopped or torch.compiler.is_compiling():
            return func(*args, **kwargs)
        try:
            known = self._known.get(func)
            if known is None:
                known = self._known[func] = _Known(func)
            number, call, pictured = self._begin(known, args, kwargs)
        except Exception as error:
            self._fail(error)
            return func(*args, **kwargs)
        try:
            result = func(*args, **kwargs)
        except BaseException as error:
            self._guard(self._raised, number, pictured, error)
            raise
        self._guard(self._end, known, number, call, pictured, args, kwargs, result)
        return result

    def stop(self) -> None:
        """Record nothing more, and leave the stack of modes; where another mode was entered since, lie idle in it."""
        self._stopped = True
        modes = _get_current_dispatch_mode_stack()
        if modes and modes[-1] is self:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _begin(self, known: _Known, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, Call | None, str]:
        calls, sink = self._calls, self._sink
        call = calls.enclosing
        if not calls.wants_operators(call):
            return ABSENT, call, ""
        tensors, pictured, _ = picture_arguments(args, kwargs, ())
        with quiet():
            edges = self._edges(call, Role.INPUT, tensors)
        stack = self._caller()
        path, root, parent, step, occurrence, counts = calls.place_of_operator(call)
        count = counts.get(known.name, 0)
        counts[known.name] = count + 1
        number = calls.count
        calls.count += 1
        sink.begin_call(CallRow(CallKind.OPERATOR, path, None, known.name, count, root, parent, step, occurrence, stack))
        if edges:
            sink.add_edges(number, edges)
        return number, call, pictured

    def _end(self, known: _Known, number: int, call: Call | None, pictured: str, args: Any, kwargs: Any, result: Any) -> None:
        values = self._calls.values
        written = []
        for i, name in known.written:
            thing = args[i] if i < len(args) else kwargs.get(name)
            position = f"in[{i}]" if i < len(args) else f"in.{name}"
            for k, tensor in enumerate(thing if isinstance(thing, (list, tuple)) else [thing]):
                if isinstance(tensor, Tensor) and is_ordinary(tensor):
                    values.wrote(tensor)
                    written.append(f"{position}[{k}]" if isinstance(thing, (list, tuple)) else position)
        if number == ABSENT:
            return
        tensors, picture = picture_result(result, ())
        with quiet():
            edges = self._edges(call, Role.OUTPUT, tensors, unwritten=known.unwritten)
        if edges:
            self._sink.add_edges(number, edges)
        rest = f', "writes": {json.dumps(written)}' if written else ""
        rest += ', "random": true' if known.random else ""
        self._sink.end_call(number, CallStatus.RETURNED, f'{{"arguments": {pictured}, "results": {picture}{rest}}}')

    def _raised(self, number: int, pictured: str, error: BaseException) -> None:
        if number != ABSENT:
            said = json.dumps(f"{type(error).__name__}: {error}"[:_MAX_TEXT])
            self._sink.end_call(number, CallStatus.RAISED, f'{{"arguments": {pictured}, "raised": {said}}}')

    def _edges(self, call: Call | None, role: Role, tensors: list[tuple[str, Tensor]], *, unwritten: bool = False) -> list[Edge]:
        calls = self._calls
        policy = Policy() if call is None else call.site.policy
        edges: list[Edge] = []
        for position, tensor in tensors:
            if unwritten and is_ordinary(tensor):
                edges.append((role, position, calls.values.record_unwritten(tensor)))
                continue
            named = calls.named_weight(tensor)
            kind, name = named if named is not None else (ValueKind.ACTIVATION, None)
            kept = policy if named is None else calls.weights_policy
            if is_ordinary(tensor):
                edges.append((role, position, calls.values.record(tensor, kept, kind, name)))
            else:
                edges += [
                    (role, position + part.suffix, calls.values.record(part.tensor, kept, kind, name, part=part)) for part in plain(tensor)
                ]
        return edges

    def _caller(self) -> str | None:
        """The innermost line of code that is neither torch's nor ours, `file:line function`."""
        frame: Any = sys._getframe(3)
        library = self._library
        while frame is not None:
            code = frame.f_code
            inside = library.get(code)
            if inside is None:
                inside = library[code] = str(frame.f_globals.get("__name__", "")).partition(".")[0] in ("torch", "layerdiff")
            if not inside:
                key = (code, frame.f_lineno)
                line = self._lines.get(key)
                if line is None:
                    line = self._lines[key] = f"{code.co_filename}:{frame.f_lineno} {code.co_name}"
                return line
            frame = frame.f_back
        return None

    def _guard(self, act: Callable[..., None], *args: Any) -> None:
        try:
            if not self._stopped:
                act(*args)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._stopped = True
        self._failed(error)
