"""Wrappers: modules that only hold the model (compiled, checkpointed, sharded, data-parallel, with adapters), stripped from sites.

`_orig_mod` and its like are reserved names and always wrappers. `module` is also a name that people
give to submodules, so it is a wrapper only where the class of its holder says so, or where the other
run has the same module without it. `base_model` is the model that adapters were put into (peft), or holds it; that
one run has adapters, and the other none, is when it is stripped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from layerdiff.sides import Both

RESERVED: Final = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
MODULE: Final = "module"
ADAPTED: Final = "base_model"
WRAPPERS: Final = (*sorted(RESERVED), MODULE, ADAPTED)
_HOLDERS: Final = frozenset(
    {
        *("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "DeepSpeedEngine"),
        *("Float16Module", "OptimizedModule", "AveragedModel"),
    }
)
"""Classes whose one submodule `module` is the model."""


@dataclass(slots=True)
class _Node:
    path: str
    children: dict[str, _Node] = field(default_factory=dict)


def stripped_paths(types: Both[Mapping[str, str | None]]) -> Both[dict[str, str]]:
    """For every module path of either run, the path without wrappers.

    Args:
        types: class name by module path as recorded; '' is the root.
    """
    unreserved = types.map(lambda side: {path: _without_reserved(path) for path in side})
    adapted = types.map(lambda side: (side.get("") or "").startswith("Peft"))
    if adapted.reference != adapted.target:
        ours, theirs = (set(side.values()) for side in unreserved)
        reference, target = unreserved
        unreserved = (
            Both(_without_adapter(reference, theirs), target) if adapted.reference else Both(reference, _without_adapter(target, ours))
        )
    if not any("module" in name and MODULE in name.split(".") for side in unreserved for name in side.values()):
        return unreserved
    inner: list[dict[str, str | None]] = []
    for own, names in zip(types, unreserved, strict=True):  # of a wrapper and its module, the module's class is wanted: its path is longer
        by_length = sorted(own, key=len)
        inner.append({names[path]: own[path] for path in by_length})
    found = _without_module(Both(inner[0], inner[1]))
    return Both(
        {path: found.reference[name] for path, name in unreserved.reference.items()},
        {path: found.target[name] for path, name in unreserved.target.items()},
    )


def _without_reserved(path: str) -> str:
    if "_mod" not in path and "_fsdp" not in path:
        return path
    parts = path.split(".")
    return path if RESERVED.isdisjoint(parts) else ".".join(part for part in parts if part not in RESERVED)


def _without_adapter(names: dict[str, str], other: set[str]) -> dict[str, str]:
    """Without what leads to the model that adapters were put into: of the two ways there are, that which meets more of `other`."""

    def without(name: str, prefix: str) -> str:
        if f"{prefix}.".startswith(f"{name}."):
            return ""
        return name.removeprefix(f"{prefix}.")

    found = [{path: without(name, prefix) for path, name in names.items()} for prefix in (f"{ADAPTED}.model", ADAPTED)]
    return max(found, key=lambda each: len(other.intersection(each.values())))


def _without_module(types: Both[dict[str, str | None]]) -> Both[dict[str, str]]:
    """For every path, the path without those components `module` that are a wrapper's: both trees, walked side by side."""
    trees = types.map(_tree)
    swapped = Both(types.target, types.reference)
    found: Both[dict[str, str]] = Both({}, {})
    waiting: list[tuple[_Node | None, _Node | None, str]] = [(trees.reference, trees.target, "")]
    while waiting:
        reference, target, name = waiting.pop()
        while True:  # wrappers may hold wrappers
            if reference is not None:
                found.reference[reference.path] = name
            if target is not None:
                found.target[target.path] = name
            ours, theirs = _held(reference, target, types), _held(target, reference, swapped)
            if ours is reference and theirs is target:
                break
            if reference is not None and ours is not reference:
                waiting.extend((node, None, _join(name, part)) for part, node in reference.children.items() if node is not ours)
            if target is not None and theirs is not target:
                waiting.extend((None, node, _join(name, part)) for part, node in target.children.items() if node is not theirs)
            reference, target = ours, theirs
        inside = [node.children if node is not None else {} for node in (reference, target)]
        waiting.extend((inside[0].get(part), inside[1].get(part), _join(name, part)) for part in {**inside[0], **inside[1]})
    return found


def mentions_wrapper(site: str) -> bool:
    """Whether a component of the site's path may be a wrapper's."""
    if "_mod" not in site and "module" not in site:
        return False
    parts = site.replace("/", ".").split(".")
    return any(part in parts for part in WRAPPERS)


def _join(path: str, part: str) -> str:
    return f"{path}.{part}" if path else part


def _tree(paths: Mapping[str, str | None]) -> _Node:
    root = _Node("")
    nodes = {"": root}
    for path in paths:
        missing: list[str] = []
        known = path
        while known not in nodes:
            known, _, part = known.rpartition(".")
            missing.append(part)
        node = nodes[known]
        for part in reversed(missing):
            inside = node.children[part] = nodes[_join(node.path, part)] = _Node(_join(node.path, part))
            node = inside
    return root


def _held(node: _Node | None, other: _Node | None, types: Both[dict[str, str | None]]) -> _Node | None:
    """The module that `node` wraps, or `node` itself. `types`: of the node's own run first."""
    inner = node.children.get(MODULE) if node is not None else None
    if node is None or inner is None:
        return node
    if len(node.children) == 1 and types.reference.get(node.path) in _HOLDERS:
        return inner
    if other is None:
        return node
    return inner if _resembles(inner, other, types) > _resembles(node, other, types) else node


def _resembles(node: _Node, other: _Node, types: Both[dict[str, str | None]]) -> tuple[int, int, int]:
    """How much `node` looks like the module `other` of the other run: children in common, class, children that the other lacks."""
    common = len(node.children.keys() & other.children.keys())
    kind = types.reference.get(node.path)
    return common, int(kind is not None and kind == types.target.get(other.path)), common - len(node.children)
