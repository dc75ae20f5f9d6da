"""Calls that one run alone made, in few lines: an operator that it runs in every layer is said once, and so is a module."""

from __future__ import annotations

from collections.abc import Sequence

from layerdiff.rows.cells import visible
from layerdiff.rows.sites.patterns import pattern_of, tallied
from layerdiff.saved.comparison import Unpaired


def alone_texts(calls: Sequence[Unpaired]) -> list[str]:
    """One text a kind, in the order in which they first come: `aten._to_copy.default: the reference does not run it in norm, ...`."""
    operators: dict[tuple[str, str], list[str]] = {}
    modules: dict[tuple[str, str], list[str]] = {}
    texts: dict[tuple[str, str], None] = {}
    for call in calls:
        path, _, operator = call.site.partition("/")
        in_place = f" {operator} in {path or '(the root)'}"
        if operator and in_place in call.reason:
            key = operator.partition("#")[0], call.reason.replace(in_place, " it", 1)
            operators.setdefault(key, []).append(path)
        else:
            key = pattern_of(call.site), pattern_of(call.reason)
            modules.setdefault(key, []).append(call.site)
        texts[key] = None
    return [_of_operator(*key, operators[key]) if key in operators else _of_module(*key, modules[key]) for key in texts]


def _of_operator(operator: str, reason: str, paths: list[str]) -> str:
    end = reason.find(" it") + len(" it")
    return f"{visible(operator)}: {visible(reason[:end])} in {tallied(paths)}{visible(reason[end:])}"


def _of_module(site: str, reason: str, sites: list[str]) -> str:
    return f"{visible(site) or '(root)'}{f' ({len(sites)})' if len(sites) > 1 else ''}: {visible(reason)}"
