"""A user's rename rules: sites of the target read under the reference's names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from layerdiff.align.alignment import RenameRule
from layerdiff.errors import ProfileError


class Renamer:
    """Rules in order, each applied to what the one before it made; a rule must match the whole site.

    Raises ProfileError, naming the rule, where a pattern or a replacement is wrong.
    """

    def __init__(self, rules: Sequence[RenameRule]) -> None:
        self._rules = [(number, rule, _compile(number, rule)) for number, rule in enumerate(rules, 1)]
        self.renamed = [0] * len(rules)
        """How many sites each rule has changed."""

    def rename(self, site: str) -> str:
        """The site as the reference calls it."""
        for number, rule, pattern in self._rules:
            match = pattern.fullmatch(site)
            if match is not None:
                site = match.expand(rule.reference)
                self.renamed[number - 1] += 1
        return site

    def remarks(self) -> Iterable[str]:
        """What each rule did."""
        for number, rule, _ in self._rules:
            count = self.renamed[number - 1]
            done = f"renamed {count} {'site' if count == 1 else 'sites'} of the target" if count else "matches no site of the target"
            yield f"rename rule {number} ({rule.target} -> {rule.reference}) {done}"


def _compile(number: int, rule: RenameRule) -> re.Pattern[str]:
    where = f"rename rule {number}, target = {rule.target!r}"
    try:
        pattern = re.compile(rule.target)
    except (re.error, RecursionError, OverflowError) as error:
        raise ProfileError(f"{where}: it is no regular expression: {error}.") from None
    try:  # every group is unmatched here, so this only asks whether the replacement is one
        anything = re.compile(f"{rule.target}\n|" if pattern.flags & re.VERBOSE else f"{rule.target}|").fullmatch("")
        if anything is not None:
            anything.expand(rule.reference)
    except (re.error, IndexError) as error:
        raise ProfileError(f"{where}: reference = {rule.reference!r} is no replacement for it: {error}.") from None
    return pattern
