"""What is kept of a value: its bytes, or its numbers only.

    full            bytes, statistics and fingerprint
    full:2GB        the same until 2 GB of bytes were kept, then as `statistics`
    statistics      no bytes

A policy may be given for modules by glob (`*.mlp=statistics,full:2GB`; the first that matches counts;
`*` also matches dots). Statistics and fingerprints are always recorded, whatever the policy, and a
value without bytes says why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from layerdiff.errors import RecorderError

NOT_KEPT: Final = "not kept: statistics only by the keep policy"
_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?", re.IGNORECASE)


@dataclass
class Policy:
    """What is kept where one rule applies. A budget is shared by all values of the rule."""

    bytes_kept: bool = True
    budget: int | None = None
    """In bytes; None for no limit."""
    spent: int = field(default=0, compare=False)

    @property
    def keeps_all(self) -> bool:
        """Whether the bytes of every value are kept."""
        return self.bytes_kept and self.budget is None

    def refuse(self, nbytes: int) -> str | None:
        """Take `nbytes` of the budget, or say why the bytes are not kept."""
        if not self.bytes_kept:
            return NOT_KEPT
        if self.budget is not None and self.spent + nbytes > self.budget:
            return f"not kept: {nbytes} bytes do not fit the budget, {self.spent} of {self.budget} bytes are used"
        self.spent += nbytes
        return None

    def give_back(self, nbytes: int) -> None:
        """Return `nbytes` that turned out to be stored already."""
        self.spent -= nbytes


class Keep:
    """The policies of a recording, by module path.

    Raises RecorderError where `rules` cannot be understood.
    """

    def __init__(self, rules: str | Mapping[str, str] | None = None) -> None:
        pairs: list[tuple[str, str]]
        if rules is None:
            pairs = []
        elif isinstance(rules, str):
            pairs = [_split(part) for part in rules.split(",") if part.strip()]
            if not pairs:
                raise RecorderError(f"keep={rules!r} names no policy. Use full, statistics or full:2GB, or GLOB=POLICY for some modules.")
        elif isinstance(rules, Mapping):
            pairs = list(rules.items())
        else:
            raise RecorderError(f"keep={rules!r} is neither a text nor a mapping of globs to policies.")
        self._rules = [(glob, parse_policy(policy)) for glob, policy in pairs]
        self._default = Policy()

    def policy(self, path: str) -> Policy:
        """The policy of the module at `path`: that of the first glob that matches, else `full`."""
        return next((policy for glob, policy in self._rules if fnmatchcase(path, glob)), self._default)


def parse_policy(text: str) -> Policy:
    """A policy as written. Raises RecorderError."""
    name, _, size = str(text).strip().partition(":")
    if name == "statistics" and not size:
        return Policy(bytes_kept=False)
    if name == "full":
        return Policy(budget=parse_size(size) if size else None)
    raise RecorderError(f"{text!r} is no keep policy. Use full, statistics, or a budget such as full:2GB.")


def parse_size(text: str) -> int:
    """Bytes from `500MB`, `2GB`, `1.5GiB` or a plain number. Raises RecorderError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise RecorderError(f"{text!r} is no size. Write it as 500MB, 2GB or 1.5GiB.")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _split(part: str) -> tuple[str, str]:
    glob, separator, policy = part.strip().rpartition("=")
    return (glob.strip(), policy.strip()) if separator else ("*", part.strip())
