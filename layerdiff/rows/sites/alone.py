"""Calls that one run alone made, in few lines: an operator that it runs in every layer is said once, and so is a module."""

from __future__ import annotations

from collections.abc import Sequence

from layerdiff.rows.cells import visible
from layerdiff.rows.figures import amount
from layerdiff.rows.sites.patterns import pattern_of, tallied
from layerdiff.saved.comparison import Unpaired


def alone_texts(calls: Sequence[Unpaired]) -> list[str]:
    """One text a kind: first operators with the modules that lack them, `aten._to_copy.default: the reference does not run it in norm`.

    Other operator calls are counted by their reason, and modules told by their names and reasons.
    """
    operators: dict[tuple[str, str], list[str]] = {}
    others: dict[tuple[str, str], list[str]] = {}
    for call in calls:
        path, _, operator = call.site.partition("/")
        in_place = f" {operator} in {path or '(the root)'}"
        if operator and in_place in call.reason:
            operators.setdefault((operator.partition("#")[0], call.reason.replace(in_place, " it", 1)), []).append(path)
        else:
            others.setdefault(("" if operator else pattern_of(call.site), pattern_of(call.reason)), []).append(call.site)
    return [_of_operator(*key, paths) for key, paths in operators.items()] + [_of_others(*key, sites) for key, sites in others.items()]


def _of_operator(operator: str, reason: str, paths: list[str]) -> str:
    end = reason.find(" it") + len(" it")
    return f"{visible(operator)}: {visible(reason[:end])} in {tallied(paths)}{visible(reason[end:])}"


def _of_others(module: str, reason: str, sites: list[str]) -> str:
    if len(sites) == 1:
        return f"{visible(sites[0]) or '(root)'}: {visible(reason)}"
    named = f"{visible(module)} ({len(sites)})" if module else f"{visible(sites[0])} and {amount(len(sites) - 1, 'more call')}"
    return f"{named}: {visible(reason)}"
