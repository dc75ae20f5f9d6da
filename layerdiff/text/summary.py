"""The summary that `layerdiff diff` prints: what was compared, what was said before, where the runs part, what to do next.

Where under half of the calls pair, that comes first: verdicts of the rest say little.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import numpy as np

from layerdiff.diagnose.findings import Notice, Origin
from layerdiff.judge.tables import Verdict
from layerdiff.rows.cells import visible
from layerdiff.rows.evidence import facts
from layerdiff.rows.figures import against, amount, count, label, times
from layerdiff.rows.ranks.alone import checked, commands
from layerdiff.rows.ranks.placement_words import origin_text, placed_text
from layerdiff.rows.sites.alone import alone_texts
from layerdiff.rows.sites.clean import differences_explained
from layerdiff.rows.sites.further_runs import against_baseline, second_run
from layerdiff.rows.sites.grouped import Group, explained, grouped
from layerdiff.rows.sites.header import coverage, judged_by, mostly_unpaired, named, profile_name, side_label
from layerdiff.rows.sites.summed import summed_otherwise
from layerdiff.rows.tones import Line, Tone, line, mark
from layerdiff.saved.alignment_summary import PROPOSED
from layerdiff.saved.comparison import Comparison
from layerdiff.saved.placements import Placements
from layerdiff.trace.schema import CallKind

_MOST_ORIGINS = 10
_MOST_UNPAIRED = 5


def summary(comparison: Comparison) -> list[Line]:
    """The lines, of any width: a terminal wraps them, a file keeps them whole."""
    lines = _compared(comparison)
    if news := mostly_unpaired(comparison):
        lines = [*_unpaired_first(comparison, news), line(), *lines]
    lines += _notices(comparison)
    lines += [line(), _verdict(comparison)]
    lines += _origins(comparison)
    lines += [line(), *_next(comparison)]
    return lines


def _compared(comparison: Comparison) -> list[Line]:
    lines = []
    for name, side in comparison.sides:
        word, tone = f"{name:<9}", Tone.REFERENCE if name == "reference" else Tone.TARGET
        label = side_label(side)
        path = visible(side.path)
        incomplete = ("  the recording is incomplete", Tone.NOTICE) if not side.complete else ("", Tone.PLAIN)
        lines.append(line((f"{word}  ", Tone.DIM), (path, tone), (f"  {label}" if label != path else "", Tone.DIM), incomplete))
    if comparison.reference is None:
        lines.append(line(("checked    ", Tone.DIM), checked(comparison)))
        lines.append(line(("profile    ", Tone.DIM), profile_name(comparison)))
        return lines
    paired, calls = coverage(comparison)
    alignment = comparison.alignment
    words = f"{count(paired)} of {amount(calls, 'call')} paired"
    single = [
        f"{count(len(calls_alone))} only in the {name}"
        for name, calls_alone in (("reference", alignment.reference_only), ("target", alignment.target_only))
        if calls_alone
    ]
    steps = f", {amount(len(alignment.steps), 'step')} compared" if len(alignment.steps) > 1 else ""
    placed = placed_text(comparison)
    ranks = f", x{len(comparison.target.files)}" if placed else ""
    lines.append(line(("aligned    ", Tone.DIM), ", ".join([words, *single]) + steps + ranks))
    if not mostly_unpaired(comparison):
        for alone in (alignment.reference_only, alignment.target_only):
            told = alone_texts(alone)
            lines += [line((f"           {text}", Tone.DIM)) for text in told[:_MOST_UNPAIRED]]
            if len(told) > _MOST_UNPAIRED:
                lines.append(
                    line((f"           and {count(len(told) - _MOST_UNPAIRED)} more kinds: layerdiff show lists them (i)", Tone.DIM))
                )
        lines += [line((f"           {visible(remark)}", Tone.DIM)) for remark in alignment.remarks]
    lines += _not_comparable(comparison)
    if placed:
        lines.append(line(("placed     ", Tone.DIM), placed))
    lines += _further_runs(comparison)
    by = judged_by(comparison)
    lines.append(line(("profile    ", Tone.DIM), profile_name(comparison), (f", {by}" if by else "", Tone.NOTICE)))
    return lines


def _further_runs(comparison: Comparison) -> list[Line]:
    lines = []
    if comparison.again is not None:
        lines.append(line(("again      ", Tone.DIM), (visible(comparison.again.side.path), Tone.TARGET), f"  {second_run(comparison)}"))
    if comparison.baseline is not None:
        said = visible(against_baseline(comparison) or "")
        lines.append(line(("baseline   ", Tone.DIM), (visible(comparison.baseline.path), Tone.REFERENCE), f"  {said}"))
    return lines


def _not_comparable(comparison: Comparison) -> list[Line]:
    """Calls that both runs made and whose results could not be held against each other."""
    sites = comparison.sites
    paired = (sites["reference_call"] >= 0) & (sites["target_call"] >= 0)
    rows = np.flatnonzero(paired & (sites["verdict"] == Verdict.NOT_COMPARABLE)).tolist()
    if not rows:
        return []
    first = visible(comparison.texts[int(sites["site"][rows[0]])] or "(root)")
    reason = visible(comparison.texts[int(sites["statement"][rows[0]])] or "nothing of its results was recorded")
    return [line((f"           {amount(len(rows), 'paired call')} not comparable, first {first}: {reason}", Tone.NOTICE))]


def _unpaired_first(comparison: Comparison, news: str) -> list[Line]:
    lines = [line(("! ", Tone.BROKEN), (news, Tone.STRONG), ": the two models name their modules differently")]
    lines += [line(f"  {visible(remark)}") for remark in comparison.alignment.remarks]
    for word, alone in (("reference", comparison.alignment.reference_only), ("target", comparison.alignment.target_only)):
        for call in alone[:_MOST_UNPAIRED]:
            lines.append(line((f"  only in the {word}: {visible(call.site) or '(root)'}", Tone.DIM)))
        if len(alone) > _MOST_UNPAIRED:
            lines.append(line((f"  and {count(len(alone) - _MOST_UNPAIRED)} more", Tone.DIM)))
    return lines


def _notices(comparison: Comparison) -> list[Line]:
    if not comparison.notices:
        return []
    ordered = sorted(comparison.notices, key=lambda notice: not notice.defect)
    return [line(), *(_notice(notice) for notice in ordered)]


def _notice(notice: Notice) -> Line:
    tone = Tone.FAULT if notice.defect else Tone.NOTICE
    where = f" at {visible(notice.site)}" if notice.site and not notice.statement.startswith(f"{notice.site}: ") else ""
    return line((f"{'✗' if notice.defect else '◆'} {visible(notice.kind)}", tone), (where, Tone.DIM), f": {visible(notice.statement)}")


def _verdict(comparison: Comparison) -> Line:
    worst = mark(comparison.verdict)
    origins = comparison.origins
    faults = sum(origin.defect for origin in origins)
    unsure = any(notice.kind == "results-not-compared" for notice in comparison.notices)
    if not origins:
        said = "no origin" if comparison.verdict is not Verdict.NOT_COMPARABLE else "nothing could be compared"
    elif faults == len(origins):
        said = _counted(origins)
    else:
        said = f"{_counted(origins)}, {count(faults)} of them {'a defect' if faults == 1 else 'defects'}"
    if comparison.defect and not faults:  # the verdict of the sites would contradict what the notices say
        kinds = ", ".join(dict.fromkeys(visible(notice.kind) for notice in comparison.notices if notice.defect))
        return line((f"✗ {kinds}", Tone.FAULT), (f"  {said}", Tone.STRONG), f": no module is at fault, {_not_the_same(comparison)}")
    if not origins and not comparison.defect and not unsure and comparison.verdict is not Verdict.NOT_COMPARABLE:
        return line((f"{worst.glyph} ", worst.tone), ("No defect", Tone.STRONG), (f": {differences_explained(comparison)}", Tone.PLAIN))
    end = _beyond(comparison) if comparison.defect else "no defect under this profile"
    if not comparison.defect and unsure:
        end = "the results of the run were not compared, so this says little"
    return line((f"{worst.glyph} {worst.word}", worst.tone), (f"  {said}", Tone.STRONG), (f": {end}", Tone.PLAIN))


def _not_the_same(comparison: Comparison) -> str:
    return "the ranks are not one run" if comparison.reference is None else "the runs are not given the same"


def _beyond(comparison: Comparison) -> str:
    who = "the ranks do not agree" if comparison.reference is None else "the runs differ"
    return f"{who} beyond what the profile allows"


def _counted(origins: Sequence[Origin]) -> str:
    groups = len(grouped(origins))
    return amount(len(origins), "origin") + ("" if groups == len(origins) else f" of {amount(groups, 'kind')}")


def _origins(comparison: Comparison) -> list[Line]:
    lines: list[Line] = []
    several = len({origin.step for origin in comparison.origins} | {step for _, step in comparison.alignment.steps}) > 1
    groups, placements = grouped(comparison.origins), Placements(comparison)
    for number, group in enumerate(groups[:_MOST_ORIGINS], 1):
        ranks = origin_text(placements, group.origin.row, group.origin.value)
        lines += [line(), *_origin(number, group, named(comparison, group.origin), several, ranks)]
    left = sum(1 + len(group.others) for group in groups[_MOST_ORIGINS:])
    if left > 0:
        lines += [line(), line((f"and {amount(left, 'more origin')}: layerdiff show, o lists them", Tone.DIM))]
    return lines


def _origin(number: int, group: Group, name: str, several_steps: bool, ranks: str | None) -> list[Line]:
    origin = group.origin
    shown = mark(origin.verdict)
    marks = [f"step {origin.step}"] if several_steps else []
    marks += [f"call {origin.occurrence}"] if origin.occurrence else []
    marks += [f"rank {origin.rank}"] if origin.rank is not None else []
    place = "  ".join([name or "(root)", *marks])
    verdict = (f"  {shown.glyph} {shown.word}", shown.tone)
    lines = [
        line((f"{number:>2}  ", Tone.DIM), (place, Tone.STRONG), (f"  {visible(origin.value)}", Tone.DIM), verdict),
        line(f"    {visible(explained(origin))}"),
    ]
    rule = visible(origin.rule)
    if origin.measured is not None or origin.allowed is not None:
        over = times(origin.measured, origin.allowed, origin.rule)
        figures = against(origin.measured, origin.allowed, origin.rule) + (f" ({over})" if over else "")
        lines.append(
            line((f"    {label(origin.measured, origin.allowed, origin.rule):<8} ", Tone.DIM), figures, (f"  by {rule}", Tone.DIM))
        )
    else:
        lines.append(line((f"    by {rule}", Tone.DIM)))
    if ranks is not None:
        lines.append(line(("    ranks    ", Tone.DIM), (ranks, Tone.STRONG)))
    repeats = group.repeats()
    if repeats is not None:
        lines.append(line((f"    {repeats}", Tone.STRONG)))
    shown_facts = {name: fact for name, fact in group.evidence.items() if fact != origin.statement}
    if shown_facts:
        lines.append(line((f"    evidence: {', '.join(facts(shown_facts))}", Tone.DIM)))
    return lines


def _next(comparison: Comparison) -> list[Line]:
    if comparison.reference is None:
        return [line((word, Tone.DIM), (command, Tone.ACCENT)) for word, command in commands(comparison)]
    both = shlex.join([visible(comparison.reference.path), visible(comparison.target.path)])
    both += "".join(f" --checkpoint {shlex.quote(visible(path))}" for path in comparison.checkpoints)
    if comparison.origins:
        kinds, rows = comparison.sites["kind"], len(comparison.sites["kind"])
        calls = any(0 <= origin.row < rows and kinds[origin.row] == CallKind.OPERATOR for origin in comparison.origins)
        return [
            line(("look     ", Tone.DIM), (f"layerdiff show {both}", Tone.ACCENT)),
            line(("report   ", Tone.DIM), (f"layerdiff report {both} -f markdown -o issue.md", Tone.ACCENT)),
            *([line(("bundle   ", Tone.DIM), (f"layerdiff report {both} -f bundle -o bundle", Tone.ACCENT))] if calls else []),
        ]
    if mostly_unpaired(comparison) and any(remark.startswith(PROPOSED) for remark in comparison.alignment.remarks):
        return [
            line(("next     ", Tone.DIM), ("write the rule into rules.toml, as a table [[rename]] with its two keys, then", Tone.PLAIN)),
            line(("         ", Tone.DIM), (f"layerdiff diff {both} --profile rules.toml", Tone.ACCENT)),
        ]
    lines = [line(("look     ", Tone.DIM), (f"layerdiff show {both}", Tone.ACCENT))]
    if (summed := summed_otherwise(comparison)) is not None:
        site, step = summed
        which = f" --step {step}" if step != int(comparison.sites["step"].min()) else ""
        lines.append(line(("order    ", Tone.DIM), (f"layerdiff order {both} {shlex.quote(visible(site))}{which}", Tone.ACCENT)))
    return lines
