"""Two sequences of calls aligned, with insertions and deletions: never greedily, or one added call would shift all that follow."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher


def align_sequences(
    reference: Sequence[Hashable], target: Sequence[Hashable], loose: Sequence[Sequence[Hashable]] | None = None
) -> list[tuple[int, int]]:
    """Pairs of indices of equal items in one order on both sides, as many as can be found.

    `loose`: the items of both sides under a coarser equality, by which what is left between two pairs is aligned once more.
    """
    if list(reference) == list(target):
        return [(i, i) for i in range(len(reference))]
    pairs: list[tuple[int, int]] = []
    matcher = SequenceMatcher(None, reference, target, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            pairs += [(i1 + k, j1 + k) for k in range(i2 - i1)]
        elif tag == "replace" and loose is not None:
            inner = align_sequences(loose[0][i1:i2], loose[1][j1:j2])
            pairs += [(i1 + i, j1 + j) for i, j in inner]
    return pairs
