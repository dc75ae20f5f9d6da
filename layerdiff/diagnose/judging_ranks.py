"""What many ranks are found to do: modules held against the reference's program, what ranks do wrong together, each call alone, in order.

An equality between what ranks recorded says more than a figure: where one holds, what exact arithmetic says of the same module is the
same fault, and is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from layerdiff.diagnose.rank_experts import experts_of_others
from layerdiff.diagnose.rank_layers import missing_layers
from layerdiff.diagnose.rank_orders import held_twice
from layerdiff.diagnose.rank_sums import quietly_unreduced
from layerdiff.diagnose.rank_values import RankValues
from layerdiff.diagnose.rank_weights import misplaced_weights, weights_of_one_rank
from layerdiff.diagnose.ranks import findings_of_ranks
from layerdiff.judge.exact import can_judge_exactly
from layerdiff.judge.found import Found
from layerdiff.judge.pairs.ranked import RankedTables
from layerdiff.judge.tables import BEYOND, BY_THRESHOLDS, LEFT_TO_THRESHOLDS, Verdict
from layerdiff.sides import Both
from layerdiff.trace.joined import goes_on
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind

if TYPE_CHECKING:  # it needs torch
    from layerdiff.judge.teams.meaning import Meant


def judge_ranks(
    tables: RankedTables,
    sites: dict[str, NDArray[Any]],
    values: RankValues,
    origins: Callable[[], Sequence[int]],
    trust: Collection[str] = (),
) -> Iterator[tuple[int, int, list[Found]]]:
    """Hands out (done, all, findings so far); fills the exact columns of `sites`. `origins`: the rows of those that thresholds give."""
    files = values.files
    by_program: list[Found] = []
    by_programs = not any(map(goes_on, (*files.reference, *files.target)))  # what is attended to is known to one run alone
    if by_programs and len(files.reference) == 1 and can_judge_exactly(Both(files.reference[0], files.reference[0])) is None:
        from layerdiff.judge.logical import judge_logically

        own = files.reference[0]
        for done, total, here in judge_logically(
            sites, values.pairs, values.texts, own, files.target, values.held.target, values.placed, trust
        ):
            by_program = [one for one in here if not one.local.rule.startswith("own replay")]
            yield done, 3 * total, by_program
    meant: Meant | None = None
    for done, total, known in judge_programs_of_ranks(tables, sites, values, trust) if by_programs else ():
        meant = known
        yield total + done, 3 * total, by_program
    said = [] if meant is None else meant.said
    told = {row for one in said if not one.found.local.notice for row in one.concerns}
    for row in (row for one in said if meant is not None for row in _on_the_way(sites, one.found, meant.other)):
        sites["exact"][row] = int(Verdict.INHERITED)
    for row in {row for one in said if not one.found.local.notice for row in one.inside - {_module(sites, one.found.row)}}:
        if sites["exact"][row] == BY_THRESHOLDS:  # a part of the body: it is the same fault
            sites["exact"][row] = int(Verdict.INHERITED)
    cancelling = set() if meant is None else meant.meets
    by_program = [one for one in by_program if one.local.notice or _module(sites, one.row) not in cancelling | told]
    misplaced, missing = list(misplaced_weights(values)), list(missing_layers(values, tables))
    experts = list(experts_of_others(values))
    found = [*misplaced, *weights_of_one_rank(values, misplaced), *experts, *missing]
    for one in experts:
        sites["exact"][one.row] = int(Verdict.INHERITED)
    for one in misplaced:  # what the call around them hands on lacks them
        if sites["parent"][one.row] >= 0:
            sites["exact"][sites["parent"][one.row]] = int(Verdict.INHERITED)
    lacking = {row for one in missing for row in _lacking(tables, sites, values, one)}
    for row in lacking:
        sites["exact"][row] = int(Verdict.INHERITED)
    modules = {_module(sites, one.row) for one in by_program if not one.local.notice}
    explained = {one.row for one in found} | lacking
    exactly = [
        made for one in said if one.exact for made in findings_of_ranks(values.exactly(one.exact, one.left_out), sorted(one.concerns))
    ]
    exactly_explained = {at for row, one in exactly for at in (row, one.row)}
    asked = sorted({*origins(), *modules, *told} - exactly_explained - {one.row for one in experts})
    if not asked and not exactly and not found:  # nobody is blamed, since what nobody can put together came in
        asked = list(held_twice(values))
    named = [*exactly, *findings_of_ranks(values, asked)]
    for row, one in named:
        if not any(other.row in values.inside(one.row) and other.local.cause == one.local.cause for _, other in named):
            found.append(one)  # else it is said of a call inside
        explained |= {row, one.row}
        for same in (row, one.row):
            sites["exact"][same] = int(Verdict.INHERITED)
    for one in list(quietly_unreduced(values, explained)) if meant is None else []:  # programs say more
        found.append(one)
        explained.add(one.row)
        sites["exact"][one.row] = int(Verdict.INHERITED)
    found += [one for one in by_program if one.local.notice or _module(sites, one.row) not in explained]
    found += [one.found for one in said if one.found.local.notice or not one.concerns & explained]
    wrong: list[Found] = []
    for done, total, here in judge_calls(tables, files, sites, trust):
        wrong += here
        yield 2 * total + done, 3 * total, [*found, *wrong]
    kernels = {_module(sites, one.row) for one in wrong}  # what such a module hands on lies off its programs for that reason
    found = [one for one in found if one.local.rule != BEYOND or _module(sites, one.row) not in kernels]
    yield 1, 1, [*found, *wrong]


def _on_the_way(sites: dict[str, NDArray[Any]], found: Found, bodies: Collection[int]) -> Iterator[int]:
    """The modules from a call that was named to the body that it is named in, which thresholds would blame for it again."""
    around = -1 if found.local.notice else _module(sites, found.row)
    while around >= 0 and around not in bodies:
        if sites["exact"][around] == BY_THRESHOLDS:
            yield around
        around = int(sites["parent"][around])


def _lacking(tables: RankedTables, sites: dict[str, NDArray[Any]], values: RankValues, missing: Found) -> Iterator[int]:
    """The calls around layers that run on no rank; and those that a rank which holds other layers is taken to share with their stage."""
    around = int(sites["parent"][missing.row])
    while around >= 0:
        yield around
        around = int(sites["parent"][around])
    wrong = set(missing.local.evidence.get("ranks", ()))
    for row, calls in tables.calls.items():
        ranks = {values.rank(file) for file in calls.target}
        if ranks & wrong and ranks - wrong and sites["exact"][row] == BY_THRESHOLDS:
            yield row


def judge_programs_of_ranks(
    tables: RankedTables, sites: dict[str, NDArray[Any]], values: RankValues, trust: Collection[str] = ()
) -> Iterator[tuple[int, int, Meant]]:
    """What all ranks' programs compute together, where all of both sides recorded them; nothing else. Fills `exact`."""
    files = values.files
    if any(can_judge_exactly(Both(files.reference[0], file)) is not None for file in (*files.reference, *files.target)):
        return
    from layerdiff.judge.teams.meaning import RULE, judge_meaning

    meant: Meant | None = None
    for done, total, known in judge_meaning(tables, sites, values.pairs, files, values.placed, trust):
        meant = known
        yield done, total, meant
    rule = tables.texts.intern(RULE)
    for row in () if meant is None else (*meant.same, *meant.other):
        if sites["exact"][row] == BY_THRESHOLDS:
            sites["exact"][row], sites["exact_rule"][row] = int(Verdict.INHERITED), rule
    for row, why in meant.unjudged.items() if meant is not None else ():
        if sites["exact"][row] == BY_THRESHOLDS and sites["statement"][row] < 0:
            sites["statement"][row] = tables.texts.intern(LEFT_TO_THRESHOLDS + why)


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


def of_other_modules(more: Sequence[Found], found: Sequence[Found], sites: dict[str, NDArray[Any]]) -> list[Found]:
    """What is found besides, without modules in which a program was convicted: such a rank differs from the others."""
    convicted = {_module(sites, one.row) for one in found if not one.local.notice}
    return [one for one in more if one.local.notice or sites["kind"][one.row] != CallKind.MODULE or one.row not in convicted]


def _module(sites: dict[str, NDArray[Any]], row: int) -> int:
    """The row of the module call that a row is, or lies right inside of."""
    while sites["kind"][row] != CallKind.MODULE and sites["parent"][row] >= 0:
        row = int(sites["parent"][row])
    return row
