"""What stands above the table: which runs, under which profile, how much was aligned, and the answer in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from layerdiff.diagnose.findings import Origin
from layerdiff.judge.tables import BY_THRESHOLDS, LEFT_TO_THRESHOLDS, Verdict
from layerdiff.rows.cells import cell_width, shorten, visible
from layerdiff.rows.figures import amount, count
from layerdiff.rows.ranks.placement_words import placed_text
from layerdiff.rows.sites.clean import differences_explained
from layerdiff.rows.sites.grouped import grouped
from layerdiff.rows.tones import Line, Segment, Tone, line, mark
from layerdiff.saved.comparison import Comparison, Side
from layerdiff.trace.schema import CallKind


def coverage(comparison: Comparison) -> tuple[int, int]:
    """Calls paired, and calls of the side that has more of them."""
    alignment = comparison.alignment
    return alignment.paired, alignment.paired + max(len(alignment.reference_only), len(alignment.target_only))


def mostly_unpaired(comparison: Comparison) -> str | None:
    """`only 3 of 14 module calls pair`, where under half of the smaller run's do: then that is the news, and verdicts say little."""
    sites = comparison.sites
    modules = np.asarray(sites["kind"]) == CallKind.MODULE
    ours, theirs = (modules & (np.asarray(sites[f"{side}_call"]) >= 0) for side in ("reference", "target"))
    paired, calls = int(np.count_nonzero(ours & theirs)), int(min(np.count_nonzero(ours), np.count_nonzero(theirs)))
    if comparison.reference is None or paired * 2 >= calls:
        return None
    return f"only {count(paired)} of {amount(calls, 'module call')} pair"


def profile_name(comparison: Comparison) -> str:
    """The profile judged by, as a user named it."""
    return visible(str(comparison.profile.get("name", "strict")))


BY_THRESHOLDS_ONLY: Final = "judged by thresholds; record with --operators to decide"


def judged_by(comparison: Comparison) -> str | None:
    """That operators would decide what thresholds can only guess; None where operators decided, or where there is nothing to decide."""
    sites = comparison.sites
    open_ = (sites["reference_call"] >= 0) & (sites["target_call"] >= 0) & (sites["verdict"] < Verdict.NOT_COMPARABLE)
    open_ &= sites["verdict"] != Verdict.IDENTICAL
    by_thresholds = open_ & (sites["exact"] == BY_THRESHOLDS)
    guessed, all_of_them = int(by_thresholds.sum()), int(open_.sum())
    if not guessed:
        return None
    statements = (comparison.texts[text] or "" for text in np.unique(sites["statement"][by_thresholds]).tolist() if text >= 0)
    said = visible(next((text for text in statements if text.startswith(LEFT_TO_THRESHOLDS)), BY_THRESHOLDS_ONLY))
    return said if guessed == all_of_them else f"{guessed} of {all_of_them} calls that differ {said}"


def side_label(side: Side) -> str:
    """A run in a few words: its label, else the last part of its path."""
    return visible(side.label or side.path.rstrip("/").rsplit("/", 1)[-1])


def named(comparison: Comparison, origin: Origin) -> str:
    """The site of an origin, with its class where its own name is a number: `net.1 (GELU)`."""
    site = visible(origin.site)
    kind = comparison.texts[int(comparison.sites["type"][origin.row])] if origin.row < len(comparison.sites["type"]) else None
    return f"{site} ({visible(kind)})" if kind and site.rpartition(".")[2].isdecimal() else site


