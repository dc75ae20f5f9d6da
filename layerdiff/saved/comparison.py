"""`Comparison`: what a comparison found. Built by `compare`, written to and read from `.ldiff` files by this package.

Everything a screen, a report or another profile's judgement needs is here; values stay in the traces.
A Comparison is never edited: judging it under another profile makes a new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from layerdiff.diagnose.findings import Notice, Origin
from layerdiff.judge.found import Found
from layerdiff.judge.tables import PLACED, Columns, Texts, Verdict
from layerdiff.sides import Both
from layerdiff.trace.schema import CallKind

Json = Any
"""A JSON value."""


@dataclass(frozen=True)
class Side:
    """One run, as its trace describes it."""

    path: str
    environment: Mapping[str, Json]
    files: tuple[str, ...] = ()
    """The trace's files, one a process; `reference_file` and `target_file` index them."""
    complete: bool = True
    label: str = ""
    """Short text for a header: model class, main dtype, processes, device."""


@dataclass(frozen=True)
class Unpaired:
    """A call that only one side ran, with the reason that alignment gives."""

    site: str
    reason: str


@dataclass(frozen=True)
class AlignmentSummary:
    """How the calls of the two runs were paired."""

    paired: int
    reference_only: tuple[Unpaired, ...] = ()
    target_only: tuple[Unpaired, ...] = ()
    steps: tuple[tuple[int, int], ...] = ()
    """(reference step, target step), those compared."""
    steps_all: Both[tuple[str, ...]] = Both((), ())
    """Every step of each run, as the shapes of its root inputs."""
    remarks: tuple[str, ...] = ()
    """Wrapper prefixes stripped, rename rules used or proposed."""


@dataclass(frozen=True)
class SecondRun:
    """A second run of the target, held against the first; which calls differ is in the column `again`."""

    side: Side
    origins: tuple[Origin, ...] = ()
    """Local errors that only the second run has, at the rows of the first. They are among the comparison's origins too."""


@dataclass(frozen=True)
class Comparison:
    """The result of comparing a target with a reference."""

    reference: Side | None
    """None for a trace whose ranks were held against each other: every row is the target's alone."""
    target: Side
    profile: Mapping[str, Json]
    """The profile judged by, in full, so that the verdicts can be reproduced."""
    texts: Texts
    sites: Columns
    pairs: Columns
    notices: tuple[Notice, ...] = ()
    origins: tuple[Origin, ...] = ()
    alignment: AlignmentSummary = AlignmentSummary(0)
    found: tuple[Found, ...] = ()
    """What the operators' programs say, before a profile: empty where none were recorded."""
    placed: Columns = field(default_factory=lambda: {name: np.empty(0, dtype) for name, dtype in PLACED.items()})
    """Where the target's ranks hold parts of logical tensors: judge.tables.PLACED."""
    again: SecondRun | None = None
    baseline: Side | None = None
    """A run that is known to be right, such as the same model in bf16; its differences are in the column `baseline_rel_l2`."""
    checkpoints: tuple[str, ...] = ()
    """Paths of the checkpoints that have the bytes of weights."""

    @property
    def sides(self) -> tuple[tuple[str, Side], ...]:
        """The runs that there are, the reference first: ("reference", side), ("target", side)."""
        target = ("target", self.target)
        return (target,) if self.reference is None else (("reference", self.reference), target)

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of any site; NOT_COMPARABLE where no site has another.

        Also where no module could be compared and nothing was found: that operators are right by themselves says nothing of two runs.
        """
        verdicts = np.asarray(self.sites["verdict"])
        counted = verdicts[verdicts < Verdict.NOT_COMPARABLE]
        modules = np.asarray(self.sites["kind"]) == CallKind.MODULE
        paired = modules & (np.asarray(self.sites["reference_call"]) >= 0) & (np.asarray(self.sites["target_call"]) >= 0)
        if self.reference is not None and not self.origins and paired.any() and np.all(verdicts[paired] == Verdict.NOT_COMPARABLE):
            return Verdict.NOT_COMPARABLE
        return Verdict(int(counted.max())) if counted.size else Verdict.NOT_COMPARABLE

    @property
    def defect(self) -> bool:
        """True when an origin is broken, defect or unexplained, or a precision that the profile forbids, or a notice is a defect."""
        return any(origin.defect for origin in self.origins) or any(notice.defect for notice in self.notices)

    def to_json(self, *, sites: int | None = 10_000) -> dict[str, Json]:
        """The comparison as `layerdiff.comparison/1`; `sites` bounds the rows listed, None lists all."""
        from layerdiff.saved.as_json import to_json

        return to_json(self, sites=sites)

    def save(self, path: str | Path) -> Path:
        """Write a `.ldiff` file and return its path. Raises ComparisonError where it cannot be written."""
        from layerdiff.saved.file import save

        return save(self, Path(path))
