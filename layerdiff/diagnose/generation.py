"""`parting`: where two generations go on with other tokens, each with those that its own results say.

A loop that generates gives the model the token of the largest logit of the step before. Where a difference within rounding, or a
fault, makes another logit the largest, the runs are given other tokens from there on. Nobody gave them another input: the choice is a
flip, and what made it is judged where it was made. Both choices are checked by the logits that were recorded; a token that is not
the largest of its own run's is an input that differs, as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.tables import Columns, Source, Texts
from layerdiff.sides import Both
from layerdiff.trace.schema import CallKind, Role

Array = NDArray[Any]
Read = Callable[[int], Both[Array] | None]
"""Both sides' numbers of a pair of values, None where they are not at hand."""
_MOST: Final = 1 << 26
"""Elements of results that are looked at."""


@dataclass(frozen=True)
class Choice:
    """The first tokens that differ: of which sequence, and the logits that they were chosen by."""

    site: str
    step: int
    """The step that is given them; the logits are of the one before."""
    sequence: int
    tokens: Both[int]
    apart: float
    """How much larger the reference's logit of its own token is than that of the target's."""
    moved: float
    """The larger of what the target's two logits are off the reference's."""

    def __str__(self) -> str:
        lie = f"{self.apart:.2g} apart in the reference" if self.apart else "alike in the reference"
        return (
            f"from step {self.step} on the runs go on with other tokens, each with that of its own largest logit: of sequence "
            f"{self.sequence} {self.tokens.reference} against {self.tokens.target}, which lie {lie} and are moved by up to {self.moved:.2g}"
        )


@dataclass(frozen=True)
class Parting:
    """Where generations parted: the first choice of each root, and the pairs of inputs that differ for that reason alone."""

    choices: tuple[Choice, ...] = ()
    given: frozenset[int] = frozenset()

    def before(self, step: int) -> bool:
        """Whether tokens had parted in an earlier step, or in this one."""
        return any(choice.step <= step for choice in self.choices)


def parting(sites: Columns, pairs: Columns, texts: Texts, read: Read) -> Parting:
    """Look for it in the tables of a measured comparison. Values are read only where tokens differ."""
    choices: list[Choice] = []
    given: set[int] = set()
    roots = _roots(sites)
    inside = np.isin(pairs["site"], [row for rows in roots.values() for row in rows])
    if not np.any(inside & (pairs["role"] == Role.INPUT) & (pairs["mismatched"] > 0)):
        return Parting()
    of_row: dict[int, list[int]] = {}
    for pair in np.flatnonzero(inside).tolist():
        of_row.setdefault(int(pairs["site"][pair]), []).append(pair)
    for site, rows in roots.items():
        found = _Sequences(texts[site] or "", sites, pairs, texts, read, of_row)
        for before, row in zip([None, *rows], rows, strict=False):
            found.go_on(before, row)
        choices += found.choices
        given |= found.given
    return Parting(tuple(choices), frozenset(given))


def _roots(sites: Columns) -> Mapping[int, list[int]]:
    """The rows of each root that both ran, step by step."""
    rows = np.flatnonzero(
        (sites["parent"] < 0) & (sites["kind"] == CallKind.MODULE) & (sites["reference_call"] >= 0) & (sites["target_call"] >= 0)
    )
    found: dict[int, list[int]] = {}
    for row in rows[np.lexsort((sites["occurrence"][rows], sites["step"][rows]))].tolist():
        found.setdefault(int(sites["site"][row]), []).append(row)
    return found


