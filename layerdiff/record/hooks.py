"""`ModuleHooks`: the hooks on the modules of a model, installed last so that they see final arguments.

They return None always: anything else would replace the module's result. Forward hooks are
`always_call`, so that a module that raises still leaves the stack. A module that was compiled in place would have its hooks
compiled, too: what it calls is replaced by a function around it. Where no model is named, a global hook
waits for the outermost module that is called, and then hooks that module's own.

The first thing that a hook does is to leave when it is being compiled: dynamo traces hooks into the
code that it compiles, and what the recorder does must never be part of it. A global hook makes dynamo
compile again; the hooks of a named model do not.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from layerdiff.record.calls import Calls
from layerdiff.record.options import Options
from layerdiff.record.sites import Root, Site, is_compiled, is_compiled_in_place
from layerdiff.record.uncompiled import compiles, uncompiled

if TYPE_CHECKING:
    from layerdiff.record.operators import OperatorMode

_COMPILER_WARNING: Final = r"Using `torch.compile\(module\)` when there are global hooks"
REFUSED: Final = "ran uncompiled, though torch.compile was asked to run it: it keeps away from a run whose operators are recorded"
UNREGISTERED: Final = "called, and no submodule of the model (held in a plain list, or made on the fly): register it to record it"


class _Handle(Protocol):
    def remove(self) -> None: ...


class _InPlace:
    """Stands in for what a module that was compiled in place calls."""

    def __init__(self, hooks: ModuleHooks, module: nn.Module) -> None:
        self._module, self._compiled = module, vars(module)["_compiled_call_impl"]

        def call(*args: Any, **kwargs: Any) -> Any:
            hooks.before(module, args, kwargs)
            result = None
            try:
                result = self._compiled(*args, **kwargs)
                return result
            finally:
                hooks.after(module, args, kwargs, result)

        call._torchdynamo_orig_callable = self._compiled._torchdynamo_orig_callable  # type: ignore[attr-defined]  # so it is known as one
        self._call = vars(module)["_compiled_call_impl"] = call

    def remove(self) -> None:
        if vars(self._module).get("_compiled_call_impl") is self._call:
            vars(self._module)["_compiled_call_impl"] = self._compiled


class ModuleHooks:
    """Hooks that report to `calls`. `failed` is told of an error of our own; the model never is."""

    def __init__(
        self,
        calls: Calls,
        options: Options,
        *,
        model: nn.Module | None,
        skipped: dict[str, str],
        failed: Callable[[Exception], None],
    ) -> None:
        self._calls = calls
        self._options = options
        self._model = model
        self._skipped = skipped
        self._failed = failed
        self._lock = calls.lock
        self._handles: dict[nn.Module, tuple[_Handle, ...]] = {}
        self._global: _Handle | None = None
        self._filter: tuple[Any, ...] | None = None
        self._stopped = False
        self.roots: list[Root] = []
        self.mode: OperatorMode | None = None
        """Records the operators that run between the hooks."""

    def install(self) -> None:
        """Hook the model, or wait for one."""
        if self._model is not None:
            self._add_root(self._model)
            return
        warnings.filterwarnings("ignore", message=_COMPILER_WARNING)
        self._filter = warnings.filters[0]
        self._global = register_module_forward_pre_hook(self._discover)

    def remove(self) -> None:
        """Take all hooks off."""
        self._stopped = True
        if self._global is not None:
            self._global.remove()
        if self._filter is not None and self._filter in warnings.filters:
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined]  # a list, whatever its annotation
        for handles in self._handles.values():
            for handle in handles:
                handle.remove()
        self._handles.clear()

    def _add_root(self, module: nn.Module) -> Root:
        root = Root(module)
        self.roots.append(root)
        self._rescan(root)
        return root

    def _rescan(self, root: Root) -> None:
        for module in root.rescan(self._options, self._skipped):
            if module in self._handles:
                continue
            if is_compiled_in_place(module):
                self._handles[module] = (_InPlace(self, module),)
                continue
            try:
                before = module.register_forward_pre_hook(self.before, with_kwargs=True)
                after = module.register_forward_hook(self.after, with_kwargs=True, always_call=True)
            except (RuntimeError, AttributeError) as error:  # a scripted module may refuse
                self._skipped[root.sites[module].path] = f"refuses hooks: {error}"[:200]
            else:
                self._handles[module] = (before, after)

    # hooks; each returns None

    def _discover(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or self._stopped or module in self._handles:
            return
        self._refused(module)
        self.discover(module, args, sys._getframe(1))

    @uncompiled
    def discover(self, module: nn.Module, args: Any, frame: FrameType) -> None:
        """Make an outermost module a root, and record the call that `frame` (torch's) is about to make."""
        try:
            if getattr(module, "_is_replica", False):
                return
            with self._lock:
                self._calls.drop_abandoned(frame)
                if self._calls.enclosing is not None:
                    if is_compiled(self._calls.enclosing.module):
                        return
                    enclosing = self._calls.enclosing.site.path
                    self._skipped[f"{enclosing or '(root)'} > {type(module).__name__}"] = UNREGISTERED
                    return
                root = self._add_root(module)
                if is_compiled_in_place(module):  # of this call its stand-in does not see the end
                    self._see_end(module)
                if module in self._handles:  # its own hooks come into force with its next call
                    kwargs = frame.f_locals.get("kwargs")
                    self._calls.enter(root, root.sites[module], module, args, kwargs if isinstance(kwargs, dict) else {}, frame)
        except Exception as error:
            self._fail(error)

    def _see_end(self, module: nn.Module) -> None:
        def after(module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
            handle.remove()
            self.after(module, args, kwargs, result)

        handle = module.register_forward_hook(after, with_kwargs=True, always_call=True)

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module is about to run."""
        if torch.compiler.is_compiling() or self._stopped:
            return
        self._refused(module)
        self._enter(module, args, kwargs, sys._getframe(1))

    def after(self, module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        """It has run, or raised."""
        if torch.compiler.is_compiling() or self._stopped:
            return
        self._leave(module, result)

    def _refused(self, module: nn.Module) -> None:
        """Note it where the compiler was asked to compile what calls `module`, and keeps away because of us."""
        if self.mode is not None and self._calls.enclosing is None and compiles():
            self._skipped[f"(root) {type(module).__name__}"] = REFUSED

    @uncompiled
    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> None:
        try:
            with self._lock:
                root, site = self._locate(module, frame)
                if root is not None and site is not None:
                    outer = self._calls.enclosing is None or root.module is module
                    self._calls.enter(root, site, module, args, kwargs, frame if outer else None)
                    if self.mode is not None and is_compiled(module):
                        self.mode.pause()
        except Exception as error:
            self._fail(error)

    @uncompiled
    def _leave(self, module: nn.Module, result: Any) -> None:
        try:
            with self._lock:
                if self.mode is not None and is_compiled(module):
                    self.mode.resume()
                self._calls.leave(module, result)
        except Exception as error:
            self._fail(error)

    def _locate(self, module: nn.Module, frame: FrameType) -> tuple[Root | None, Site | None]:
        """The root that a module belongs to now: the running one's where it is in there."""
        enclosing = self._calls.enclosing
        if enclosing is not None:
            root = enclosing.root
            if root.module is not module and enclosing.frame is None:
                site = root.sites.get(module)
                if site is not None:
                    return root, site
            self._calls.drop_abandoned(frame)
            enclosing = self._calls.enclosing
            if enclosing is not None:
                site = enclosing.root.sites.get(module)
                if site is not None:
                    return enclosing.root, site
        for root in self.roots:
            if root.module is module:
                self._rescan(root)
                return root, root.sites.get(module)
        for root in self.roots:
            site = root.sites.get(module)
            if site is not None:
                return root, site
        return None, None

    def _fail(self, error: Exception) -> None:
        self._stopped = True
        self._failed(error)
