"""What alignment is given and what it answers: names, numbers and reasons, no traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.sides import Both


@dataclass(frozen=True)
class Calls:
    """The calls of one process of one run, in the order in which they began; every field has one entry a call."""

    site: Sequence[str]
    """As recorded, wrapper prefixes included; '' is the root."""
    kind: NDArray[Any]
    """trace.schema.CallKind."""
    type: Sequence[str | None]
    """Class names of modules."""
    parent: NDArray[Any]
    """Index of the enclosing call, -1 for none."""
    root: NDArray[Any]
    """Index of the root module, -1 outside every root."""
    step: NDArray[Any]
    """Which forward of its root, from 0."""
    occurrence: NDArray[Any]
    """Which call of this site within the step, from 0."""
    inputs: Sequence[str]
    """For a call of a root: its input shapes as one text; '' for all others."""
    signature: Sequence[str] = ()
    """For a call of an operator: its name and the shapes of its results; '' for all others. May be left out."""
    words: Sequence[str] = ()
    """For a call of a module that runs several times in a step: the words among its arguments; '' for all others. May be left out."""
    closed: frozenset[str] = frozenset()
    """Modules of which nothing was recorded but that they ran: compiled ones."""


@dataclass(frozen=True)
class RenameRule:
    """Sites of the target that match `target` (a regular expression over the whole site) are read as `reference`.

    `reference` is a replacement with the groups of `target`, as `re.sub` has it (`\\1`, `\\g<name>`).
    """

    target: str
    reference: str


@dataclass(frozen=True)
class Alignment:
    """Which call goes with which."""

    pairs: NDArray[np.int64]
    """Shape (n, 2): reference call, target call; in the order in which the target's calls began."""
    reference_only: Sequence[tuple[int, str]] = ()
    """(call, reason) of calls inside the compared steps without a partner; likewise for the target."""
    target_only: Sequence[tuple[int, str]] = ()
    sites: Both[Sequence[str]] = Both((), ())
    """The site of each call as compared: wrapper prefixes stripped, rules applied. One entry a call."""
    parents: Both[NDArray[np.int64]] = field(default_factory=lambda: Both(np.empty(0, np.int64), np.empty(0, np.int64)))
    """The enclosing call of each call, wrapper calls skipped; -1 for none. One entry a call."""
    steps: tuple[tuple[int, int], ...] = ()
    """(reference step, target step) of the main root: the steps compared."""
    steps_all: Both[tuple[str, ...]] = Both((), ())
    """Every step of each run, as the shapes of its root inputs."""
    steps_told: bool = True
    """Whether input shapes told which steps go together."""
    remarks: tuple[str, ...] = ()
    """What was stripped, renamed, or left out, a sentence each."""
    proposed: tuple[RenameRule, ...] = ()
    """Where under half of the calls pair: rules that would pair more."""
