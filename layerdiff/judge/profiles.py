"""Profiles: what a user allows. `strict`, `relaxed`, or a TOML file that starts from one of them.

base = "strict"                    # or "relaxed"; strict where absent
allow = ["tf32"]                   # tf32, quantised, low-precision-collectives
same_dtype = false                 # true: a target in another dtype is a defect

[[threshold]]                      # the first that matches a site holds
sites = "model.layers.*.mlp*"      # a glob over sites
dtype = "bfloat16"                 # optional: the coarser dtype of the pair
local = 0.02                       # what the module may add, relative
gain = 8.0                         # how much it may magnify what came in

[[rename]]                         # the target's names read as the reference's
target = 'transformer\\.h\\.(\\d+)\\.(.*)'
reference = 'model.layers.\\1.\\2'
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path
from typing import Any, Final, NoReturn

from layerdiff.align.alignment import RenameRule
from layerdiff.errors import ProfileError
from layerdiff.trace.dtypes import DTYPES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ALLOWANCES: Final = ("tf32", "quantised", "low-precision-collectives")
BUILT_IN: Final = ("strict", "relaxed")


@dataclass(frozen=True)
class Threshold:
    """A user's own limits for some sites."""

    sites: str
    dtype: str | None = None
    local: float | None = None
    """What the module may add, as a relative difference; None keeps the table's."""
    gain: float | None = None
    """How much the module may magnify the difference of its inputs; None keeps the table's."""

    def matches(self, site: str) -> bool:
        """Whether the glob matches the whole site."""
        return re.match(translate(self.sites), site) is not None


@dataclass(frozen=True)
class Profile:
    """What is allowed."""

    name: str
    allow: frozenset[str] = frozenset()
    same_dtype: bool = False
    thresholds: tuple[Threshold, ...] = ()
    renames: tuple[RenameRule, ...] = ()

    def limits(self, site: str) -> bool:
        """Whether the user set a limit for a site."""
        return any(threshold.matches(site) for threshold in self.thresholds)

    def to_json(self) -> dict[str, Any]:
        """The profile in full, so that a comparison says what it was judged by."""
        return {
            "name": self.name,
            "allow": sorted(self.allow),
            "same_dtype": self.same_dtype,
            "threshold": [vars(threshold).copy() for threshold in self.thresholds],
            "rename": [vars(rule).copy() for rule in self.renames],
        }


def load_profile(profile: str | Path | Profile) -> Profile:
    """A profile by name (`strict`, `relaxed`) or from a TOML file.

    Raises ProfileError where the file is missing, is no TOML, or has a key or a value that no profile has.
    """
    if isinstance(profile, Profile):
        return profile
    if str(profile) == "strict":
        return Profile("strict")
    if str(profile) == "relaxed":
        return Profile("relaxed", frozenset(ALLOWANCES))
    path = Path(profile)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"The profile {profile} cannot be read ({error}). Use strict, relaxed, or the path of a TOML file.") from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"{path} is not TOML: {error}") from None
    return _Reader(path).profile(data)


class _Reader:
    """Reads one file; every complaint names it and the key."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def profile(self, data: Mapping[str, Any]) -> Profile:
        self._keys(data, {"base", "allow", "same_dtype", "threshold", "rename"}, "")
        base_name = self._text(data, "base", "") or "strict"
        if base_name not in BUILT_IN:
            self._fail(f'base = "{base_name}": it must be one of {", ".join(BUILT_IN)}')
        base = load_profile(base_name)
        allow = data.get("allow", [])
        if not isinstance(allow, list) or not all(name in ALLOWANCES for name in allow):
            self._fail(f"allow must be a list of {', '.join(ALLOWANCES)}; it is {allow!r}")
        same_dtype = data.get("same_dtype", base.same_dtype)
        if not isinstance(same_dtype, bool):
            self._fail(f"same_dtype must be true or false; it is {same_dtype!r}")
        return Profile(
            str(self._path),
            base.allow | frozenset(allow),
            same_dtype,
            tuple(self._threshold(row, i) for i, row in enumerate(self._tables(data, "threshold"))),
            tuple(self._rename(row, i) for i, row in enumerate(self._tables(data, "rename"))),
        )

    def _threshold(self, row: Mapping[str, Any], i: int) -> Threshold:
        where = f"threshold {i + 1}: "
        self._keys(row, {"sites", "dtype", "local", "gain"}, where)
        sites, dtype = self._text(row, "sites", where), self._text(row, "dtype", where)
        if sites is None:
            self._fail(f'{where}sites is missing; sites = "*" means all')
        if dtype is not None and dtype not in DTYPES:
            self._fail(f'{where}dtype = "{dtype}" is no dtype; one is "bfloat16"')
        return Threshold(sites, dtype, self._real(row, "local", where), self._real(row, "gain", where))

    def _rename(self, row: Mapping[str, Any], i: int) -> RenameRule:
        where = f"rename {i + 1}: "
        self._keys(row, {"target", "reference"}, where)
        target, reference = self._text(row, "target", where), self._text(row, "reference", where)
        if target is None or reference is None:
            self._fail(f"{where}both target (a regular expression) and reference (its replacement) are needed")
        try:
            re.compile(target)
        except re.error as error:
            self._fail(f"{where}target is no regular expression: {error}")
        return RenameRule(target, reference)

    def _tables(self, data: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
        rows: Any = data.get(key, [])
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            self._fail(f"{key} must be written as [[{key}]] tables")
        return list(rows)

    def _text(self, row: Mapping[str, Any], key: str, where: str) -> str | None:
        value = row.get(key)
        if value is not None and not isinstance(value, str):
            self._fail(f"{where}{key} must be a text; it is {value!r}")
        return value

    def _real(self, row: Mapping[str, Any], key: str, where: str) -> float | None:
        value = row.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            self._fail(f"{where}{key} must be a number, 0 or more; it is {value!r}")
        return float(value)

    def _keys(self, row: Mapping[str, Any], known: set[str], where: str) -> None:
        for key in row:
            if key not in known:
                self._fail(f"{where}{key} is no key of a profile; known are {', '.join(sorted(known))}")

    def _fail(self, what: str) -> NoReturn:
        raise ProfileError(f"{self._path}: {what}.")
