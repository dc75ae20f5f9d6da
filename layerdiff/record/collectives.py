"""`Collectives`: the collectives of a run as rows: what this rank put in, what came out, on which group, in which order.

What goes in is recorded before the call and what comes out after it is complete: when the caller waited, or, where nobody is seen
to wait, when the work says at a later event that it is complete. Nothing is waited for here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from layerdiff.record import tap
from layerdiff.record.calls import Call, Calls
from layerdiff.record.draws import is_capturing
from layerdiff.record.groups import Group, Groups
from layerdiff.record.identity import version_of
from layerdiff.record.keep import Policy
from layerdiff.record.quiet import quiet
from layerdiff.record.sink import Edge, Sink
from layerdiff.record.tensors import is_ordinary, plain
from layerdiff.record.writing import Collective, use_of
from layerdiff.trace.schema import ABSENT, CallKind, CallRow, CallStatus, Role, ValueKind

_MAX_TEXT: Final = 200
_OF_SOME: Final = frozenset({"tag", "input_split_sizes"})
"""Arguments of operators of which each call says something else."""
_REDUCTIONS: Final = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")


class Collectives:
    """Records into `calls`. `failed` is told of an error of our own, `tell` of what the description says; the run never is."""

    def __init__(
        self, calls: Calls, sink: Sink, failed: Callable[[Exception], None], tell: Callable[[str, Any], None] = lambda key, value: None
    ) -> None:
        self._calls = calls
        self._sink = sink
        self._failed = failed
        self._groups = Groups(tell)
        self._counts: dict[tuple[Any, ...], int] = {}
        self._alike: dict[tuple[str, str | None, bool], tuple[dict[str, Any], str]] = {}
        """By operator, reduction, and whether nobody waits: what is said, and as JSON, but for the number."""
        self._open: list[Collective] = []
        self._stopped = False
        self._policy = Policy(bytes_kept=False)
        calls.writing.poll = self.poll

    def start(self) -> None:
        """Listen."""
        tap.listen(self)

    def stop(self) -> None:
        """Listen no longer, and say of what is under way that it is."""
        tap.leave(self)
        self._guarded(self._close)
        self._stopped = True

    def forget(self) -> None:
        """In a forked child: the recording is the parent's."""
        self._stopped = True
        tap.leave(self)

    # what the tap tells

    def begin(self, issue: tap.Issue) -> Collective | None:
        """Record what goes in."""
        if self._stopped:
            return None
        try:
            with self._calls.lock:
                self.poll()
                return self._begin(issue)
        except Exception as error:
            self._fail(error)
            return None

    def issued(self, begun: Collective, result: Any, works: list[Any]) -> None:
        """The operator returned: what it writes to must not be read from now on, unless there is nothing to wait for."""
        self._guarded(self._issued, begun, result, works)

    def raised(self, begun: Collective, error: BaseException) -> None:
        """The operator raised."""
        self._guarded(self._end, begun, error)

    def waited(self, work: Any, error: BaseException | None) -> None:
        """A work was waited for: one of ours, or one that stands for several that were coalesced."""
        if self._open:
            self._guarded(self._waited, work, error)

    def waited_for_tensor(self, tensor: Tensor, error: BaseException | None) -> None:
        """All that writes to `tensor` was waited for."""
        if self._open:
            self._guarded(self._waited_for_tensor, tensor, error)

    def watched_by_future(self, work: Any) -> None:
        """Somebody waits for `work` unseen."""
        for collective in self._open:
            if any(work is one for one in collective.works):
                collective.trusted = True

    def poll(self) -> None:
        """Record the results of what is complete by now. Holds the lock of whoever calls it."""
        if self._open and not self._stopped and not is_capturing():
            for collective in list(self._open):
                if not collective.read:
                    if collective.works and not collective.coalescing and all(map(tap.is_completed, collective.works)):
                        failure = next((error for work in collective.works if (error := tap.failure_of(work)) is not None), None)
                        self._end(collective, failure, waited=collective.trusted, late=failure is None)
                elif collective.storages and all(storage.expired() for storage in collective.storages.values()):
                    self._close_one(collective)

    # how it becomes rows

    def _begin(self, issue: tap.Issue) -> Collective:
        kind, arguments, calls = issue.kind, issue.arguments, self._calls
        puts = [] if kind.puts is None else _tensors(arguments[kind.puts])
        gets = [] if kind.gets is None else _tensors(arguments[kind.gets])
        first = next(iter(puts or gets or _tensors(arguments.get("tensor"))), None)
        device = "cpu" if first is None else first.device.type
        group = self._groups.of(arguments["process_group" if "process_group" in arguments else "group_name"], device)
        call = calls.enclosing
        collective = Collective(kind, group, call)
        described = self._describe(collective, issue)
        messages = kind.source is not None or kind.destination is not None or kind.name == "c10d.recv"
        mine = torch.distributed.get_rank() if messages and torch.distributed.is_initialized() else 0
        source, destination = described.get("source"), described.get("destination")
        if source is not None and source != mine:
            puts = []
        if kind.name == "c10d.send":
            source = described["source"] = mine
        elif kind.name == "c10d.recv":
            destination = described["destination"] = mine
        self._number(collective, (source, destination) if "tag" in described else ())
        collective.trusted = not issue.from_python
        collective.coalescing = self._groups.coalesces(group)
        position = "out[{}]" if destination is None or destination == mine else None
        collective.outputs = [(position and position.format(i), tensor) for i, tensor in enumerate(gets)]
        if not calls.wants_collectives(call):
            return collective
        with quiet():
            edges = self._edges(collective, Role.INPUT, [(f"in[{i}]", tensor) for i, tensor in enumerate(puts)])
        path, root, parent, step, occurrence, counts = calls.place_of_operator(call)
        count = counts.get(kind.name, 0)
        counts[kind.name] = count + 1
        collective.number = calls.count
        calls.count += 1
        row = CallRow(CallKind.COLLECTIVE, path, None, kind.name, count, root, parent, step, occurrence, issue.stack)
        self._sink.begin_call(collective.number, row, edges, lambda: self._unfinished(collective))
        return collective

    def _unfinished(self, collective: Collective) -> str | None:
        """The detail of one that is under way; None once it has ended, when its end says more. Called by the writer."""
        return None if collective.read else self._detail(collective, finished=False)

    def _number(self, collective: Collective, ranks: tuple[int | None, ...]) -> None:
        """Count it in its group; a message between its two ranks and by its tag, or the numbers of the others would part."""
        if ranks and ranks[0] is None:
            return  # from anybody: known when it came
        key = (collective.group.name, ranks, collective.described.get("tag"))
        count = self._counts.get(key, 0)
        self._counts[key] = count + 1
        collective.sequence = collective.described["sequence"] = count

    def _describe(self, collective: Collective, issue: tap.Issue) -> dict[str, Any]:
        """What is said of it; of one among all ranks alike what was said of the last one of its kind."""
        kind, arguments = issue.kind, issue.arguments
        waits = arguments.get("async_op", arguments.get("asyncOp"))
        is_async = kind.functional or (not issue.blocking if waits is None else bool(waits))
        op = _reduction(arguments["reduce_op"]) if "reduce_op" in arguments else ""
        if kind.source is not None or kind.destination is not None or not _OF_SOME.isdisjoint(arguments):
            collective.described = self._described(issue, collective.group, op, is_async=is_async)
            return collective.described
        key = issue.schema, op, is_async
        known = self._alike.get(key)
        if known is None:
            said = self._described(issue, collective.group, op, is_async=is_async)
            rest = {name: value for name, value in said.items() if name != "sequence"}
            known = self._alike[key] = said, json.dumps(rest)[1:-1]
        collective.alike, collective.described = known, dict(known[0])
        return collective.described

    def _described(self, issue: tap.Issue, group: Group, op: str | None, *, is_async: bool) -> dict[str, Any]:
        kind, arguments = issue.kind, issue.arguments
        said: dict[str, Any] = {} if op == "" else {"op": op}
        said["sequence"] = None
        said["async"] = is_async
        for role, name in (("source", kind.source), ("destination", kind.destination)):
            if name is not None:
                said[role] = group.global_rank(int(arguments[name]))
        if "tag" in arguments:
            said["tag"] = int(arguments["tag"])
        if "input_split_sizes" in arguments and (arguments["input_split_sizes"] or arguments["output_split_sizes"]):
            said["sizes"] = {side: [int(size) for size in arguments[f"{side}_split_sizes"]] for side in ("input", "output")}
        if kind.layout is not None:
            said["layout"] = kind.layout
        if kind.coalesced:
            said["coalesced"] = True
        said["schema"] = issue.schema.replace("::", ".")
        return said

    def _detail(self, collective: Collective, *, finished: bool, error: BaseException | None = None) -> str:
        alike = collective.alike
        if alike is not None and error is None and not collective.used and len(collective.described) == len(alike[0]):
            done = "true" if finished else "false"
            return f'{{"group": {collective.group.picture}, "sequence": {collective.sequence}, {alike[1]}, "finished": {done}}}'
        said = {**collective.described, "finished": finished}
        if collective.used:
            said["used_pending"] = collective.used
        if error is not None:
            said["raised"] = f"{type(error).__name__}: {error}"[:_MAX_TEXT]
        return f'{{"group": {collective.group.picture}, {json.dumps(said)[1:]}'

    def _issued(self, collective: Collective, result: Any, works: list[Any]) -> None:
        kind = collective.kind
        if kind.functional and kind.gets is None:
            collective.outputs = [(f"out[{i}]", tensor) for i, tensor in enumerate(_tensors(result))]
        if not works and not kind.functional:
            self._end(collective, None)  # complete in the order of the current stream
            return
        collective.works = list(works)
        if collective.described["async"]:  # else the caller waits before anything else of this thread runs
            self._calls.writing.add(collective)
        if kind.functional and kind.gets is not None:
            collective.versions = []  # torch counts this write after the operator returned
        self._open.append(collective)

    def _waited(self, work: Any, error: BaseException | None) -> None:
        found = [collective for collective in self._open if any(work is one for one in collective.works)]
        if not found:
            found = [one for one in self._open if one.coalescing and not self._groups.coalesces(one.group)]
        for collective in found:
            if len(collective.works) > 1 and error is None and not collective.coalescing:
                collective.works = [one for one in collective.works if one is not work]
            else:
                self._end(collective, error)

    def _waited_for_tensor(self, tensor: Tensor, error: BaseException | None) -> None:
        try:
            address = tensor.untyped_storage()._cdata
        except (RuntimeError, NotImplementedError):
            return
        for collective in list(self._calls.writing.active.get(address, ())):
            self._end(collective, error)

    def _end(self, collective: Collective, error: BaseException | None, *, waited: bool = True, late: bool = False) -> None:
        """It is complete, or failed; `waited` says whether somebody waited for it, `late` whether that is only seen now."""
        if not collective.read:
            collective.read, collective.failure = True, error
            if collective.kind.name == "c10d.recv" and "source" not in collective.described and error is None:
                source = collective.described["source"] = _source(collective)
                self._number(collective, (source, collective.described.get("destination")))
            if late and (not collective.versions or any(was is None or version_of(it) != was for it, was in collective.versions)):
                collective.described["late"] = True
            with quiet():
                edges = self._read(collective, error)
            if collective.number != ABSENT:
                self._ended(collective, edges)
            collective.outputs, collective.versions = [], []
        if waited:
            self._close_one(collective)

    def _ended(self, collective: Collective, edges: list[Edge]) -> None:
        """Write how a collective that is read ended, with what came out."""
        failure = collective.failure
        status = CallStatus.RETURNED if failure is None else CallStatus.RAISED
        detail = self._detail(collective, finished=failure is None, error=failure)
        self._sink.end_call(collective.number, edges, status, detail)

    def _close_one(self, collective: Collective) -> None:
        self._calls.writing.remove(collective)
        if collective in self._open:
            self._open.remove(collective)

    def _read(self, collective: Collective, error: BaseException | None) -> list[Edge]:
        """Record what waited for the results, and the results, which are returned."""
        values, recorded = self._calls.values, collective.number != ABSENT
        reason = None if error is None else f"the {collective.kind.name} that writes it failed"
        edges: list[Edge] = []
        for position, tensor in collective.outputs:
            if position is None:
                values.rewritten(tensor, None)
            elif reason is None:
                edges += self._edges(collective, Role.OUTPUT, [(position, tensor)])
            elif recorded:
                edges.append((Role.OUTPUT, position, values.record_unread(tensor, reason)))
        for call, role, position, part, policy in collective.deferred:
            value = values.record(part.tensor, policy, part=part) if reason is None else values.record_unread(part.tensor, reason, part)
            self._sink.add_edges(call, [(role, position, value)])
        collective.deferred = []
        return edges if recorded else []

    def _edges(self, collective: Collective, role: Role, tensors: list[tuple[str, Tensor]]) -> list[Edge]:
        calls, values, call = self._calls, self._calls.values, collective.call
        edges: list[Edge] = []
        for position, tensor in tensors:
            policy, kind, name = self._what(call, tensor)
            other = calls.writing.of(tensor) if calls.writing.active and role is Role.INPUT else None
            if other is not None and not other.trusted:
                collective.used.append(use_of(other))
            if other is not None and not other.read:
                edges.append((role, position, values.record_unread(tensor, other.reason())))
            elif not is_ordinary(tensor):
                edges += [(role, position + part.suffix, values.record(part.tensor, policy, part=part)) for part in plain(tensor)]
            elif role is Role.OUTPUT:
                recorded = policy if collective.number != ABSENT else None
                value = values.rewritten(tensor, recorded, kind, name)
                if value is not None:
                    edges.append((role, position, value))
            else:
                edges.append((role, position, values.record(tensor, policy, kind, name)))
        return edges

    def _what(self, call: Call | None, tensor: Tensor) -> tuple[Policy, ValueKind, str | None]:
        policy, kind, name = self._calls.what(call, tensor)
        return (policy if call is None or call.site.wanted else self._policy), kind, name

    # the end

    def _close(self) -> None:
        self.poll()
        for collective in list(self._open):
            if collective.read and collective.number != ABSENT:
                collective.described["waited"] = False
                self._ended(collective, [])
            elif not collective.read:
                for call, role, position, part, _ in collective.deferred:
                    value = self._calls.values.record_unread(part.tensor, collective.reason(), part)
                    self._sink.add_edges(call, [(role, position, value)])
            self._close_one(collective)

    def tap_failed(self, error: Exception) -> None:
        """The tap itself could not say what was issued."""
        self._fail(error)

    def _guarded(self, function: Callable[..., None], *arguments: Any) -> None:
        if self._stopped:
            return
        try:
            with self._calls.lock:
                function(*arguments)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._stopped = True
        self._failed(error)


def _tensors(thing: Any) -> list[Tensor]:
    """The tensors of an argument: one, a list, or a list of lists."""
    if isinstance(thing, Tensor):
        return [thing]
    return [tensor for item in thing for tensor in _tensors(item)] if isinstance(thing, (list, tuple)) else []


def _reduction(thing: Any) -> str | None:
    """`sum`, `max`, ...; None where this torch does not say."""
    if isinstance(thing, str):
        return thing.lower()
    try:
        return _REDUCTIONS[int(thing.op())]
    except (AttributeError, RuntimeError, IndexError, TypeError):
        return None


def _source(collective: Collective) -> int | None:
    """The global rank that a message from anybody came from."""
    try:
        return collective.group.global_rank(int(collective.works[0]._source_rank()))  # type: ignore[no-any-return]
    except (AttributeError, RuntimeError, IndexError):
        return None
