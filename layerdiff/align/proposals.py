"""Rename rules to propose where few calls pair: a prefix more or less, containers and submodules under other names.

Layers with the same name but for their numbers are one *template* (`h.#.attn`), so that a model of
many layers is as quick to look at as one of two. Candidates come from leaves that stand in the same
order with the same kind of class; a candidate is kept only for the calls that it would pair more. No
rule is ever applied without the user.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final

import numpy as np

from layerdiff.align.alignment import RenameRule
from layerdiff.align.sites import NamedCalls
from layerdiff.sides import Both

_MOST_RULES: Final = 8
_MOST_TEMPLATES: Final = 2000
_LEAST_GAIN: Final = 0.01
"""Of the target's calls: a rule that pairs fewer is not worth a user's time."""
_REST: Final = r"((?:[./].*)?)"
_KINDS: Final = ("norm", "embed", "linear", "conv", "proj", "rotary", "attention", "mlp", "dropout", "gelu", "silu", "relu", "softmax")

Path = tuple[str, ...]


@dataclass
class _Template:
    site: str
    """The first site of it."""
    kind: str
    calls: int


def propose(sides: Both[NamedCalls]) -> tuple[RenameRule, ...]:
    """Rules, to be applied in this order, each of which pairs more calls; none where no rule does."""
    templates = sides.map(_templates)
    if any(len(side) > _MOST_TEMPLATES for side in templates):
        return ()
    wanted = {template: one.calls for template, one in templates.reference.items()}
    named = [(one.site, one.calls) for one in templates.target.values()]
    candidates = list(dict.fromkeys(_candidates(templates)))
    least = max(1.0, _LEAST_GAIN * sum(calls for _, calls in named))
    chosen: list[RenameRule] = []
    score = _score(named, wanted)
    while candidates and len(chosen) < _MOST_RULES:
        tried = [(rule, [(_apply(rule, site), calls) for site, calls in named]) for rule in candidates]
        rule, renamed = max(tried, key=lambda pair: _score(pair[1], wanted))
        if _score(renamed, wanted) - score < least:
            break
        chosen.append(rule)
        candidates.remove(rule)
        named, score = renamed, _score(renamed, wanted)
    return tuple(chosen)


def _templates(named: NamedCalls) -> dict[str, _Template]:
    rows = np.flatnonzero(named.is_module & ~named.dropped)
    _, first, counts = np.unique(named.number[rows], return_index=True, return_counts=True)
    found: dict[str, _Template] = {}
    for row, calls in sorted(zip(rows[first].tolist(), counts.tolist(), strict=True)):
        site = named.names[row]
        template = _template(site)
        known = found.get(template)
        if known is None:
            found[template] = _Template(site, _kind(named.calls.type[row]), calls)
        else:
            known.calls += calls
    return found


def _template(site: str) -> str:
    return ".".join("#" if part.isdecimal() else part for part in site.split("."))


def _kind(name: str | None) -> str:
    lower = (name or "").lower()
    return next((kind for kind in _KINDS if kind in lower), lower)


def _score(named: Iterable[tuple[str, int]], wanted: Mapping[str, int]) -> int:
    """How many calls would pair."""
    counts: dict[str, int] = {}
    for site, calls in named:
        template = _template(site)
        counts[template] = counts.get(template, 0) + calls
    return sum(min(calls, wanted.get(template, 0)) for template, calls in counts.items())


def _apply(rule: RenameRule, site: str) -> str:
    match = re.fullmatch(rule.target, site)
    return site if match is None else match.expand(rule.reference)


def _candidates(templates: Both[dict[str, _Template]]) -> Iterator[RenameRule]:
    yield from _prefixes(templates)
    for ours, theirs in _leaf_pairs(templates):
        yield from _rules(ours, theirs)


def _prefixes(templates: Both[dict[str, _Template]]) -> Iterator[RenameRule]:
    """A first component that one side has and the other has not."""
    for prefix in dict.fromkeys(template.split(".")[0] for template in templates.target if "." in template):
        if prefix != "#":
            yield RenameRule(rf"{re.escape(prefix)}\.(.+)", r"\1")
    heads = dict.fromkeys(template.split(".")[0] for template in templates.target if template)
    seconds: dict[str, dict[str, None]] = {}
    for template in templates.reference:
        parts = template.split(".")
        if len(parts) > 1 and parts[0] != "#" and parts[1] in heads and parts[1] != "#":
            seconds.setdefault(parts[0], {})[parts[1]] = None
    for prefix, inside in seconds.items():
        yield RenameRule(rf"((?:{'|'.join(map(re.escape, inside))})(?:[./].*)?)", rf"{_literal(prefix)}.\1")


def _leaf_pairs(templates: Both[dict[str, _Template]]) -> Iterator[tuple[Path, Path]]:
    """Leaves of the two models that stand at the same place in the order of their kinds."""
    leaves = templates.map(_leaves)
    kinds = leaves.map(lambda side: [kind for _, kind in side])
    for what, i, i_end, j, j_end in SequenceMatcher(None, kinds.reference, kinds.target, autojunk=False).get_opcodes():
        if what == "equal" or (what == "replace" and i_end - i == j_end - j):
            for (ours, _), (theirs, _) in zip(leaves.reference[i:i_end], leaves.target[j:j_end], strict=True):
                yield tuple(ours.split(".")), tuple(theirs.split("."))


def _leaves(templates: Mapping[str, _Template]) -> list[tuple[str, str]]:
    inner: set[str] = set()
    for template in templates:
        while template:
            template = template.rpartition(".")[0]
            inner.add(template)
    return [(template, one.kind) for template, one in templates.items() if template not in inner]


def _rules(reference: Path, target: Path) -> Iterator[RenameRule]:
    """What turns one path into the other, part by part between the numbers of layers."""
    ours, theirs = _segments(reference), _segments(target)
    if len(ours) != len(theirs):
        return
    for place, (new, old) in enumerate(zip(ours, theirs, strict=True)):
        while new and old and new[-1] == old[-1]:
            new, old = new[:-1], old[:-1]
        if not old or not new:
            continue
        yield _rule(old, new, anywhere=place > 0)
        if len(old) == len(new) > 1:
            for before, after in zip(old, new, strict=True):
                if before != after:
                    yield _rule((before,), (after,), anywhere=True)


def _segments(path: Path) -> list[Path]:
    found: list[list[str]] = [[]]
    for part in path:
        if part == "#":
            found.append([])
        else:
            found[-1].append(part)
    return [tuple(segment) for segment in found]


def _rule(old: Path, new: Path, *, anywhere: bool) -> RenameRule:
    before, after = r"\.".join(map(re.escape, old)), ".".join(map(_literal, new))
    if anywhere:
        return RenameRule(rf"((?:.*\.)?){before}{_REST}", rf"\1{after}\2")
    return RenameRule(f"{before}{_REST}", rf"{after}\1")


def _literal(text: str) -> str:
    """Text as a replacement that means itself."""
    return text.replace("\\", r"\\")
