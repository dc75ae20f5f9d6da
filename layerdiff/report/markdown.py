"""A comparison as markdown for an issue tracker: the finding first, then what a maintainer asks for next.

Whoever reads it has not seen the runs: every number stands with its allowance, and every list that
was cut says how much is missing and which command shows it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from layerdiff.arithmetic.orders.analysis import OrderReport
from layerdiff.diagnose.findings import Origin
from layerdiff.report import facts
from layerdiff.report.escape import code, fenced, text
from layerdiff.report.order_markdown import order_markdown
from layerdiff.rows.figures import amount, count, exact
from layerdiff.rows.ranks.alone import checked
from layerdiff.rows.ranks.placement_words import ranks_text
from layerdiff.rows.sites.alone import alone_texts
from layerdiff.rows.sites.further_runs import against_baseline, second_run, worst_beside
from layerdiff.rows.sites.grouped import Group, grouped
from layerdiff.rows.sites.header import judged_by
from layerdiff.saved.comparison import Comparison, Side, Unpaired
from layerdiff.saved.placements import Placements
from layerdiff.trace.schema import CallKind

_ORIGINS: Final = 25
_EVIDENCE: Final = 12
_SITES: Final = 50
_UNPAIRED: Final = 10
_ENVIRONMENT: Final = 40
_NOTICES: Final = 20
_BESIDE: Final = 10
_RANKS: Final = 16
_CELL: Final = 160
"""Characters of one cell of an environment."""


def as_markdown(comparison: Comparison, *, orders: Sequence[OrderReport] = ()) -> str:
    """The comparison as GitHub-flavoured markdown; `orders` are calls that were added up again, a section each."""
    first, rest = (_finding, _origins, _evidence), (_notices, _baseline, _coverage, _environment, _reproduce)
    blocks = ["\n".join(section(comparison)) for section in first]
    blocks += [order_markdown(report, level=3).rstrip("\n") for report in orders]
    blocks += ["\n".join(section(comparison)) for section in rest]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _finding(comparison: Comparison) -> Iterator[str]:
    first = next((origin for origin in comparison.origins if origin.defect), None)
    if first is None:
        yield f"## layerdiff: {text(facts.headline(comparison))}"
        for notice in comparison.notices:
            if notice.defect:
                yield f"\n**{text(notice.statement)}**"
    else:
        yield f"## layerdiff: {first.verdict.label} at {code(facts.site_name(first.site))}"
        yield f"\n**{text(first.statement)}** ({facts.where(first)}, value {code(first.value)})"
        yield f"\n{text(facts.measured_against(first))}"
        groups = [group for group in grouped(comparison.origins) if group.origin.defect]
        repeats = groups[0].repeats()
        if repeats is not None:
            yield f"\n{text(repeats[:1].upper() + repeats[1:])}."
        others = sum(1 + len(group.others) for group in groups[1:])
        if others:
            yield f"\n{amount(others, 'more origin')} below."
    profile = comparison.profile.get("name", "custom")
    if comparison.reference is None:
        yield f"\n- no reference: the ranks were held against each other, {text(checked(comparison))}"
    else:
        yield f"\n- reference: {code(comparison.reference.path)} {text(comparison.reference.label)}"
    yield f"- target: {code(comparison.target.path)} {text(comparison.target.label)}"
    if comparison.again is not None:
        yield f"- second run of the target: {code(comparison.again.side.path)}: {second_run(comparison)}"
    if comparison.baseline is not None:
        yield f"- baseline: {code(comparison.baseline.path)} {text(comparison.baseline.label)}: {text(against_baseline(comparison) or '')}"
    by = judged_by(comparison)
    if by is not None:
        yield f"- {text(by)}"
    yield f"- profile {text(str(profile))}; sites: " + ", ".join(f"{count(n)} {v.label}" for v, n in facts.verdict_counts(comparison))
    for name, side in comparison.sides:
        if not side.complete:
            yield f"- the recording of the {name} is incomplete"


def _table(head: tuple[str, ...], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "| " + " | ".join("---" for _ in head) + " |"
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def _origins(comparison: Comparison) -> Iterator[str]:
    origins = comparison.origins
    if not origins:
        return
    yield "### Origins\n"
    head = ("site", "where", "value", "verdict", "defect", "measured", "allowed", "rule", "finding")
    groups = grouped(origins)
    yield from _table(head, (_origin_cells(group) for group in groups[:_ORIGINS]))
    left = sum(1 + len(group.others) for group in groups[_ORIGINS:])
    if left:
        yield f"\n{amount(left, 'more origin')}: `layerdiff report ... -f json` lists all."


def _origin_cells(group: Group) -> list[str]:
    origin, repeats = group.origin, group.repeats()
    return [
        code(facts.site_name(origin.site)),
        facts.where(origin),
        code(origin.value),
        origin.verdict.label,
        "yes" if origin.defect else "no",
        exact(origin.measured),
        exact(origin.allowed),
        text(origin.rule),
        text((origin.statement if origin.cause is None else f"{origin.cause}: {origin.statement}") + (f"; {repeats}" if repeats else "")),
    ]


def _evidence(comparison: Comparison) -> Iterator[str]:
    groups = grouped(comparison.origins)
    shown = groups[:_EVIDENCE]
    if not shown:
        return
    placements = Placements(comparison)
    yield "### Evidence"
    for group in shown:
        origin = group.origin
        yield f"\n{code(facts.site_name(origin.site))}, {facts.where(origin)}:\n"
        if group.others:
            named = ", ".join(code(facts.site_name(other.site)) for other in group.others[:_SITES])
            more = f" and {count(len(group.others) - _SITES)} more" if len(group.others) > _SITES else ""
            yield f"- the same at {named}{more}"
        for key, value in facts.flat(group.evidence).items():
            yield f"- {code(key)}: {text(value)}"
        ranks = _ranks(placements, origin)
        if ranks is not None:
            yield f"- {ranks}"
        worst = facts.worst_of(comparison, origin.row)
        if worst is None:
            continue
        yield f"- {code(worst.value)}: {count(worst.count)} elements, shape {list(worst.shape)}, " + (
            f"{text(worst.dtypes[0])} (reference) against {text(worst.dtypes[1])} (target)"
        )
        yield f"- relative L2 {_maybe(worst.rel_l2)}, largest |target - reference| {_maybe(worst.max_abs)}" + (
            "" if worst.index is None else f" at index {list(worst.index)}"
        )
        if any(worst.nonfinite):
            yield f"- not finite: {count(worst.nonfinite[0])} in the reference, {count(worst.nonfinite[1])} in the target"
    left = sum(1 + len(group.others) for group in groups[_EVIDENCE:])
    if left:
        yield f"\nEvidence of {amount(left, 'more origin')}: `layerdiff report ... -f json`."


def _ranks(placements: Placements, origin: Origin) -> str | None:
    """How the value of an origin is put together out of the ranks' parts, and how far off each of them is."""
    value = placements.of_value(origin.row, origin.value)
    if value is None:
        return None
    errors = ", ".join(f"rank {part.rank}: {_maybe(part.error)}" for part in value.parts[:_RANKS])
    more = f" and {len(value.parts) - _RANKS} more" if len(value.parts) > _RANKS else ""
    said = ranks_text(value)
    return f"{text(value.name)}; relative L2 of each part: {errors}{more}" + (f"; **{text(said)}**" if said and value.off else "")


