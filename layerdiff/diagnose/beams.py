"""Beam search: whether a run went on with the best of its own beams.

A search keeps the best sequences of a request: those whose summed log-probabilities are the largest of all that one token more makes
(a penalty of the length is the same for sequences of one length). A token that ends a sequence takes it out of the search. Which sequence a
token went on from is not in a trace of the model; the sums tell it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.sides import Both

Array = NDArray[Any]
_ROUNDING: Final = 1e-5
"""Of a sum of log-probabilities that a run kept in float32: two that are nearer to each other may stand in either order."""


@dataclass(frozen=True)
class Beams:
    """The sequences of one run after some tokens: their summed log-probabilities, [requests, beams]."""

    scores: NDArray[np.float64]
    ending: int | None = None
    """The token that ends a sequence, once one was passed over."""

    @classmethod
    def begin(cls, requests: int, beams: int) -> Beams:
        """All beams of a request are its prompt: one of them counts."""
        scores = np.full((requests, beams), -np.inf)
        scores[:, 0] = 0.0
        return cls(scores)

    def table(self, logits: Array) -> NDArray[np.float64]:
        """What each token more makes of each sequence, [requests, beams, vocabulary]. `logits`: [sequences, vocabulary]."""
        wide = logits.astype(np.float64).reshape(*self.scores.shape, -1)
        with np.errstate(all="ignore"):  # what is not finite is no place to go on to
            top = wide.max(-1, keepdims=True)
            log_sum: NDArray[np.float64] = top + np.log(np.exp(wide - top).sum(-1, keepdims=True))
            return self.scores[..., None] + (wide - log_sum)

    def go_on(self, table: NDArray[np.float64], tokens: Array) -> tuple[Beams, Array] | None:
        """The sequences with these tokens, [sequences], and which each went on from, [requests, beams]; None where others are better."""
        requests, beams = self.scores.shape
        chosen = tokens.reshape(requests, beams)
        scores, parents, ending = np.empty_like(self.scores), np.empty((requests, beams), np.int64), self.ending
        for request in range(requests):
            rest = list(range(beams))
            for beam, token, score in _best(table[request], 2 * beams):
                place = next((one for one in rest if chosen[request, one] == token), None)
                if place is not None:
                    scores[request, place], parents[request, place] = score, beam
                    rest.remove(place)
                elif _as_good(table[request], chosen[request, rest], score):
                    continue
                elif ending in (None, token):
                    ending = token
                else:
                    return None
                if not rest:
                    break
            if rest:
                return None
        return Beams(scores, ending), parents


@dataclass(frozen=True)
class Search:
    """How the searches of two runs went on, for as many steps as both went on with their best."""

    beams: int
    parents: Sequence[Both[Sequence[int]]]
    """By step of each sequence the one that it goes on from."""
    table: Both[NDArray[np.float64]]
    """[sequences, vocabulary]: the sum that each token more made of each sequence in the last of these steps."""
    tokens: Both[Sequence[int]]
    """Of each sequence the last."""

    def beside(self, sequence: int) -> tuple[float, float]:
        """How far the sums of both choices of a sequence lie apart in the reference, and what the target's are off them."""
        places = [(parents[sequence], tokens[sequence]) for parents, tokens in zip(self.parents[-1], self.tokens, strict=True)]
        ours, theirs = ([float(table[place]) for place in places] for table in self.table)
        return abs(ours[0] - ours[1]), max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


def search(beams: int, prompts: Both[Array], steps: Iterable[tuple[Both[Array], Both[Array]]]) -> Search:
    """Follow two runs from their prompts on.

    `prompts`: [sequences, tokens]. `steps`: the logits of each step, [sequences, vocabulary], and what the next one is given,
    [sequences, tokens]: the tokens that are new, or all.
    """
    kept = prompts.map(lambda ids: Beams.begin(len(ids) // beams, beams))
    found, before = Search(beams, (), Both(np.empty((0, 0)), np.empty((0, 0))), Both((), ())), prompts
    for logits, now in steps:
        gone = [_gone_on(*one) for one in zip(kept, logits, before, now, strict=True)]
        if gone[0] is None or gone[1] is None:
            break
        kept, both = Both(gone[0][0], gone[1][0]), Both(gone[0], gone[1])
        parents: Both[Sequence[int]] = Both(gone[0][1], gone[1][1])
        tokens = now.map(lambda ids: ids[:, -1].tolist())
        found, before = Search(beams, (*found.parents, parents), both.map(lambda one: one[2]), tokens), now
    return found


def _gone_on(kept: Beams, logits: Array, before: Array, now: Array) -> tuple[Beams, list[int], NDArray[np.float64]] | None:
    """What one run has after a step, which sequence each went on from, and the table; None where it went on with others than the best."""
    table, new = kept.table(logits), now[:, -1]
    gone = kept.go_on(table, new) if new.min() >= 0 and new.max() < table.shape[-1] else None
    if gone is None:
        return None
    beams = kept.scores.shape[1]
    parents = (gone[1] + np.arange(len(gone[1]))[:, None] * beams).reshape(-1)
    if now.shape[1] > 1 and not (now.shape[1] == before.shape[1] + 1 and np.array_equal(now[:, :-1], before[parents])):
        return None
    return gone[0], parents.tolist(), table.reshape(len(now), -1)


def _best(table: NDArray[np.float64], count: int) -> Iterator[tuple[int, int, float]]:
    """(beam, token, sum) of the best, in order. `table`: [beams, vocabulary]."""
    flat = table.reshape(-1)
    count = min(count, flat.size)
    first = np.argpartition(flat, flat.size - count)[flat.size - count :]
    for at in first[np.argsort(-flat[first], kind="stable")].tolist():
        if np.isfinite(flat[at]):
            yield at // table.shape[1], at % table.shape[1], float(flat[at])


def _as_good(table: NDArray[np.float64], tokens: Array, score: float) -> bool:
    """Whether each of these tokens, too, makes a sum that is within rounding of one that was passed over."""
    return bool((np.max(table[:, tokens], axis=0) >= score - _ROUNDING * abs(score)).all())


def counts_of_beams(prompts: Array) -> Sequence[int]:
    """How many beams a request may have, the most first: as many sequences in a row that begin alike. `prompts`: [sequences, tokens]."""
    count = len(prompts)
    return [beams for beams in range(count, 1, -1) if count % beams == 0 and _alike(prompts.reshape(-1, beams, prompts.shape[1]))]


def _alike(groups: Array) -> bool:
    return bool((groups == groups[:, :1]).all())
