"""Roots and their modules: which module has which path, and which of them cannot be seen.

A compiled module is a leaf here, in whichever of torch's ways it was compiled, and a scripted one is not here at all. Their inside
never runs as Python, and a hook on a module inside would be traced into the compiled code, which changes the run.
"""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import nn

from layerdiff.record.attributes import KnownAttributes
from layerdiff.record.held import HeldWeight
from layerdiff.record.keep import Policy
from layerdiff.record.options import Options

COMPILED: Final = "compiled: set TORCHDYNAMO_DISABLE=1 to record inside"
SCRIPTED: Final = "scripted, so its calls are not seen: set PYTORCH_JIT=0 to record it"


@dataclass(eq=False, slots=True)
class Site:
    """A module of a root, and what was found out about it before."""

    path: str
    type: str
    wanted: bool
    operators: bool
    """Whether the operators that it calls are recorded."""
    policy: Policy
    attributes: KnownAttributes | None = None
    weights: dict[str, HeldWeight] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Root:
    """An outermost module, with the sites of all modules that it holds."""

    module: nn.Module
    index: int | None = None
    """In order of first call; None until then."""
    next_step: int = 0
    sites: dict[nn.Module, Site] = field(default_factory=dict)
    outside: dict[str, int] = field(default_factory=dict)
    """Calls of each path since the last forward: they count to the step of the next one."""

    def rescan(self, options: Options, skipped: dict[str, str]) -> list[nn.Module]:
        """Bring the sites up to date; returns the modules that are new. What cannot be seen goes to `skipped`."""
        found, hidden = visible_modules(self.module)
        skipped.update(hidden)
        known = self.sites
        if len(found) == len(known) and all((site := known.get(module)) and site.path == path for module, path in found.items()):
            return []
        self.sites = {}
        for module, path in found.items():
            site = known.get(module)
            self.sites[module] = site if site is not None and site.path == path else _site(module, path, options)
        return [module for module in found if module not in known]


def _site(module: nn.Module, path: str, options: Options) -> Site:
    name = type(behind_compiler(module)).__name__
    return Site(path, name, options.wants(path, name), options.wants_operators(path), options.keep.policy(path))


def visible_modules(root: nn.Module) -> tuple[dict[nn.Module, str], dict[str, str]]:
    """Modules whose calls can be seen, with their paths in order, and why others cannot, by path."""
    found: dict[nn.Module, str] = {}
    hidden: dict[str, str] = {}
    stack = [(root, "")]
    while stack:
        module, path = stack.pop()
        if module in found:
            continue
        if isinstance(module, torch.jit.ScriptModule):  # takes no hooks from Python
            hidden[path] = SCRIPTED
            continue
        found[module] = path
        if is_compiled(module):
            hidden[path] = COMPILED
        else:
            prefix = path + "." if path else ""
            stack += [(child, prefix + name) for name, child in reversed(module._modules.items()) if child is not None]
    return found, hidden


def is_compiled(module: nn.Module) -> bool:
    """Whether a call of `module` runs compiled code: `torch.compile(module)`, `module.compile()`, `module.forward = torch.compile(...)`.

    Does not import the compiler.
    """
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is None:
        return False
    return (
        isinstance(module, frames.OptimizedModule) or is_compiled_in_place(module) or _is_callable_of_compiler(vars(module).get("forward"))
    )


def is_compiled_in_place(module: nn.Module) -> bool:
    """Whether `module.compile()` was called, and the compiler was on."""
    return _is_callable_of_compiler(getattr(module, "_compiled_call_impl", None))


def behind_compiler(module: nn.Module) -> nn.Module:
    """The module that `torch.compile` was given, where `module` is what it returned; else itself."""
    inner = module._modules.get("_orig_mod") if is_compiled(module) else None
    return module if inner is None else inner


def _is_callable_of_compiler(function: object) -> bool:
    return hasattr(function, "_torchdynamo_orig_callable")


def attribute_that_holds(module: nn.Module) -> str | None:
    """The name of the one attribute, of an object that is no module, that holds `module`; None where there is none or many."""
    names: set[str] = set()
    for holder in gc.get_referrers(module):
        if isinstance(holder, dict):
            if "__name__" in holder or "_modules" in holder:  # the globals of a file, the insides of a module
                continue
            owners = [owner for owner in gc.get_referrers(holder) if getattr(owner, "__dict__", None) is holder]
            held = holder if owners else {}
        elif isinstance(holder, (nn.Module, type)) or not hasattr(holder, "__dict__"):
            continue
        else:
            held = vars(holder)
        names.update(name for name, thing in list(held.items()) if thing is module and isinstance(name, str) and name.isidentifier())
    return names.pop() if len(names) == 1 else None
