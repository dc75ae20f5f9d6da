"""What many ranks are found to do: modules held against the reference's program, what ranks do wrong together, each call alone, in order.

An equality between what ranks recorded says more than a figure: where one holds, what exact arithmetic says of the same module is the
same fault, and is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

from layerdiff.diagnose.rank_layers import missing_layers
from layerdiff.diagnose.rank_values import RankValues
from layerdiff.diagnose.rank_weights import misplaced_weights, weights_of_one_rank
from layerdiff.diagnose.ranks import findings_of_ranks
from layerdiff.judge.exact import Found, can_judge_exactly
from layerdiff.judge.ranked import RankedTables
from layerdiff.judge.tables import Verdict
from layerdiff.sides import Both
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind


def judge_ranks(
    tables: RankedTables,
    sites: dict[str, NDArray[Any]],
    values: RankValues,
    origins: Callable[[], Sequence[int]],
    trust: Collection[str] = (),
) -> Iterator[tuple[int, int, list[Found]]]:
    """Hands out (done, all, findings so far); fills the exact columns of `sites`. `origins`: the rows of those that thresholds give."""
    reference, targets = values.reference, values.targets
    by_program: list[Found] = []
    if can_judge_exactly(Both(reference, reference)) is None:
        from layerdiff.judge.logical import judge_logically

        for done, total, here in judge_logically(sites, values.pairs, values.texts, reference, targets, values.ranks, values.placed, trust):
            by_program = [one for one in here if not one.local.rule.startswith("own replay")]
            yield done, 2 * total, by_program
    misplaced, missing = list(misplaced_weights(values)), list(missing_layers(values))
    found = [*misplaced, *weights_of_one_rank(values, misplaced), *missing]
    for one in missing:  # what the call around them hands on lacks them
        if sites["parent"][one.row] >= 0:
            sites["exact"][sites["parent"][one.row]] = int(Verdict.INHERITED)
    modules = {_module(sites, one.row): one for one in by_program if not one.local.notice}
    explained: set[int] = set()
    for row, one in findings_of_ranks(values, sorted({*origins(), *modules})):
        found.append(one)
        explained.add(row)
        for same in (row, one.row):
            sites["exact"][same] = int(Verdict.INHERITED)
    found += [one for one in by_program if one.local.notice or _module(sites, one.row) not in explained]
    for done, total, wrong in judge_calls(tables, Both((reference,), tuple(targets)), sites, trust):
        found += wrong
        yield total + done, 2 * total, found
    yield 1, 1, found


def judge_calls(
    tables: RankedTables, files: Both[tuple[TraceFile, ...]], sites: dict[str, NDArray[Any]], trust: Collection[str] = ()
) -> Iterator[tuple[int, int, list[Found]]]:
    """Every operator call of every rank by itself: hands out (done, all, what is wrong with the last one)."""
    if any(can_judge_exactly(Both(files.reference[0], file)) is None for file in files.target):
        from layerdiff.judge.own_calls import own_of_ranks

        for done, total, wrong in own_of_ranks(tables, files, sites, trust):
            if wrong is not None:
                for row in (wrong.row, int(sites["parent"][wrong.row])):  # what the module around hands on is off by that
                    if row >= 0:
                        sites["exact"][row] = int(Verdict.INHERITED)
            yield done, total, [] if wrong is None else [wrong]


def _module(sites: dict[str, NDArray[Any]], row: int) -> int:
    """The row of the module call that a row is, or lies right inside of."""
    while sites["kind"][row] != CallKind.MODULE and sites["parent"][row] >= 0:
        row = int(sites["parent"][row])
    return row
