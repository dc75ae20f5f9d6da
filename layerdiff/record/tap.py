"""The tap: every communication operator of this process passes by whoever listens, while somebody listens.

A kernel of ours lies at the dispatch key BackendSelect of the operators of `c10d` and `_c10d_functional`, and hands on to the
kernel below it. So what C++ issues is seen too, in any thread, inside compiled code, and under any mode; no other operator of
torch costs a nanosecond more, and a dispatch mode, which the compiler would refuse to compile under, is not needed. A work object
says that it was waited for through wrappers of its own methods. All of it is gone when the last listener leaves.

Nothing here waits, and what a listener raises is its own business (it raises nothing): the operator gets its arguments and
the caller its result, unchanged.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from layerdiff.record.collective_kinds import KINDS, WAIT, Kind
from layerdiff.record.draws import is_capturing
from layerdiff.record.issued_from import IssuedFrom
from layerdiff.record.uncompiled import uncompiled

_NOT_REAL: Final = frozenset({"FakeTensor", "FunctionalTensor"})


class Issue:
    """How an operator was called."""

    __slots__ = ("arguments", "blocking", "from_python", "kind", "schema", "stack")

    def __init__(self, kind: Kind, schema: str, arguments: dict[str, Any], where: IssuedFrom) -> None:
        self.kind = kind
        self.schema = schema
        self.arguments = arguments
        """By name, those that were left out included."""
        self.blocking = where.blocking
        """Whether a public function sends or receives, and waits itself."""
        self.from_python = where.from_python or kind.functional
        """Whether Python code issued it, which then holds what there is to wait for; C++ waits unseen."""
        self.stack = where.stack


class Listener(Protocol):
    """Hears of collectives. Its methods raise nothing."""

    def begin(self, issue: Issue) -> Any:
        """An operator is about to be called. What is returned stands for it below; None where it is of no interest."""

    def issued(self, begun: Any, result: Any, works: list[Any]) -> None:
        """The operator returned. `works`: what there is to wait for; empty where nothing is."""

    def raised(self, begun: Any, error: BaseException) -> None:
        """The operator raised."""

    def waited(self, work: Any, error: BaseException | None) -> None:
        """Somebody waited for `work` until it was complete, or failed."""

    def waited_for_tensor(self, tensor: Tensor, error: BaseException | None) -> None:
        """Somebody waited for all that writes to `tensor`."""

    def watched_by_future(self, work: Any) -> None:
        """Somebody took the future of `work`, and waits for it unseen."""

    def tap_failed(self, error: Exception) -> None:
        """It could not be found out what was called."""


class _Inside(threading.local):
    def __init__(self) -> None:
        self.works: list[Any] | None = None
        """What the operator that is running issued; None while none is."""
        self.waiting = False
        """Whether somebody waits for a work: a backend may finish it with operators of its own."""


_lock = threading.RLock()
_listeners: tuple[Listener, ...] = ()
_libraries: list[Any] = []
_methods: dict[str, Any] = {}
inside = _Inside()
"""What this thread is doing."""


def listen(listener: Listener) -> bool:
    """Let collectives pass by `listener`. False where this torch has none."""
    global _listeners
    if not torch.distributed.is_available():
        return False
    with _lock:
        if not _listeners:
            _install()
        _listeners = (*_listeners, listener)
    return True


def leave(listener: Listener) -> None:
    """Listen no longer; the last one takes the tap away."""
    global _listeners
    with _lock:
        if listener not in _listeners:
            return
        _listeners = tuple(other for other in _listeners if other is not listener)
        if not _listeners:
            _remove()


def is_completed(work: Any) -> bool:
    """Whether a work is, asked without saying that anybody asked."""
    return bool(_methods["is_completed"](work)) if _methods else bool(work.is_completed())


def failure_of(work: Any) -> BaseException | None:
    """What a completed work failed with; None where it did not, or has no future to tell (messages over gloo)."""
    try:
        future = _methods["get_future"](work) if _methods else work.get_future()
    except (RuntimeError, NotImplementedError):
        return None
    try:
        future.value()
    except Exception as error:
        return error
    return None


def _install() -> None:
    libraries: dict[str, Any] = {}
    for name in (*KINDS, WAIT):
        namespace, _, base = name.partition("::")
        packet = getattr(getattr(torch.ops, namespace), base, None)
        overload = getattr(packet, "default", None)
        if overload is None:  # an older or a newer torch
            continue
        if namespace not in libraries:
            libraries[namespace] = torch.library.Library(namespace, "IMPL")
        kernel = _waiting(overload) if name == WAIT else _kernel(overload, KINDS[name], name)
        libraries[namespace].impl(base, kernel, "BackendSelect", with_keyset=True)
    _libraries.extend(libraries.values())
    work = torch.distributed.Work
    for name, wrap in _WRAPPERS.items():
        original = work.__dict__.get(name)
        if original is not None:
            _methods[name] = original
            setattr(work, name, wrap(original))


def _remove() -> None:
    for name, original in _methods.items():
        setattr(torch.distributed.Work, name, original)
    _methods.clear()
    for library in _libraries:
        library._destroy()
    _libraries.clear()


def _kernel(overload: Any, kind: Kind, schema: str) -> Callable[..., Any]:
    names = [argument.name for argument in overload._schema.arguments]
    defaults = {argument.name: argument.default_value for argument in overload._schema.arguments if argument.has_default_value()}
    after, redispatch = _after(), overload.redispatch

    @uncompiled
    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        below = keyset & after
        if inside.works is not None:
            result = redispatch(below, *args, **kwargs)
            with contextlib.suppress(Exception):  # then nobody asks it, and the tensor is waited for
                inside.works += _works(result)
            return result
        arguments = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        if torch.compiler.is_compiling() or not _is_real(arguments) or is_capturing():
            return redispatch(below, *args, **kwargs)
        begun: list[tuple[Listener, Any]] = []
        try:
            where = IssuedFrom(sys._getframe(2))
            if not where.of_no_interest:
                issue = Issue(kind, schema, arguments, where)
                begun = [(listener, listener.begin(issue)) for listener in _listeners]
        except Exception as error:
            for listener in _listeners:
                listener.tap_failed(error)
        works = inside.works = []
        try:
            result = redispatch(below, *args, **kwargs)
        except BaseException as error:
            for listener, thing in begun:
                if thing is not None:
                    listener.raised(thing, error)
            raise
        finally:
            inside.works = None
        if begun:
            try:
                works = works if kind.functional else _works(result)
            except Exception as error:
                for listener, _ in begun:
                    listener.tap_failed(error)
            else:
                for listener, thing in begun:
                    if thing is not None:
                        listener.issued(thing, result, works)
        return result

    return kernel


def _waiting(overload: Any) -> Callable[..., Any]:
    after, redispatch = _after(), overload.redispatch

    @uncompiled
    def kernel(keyset: Any, tensor: Tensor) -> Any:
        try:
            result = redispatch(keyset & after, tensor)
        except BaseException as error:
            for listener in _listeners:
                listener.waited_for_tensor(tensor, error)
            raise
        for listener in _listeners:
            listener.waited_for_tensor(tensor, None)
        return result

    return kernel


def _after() -> Any:
    """The dispatch keys below ours."""
    return torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)


def _works(result: Any) -> list[Any]:
    """The work that an operator returned, if any: a backend that has waited itself returns none."""
    boxed = result[-1] if isinstance(result, tuple) and result else result
    if not isinstance(boxed, torch.ScriptObject):
        return []
    work = torch.distributed.Work.unbox(boxed)
    return [] if work is None else [work]


def _is_real(arguments: dict[str, Any]) -> bool:
    """Whether the operands have bytes; a compiler calls with some that have none."""
    for thing in arguments.values():
        while isinstance(thing, (list, tuple)) and thing:
            thing = thing[0]
        if isinstance(thing, Tensor):
            return type(thing).__name__ not in _NOT_REAL and not thing.is_meta
    return True


# the methods of a work


def _wait(original: Any) -> Callable[..., Any]:
    @uncompiled
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        before, inside.waiting = inside.waiting, True
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            inside.waiting = before
            for listener in _listeners:
                listener.waited(self, error)
            raise
        inside.waiting = before
        for listener in _listeners:
            listener.waited(self, None)
        return result

    return wait


def _ask(original: Any) -> Callable[..., Any]:
    @uncompiled
    def is_completed(self: Any) -> Any:
        result = original(self)
        if result:
            failure = failure_of(self)
            for listener in _listeners:
                listener.waited(self, failure)
        return result

    return is_completed


def _take(original: Any) -> Callable[..., Any]:
    @uncompiled
    def get_future(self: Any) -> Any:
        for listener in _listeners:
            listener.watched_by_future(self)
        return original(self)

    return get_future


_WRAPPERS: Final[dict[str, Callable[[Any], Callable[..., Any]]]] = {
    "wait": _wait,
    "synchronize": _wait,
    "block_current_stream": _wait,
    "is_completed": _ask,
    "get_future": _take,
}


def _forget_lock() -> None:
    """In a forked child: another thread of the parent may have held it."""
    global _lock
    _lock = threading.RLock()
    inside.works, inside.waiting = None, False


os.register_at_fork(after_in_child=_forget_lock)