def title(comparison: Comparison, width: int) -> Line:
    """The top line, exactly `width` cells: both runs left, profile and coverage right."""
    paired, calls = coverage(comparison)
    aligned = f"{count(paired)}/{count(calls)} aligned"
    right = [("profile ", Tone.DIM), (profile_name(comparison), Tone.STRONG), ("  ", Tone.DIM)]
    if comparison.reference is None:
        aligned = "no reference"
    right += [(aligned, Tone.DIM if paired == calls else Tone.NOTICE)]
    if width < 60:
        right = right[3:]
    words = width >= 100
    left = [(" layerdiff ", Tone.TITLE), ("  " if width >= 100 else " ", Tone.PLAIN)]
    reference = "its ranks" if comparison.reference is None else side_label(comparison.reference)
    target = side_label(comparison.target)

    def room_for_names() -> int:
        return width - sum(cell_width(text) for text, _ in [*left, *right]) - 4 - (17 if words else 0) - 3

    # Which runs these are matters most: before a name is cut the program's own goes, then the word before the profile's.
    names = cell_width(reference) + cell_width(target)
    if not words and room_for_names() < names:
        left = [(" ", Tone.PLAIN)]
    if not words and room_for_names() < names and width >= 60:
        right = right[1:]
    taken, room = sum(cell_width(text) for text, _ in right), max(4, room_for_names())
    half = room // 2
    spare_target = max(half, room - cell_width(reference))
    target = shorten(target, spare_target, at="middle")
    reference = shorten(reference, room - cell_width(target), at="middle")
    if words and comparison.reference is not None:
        left.append(("reference ", Tone.DIM))
    left.append((reference, Tone.REFERENCE))
    left.append((" ⇄ ", Tone.DIM))
    if words:
        left.append(("target ", Tone.DIM))
    left.append((target, Tone.TARGET))
    used = sum(cell_width(text) for text, _ in left)
    gap = width - used - taken - 1
    made = [*left, (" " * max(1, gap), Tone.PLAIN), *right, (" ", Tone.PLAIN)]
    return line(*(Segment(text, tone) for text, tone in made))


def answer(comparison: Comparison, *, pending: bool = False) -> Line:
    """The result in one line: the worst first, where it enters, and what was said before any layer is blamed."""
    if news := mostly_unpaired(comparison):
        return line(("! ", Tone.BROKEN), (news, Tone.STRONG), *_proposal(comparison))
    faults = [notice for notice in comparison.notices if notice.defect]
    if faults:
        more = f" (+{amount(len(comparison.notices) - 1, 'notice')})" if len(comparison.notices) > 1 else ""
        text = visible(faults[0].statement)
        return line((f"✗ {visible(faults[0].kind)}", Tone.FAULT), f"  {text}{more}", *_origins(comparison, "  ·  "))
    notes = f"  ·  {amount(len(comparison.notices), 'notice')}" if comparison.notices else ""
    if comparison.origins:
        return line(*_origins(comparison, ""), (notes, Tone.NOTICE))
    if pending or (comparison.sites["verdict"] == Verdict.PENDING).any():
        return line(("· ", Tone.UNKNOWN), ("no origin so far", Tone.STRONG), (": not all is compared", Tone.DIM), (notes, Tone.NOTICE))
    worst = mark(comparison.verdict)
    if comparison.verdict is Verdict.NOT_COMPARABLE:
        return line((f"{worst.glyph} ", worst.tone), ("nothing could be compared", Tone.STRONG), (notes, Tone.NOTICE))
    if any(notice.kind == "results-not-compared" for notice in comparison.notices):
        said = ": the results of the run were not compared, so this says little"
        return line((f"{worst.glyph} ", worst.tone), ("no origin", Tone.STRONG), (said, Tone.PLAIN), (notes, Tone.NOTICE))
    text = differences_explained(comparison)
    return line((f"{worst.glyph} ", worst.tone), ("No defect", Tone.STRONG), (f": {text}", Tone.PLAIN), (notes, Tone.NOTICE))


def _origins(comparison: Comparison, before: str) -> list[tuple[str, Tone]]:
    if not comparison.origins:
        return []
    groups = grouped(comparison.origins)
    first, many = comparison.origins[0], len(groups)
    here = f" and {amount(len(groups[0].others), 'more site')}" if groups[0].others else ""
    worst, shown = max(origin.verdict for origin in comparison.origins), mark(first.verdict)
    others = f"  ·  {amount(many - 1, 'more origin')}" if many > 1 else ""
    if worst > first.verdict:
        others += f", the worst {mark(worst).word}"
    return [
        (before, Tone.DIM),
        (f"{shown.glyph} {shown.word}", shown.tone),
        (" at ", Tone.DIM),
        (named(comparison, first) or "the root", Tone.STRONG),
        (here, Tone.STRONG),
        (others, Tone.PLAIN),
    ]


