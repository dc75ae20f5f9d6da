"""Collectives that only move data: what each rank must hold afterwards, piece by piece, and whose piece it holds instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.collectives.sums import Outcome
from layerdiff.judge.issued import Issued
from layerdiff.judge.tables import Verdict

Bits = NDArray[Any]
MOVING: Final = ("c10d.all_gather", "c10d.gather", "c10d.broadcast", "c10d.scatter", "c10d.all_to_all")
RULE: Final = "every piece is where it must be"
_SHOWN: Final = 4


@dataclass(frozen=True)
class Piece:
    """What one rank gave: its number in the group, and the bits, flat."""

    giver: int
    bits: Bits


def expected(parts: Sequence[Issued], inputs: Sequence[Sequence[Bits]], rows: Sequence[Sequence[int]], at: int) -> list[Piece] | None:
    """The pieces that the rank of number `at` must hold, in order; None where what was put in allows no reading.

    Args:
        parts: the call on each rank, in the order of the group.
        inputs: of each rank, what it put in, flat.
        rows: of each rank, the length of dimension 0 of each input.
        at: number in the group.
    """
    first = parts[at]
    if first.operator in ("c10d.all_gather", "c10d.gather"):
        if len({len(given) for given in inputs}) > 1:
            return None
        return [Piece(giver, given[i]) for i in range(len(inputs[at])) for giver, given in enumerate(inputs)]
    if first.operator in ("c10d.broadcast", "c10d.scatter"):
        ranks = [part.rank for part in parts]
        if first.source not in ranks:
            return None
        giver = ranks.index(first.source)
        given = inputs[giver]
        if first.operator == "c10d.broadcast":
            return [Piece(giver, piece) for piece in given]
        return [Piece(giver, given[at])] if len(given) == len(parts) else None
    pieces = [pieces_to(part, given, lengths, len(parts)) for part, given, lengths in zip(parts, inputs, rows, strict=True)]
    return None if any(one is None for one in pieces) else [Piece(giver, one[at]) for giver, one in enumerate(pieces) if one is not None]


def pieces_to(part: Issued, given: Sequence[Bits], rows: Sequence[int], count: int) -> list[Bits] | None:
    """What a rank sends to each of `count` others with all_to_all; None where sizes do not fit."""
    if part.layout == "list":
        return list(given) if len(given) == count else None
    if len(given) != 1:
        return None
    sizes, whole, length = part.sizes[0], given[0], rows[0]
    if not sizes:
        return list(np.split(whole, count)) if len(whole) % count == 0 else None
    if len(sizes) != count or sum(sizes) != length or (length and len(whole) % length):
        return None
    width = len(whole) // length if length else 0
    return list(np.split(whole, np.cumsum(sizes)[:-1] * width))


def moved(pieces: Sequence[Piece], got: Bits, every: Sequence[Piece], parts: Sequence[Issued], at: int) -> Outcome:
    """Judge what a rank holds, flat: the `pieces` in order. `every`: the pieces of all ranks, where another's may be found."""
    rank = parts[at].rank
    wanted = sum(len(piece.bits) for piece in pieces)
    if wanted != len(got):
        said = f"rank {rank} holds {len(got)} elements, and was sent {wanted}"
        return Outcome(Verdict.DEFECT, said, float(abs(wanted - len(got))), 0.0, RULE, ranks=(rank,))
    starts = np.cumsum([0, *(len(piece.bits) for piece in pieces)]).tolist()
    held = [got[start:stop] for start, stop in pairwise(starts)]
    wrong = [i for i, (piece, here) in enumerate(zip(pieces, held, strict=True)) if not np.array_equal(piece.bits, here)]
    if not wrong:
        return Outcome(Verdict.IDENTICAL, rule=RULE)
    known: dict[bytes, int] = {}
    for piece in every:
        known.setdefault(_key(piece.bits), piece.giver)
    words, found = [], {}
    for i in wrong:
        giver = known.get(_key(held[i])) if len(held[i]) else None
        found[i] = None if giver is None else parts[giver].rank
        here = f"rank {found[i]}'s" if giver is not None else "zeros" if not np.any(held[i]) else "no rank's"
        words.append(f"piece {i} is {here} and must be rank {parts[pieces[i].giver].rank}'s")
    more = f", and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    elements = sum(int(np.count_nonzero(pieces[i].bits != held[i])) for i in wrong)
    evidence = {"pieces": wrong[:100], "holds": [found[i] for i in wrong[:100]], "elements": elements}
    said = f"on rank {rank} {', '.join(words[:_SHOWN])}{more}"
    return Outcome(Verdict.DEFECT, said, float(elements), 0.0, RULE, ranks=(rank,), evidence=evidence)


def _key(bits: Bits) -> bytes:
    return blake2b(bits.tobytes(), digest_size=16).digest()
