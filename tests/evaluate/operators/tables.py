"""What the trials showed, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.evaluate.operators.trial import Outcome

GOALS = {"module": 1.0, "operator": 0.95, "second": 1.0}
"""Shares that the totals must reach."""


def table(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """A line a kind."""
    yield "| kind | trials | place | operator | origins elsewhere | not convicted | failed | seconds |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    rows: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        rows.setdefault(outcome.row, []).append(outcome)
    for name, group in rows.items():
        places = sum(all(outcome.places) for outcome in group)
        operators = sum(all(outcome.operators) for outcome in group)
        elsewhere = sum(len(outcome.elsewhere) for outcome in group)
        free = sum(not outcome.defect for outcome in group)
        failed = sum(bool(outcome.failed) for outcome in group)
        seconds = sum(outcome.seconds for outcome in group) / len(group)
        yield f"| {name} | {len(group)} | {places} | {operators} | {elsewhere} | {free} | {failed} | {seconds:.2f} |"


def totals(faulty: list[Outcome], harmless: list[Outcome]) -> tuple[list[str], bool]:
    """The goals and what was reached, and whether all were."""
    convicted = [outcome for outcome in faulty if not outcome.trap]
    traps = [outcome for outcome in faulty if outcome.trap]
    second = [place for outcome in faulty for place in outcome.places[1:]]
    lines, good = ["| goal | of | reached | wanted |", "| --- | ---: | ---: | ---: |"], True

    def share(name: str, hits: list[bool], wanted: float) -> None:
        nonlocal good
        if hits:
            reached = sum(hits) / len(hits)
            good &= reached >= wanted
            lines.append(f"| {name} | {len(hits)} | {reached:.1%} | {wanted:.0%} |")

    def none(name: str, count: int, of: int) -> None:
        nonlocal good
        if of:
            good &= count == 0
            lines.append(f"| {name} | {of} | {count} | 0 |")

    share("module among the origins", [outcome.places[0] for outcome in convicted], GOALS["module"])
    share("operator right", [outcome.operators[0] for outcome in convicted], GOALS["operator"])
    share("second and further faults found", second, GOALS["second"])
    share("convicted", [outcome.defect for outcome in convicted], 1.0)
    share("traps said and not convicted", [all(outcome.places) and not outcome.defect for outcome in traps], 1.0)
    none("trials with origins elsewhere", sum(bool(outcome.elsewhere) for outcome in faulty), len(faulty))
    none("harmless pairs with an origin", sum(bool(outcome.elsewhere or outcome.defect) for outcome in harmless), len(harmless))
    none("comparisons that failed", sum(bool(outcome.failed) for outcome in (*faulty, *harmless)), len(faulty) + len(harmless))
    return lines, good


def misses(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Of each trial that is not as it must be: what was said, what was expected, and the command that runs it alone."""
    for outcome in outcomes:
        if outcome.right and all(outcome.operators):
            continue
        wrong = "failed" if outcome.failed else "place" if not all(outcome.places) else "elsewhere" if outcome.elsewhere else "verdict"
        if outcome.right:
            wrong = "operator"
        wanted = "; ".join(f"{'|'.join(known.modules)} / {'|'.join(known.operators[:4])}" for known in outcome.expected)
        yield f"WRONG ({wrong}) {outcome.row}: said {list(outcome.said) or 'nothing'} {outcome.failed}"
        if outcome.elsewhere:
            yield f"    elsewhere: {list(outcome.elsewhere)[:6]}"
        if wanted:
            yield f"    expected: {wanted}"
        yield f"    {outcome.command}"
