"""`Calls`: the calls of modules as they happen, turned into rows.

Each thread has its own stack of calls. A root's forward is a step; a module that is called while none
of its root runs belongs to the step that follows. Calls that the options leave out are on the stack all
the same, so that steps, occurrences and parents are right. A call in the backward pass is none of these: it makes again
what a checkpointed forward did not keep.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from layerdiff.record.attributes import KnownAttributes
from layerdiff.record.draws import is_capturing, random_state
from layerdiff.record.keep import Policy
from layerdiff.record.options import Options
from layerdiff.record.quiet import function_modes, quiet
from layerdiff.record.sink import Edge, Sink
from layerdiff.record.sites import Root, Site, behind_compiler, is_compiled
from layerdiff.record.structure import picture_arguments, picture_result
from layerdiff.record.tensors import is_ordinary, plain
from layerdiff.record.usual_arguments import usual_arguments
from layerdiff.record.values import Values, What
from layerdiff.record.versions import Versions
from layerdiff.record.weights import NamedStorages, Weights
from layerdiff.record.writing import Writing, use_of, used_pending
from layerdiff.trace.schema import ABSENT, CallKind, CallRow, CallStatus, Role, ValueKind

_MAX_TEXT = 200
OUTSIDE = "(outside)"
"""The module path of operators that run outside every root."""
OUTSIDE_BYTES = 64 << 20
"""What is kept of operators before the first forward, in bytes: there, models are initialised and loaded."""
OTHER_THREAD = "ran in another thread, where operators are not seen: start the Recorder in the thread that runs the model"
CAPTURED = "run while a graph was captured, and replayed unseen: switch graph capture off (vLLM: enforce_eager=True) to record it"


_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)


def _in_backward() -> bool:
    """Whether autograd runs a backward pass in this thread."""
    return _task() != -1


class Call:
    """A call that has not ended."""

    __slots__ = (
        "arguments",
        "before",
        "counts",
        "exception",
        "frame",
        "hidden",
        "lacks_weights",
        "module",
        "number",
        "occurrence",
        "opaque",
        "operators",
        "parent",
        "root",
        "site",
        "step",
        "used",
        "wants_operators",
    )

    def __init__(self, module: nn.Module, root: Root, site: Site, step: int, counts: dict[str, int]) -> None:
        self.module = module
        self.root = root
        self.site = site
        self.step = step
        self.counts = counts
        self.frame: FrameType | None = None  # torch's, of outermost calls and those of roots
        self.exception = sys.exc_info()[1]
        self.occurrence = 0
        self.number = ABSENT  # the row, where this call is recorded
        self.parent = ABSENT  # the nearest enclosing row, this one included
        self.arguments = ""  # JSON
        self.opaque: frozenset[int] = frozenset()
        self.before: str | None = None
        self.operators: dict[str, int] = {}  # how many calls of each were made here
        self.used: list[dict[str, Any]] = []  # what it was given while a collective wrote to it
        self.hidden = False  # run in a way that must not be recorded; its inner calls too
        self.wants_operators = False
        self.lacks_weights = False  # they are loaded once it runs, and gone after it


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
        self.lock = threading.RLock()
        """Held by whoever records: hooks may run in several threads, operators in one of them."""
        self.values: Values = (Values if options.operators is None else Versions)(sink, fingerprints=options.fingerprints)
        self.writing = Writing()
        """The collectives under way."""
        self._weights = Weights(self.values, options.weights, measures=sink.measures)
        self._before_all = Policy(budget=OUTSIDE_BYTES)
        self._outside_policy = Policy()
        self._named = NamedStorages()
        self._outside: tuple[int, dict[str, int]] = (-1, {})
        self.wants_outside = options.steps is None
        """Whether operators outside every root are recorded."""
        self._numbers_only = Policy(bytes_kept=False)
        self._stacks = _Stacks()
        self._thread = None if options.operators is None else threading.get_ident()
        self._roots = 0
        self._next_step = 0
        self.count = 0
        """How many calls were recorded."""

    @property
    def enclosing(self) -> Call | None:
        """The innermost call of this thread."""
        calls = self._stacks.calls
        return calls[-1] if calls else None

    def drop_abandoned(self, frame: FrameType) -> None:
        """Forget calls that a KeyboardInterrupt or the like tore down: no hook said so.

        Only frames of outermost calls and of roots are kept and looked for: asking Python for a frame is slow.
        """
        calls = self._stacks.calls
        for position in range(len(calls) - 1, -1, -1):
            expected = calls[position].frame
            if expected is None:
                continue
            running: FrameType | None = frame
            while running is not None and running is not expected:
                running = running.f_back
            if running is not None:
                return
            del calls[position:]

    def enter(
        self, root: Root, site: Site, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], frame: FrameType | None
    ) -> None:
        """A module is about to run. `frame` is torch's; needed for outermost calls and roots only."""
        calls = self._stacks.calls
        enclosing = calls[-1] if calls else None
        same_root = enclosing
        if enclosing is not None and enclosing.root is not root:
            same_root = next((call for call in reversed(calls) if call.root is root), None)
        again = _in_backward()
        begins_step = module is root.module and same_root is None and not again
        if again:
            call = Call(module, root, site, root.next_step, {})
        elif begins_step:
            call = Call(module, root, site, root.next_step, root.outside)
            root.next_step += 1
            self._next_step = root.next_step
            root.outside = {}
        elif same_root is not None:
            call = Call(module, root, site, same_root.step, same_root.counts)
        else:
            call = Call(module, root, site, root.next_step, root.outside)
        call.frame = frame
        occurrence = call.occurrence = call.counts.get(site.path, 0)
        call.counts[site.path] = occurrence + 1
        if enclosing is not None:
            call.parent, call.opaque, call.hidden = enclosing.parent, enclosing.opaque, enclosing.hidden
        elif is_capturing():
            call.hidden = True
            self._skipped[site.path] = CAPTURED
        call.hidden = call.hidden or again
        if self._thread is not None and enclosing is None and threading.get_ident() != self._thread:
            self._skipped[site.path] = OTHER_THREAD
        calls.append(call)
        steps = self._options.steps
        if call.hidden or not (site.wanted or begins_step) or (steps is not None and call.step not in steps):
            return
        call.wants_operators = site.wanted and site.operators
        if function_modes():
            with quiet():
                self._record_inputs(call, occurrence, args, kwargs, begins_step)
        else:
            self._record_inputs(call, occurrence, args, kwargs, begins_step)

    def _record_inputs(self, call: Call, occurrence: int, args: tuple[Any, ...], kwargs: Mapping[str, Any], begins_step: bool) -> None:
        site, root, sink = call.site, call.root, self._sink
        call.lacks_weights = call.wants_operators and any(one is not None and one.is_meta for one in call.module._parameters.values())
        if self.writing.active:
            self.writing.poll()
        if root.index is None:
            root.index = self._roots
            self._roots += 1
            sink.add_root(self._name_root(root.module), type(behind_compiler(root.module)).__name__)
        usual = usual_arguments(args, kwargs)
        if usual is not None:
            tensors, call.arguments = usual
        else:
            tensors, call.arguments, opaque = picture_arguments(args, kwargs, call.opaque)
            call.opaque = call.opaque | {id(thing) for thing in opaque}
        row = CallRow(CallKind.MODULE, site.path, site.type, None, 0, root.index, call.parent, call.step, occurrence)
        waits = self.writing.active  # for memory that is being written: edges are added to this call later on
        if waits:
            self._begin_row(call, row, [])
        step = (root.index, call.step)
        if begins_step:
            self._begin_step(call, step)
        edges = self._edges(call, Role.INPUT, tensors)
        for name, value in self._weights.of(call.module, site.path, site.weights, step):
            edges.append((Role.WEIGHT, name, value))
        if waits:
            sink.add_edges(call.number, edges)
        else:  # numbered last: a call of somebody's tensor subclass that was made meanwhile is a row before it
            self._begin_row(call, row, edges)

    def _begin_row(self, call: Call, row: CallRow, edges: list[Edge]) -> None:
        call.number = call.parent = self.count
        self.count += 1
        self._sink.begin_call(call.number, row, edges)

    def _begin_step(self, call: Call, step: tuple[int, int]) -> None:
        if self._options.operators is not None:
            self._named.find(call.root.module)
        if self._sink.measures:
            call.before = random_state()
        if self._options.weights == "all":
            self._weights.record_all(call.root.module, step)

    # operators

    def wants_collectives(self, call: Call | None) -> bool:
        """Whether collectives inside `call`, or outside every root, are recorded: in all modules, or their order would have gaps."""
        steps = self._options.steps
        if call is None:
            return steps is None
        return not call.hidden and call.root.index is not None and (steps is None or call.step in steps)

    def place_of_operator(self, call: Call | None) -> tuple[str, int, int, int, int, dict[str, int]]:
        """Where an operator or a collective runs: module path, root, enclosing row, step, occurrence, counts of the operators there."""
        if call is not None:
            return call.site.path, call.root.index or 0, call.parent, call.step, call.occurrence, call.operators
        step = self._next_step
        if self._outside[0] != step:
            self._outside = (step, {})
        return OUTSIDE, ABSENT, ABSENT, step, 0, self._outside[1]

    def what(self, call: Call | None, tensor: Tensor | None) -> What:
        """How an operand of an operator inside `call` is recorded: as a parameter or buffer where it is one as a whole."""
        if tensor is not None:
            found = self._named.of(tensor)
            if found is None and call is not None and call.lacks_weights:
                found = self._named.arrived(call.module, call.site.path, tensor)
            if found is not None:
                kind, name = found
                return self._weights.policies[kind], kind if name is not None else ValueKind.ACTIVATION, name
        if call is not None:
            return call.site.policy, ValueKind.ACTIVATION, None
        return self._outside_policy if self._roots else self._before_all, ValueKind.ACTIVATION, None

    def leave(self, module: nn.Module, result: Any) -> None:
        """A module has returned or raised."""
        calls = self._stacks.calls
        position = len(calls) - 1
        while position >= 0 and calls[position].module is not module:
            position -= 1
        if position < 0:
            return
        call = calls[position]
        del calls[position:]
        raised = sys.exc_info()[1]
        if raised is call.exception:
            raised = None
        if call.number != ABSENT:
            if function_modes():
                with quiet():
                    self._record_results(call, result, raised, calls[-1] if calls else None)
            else:
                self._record_results(call, result, raised, calls[-1] if calls else None)
        if call.module is call.root.module and not any(other.root is call.root for other in calls):
            self._sink.end_step()
            self.values.known.prune()

    def _record_results(self, call: Call, result: Any, raised: BaseException | None, enclosing: Call | None) -> None:
        if self.writing.active:
            self.writing.poll()
        edges: list[Edge] = []
        if raised is None:
            tensors, picture = picture_result(result, frozenset() if enclosing is None else enclosing.opaque)
            edges = self._edges(call, Role.OUTPUT, tensors)
            ending = f'"results": {picture}'
        else:
            ending = f'"raised": {json.dumps(f"{type(raised).__name__}: {raised}"[:_MAX_TEXT])}'
        if call.before is not None:
            ending += f', "random": {json.dumps({"before": call.before, "after": random_state()})}'
        ending += used_pending(call.used)
        if self._thread is not None and (threading.get_ident() != self._thread or is_compiled(call.module)):
            ending += ', "operators": false'
        attributes = call.site.attributes
        module = behind_compiler(call.module)
        if attributes is None or not attributes.are_those_of(module):
            attributes = call.site.attributes = KnownAttributes(module)
        training = "true" if call.module.training else "false"
        detail = f'{{"arguments": {call.arguments}, {ending}, "training": {training}, "attributes": {attributes.json}}}'
        self._sink.end_call(call.number, edges, CallStatus.RETURNED if raised is None else CallStatus.RAISED, detail)

    def _edges(self, call: Call, role: Role, tensors: list[tuple[str, Tensor]]) -> list[Edge]:
        if self.writing.active:
            with quiet():
                return self._edges_while_writing(call, role, tensors)
        values, what = self.values, self._what_of_module
        edges: list[Edge] = []
        for position, tensor in tensors:
            value = values.value_of(tensor, call, what)
            if value is not None:
                edges.append((role, position, value))
            else:
                with quiet():
                    policy = what(call, tensor)[0]
                    edges += [(role, position + part.suffix, values.record(part.tensor, policy, part=part)) for part in plain(tensor)]
        return edges

    def _what_of_module(self, call: Call, tensor: Tensor) -> What:
        return call.site.policy if call.site.wanted else self._numbers_only, ValueKind.ACTIVATION, None

    def _edges_while_writing(self, call: Call, role: Role, tensors: list[tuple[str, Tensor]]) -> list[Edge]:
        """The same, where some memory is not to be read yet: such edges are added when it is."""
        policy = self._what_of_module(call, tensors[0][1])[0] if tensors else self._numbers_only
        edges: list[Edge] = []
        for position, tensor in tensors:
            parts = plain(tensor)
            for part in parts:
                collective = self.writing.of(part.tensor) if part.reason is None else None
                place = position + part.suffix
                if collective is not None and role is Role.INPUT and is_ordinary(tensor) and not collective.trusted:
                    call.used.append(use_of(collective))
                if collective is None or collective.read:
                    edges.append((role, place, self.values.record(part.tensor, policy, part=None if is_ordinary(tensor) else part)))
                else:
                    collective.deferred.append((call.number, role, place, part, policy))
        return edges
