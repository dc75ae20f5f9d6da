"""`Calls`: the calls of modules as they happen, turned into rows.

Each thread has its own stack of calls. A root's forward is a step; a module that is called while none
of its root runs belongs to the step that follows. Calls that the options leave out are on the stack all
the same, so that steps, occurrences and parents are right.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from torch import Tensor, nn

from layerdiff.record.attributes import Attributes
from layerdiff.record.draws import is_capturing, random_state
from layerdiff.record.keep import Policy
from layerdiff.record.options import Options
from layerdiff.record.quiet import quiet
from layerdiff.record.sink import Sink
from layerdiff.record.sites import Root, Site
from layerdiff.record.structure import picture_arguments, picture_result
from layerdiff.record.values import Values
from layerdiff.record.weights import Weights
from layerdiff.trace.schema import ABSENT, CallKind, CallRow, CallStatus, Role

_MAX_TEXT = 200
CAPTURED = "run while a graph was captured, and replayed unseen: switch graph capture off (vLLM: enforce_eager=True) to record it"


class Call:
    """A call that has not ended."""

    __slots__ = (
        "arguments",
        "before",
        "counts",
        "exception",
        "frame",
        "hidden",
        "module",
        "number",
        "opaque",
        "parent",
        "root",
        "site",
        "step",
    )

    def __init__(self, module: nn.Module, root: Root, site: Site, step: int, counts: dict[str, int], frame: FrameType) -> None:
        self.module = module
        self.root = root
        self.site = site
        self.step = step
        self.counts = counts
        self.frame = frame
        self.exception = sys.exc_info()[1]
        self.number = ABSENT  # the row, where this call is recorded
        self.parent = ABSENT  # the nearest enclosing row, this one included
        self.arguments = ""  # JSON
        self.opaque: frozenset[int] = frozenset()
        self.before: str | None = None
        self.hidden = False  # run in a way that must not be recorded; its inner calls too


class _Stacks(threading.local):
    def __init__(self) -> None:
        self.calls: list[Call] = []


class Calls:
    """Calls as the hooks see them. `enter` and `leave` are called by one thread at a time (hooks.py locks)."""

    def __init__(self, sink: Sink, options: Options, *, skipped: dict[str, str], name_root: Callable[[nn.Module], str | None]) -> None:
        self._sink = sink
        self._options = options
        self._skipped = skipped
        self._name_root = name_root
        self._values = Values(sink, fingerprints=options.fingerprints)
        self._weights = Weights(self._values, options.weights, measures=sink.measures)
        self._numbers_only = Policy(bytes_kept=False)
        self._attributes = Attributes()
        self._stacks = _Stacks()
        self._roots = 0
        self.count = 0
        """How many calls were recorded."""

    @property
    def enclosing(self) -> Call | None:
        """The innermost call of this thread."""
        calls = self._stacks.calls
        return calls[-1] if calls else None

    def drop_abandoned(self, frame: FrameType | None) -> None:
        """Forget calls that a KeyboardInterrupt or the like tore down: no hook said so."""
        calls = self._stacks.calls
        while calls:
            expected, running = calls[-1].frame, frame
            while running is not None and running is not expected:
                running = running.f_back
            if running is not None:
                return
            calls.pop()

    def enter(self, root: Root, site: Site, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], frame: FrameType) -> None:
        """A module is about to run."""
        calls = self._stacks.calls
        enclosing = calls[-1] if calls else None
        same_root = next((call for call in reversed(calls) if call.root is root), None)
        begins_step = module is root.module and same_root is None
        if begins_step:
            call = Call(module, root, site, root.next_step, root.outside, frame)
            root.next_step += 1
            root.outside = {}
        elif same_root is not None:
            call = Call(module, root, site, same_root.step, same_root.counts, frame)
        else:
            call = Call(module, root, site, root.next_step, root.outside, frame)
        occurrence = call.counts.get(site.path, 0)
        call.counts[site.path] = occurrence + 1
        if enclosing is not None:
            call.parent, call.opaque, call.hidden = enclosing.parent, enclosing.opaque, enclosing.hidden
        elif is_capturing():
            call.hidden = True
            self._skipped[site.path] = CAPTURED
        calls.append(call)
        steps = self._options.steps
        if call.hidden or not (site.wanted or begins_step) or (steps is not None and call.step not in steps):
            return
        self._record_inputs(call, occurrence, args, kwargs, begins_step)

    def _record_inputs(self, call: Call, occurrence: int, args: tuple[Any, ...], kwargs: Mapping[str, Any], begins_step: bool) -> None:
        site, root, sink = call.site, call.root, self._sink
        if root.index is None:
            root.index = self._roots
            self._roots += 1
            sink.add_root(self._name_root(root.module), type(root.module).__name__)
        tensors, call.arguments, opaque = picture_arguments(args, kwargs, call.opaque)
        if opaque:
            call.opaque = call.opaque | {id(thing) for thing in opaque}
        if begins_step and sink.measures:
            call.before = random_state()
        row = CallRow(
            kind=CallKind.MODULE,
            module=site.path,
            type=site.type,
            root=root.index,
            parent=call.parent,
            step=call.step,
            occurrence=occurrence,
        )
        sink.begin_call(row)
        call.number = call.parent = self.count
        self.count += 1
        with quiet():
            if begins_step and self._options.weights == "all":
                self._weights.record_all(root.module, (root.index, call.step))
            self._add_edges(call, Role.INPUT, tensors)
            for name, value in self._weights.of(call.module, site.path, (root.index, call.step)):
                sink.add_edge(call.number, Role.WEIGHT, name, value)

    def leave(self, module: nn.Module, result: Any) -> None:
        """A module has returned or raised."""
        calls = self._stacks.calls
        position = next((i for i in range(len(calls) - 1, -1, -1) if calls[i].module is module), None)
        if position is None:
            return
        call = calls[position]
        del calls[position:]
        raised = sys.exc_info()[1]
        if raised is call.exception:
            raised = None
        if call.number != ABSENT:
            self._record_results(call, result, raised, calls[-1] if calls else None)
        if call.module is call.root.module and not any(other.root is call.root for other in calls):
            self._sink.end_step()
            self._values.known.prune()

    def _record_results(self, call: Call, result: Any, raised: BaseException | None, enclosing: Call | None) -> None:
        detail = [f'{{"arguments": {call.arguments}']
        if raised is None:
            tensors, picture = picture_result(result, frozenset() if enclosing is None else enclosing.opaque)
            detail.append(f'"results": {picture}')
            if tensors:
                with quiet():
                    self._add_edges(call, Role.OUTPUT, tensors)
        else:
            detail.append(f'"raised": {json.dumps(f"{type(raised).__name__}: {raised}"[:_MAX_TEXT])}')
        detail.append('"training": true' if call.module.training else '"training": false')
        detail.append(f'"attributes": {self._attributes.json(call.module)}}}')
        if call.before is not None:
            random = json.dumps({"before": call.before, "after": random_state()})
            detail[-1] = f'{detail[-1][:-1]}, "random": {random}}}'
        self._sink.end_call(call.number, CallStatus.RETURNED if raised is None else CallStatus.RAISED, ", ".join(detail))

    def _add_edges(self, call: Call, role: Role, tensors: list[tuple[str, Tensor]]) -> None:
        policy = call.site.policy if call.site.wanted else self._numbers_only
        for position, tensor in tensors:
            for suffix, value in self._values.record(tensor, policy):
                self._sink.add_edge(call.number, role, position + suffix, value)