def _maybe(value: float) -> str:
    return exact(None if value != value else value)


def _notices(comparison: Comparison) -> Iterator[str]:
    notices = comparison.notices
    if not notices:
        return
    yield "### Notices\n"
    for notice in notices[:_NOTICES]:
        place = "" if notice.site is None else f" at {code(facts.site_name(notice.site))}"
        yield f"- {code(notice.kind)}{' (defect)' if notice.defect else ''}{place}: {text(notice.statement)}"
    if len(notices) > _NOTICES:
        yield f"- {amount(len(notices) - _NOTICES, 'more notice')}: `layerdiff report ... -f json`"


def _baseline(comparison: Comparison) -> Iterator[str]:
    worst = [] if comparison.baseline is None else worst_beside(comparison, _BESIDE)
    if not worst:
        return
    yield "### Beside the baseline\n"
    yield "Relative L2 to the reference; the ratio decides no verdict.\n"
    yield from _table(
        ("site", "where", "target", "baseline", "target / baseline"),
        ((code(facts.site_name(one.site)), f"step {one.step}", exact(one.target), exact(one.baseline), exact(one.ratio)) for one in worst),
    )
    yield f"\nThe {amount(len(worst), 'largest ratio', 'largest ratios')}; `layerdiff diff ... --json FILE --sites all` lists the others."


