"""The calls of both runs under the names by which they are compared: wrappers stripped, rename rules applied.

A wrapper call whose inner call now has its site is dropped, and the inner call takes its place. An
operator follows its module's new name unless a rule speaks of the operator's own site.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.alignment import Calls
from layerdiff.align.rename import Renamer
from layerdiff.align.wrappers import mentions_wrapper, stripped_paths
from layerdiff.sides import Both
from layerdiff.trace.schema import ABSENT, CallKind

Rows = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class NamedCalls:
    """The calls of one run as compared. Every array has one entry a call."""

    calls: Calls
    names: Sequence[str]
    number: Rows
    """The site's number, the same on both sides."""
    is_module: Flags
    dropped: Flags
    """Wrapper calls whose inner call takes their place."""
    parent: Rows
    """The enclosing call that is not dropped, -1 for none."""
    owner: Rows
    """The enclosing module call that is not dropped, -1 for none."""


def name_calls(calls: Both[Calls], renamer: Renamer) -> tuple[Both[NamedCalls], tuple[str, ...]]:
    """Both runs under the names by which they are compared, and what was stripped or renamed, in words."""
    is_module = calls.map(lambda side: np.asarray(side.kind) == CallKind.MODULE)
    stripped, remarks = _stripped(calls, is_module)
    own = Both(dict(stripped.reference), _renamed(stripped.target, set(_sites(calls.target, is_module.target)), renamer))
    numbers: dict[str, int] = {}
    return (
        Both(
            _named(calls.reference, stripped.reference, own.reference, is_module.reference, numbers),
            _named(calls.target, stripped.target, own.target, is_module.target, numbers),
        ),
        (*remarks, *renamer.remarks()),
    )


def _sites(calls: Calls, chosen: Flags) -> Iterable[str]:
    return (calls.site[call] for call in np.flatnonzero(chosen).tolist())


def _stripped(calls: Both[Calls], is_module: Both[Flags]) -> tuple[Both[dict[str, str]], list[str]]:
    """Stripped site by recorded site."""
    distinct = calls.map(lambda side: dict.fromkeys(side.site))
    if not any(mentions_wrapper(site.rpartition("/")[0] or site) or mentions_wrapper(site) for side in distinct for site in side):
        return distinct.map(lambda side: {site: site for site in side}), []
    modules = Both(set(_sites(calls.reference, is_module.reference)), set(_sites(calls.target, is_module.target)))
    paths = Both(_paths(distinct.reference, modules.reference), _paths(distinct.target, modules.target))
    types = Both(_types(calls.reference, is_module.reference), _types(calls.target, is_module.target))
    known = Both(*({path: own.get(path) for path in (*side.values(), *own)} for side, own in zip(paths, types, strict=True)))
    found = stripped_paths(known)
    remarks = [
        _remark(side, name)
        for side, name in ((found.reference, "reference"), (found.target, "target"))
        if any(p != n for p, n in side.items())
    ]
    return Both(*(_with_paths(side, own) for side, own in zip(paths, found, strict=True))), remarks


def _paths(sites: Iterable[str], modules: set[str]) -> dict[str, str]:
    """The module path of each site: all of it for a module's, what stands before the last slash for an operator's."""
    return {site: site if site in modules else site.rpartition("/")[0] for site in sites}


def _types(calls: Calls, is_module: Flags) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for call in np.flatnonzero(is_module).tolist():
        found.setdefault(calls.site[call], calls.type[call])
    return found


def _with_paths(paths: Mapping[str, str], stripped: Mapping[str, str]) -> dict[str, str]:
    return {site: site if path == stripped[path] else stripped[path] + site[len(path) :] for site, path in paths.items()}


def _remark(stripped: Mapping[str, str], side: str) -> str:
    parts: Counter[str] = Counter()
    for path, name in stripped.items():
        if path != name:
            parts.update((Counter(path.split(".")) - Counter(name.split("."))).keys())
    named = ", ".join(f"`{part}.`" for part, _ in parts.most_common())
    count = sum(path != name for path, name in stripped.items())
    return f"the wrapper prefix {named} was stripped from {count} module {'path' if count == 1 else 'paths'} of the {side}"


def _renamed(stripped: Mapping[str, str], modules: set[str], renamer: Renamer) -> dict[str, str]:
    """Compared site by recorded site of the target."""
    if not renamer.renamed:
        return dict(stripped)
    new: dict[str, str] = {}
    of_module: dict[str, str] = {}
    for site, name in stripped.items():
        renamed = renamer.rename(name)
        if renamed == name and site not in modules:
            path = name.rpartition("/")[0]
            if path not in of_module:
                of_module[path] = renamer.rename(path)
            renamed = of_module[path] + name[len(path) :]
        new[site] = renamed
    return new


def _named(calls: Calls, stripped: Mapping[str, str], own: Mapping[str, str], is_module: Flags, numbers: dict[str, int]) -> NamedCalls:
    for name in own.values():
        numbers.setdefault(name, len(numbers))
    of_site = {site: numbers[name] for site, name in own.items()}
    names = [own[site] for site in calls.site]
    number = np.fromiter(map(of_site.__getitem__, calls.site), np.int64, len(names))
    parent = np.asarray(calls.parent, np.int64)
    dropped = np.zeros(len(names), bool)
    if any(site != name for site, name in stripped.items()):
        inside = np.flatnonzero(is_module & (parent >= 0))
        # The same site on both ends of the edge, of paths that were different: a wrapper around its module.
        wraps = [
            int(parent[c])
            for c in inside[number[inside] == number[parent[inside]]].tolist()
            if calls.site[c] != calls.site[int(parent[c])]
            and stripped[calls.site[c]] == stripped[calls.site[int(parent[c])]]
            and is_module[int(parent[c])]
        ]
        dropped[wraps] = True
    return NamedCalls(
        calls, names, number, is_module, dropped, climb(parent, parent, ~dropped), climb(parent, parent, ~dropped & is_module)
    )


def climb(start: Rows, parent: Rows, stop: NDArray[Any]) -> Rows:
    """The first call of each chain of parents at which `stop` holds, -1 for none. Shape as `start`."""
    found = start.copy()
    moving = np.flatnonzero(found >= 0)
    moving = moving[~stop[found[moving]]]
    while moving.size:
        found[moving] = parent[found[moving]]
        moving = moving[found[moving] != ABSENT]
        moving = moving[~stop[found[moving]]]
    return found