@dataclass
class _Sequences:
    """The sequences of one root, and which of them have parted."""

    site: str
    sites: Columns
    pairs: Columns
    texts: Texts
    read: Read
    of_row: Mapping[int, list[int]]
    parted: dict[str, set[int]] = field(default_factory=dict)
    """By position of the input."""
    choices: list[Choice] = field(default_factory=list)
    given: set[int] = field(default_factory=set)

    def go_on(self, before: int | None, row: int) -> None:
        """Explain the tokens of a call that differ, by the results of the call before it."""
        for pair in self._of(row, Role.INPUT):
            if not self.pairs["mismatched"][pair] > 0 or before is None:
                continue
            ids = self._tokens(pair)
            if ids is None:
                continue
            position = self.texts[int(self.pairs["position"][pair])] or ""
            parted = self.parted.setdefault(position, set())
            new = set(np.flatnonzero((ids.reference != ids.target).any(1)).tolist()) - parted
            chosen = self._chosen(before, position, ids, sorted(new)) if new else None
            if chosen is None and new:
                continue
            if chosen is not None and not parted:
                self.choices.append(Choice(self.site, int(self.sites["step"][row]), *chosen))
            parted |= new
            self.given.add(pair)

    def _chosen(self, before: int, position: str, ids: Both[Array], sequences: list[int]) -> tuple[int, Both[int], float, float] | None:
        """The first of the sequences, its tokens, how far their logits lie apart and moved; None where one was chosen otherwise."""
        if ids.target.shape[1] > 1 and not self._carries_on(before, position, ids, sequences):
            return None
        for logits in self._logits(before, len(ids.target)):
            tokens = ids.map(lambda one: one[:, -1])
            if all(map(_is_largest, logits, tokens, [sequences] * 2)):
                first = sequences[0]
                both = Both(int(tokens.reference[first]), int(tokens.target[first]))
                ours, theirs = (side[first, list(both)].astype(np.float64) for side in logits)
                return first, both, float(ours[0] - ours[1]), float(np.abs(ours - theirs).max())
        return None

    def _carries_on(self, before: int, position: str, ids: Both[Array], sequences: list[int]) -> bool:
        """Whether sequences that are given whole are those of the step before and one token more."""
        for pair in self._of(before, Role.INPUT):
            if (self.texts[int(self.pairs["position"][pair])] or "") == position and (earlier := self._tokens(pair)) is not None:
                same = [
                    now.shape[1] == then.shape[1] + 1 and len(now) == len(then) and np.array_equal(now[sequences, :-1], then[sequences])
                    for now, then in zip(ids, earlier, strict=True)
                ]
                return all(same)
        return False

    def _of(self, row: int, role: Role) -> list[int]:
        return [pair for pair in self.of_row.get(row, ()) if self.pairs["role"][pair] == role]

    def _tokens(self, pair: int) -> Both[Array] | None:
        """[sequences, tokens], of whole numbers."""
        both = self.read(pair) if self.pairs["source"][pair] == Source.BYTES and self.pairs["count"][pair] <= _MOST else None
        if both is None or any(one.dtype.kind not in "iu" or one.ndim not in (1, 2) or not one.size for one in both):
            return None
        ids = both.map(lambda one: one.astype(np.int64).reshape(len(one), -1))
        return ids if ids.reference.shape == ids.target.shape else None

    def _logits(self, row: int, sequences: int) -> Iterator[Both[Array]]:
        """Results that may be them: of the last token of each sequence, [sequences, vocabulary]."""
        for pair in self._of(row, Role.OUTPUT):
            if self.pairs["source"][pair] != Source.BYTES or self.pairs["count"][pair] > _MOST:
                continue
            both = self.read(pair)
            if both is None or any(
                one.dtype.kind != "f" or one.ndim not in (2, 3) or len(one) != sequences or not one.size for one in both
            ):
                continue
            last = both.map(lambda one: one[:, -1] if one.ndim == 3 else one)
            if last.reference.shape == last.target.shape:
                yield last


def _is_largest(logits: Array, tokens: Array, sequences: list[int]) -> bool:
    """Whether each token's logit is the largest of its sequence's."""
    chosen = tokens[sequences]
    if not ((chosen >= 0) & (chosen < logits.shape[1])).all():
        return False
    return bool((logits[sequences, chosen] == logits[sequences].max(1)).all())