def _proposal(comparison: Comparison) -> list[tuple[str, Tone]]:
    remarks = comparison.alignment.remarks
    return [(f"  {visible(remarks[-1])}", Tone.DIM)] if remarks else []


def about(comparison: Comparison) -> list[Line]:
    """Everything around the verdicts: both runs, notices in full, how calls were paired, what has no partner and why."""
    lines: list[Line] = []
    for notice in comparison.notices:
        tone = Tone.FAULT if notice.defect else Tone.NOTICE
        where = f"  at {visible(notice.site)}" if notice.site else ""
        lines.append(line(("✗ " if notice.defect else "◆ ", tone), (visible(notice.kind), tone), (where, Tone.DIM)))
        lines.append(line(f"  {visible(notice.statement)}"))
    if not lines:
        lines.append(line(("no notices", Tone.DIM)))
    paired, calls = coverage(comparison)
    lines += [line(), line(("Alignment", Tone.TITLE)), line(f"  {count(paired)} of {amount(calls, 'call')} paired")]
    lines += [line(f"  {visible(remark)}") for remark in comparison.alignment.remarks]
    placed = placed_text(comparison)
    if placed:
        lines.append(line(f"  made up of the parts of {amount(len(comparison.target.files), 'rank')}: {placed}"))
    steps = comparison.alignment.steps
    if steps:
        (first, first_target), (last, last_target) = steps[0], steps[-1]
        lines.append(line(f"  {amount(len(steps), 'step')} compared: reference {first}..{last}, target {first_target}..{last_target}"))
    for word, alone in (("reference", comparison.alignment.reference_only), ("target", comparison.alignment.target_only)):
        if alone:
            lines += [line(), line((f"Only in the {word}", Tone.TITLE), (f"  {amount(len(alone), 'call')}", Tone.DIM))]
            lines += [line(f"  {visible(call.site) or '(root)'}", (f"  {visible(call.reason)}", Tone.DIM)) for call in alone[:500]]
            if len(alone) > 500:
                lines.append(line((f"  and {count(len(alone) - 500)} more", Tone.DIM)))
    for name, side in comparison.sides:
        tone = Tone.REFERENCE if name == "reference" else Tone.TARGET
        lines += [line(), line((name.capitalize(), tone), (f"  {visible(side.path)}", Tone.PLAIN))]
        if not side.complete:
            lines.append(line(("  the recording is incomplete", Tone.NOTICE)))
        lines += [made for key, value in side.environment.items() for made in _entry(str(key), value, "  ")]
    return lines


_NESTED = 6
"""How deep an environment is followed."""


def _entry(key: str, value: Any, indent: str) -> list[Line]:
    """A part of an environment in lines: what is nested below its name, each part on its own line."""
    name = (f"{indent}{visible(key)}  ", Tone.DIM)
    if isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    if isinstance(value, Mapping) and len(indent) < 2 * _NESTED:
        if not value:
            return [line(name, "none")]
        return [line(name), *(made for inner, part in value.items() for made in _entry(str(inner), part, indent + "  "))]
    if isinstance(value, (list, tuple)) and len(indent) < 2 * _NESTED:
        if not any(isinstance(part, (Mapping, list, tuple)) for part in value):
            return [line(name, visible(", ".join(map(str, value))) or "none")]
        return [line(name), *(made for number, part in enumerate(value) for made in _entry(str(number), part, indent + "  "))]
    if value is None or isinstance(value, bool):
        return [line(name, "none" if value is None else "yes" if value else "no")]
    return [line(name, visible(str(value)))]
