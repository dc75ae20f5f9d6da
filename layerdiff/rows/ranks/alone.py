"""A trace whose ranks were held against each other, in words: how much of it was checked, and the commands that look at it again."""

from __future__ import annotations

import shlex

import numpy as np

from layerdiff.judge.tables import Verdict
from layerdiff.rows.figures import amount, count
from layerdiff.saved.comparison import Comparison
from layerdiff.trace.schema import CallKind


def checked(comparison: Comparison) -> str:
    """`24 of 28 collective calls, 40 of 148 module calls that ranks ran alike`."""
    kinds, verdicts = np.asarray(comparison.sites["kind"]), np.asarray(comparison.sites["verdict"])
    known = verdicts < Verdict.NOT_COMPARABLE
    collectives, modules = kinds == CallKind.COLLECTIVE, kinds == CallKind.MODULE
    every = amount(int(np.count_nonzero(modules)), "module call")
    return (
        f"{count(int(np.count_nonzero(known & collectives)))} of {amount(int(np.count_nonzero(collectives)), 'collective call')}, "
        f"{count(int(np.count_nonzero(known & modules)))} of {every} given the same as on another rank"
    )


def agreement(comparison: Comparison) -> str:
    """What is said of a trace without an origin."""
    verdicts, kinds = np.asarray(comparison.sites["verdict"]), np.asarray(comparison.sites["kind"])
    known = verdicts < Verdict.NOT_COMPARABLE
    collectives = int(np.count_nonzero(known & (kinds == CallKind.COLLECTIVE)))
    modules = int(np.count_nonzero(known & (kinds == CallKind.MODULE)))
    parts = []
    if collectives:
        parts.append(f"{amount(collectives, 'collective call')} made what the ranks put in makes")
    if modules:
        parts.append(f"{amount(modules, 'module call')} made the same of the same on every rank")
    return ", and ".join(parts) or "nothing could be held against another rank"


def commands(comparison: Comparison) -> list[tuple[str, str]]:
    """(word, command line) of what to do next."""
    path = shlex.quote(comparison.target.path)
    return [
        ("keep     ", f"layerdiff diff {path} --self -o RUN.ldiff"),
        ("report   ", "layerdiff report RUN.ldiff -f markdown -o issue.md"),
        ("compare  ", f"layerdiff diff REFERENCE {path}"),
    ]
