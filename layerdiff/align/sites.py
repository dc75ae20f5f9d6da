"""The calls of both runs under the names by which they are compared: wrappers stripped, rename rules applied.

A wrapper call whose inner call now has its site is dropped, and the inner call takes its place. An
operator follows its module's new name unless a rule speaks of the operator's own site. Work is done
once a distinct site: a run has a million calls, and often as many sites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.alignment import Calls
from layerdiff.align.rename import Renamer
from layerdiff.align.wrappers import WRAPPERS, mentions_wrapper, stripped_paths
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


@dataclass(frozen=True)
class _Sites:
    """The distinct sites of one run."""

    calls: Calls
    texts: list[str]
    of_call: Rows
    """Index into `texts`, one entry a call."""
    is_module: Flags
    """One entry a call."""
    of_module: list[bool]
    """Whether a site is a module's; one entry a site."""

    def path(self, site: int, text: str) -> str:
        """The module path of a site: all of it for a module's, what stands before the last slash for an operator's."""
        return text if self.of_module[site] else text.rpartition("/")[0]


def name_calls(calls: Both[Calls], renamer: Renamer) -> tuple[Both[NamedCalls], tuple[str, ...]]:
    """Both runs under the names by which they are compared, and what was stripped or renamed, in words."""
    sites = calls.map(_distinct)
    stripped, remarks = _stripped(sites)
    compared = Both(stripped.reference, _renamed(sites.target, stripped.target, renamer))
    numbers: dict[str, int] = {}
    named = [_named(side, before, after, numbers) for side, before, after in zip(sites, stripped, compared, strict=True)]
    return Both(*named), (*remarks, *renamer.remarks())


def _distinct(calls: Calls) -> _Sites:
    numbers: dict[str, int] = {}
    of_call = np.fromiter((numbers.setdefault(site, len(numbers)) for site in calls.site), np.int64, len(calls.site))
    is_module = np.asarray(calls.kind) == CallKind.MODULE
    of_module = np.zeros(len(numbers), bool)
    of_module[of_call[is_module]] = True
    return _Sites(calls, list(numbers), of_call, is_module, of_module.tolist())


def _stripped(sites: Both[_Sites]) -> tuple[Both[list[str]], list[str]]:
    """The sites without wrappers, in the order of `texts`, and what was stripped, in words."""
    if not any(mentions_wrapper(text) for side in sites for text in side.texts):
        return sites.map(lambda side: side.texts), []
    found = stripped_paths(sites.map(_types))
    remarks = [_remark(paths, name) for paths, name in ((found.reference, "reference"), (found.target, "target"))]
    texts = [[_replaced(side, site, text, paths) for site, text in enumerate(side.texts)] for side, paths in zip(sites, found, strict=True)]
    return Both(*texts), [remark for remark in remarks if remark]


def _types(sites: _Sites) -> Mapping[str, str | None]:
    """Class name by module path, None where no call of it was recorded."""
    found: dict[str, str | None] = {sites.path(site, text): None for site, text in enumerate(sites.texts) if not sites.of_module[site]}
    modules = np.flatnonzero(sites.is_module)
    first = modules[np.unique(sites.of_call[modules], return_index=True)[1]]
    found.update((sites.calls.site[call], sites.calls.type[call]) for call in first.tolist())
    return found


def _replaced(sites: _Sites, site: int, text: str, stripped: Mapping[str, str]) -> str:
    path = sites.path(site, text)
    name = stripped[path]
    return text if name == path else name + text[len(path) :]


def _remark(stripped: Mapping[str, str], side: str) -> str:
    changed = [(path, name) for path, name in stripped.items() if path is not name and path != name]
    if not changed:
        return ""
    parts = [part for part in WRAPPERS if any(part in path and _has_more(part, path, name) for path, name in changed)]
    named = ", ".join(f"`{part}.`" for part in parts)
    count = f"{len(changed)} module {'path' if len(changed) == 1 else 'paths'}"
    return f"the wrapper prefix {named} was stripped from {count} of the {side}"


def _has_more(part: str, path: str, name: str) -> bool:
    return path.split(".").count(part) > name.split(".").count(part)


def _renamed(sites: _Sites, stripped: list[str], renamer: Renamer) -> list[str]:
    """The stripped sites of the target under the reference's names."""
    if not renamer.renamed:
        return stripped
    found: list[str] = []
    of_path: dict[str, str] = {}
    for site, name in enumerate(stripped):
        renamed = renamer.rename(name)
        if renamed == name and not sites.of_module[site]:
            path = name.rpartition("/")[0]
            if path not in of_path:
                of_path[path] = renamer.rename(path)
            renamed = of_path[path] + name[len(path) :]
        found.append(renamed)
    return found


def _named(sites: _Sites, stripped: list[str], compared: list[str], numbers: dict[str, int]) -> NamedCalls:
    calls, is_module = sites.calls, sites.is_module
    own = np.fromiter((numbers.setdefault(name, len(numbers)) for name in compared), np.int64, len(compared))
    number = own[sites.of_call]
    names = calls.site if compared is sites.texts else [compared[site] for site in sites.of_call.tolist()]
    parent = np.asarray(calls.parent, np.int64)
    dropped = np.zeros(len(names), bool)
    if stripped is not sites.texts:
        dropped[_wrapping(sites, stripped, parent)] = True
    owner = climb(parent, parent, ~dropped & is_module)
    return NamedCalls(calls, names, number, is_module, dropped, climb(parent, parent, ~dropped) if dropped.any() else parent, owner)


def _wrapping(sites: _Sites, stripped: list[str], parent: Rows) -> Rows:
    """Module calls around a module call that has the same site once wrappers are stripped, and had not before."""
    numbers: dict[str, int] = {}
    number = np.fromiter((numbers.setdefault(name, len(numbers)) for name in stripped), np.int64, len(stripped))[sites.of_call]
    inner = np.flatnonzero(sites.is_module & (parent >= 0))
    outer = parent[inner]
    wraps = sites.is_module[outer] & (number[inner] == number[outer]) & (sites.of_call[inner] != sites.of_call[outer])
    found: Rows = outer[wraps]
    return found


def climb(start: Rows, parent: Rows, stop: NDArray[Any]) -> Rows:
    """The first call of each chain of parents at which `stop` holds, -1 for none. Shape as `start`."""
    found: Rows = start.copy()
    moving = np.flatnonzero(found >= 0)
    moving = moving[~stop[found[moving]]]
    while moving.size:
        found[moving] = parent[found[moving]]
        moving = moving[found[moving] != ABSENT]
        moving = moving[~stop[found[moving]]]
    return found