def _coverage(comparison: Comparison) -> Iterator[str]:
    alignment = comparison.alignment
    paired, reference, target = (
        count(number)
        for number in (
            alignment.paired,
            alignment.paired + len(alignment.reference_only),
            alignment.paired + len(alignment.target_only),
        )
    )
    if comparison.reference is None:
        return
    yield "### Alignment\n"
    steps = amount(len(alignment.steps), "step")
    yield f"Over {steps}, {paired} of {reference} calls of the reference are paired with {paired} of {target} calls of the target.\n"
    for remark in alignment.remarks:
        yield f"- {text(remark)}"
    yield from _unpaired("reference", alignment.reference_only)
    yield from _unpaired("target", alignment.target_only)


def _unpaired(side: str, calls: tuple[Unpaired, ...]) -> Iterator[str]:
    if not calls:
        return
    told = alone_texts(calls)
    yield f"- only in the {side}, {amount(len(calls), 'call')}:"
    yield from (f"  - {text(kind)}" for kind in told[:_UNPAIRED])
    if len(told) > _UNPAIRED:
        yield f"  - and {amount(len(told) - _UNPAIRED, 'more kind')}"


def _environment(comparison: Comparison) -> Iterator[str]:
    differ, same = facts.environments(comparison)
    yield "### Environment\n"
    if comparison.reference is None:
        yield from _table(("entry", "target"), ((code(key[:_CELL]), text(value[:_CELL])) for key, value in same[: 2 * _ENVIRONMENT]))
        return
    if differ:
        rows = ((code(key[:_CELL]), text(one[:_CELL]), text(other[:_CELL])) for key, one, other in differ[:_ENVIRONMENT])
        yield from _table(("differs", "reference", "target"), rows)
        if len(differ) > _ENVIRONMENT:
            yield f"\n{count(len(differ) - _ENVIRONMENT)} more differ: `layerdiff report ... -f json`."
    else:
        yield "Both runs recorded the same environment."
    if same:
        yield f"\n<details><summary>{amount(len(same), 'entry', 'entries')} the same on both sides</summary>\n"
        yield from _table(("same", "both"), ((code(key[:_CELL]), text(value[:_CELL])) for key, value in same[: 2 * _ENVIRONMENT]))
        if len(same) > 2 * _ENVIRONMENT:
            yield f"\n{count(len(same) - 2 * _ENVIRONMENT)} more: `layerdiff report ... -f json`."
        yield "\n</details>"


def _reproduce(comparison: Comparison) -> Iterator[str]:
    target = shlex.quote(comparison.target.path)
    profile = str(comparison.profile.get("name", "strict"))
    option = "" if profile == "strict" else f" --profile {shlex.quote(str(comparison.profile.get('path') or profile))}"
    further = "" if comparison.again is None else f" --again {shlex.quote(comparison.again.side.path)}"
    further += "" if comparison.baseline is None else f" --baseline {shlex.quote(comparison.baseline.path)}"
    yield "### Reproduce\n"
    if comparison.reference is None:
        yield fenced(f"{_recorded(comparison, 'target', comparison.target)}\nlayerdiff diff {target} --self{option}", "sh")
        return
    reference = shlex.quote(comparison.reference.path)
    commands = [
        f"{_recorded(comparison, 'reference', comparison.reference)}   # on the machine of the reference",
        f"{_recorded(comparison, 'target', comparison.target)}   # on the machine of the target",
        f"layerdiff diff {reference} {target}{option}{further}",
        f"layerdiff show {reference} {target}{option}        # in the terminal",
    ]
    yield fenced("\n".join(commands), "sh")


def _recorded(comparison: Comparison, name: str, side: Side) -> str:
    """The command that makes such a trace again: of as many ranks, with operators where this one has some, or where they would decide."""
    sites, ranks = comparison.sites, len(side.files)
    operators = judged_by(comparison) is not None or bool(np.any((sites["kind"] == CallKind.OPERATOR) & (sites[f"{name}_call"] >= 0)))
    command = "layerdiff record" if ranks <= 1 else f"torchrun --nproc-per-node {ranks} -m layerdiff record"
    return f"{command}{' --operators' if operators else ''} -o {shlex.quote(side.path)} -- SCRIPT ARGS"
