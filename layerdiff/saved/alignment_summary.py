"""How the calls of two runs were paired, counted once: of many ranks against one process a call is one call, and not one a rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from layerdiff.align.alignment import Alignment
from layerdiff.saved.comparison import AlignmentSummary, Unpaired

PROPOSED: Final = "a rename rule would pair more"
"""What a remark begins with that proposes one."""
_NAMED: Final = 8
"""Ranks that are named; of more, how many they are."""


def alignment_summary(alignments: Sequence[Alignment], ranks: Sequence[int] | None = None) -> AlignmentSummary:
    """The summary of the alignments of every pair of files.

    `ranks`: of the target's files, one an alignment, where each was held against the same reference process. A reference call is paired
    there if any rank ran it, and calls without a partner are listed once, with their ranks unless all ranks ran them. Collectives are
    none of them where the reference ran none: one process needs none.
    """
    first = alignments[0]
    remarks = list(dict.fromkeys(remark for alignment in alignments for remark in alignment.remarks))
    remarks += [f"{PROPOSED}: target = '{rule.target}', reference = '{rule.reference}'" for rule in first.proposed]
    paired = sum(len(alignment.pairs) for alignment in alignments)
    if ranks is None:
        reference = [one for alignment in alignments for one in _alone(alignment.sites.reference, alignment.reference_only)]
        target = [one for alignment in alignments for one in _alone(alignment.sites.target, alignment.target_only)]
    else:
        of_any = {int(call) for alignment in alignments for call in alignment.pairs[:, 0]}
        paired = len(of_any)
        reasons = {call: reason for alignment in alignments for call, reason in alignment.reference_only if call not in of_any}
        reference = _alone(first.sites.reference, sorted(reasons.items()))
        target = _of_ranks(alignments, ranks)
        if not any(map(_is_collective, first.sites.reference)):
            collectives = sum(_is_collective(call.site) for call in target)
            target = [call for call in target if not _is_collective(call.site)]
            if collectives:
                what = "1 collective, which" if collectives == 1 else f"{collectives} collectives, which"
                remarks.append(f"the ranks also ran {what} a single process does not run")
    return AlignmentSummary(paired, tuple(reference), tuple(target), first.steps, first.steps_all, tuple(remarks))


def _is_collective(site: str) -> bool:
    return site.rpartition("/")[2].startswith("c10d.")


def _alone(sites: Sequence[str], calls: Iterable[tuple[int, str]]) -> list[Unpaired]:
    return [Unpaired(sites[call], reason) for call, reason in calls]


def _of_ranks(alignments: Sequence[Alignment], ranks: Sequence[int]) -> list[Unpaired]:
    """The target's calls without a partner, once each: the n-th of a site on one rank is the n-th of it on another."""
    found: dict[tuple[str, str, int], list[int]] = {}
    for alignment, rank in zip(alignments, ranks, strict=True):
        seen: dict[tuple[str, str], int] = {}
        for call, reason in alignment.target_only:
            key = alignment.sites.target[call], reason
            seen[key] = seen.get(key, 0) + 1
            found.setdefault((*key, seen[key]), []).append(rank)
    return [Unpaired(site, reason + _on(holders, len(ranks))) for (site, reason, _), holders in found.items()]


def _on(holders: Sequence[int], world: int) -> str:
    if len(holders) == world:
        return ""
    if len(holders) > _NAMED:
        return f", on {len(holders)} of {world} ranks"
    return f", on rank{'s' if len(holders) > 1 else ''} {', '.join(map(str, holders))} of {world}"
