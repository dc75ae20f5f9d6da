"""Wrappers: modules that only hold the model (compiled, checkpointed, sharded, data-parallel), stripped from sites.

`_orig_mod` and its like are reserved names and always wrappers. `module` is also a name that people
give to submodules, so it is a wrapper only where the class says so, or where the other run has the
same module without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from layerdiff.sides import Both

RESERVED: Final = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
MODULE: Final = "module"
_HOLDERS: Final = frozenset(
    {
        "DistributedDataParallel",
        "DataParallel",
        "FullyShardedDataParallel",
        "DeepSpeedEngine",
        "Float16Module",
        "OptimizedModule",
        "AveragedModel",
    }
)
"""Classes whose one submodule `module` is the model."""


@dataclass
class _Node:
    path: str
    children: dict[str, _Node] = field(default_factory=dict)


def stripped_paths(types: Both[Mapping[str, str | None]]) -> Both[dict[str, str]]:
    """For every module path of either run, the path without wrappers.

    Args:
        types: class name by module path as recorded; '' is the root.
    """
    trees = types.map(_tree)
    found: Both[dict[str, str]] = Both({}, {})
    waiting: list[tuple[_Node | None, _Node | None, str]] = [(trees.reference, trees.target, "")]
    while waiting:
        reference, target, name = waiting.pop()
        while True:  # wrappers may hold wrappers
            if reference is not None:
                found.reference[reference.path] = name
            if target is not None:
                found.target[target.path] = name
            inner = Both(_held(reference, target, types), _held(target, reference, Both(types.target, types.reference)))
            if inner.reference is reference and inner.target is target:
                break
            for node, held, side in ((reference, inner.reference, 0), (target, inner.target, 1)):
                for part, beside in node.children.items() if node is not None and held is not node else ():
                    if beside is not held:
                        waiting.append((None, beside, _join(name, part)) if side else (beside, None, _join(name, part)))
            reference, target = inner.reference, inner.target
        ours, theirs = (node.children if node is not None else {} for node in (reference, target))
        waiting.extend((ours.get(part), theirs.get(part), _join(name, part)) for part in {**ours, **theirs})
    return found


def mentions_wrapper(path: str) -> bool:
    """Whether a component of the path may be a wrapper's."""
    parts = path.split(".")
    return MODULE in parts or not RESERVED.isdisjoint(parts)


def _join(path: str, part: str) -> str:
    return f"{path}.{part}" if path else part


def _tree(paths: Mapping[str, str | None]) -> _Node:
    root = _Node("")
    for path in paths:
        node = root
        for part in path.split(".") if path else ():
            inside = node.children.get(part)
            if inside is None:
                inside = node.children[part] = _Node(_join(node.path, part))
            node = inside
    return root


def _held(node: _Node | None, other: _Node | None, types: Both[Mapping[str, str | None]]) -> _Node | None:
    """The module that `node` wraps, or `node` itself. `types`: of the node's own run first."""
    if node is None:
        return None
    alone = len(node.children) == 1
    for part, inner in node.children.items() if alone else ():
        if part in RESERVED or (part == MODULE and types.reference.get(node.path) in _HOLDERS):
            return inner
    inner_module = node.children.get(MODULE)
    if inner_module is None or other is None:
        return node
    return inner_module if _resembles(inner_module, other, types) > _resembles(node, other, types) else node


def _resembles(node: _Node, other: _Node, types: Both[Mapping[str, str | None]]) -> tuple[int, int, int]:
    """How much `node` looks like the module `other` of the other run: children in common, class, children that the other lacks."""
    common = len(node.children.keys() & other.children.keys())
    kind = types.reference.get(node.path)
    return common, int(kind is not None and kind == types.target.get(other.path)), common - len(node.children)
