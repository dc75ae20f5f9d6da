"""`parting`: where two generations go on with other tokens, each with those that its own results say.

A loop that generates gives the model the token of the largest logit of the step before, or, with beams, those of the sequences of the
largest sums. Where a difference within rounding, or a fault, makes another the largest, the runs are given other tokens from there on.
Nobody gave them another input: the choice is a flip, and what made it is judged where it was made. Both choices are checked by the logits
that were recorded; a token that its own run's logits do not choose is an input that differs, as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.diagnose.beams import Search, counts_of_beams, search
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
    beams: int = 1
    """How many sequences a request has; of more than one, `apart` and `moved` are of sums of log-probabilities."""

    def __str__(self) -> str:
        lie = f"{self.apart:.2g} apart in the reference" if self.apart else "alike in the reference"
        own = "that of its own largest logit" if self.beams == 1 else f"the best {self.beams} beams of each request by its own logits"
        return (
            f"from step {self.step} on the runs go on with other tokens, each with {own}: of sequence "
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
    roots = roots_of(sites)
    inside = np.isin(pairs["site"], [row for rows in roots.values() for row in rows])
    if not np.any(inside & (pairs["role"] == Role.INPUT) & (pairs["mismatched"] > 0)):
        return Parting()
    of_row: dict[int, list[int]] = {}
    for pair in np.flatnonzero(inside).tolist():
        of_row.setdefault(int(pairs["site"][pair]), []).append(pair)
    for site, rows in roots.items():
        found = _Sequences(texts[site] or "", rows, sites, pairs, texts, read, of_row)
        for number in range(1, len(rows)):
            found.go_on(number)
        choices += found.choices
        given |= found.given
    return Parting(tuple(choices), frozenset(given))


def beams_of(sites: Columns, pairs: Columns, texts: Texts, read: Read, rows: Sequence[int]) -> Search | None:
    """How the beams of a root's calls, in order, went on, as far as they did in both runs; None where there is no search."""
    of_row = {row: np.flatnonzero(pairs["site"] == row).tolist() for row in rows}
    sequences = _Sequences("", rows, sites, pairs, texts, read, of_row)
    found = [one for position in sequences.positions(rows[0]) if (one := sequences.search_at(position)) is not None]
    return max(found, key=lambda one: len(one.parents), default=None)


def roots_of(sites: Columns) -> Mapping[int, list[int]]:
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
    rows: Sequence[int]
    sites: Columns
    pairs: Columns
    texts: Texts
    read: Read
    of_row: Mapping[int, list[int]]
    parted: dict[str, set[int]] = field(default_factory=dict)
    """By position of the input."""
    choices: list[Choice] = field(default_factory=list)
    given: set[int] = field(default_factory=set)
    _searches: dict[str, Search | None] = field(default_factory=dict)

    def go_on(self, number: int) -> None:
        """Explain the tokens of a call that differ, by the results of those before it."""
        row = self.rows[number]
        for pair in self._of(row, Role.INPUT):
            if not self.pairs["mismatched"][pair] > 0:
                continue
            ids = self._tokens(pair)
            if ids is None:
                continue
            position = self.texts[int(self.pairs["position"][pair])] or ""
            parted = self.parted.setdefault(position, set())
            new = set(np.flatnonzero((ids.reference != ids.target).any(1)).tolist()) - parted
            chosen = (self._chosen(number, position, ids, sorted(new)) or self._searched(number, position, sorted(new))) if new else None
            if chosen is None and new:
                continue
            if chosen is not None and not parted:
                self.choices.append(chosen)
            parted |= new
            self.given.add(pair)

    def _chosen(self, number: int, position: str, ids: Both[Array], sequences: list[int]) -> Choice | None:
        """That of the first of the sequences, each of which goes on with the token of its largest logit; None where one does not."""
        before, row = self.rows[number - 1 : number + 1]
        if ids.target.shape[1] > 1 and not self._carries_on(before, position, ids, sequences):
            return None
        for logits in self._logits(before, len(ids.target)):
            tokens = ids.map(lambda one: one[:, -1])
            if all(map(_is_largest, logits, tokens, [sequences] * 2)):
                first = sequences[0]
                both = Both(int(tokens.reference[first]), int(tokens.target[first]))
                ours, theirs = (side[first, list(both)].astype(np.float64) for side in logits)
                step = int(self.sites["step"][row])
                return Choice(self.site, step, first, both, float(ours[0] - ours[1]), float(np.abs(ours - theirs).max()))
        return None

    def _searched(self, number: int, position: str, sequences: list[int]) -> Choice | None:
        """That of the first of the sequences, where each run goes on with its own best beams, all the way; None where one does not."""
        known = self.search_at(position)
        if known is None or len(known.parents) < number:
            return None
        here = self.search_at(position, number)  # with what the sums were then
        if here is None or len(here.parents) < number:
            return None
        first, step = sequences[0], int(self.sites["step"][self.rows[number]])
        return Choice(self.site, step, first, here.tokens.map(lambda one: one[first]), *here.beside(first), here.beams)

    def search_at(self, position: str, number: int | None = None) -> Search | None:
        """The search that goes on for most steps, of the numbers of beams that the prompts may have, and of results that may be logits.

        Up to the call of this number, or as far as it goes.
        """
        if number is None and position in self._searches:
            return self._searches[position]
        prompts = self._tokens_at(self.rows[0], position)
        counts = () if prompts is None else counts_of_beams(prompts.target)
        best: Search | None = None
        if prompts is not None and counts:
            sequences = len(prompts.target)
            results = range(sum(1 for _ in self._logits(self.rows[0], sequences)))
            every = (search(beams, prompts, self._steps(position, sequences, which, number)) for beams in counts for which in results)
            best = max((one for one in every if one.parents), key=lambda one: len(one.parents), default=None)
        if number is None:
            self._searches[position] = best
        return best

    def _steps(self, position: str, sequences: int, which: int, number: int | None) -> Iterator[tuple[Both[Array], Both[Array]]]:
        """The logits of each call, and the tokens of the next; read as they are asked for. `which`: of the results that may be logits."""
        for before, row in zip(self.rows, self.rows[1 : None if number is None else number + 1], strict=False):
            logits, ids = next(islice(self._logits(before, sequences), which, None), None), self._tokens_at(row, position)
            if logits is None or ids is None or len(ids.target) != sequences:
                return
            yield logits, ids

    def positions(self, row: int) -> list[str]:
        """Of the inputs of a call that may be tokens."""
        return [self.texts[int(self.pairs["position"][pair])] or "" for pair in self._of(row, Role.INPUT) if self._tokens(pair) is not None]

    def _tokens_at(self, row: int, position: str) -> Both[Array] | None:
        of_name = (pair for pair in self._of(row, Role.INPUT) if (self.texts[int(self.pairs["position"][pair])] or "") == position)
        return next((tokens for tokens in map(self._tokens, of_name) if tokens is not None), None)

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
