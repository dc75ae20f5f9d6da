"""`OperatorMode`: every ATen call of a run as a row, with its operands as they were before it and its results after.

The mode lies above all others, so it sees what the model asked for, and what comes back of whatever really ran. It hands on the
call unchanged and returns the very result. Its own computing is not seen: a mode is off while it handles a call.

Modes belong to a thread: operators of other threads run unseen, and what they wrote is found by samples (versions.py).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack, _pop_mode, _push_mode

from layerdiff.record.calls import Call, Calls
from layerdiff.record.overloads import Overload
from layerdiff.record.quiet import function_modes, quiet
from layerdiff.record.sink import Edge, Sink, Value
from layerdiff.record.source_line import SourceLines
from layerdiff.record.structure import ONE_RESULT, picture_arguments, picture_result
from layerdiff.record.tap import inside
from layerdiff.record.tensors import is_ordinary, plain
from layerdiff.record.uncompiled import uncompiled
from layerdiff.record.usual_arguments import usual_arguments
from layerdiff.record.versions import Versions
from layerdiff.record.writing import use_of, used_pending
from layerdiff.trace.schema import CallKind, CallRow, CallStatus, Role

_MAX_TEXT: Final = 200
_DESUGARED: Final = frozenset({"DTensor", "AsyncCollectiveTensor"})
"""Tensors whose operators are made of operators and collectives on plain ones, which are what runs on a rank."""
_simulates: Callable[[], Any] = partial(torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.FAKE)
"""The mode, if any, under which torch only pretends to run operators, to know the shapes of results."""


_Begun = tuple[Call | None, str, list[Edge], str | None, str]
"""A call that has not ended: the module call around it, its arguments (JSON), what went in, the caller's line, and what it was given
while a collective wrote to it, as a piece of JSON."""


class OperatorMode(TorchDispatchMode):
    """Records operators into `calls`. `failed` is told of an error of our own; the model never is."""

    def __init__(self, calls: Calls, sink: Sink, failed: Callable[[Exception], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        assert isinstance(calls.values, Versions)
        self._values = calls.values
        self._calls = calls
        self._sink = sink
        self._failed = failed
        self._known: dict[int, Overload] = {}
        """By the address of torch's overload, which is held: its own hash is a function in Python."""
        self._lines = SourceLines()
        self._stopped = False
        self._paused = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch asks whether to keep its compiler off the next function: that is done here."""
        return False

    @uncompiled
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs is None:
            kwargs = {}
        if self._stopped or torch.compiler.is_compiling():
            return func(*args, **kwargs)
        if types and not _DESUGARED.isdisjoint(kind.__name__ for kind in types):
            return NotImplemented  # its own dispatch makes calls on plain tensors of it, which come here
        try:
            overload = self._known.get(id(func))
            if overload is None:
                overload = self._known[id(func)] = Overload(func)
            left_out = overload.communicates or inside.waiting or _simulates() is not None
            begun = None if left_out else self._begin(overload, args, kwargs)
        except Exception as error:
            self._fail(error)
            return func(*args, **kwargs)
        try:
            result = func(*args, **kwargs)
        except BaseException as error:
            if begun is not None and not self._stopped:
                try:
                    self._raised(overload, begun, error)
                except Exception as own:
                    self._fail(own)
            raise
        if (begun is not None or (overload.written and not left_out)) and not self._stopped:
            try:
                self._end(overload, begun, args, kwargs, result)
            except Exception as error:
                self._fail(error)
        return result

    def stop(self) -> None:
        """Record nothing more, and leave the stack of modes; where another mode was entered since, lie idle in it."""
        self._stopped = True
        modes = _get_current_dispatch_mode_stack()
        if modes and modes[-1] is self:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def pause(self) -> None:
        """A compiled module is about to run: under a mode the compiler would leave it uncompiled, now and ever after.

        Where another mode was entered since, that is so anyway.
        """
        modes = _get_current_dispatch_mode_stack()
        if modes and modes[-1] is self:
            _pop_mode()
            self._paused = True

    def resume(self) -> None:
        """It has run."""
        if self._paused:
            self._paused = False
            _push_mode(self)

    def _begin(self, overload: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Begun | None:
        calls = self._calls
        call = calls.enclosing
        if not (calls.wants_outside if call is None else call.wants_operators):
            return None
        tensors, pictured = usual_arguments(args, kwargs) or picture_arguments(args, kwargs)[:2]
        stack = self._lines.of_caller(sys._getframe(2))
        with calls.lock:
            used = self._used(overload, tensors) if calls.writing.active else ""
            return call, pictured, self._edges(call, Role.INPUT, tensors), stack, used

    def _end(self, overload: Overload, begun: _Begun | None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        calls = self._calls
        with calls.lock:
            ordinary = overload.only_reads and not calls.writing.active and not function_modes()
            if ordinary and begun is not None and type(result) is Tensor:
                value = self._values.value_of(result, begun[0], calls.what)
                if value is not None:
                    begun[2].append((Role.OUTPUT, "out", value))
                    self._record(overload, begun, CallStatus.RETURNED, f'{{"arguments": {begun[1]}, "results": {ONE_RESULT}}}')
                    return
            with quiet():
                if begun is not None:
                    self._ended(overload, begun, args, kwargs, result)
                    return
                for _, tensor in overload.tensors_written(args, kwargs):
                    self._values.wrote(tensor, None)

    def _ended(self, overload: Overload, begun: _Begun, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        call, pictured, edges, _, used = begun
        ending = used + "}"
        writing = self._calls.writing.active
        written: list[tuple[str, Value]] = []
        if overload.written:
            slices = overload.slices(args)
            for position, tensor in overload.tensors_written(args, kwargs):
                under_way = self._calls.writing.of(tensor) if writing else None
                if under_way is not None and not under_way.read:
                    continue
                policy, kind, name = self._calls.what(call, tensor)
                new = self._values.wrote(tensor, policy, kind, name, slices)
                if new is not None:
                    written.append((position, new))
        tensors, picture = picture_result(result)
        results = self._edges(call, Role.OUTPUT, tensors, unwritten=overload.unwritten)
        edges += results
        if written:
            known = {id(value) for _, _, value in results}
            edges += [(Role.OUTPUT, position, value) for position, value in written if id(value) not in known]
            ending = f', "writes": {json.dumps([position for position, _ in written])}' + ending
        if overload.random:
            ending = ending[:-1] + ', "random": true}'
        self._record(overload, begun, CallStatus.RETURNED, f'{{"arguments": {pictured}, "results": {picture}{ending}')

    def _raised(self, overload: Overload, begun: _Begun, error: BaseException) -> None:
        said = json.dumps(f"{type(error).__name__}: {error}"[:_MAX_TEXT])
        with self._calls.lock:
            self._record(overload, begun, CallStatus.RAISED, f'{{"arguments": {begun[1]}, "raised": {said}}}')

    def _record(self, overload: Overload, begun: _Begun, status: CallStatus, detail: str) -> None:
        """A call is a row once it ended: modules that an operator itself calls come before it."""
        calls, name = self._calls, overload.name
        call, _, edges, stack, _ = begun
        path, root, parent, step, occurrence, counts = calls.place_of_operator(call)
        count = counts.get(name, 0)
        counts[name] = count + 1
        number = calls.count
        calls.count = number + 1
        row = CallRow(CallKind.OPERATOR, path, None, name, count, root, parent, step, occurrence, stack)
        self._sink.add_operator(number, row, edges, status, detail)

    def _edges(self, call: Call | None, role: Role, tensors: list[tuple[str, Tensor]], *, unwritten: bool = False) -> list[Edge]:
        calls, values = self._calls, self._values
        if unwritten or calls.writing.active or function_modes():
            with quiet():
                return [edge for position, tensor in tensors for edge in self._edges_of(call, role, position, tensor, unwritten=unwritten)]
        edges: list[Edge] = []
        for position, tensor in tensors:
            value = values.value_of(tensor, call, calls.what)
            if value is not None:
                edges.append((role, position, value))
            else:
                with quiet():
                    edges += self._edges_of(call, role, position, tensor)
        return edges

    def _edges_of(self, call: Call | None, role: Role, position: str, tensor: Tensor, *, unwritten: bool = False) -> list[Edge]:
        """The edges of a tensor of any kind; of several where it is made of several."""
        values, what, writing = self._values, self._calls.what, self._calls.writing
        if writing.active:
            collective = writing.of(tensor)
            if collective is not None and not collective.read:
                return [(role, position, values.record_unread(tensor, collective.reason()))]
        if not is_ordinary(tensor):
            policy = what(call, None)[0]
            return [(role, position + part.suffix, values.record(part.tensor, policy, part=part)) for part in plain(tensor)]
        if unwritten:
            return [(role, position, values.record_unwritten(tensor))]
        return [(role, position, values.record(tensor, *what(call, tensor)))]

    def _used(self, overload: Overload, tensors: list[tuple[str, Tensor]]) -> str:
        writing = self._calls.writing
        found = [writing.of(tensor) for _, tensor in tensors if not overload.views]
        return used_pending([use_of(collective) for collective in found if collective is not None and not collective.trusted])

    def _fail(self, error: Exception) -> None:
        self._stopped = True
        self._failed(error)
