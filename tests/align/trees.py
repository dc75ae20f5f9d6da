"""Calls written as indented text, so that a test shows the tree that it speaks of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from layerdiff.align.alignment import Alignment, Calls

ROOT_INPUT = "in[0] 1x8"


def calls(*lines: str, inputs: str = ROOT_INPUT) -> Calls:
    """One call a line: `site : Class`; a site with `#` is an operator. Two spaces a level. `-` is the root,
    `- @ 1x4` one with other inputs.

    A root call begins the next step; `=name` begins a call of another root, called `name`. Occurrences are counted.
    """
    site: list[str] = []
    kind, parent, step, occurrence, root = [], [], [], [], []
    types: list[str | None] = []
    shapes: list[str] = []
    stack: list[int] = []
    steps: dict[int, int] = {}
    roots: dict[str, int] = {}
    seen: dict[tuple[str, int, int], int] = {}
    for line in lines:
        depth = (len(line) - len(line.lstrip())) // 2
        text, _, type_name = line.strip().partition(" : ")
        text, _, given = text.partition(" @ ")
        name = text
        top = depth == 0 and "#" not in text
        if top:
            name = "" if text == "-" else text.lstrip("=")
            number = roots.setdefault(name, len(roots))
            steps[number] = steps.get(number, -1) + 1
        outside = depth == 0 and "#" in text
        number = -1 if outside else number
        now = steps.get(0, -1) + 1 if outside else steps[number]
        del stack[depth:]
        operator = "#" in text
        counted = site[stack[-1]] if operator and stack else name
        key = counted, number, now
        if not operator:
            seen[key] = seen.get(key, -1) + 1
        site.append(name)
        kind.append(1 if operator else 0)
        types.append(type_name or None)
        parent.append(stack[-1] if stack else -1)
        root.append(number)
        step.append(now)
        occurrence.append(seen.get(key, 0))
        shapes.append((given or inputs) if top else "")
        stack.append(len(site) - 1)
        number = max(number, 0)
    columns = [np.array(column, np.int64) for column in (kind, parent, root, step, occurrence)]
    return Calls(site, columns[0].astype(np.uint8), types, columns[1], columns[2], columns[3], columns[4], shapes)


def pairs(alignment: Alignment) -> list[tuple[int, int]]:
    """Pairs as plain tuples."""
    return [(int(r), int(t)) for r, t in alignment.pairs]


def names(alignment: Alignment) -> list[str]:
    """The compared site of each pair; the reference's, which must be the target's (operators aside)."""
    return [alignment.sites.reference[int(r)] for r, _ in alignment.pairs]


def reasons(found: Sequence[tuple[int, str]]) -> dict[int, str]:
    return dict(found)
