"""The evidence for one call: finding, measured against allowed, the ladder, source lines of both sides, and operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from layerdiff.diagnose.findings import Origin
from layerdiff.judge.tables import Source
from layerdiff.rows.calls.listing import one_sided
from layerdiff.rows.calls.record import CallRecord
from layerdiff.rows.cells import cell_width, fit, shorten, visible, wrap
from layerdiff.rows.evidence import facts
from layerdiff.rows.figures import UNKNOWN, against, amount, count, exact, figure, known, label, times
from layerdiff.rows.sites.table import Rows
from layerdiff.rows.tones import Line, Segment, Tone, line, mark
from layerdiff.rows.values import index_text, pairs_of, position, shape_of, value_name
from layerdiff.saved.comparison import Comparison
from layerdiff.sides import Both

_LABEL: Final = 10
_SIDE: Final = 10
_LADDER: Final = ("ladder", "rungs", "tests")
"""Keys of the evidence under which a list of tests may stand: each with what was measured and what is allowed."""


def call_detail(rows: Rows, row: int, record: Both[CallRecord | str] | None, width: int) -> list[Line]:
    """All that is known of a call, at most `width` cells wide; `record` is what the traces say, None while they are read."""
    sites = rows.comparison.sites
    lines: list[Line] = []
    origins = rows.origins_of(row)
    for origin in origins:
        lines += _origin(origin, width, several=len(origins) > 1)
    if not origins:
        shown = mark(int(sites["verdict"][row]))
        lines += _said(f"{shown.glyph} {shown.word}", shown.tone, rows.statement(row), width)
        place = int(rows.tree.place_of[row])
        inside = rows.seen.origins_inside(place + 1, int(rows.tree.end[place]))
        if inside:
            lines.append(line((f"{amount(inside, 'origin')} inside", Tone.STRONG), (": enter opens its calls", Tone.DIM)))
        measured, allowed = (known(float(sites[name][row])) for name in ("measured", "allowed"))
        rule = visible(rows.comparison.texts[int(sites["rule"][row])] or "")
        if measured is not None or allowed is not None:
            lines.append(_measured(measured, allowed, rule))
    lines += _worst(rows, row)
    lines += _sources(record, one_sided(rows, row), width)
    lines += _operands(rows, row, record, width)
    return [made.clipped(width) for made in lines]


def _label(text: str) -> Segment:
    return Segment(fit(text, _LABEL), Tone.DIM)


def _said(head: str, tone: Tone, text: str, width: int) -> list[Line]:
    indent = cell_width(head) + 2
    first, *rest = wrap(text, max(10, width - indent), lines=6) or [""]
    return [line((head, tone), f"  {first}" if first else ""), *(line(" " * indent + more) for more in rest)]


def _origin(origin: Origin, width: int, *, several: bool) -> list[Line]:
    own = mark(origin.verdict)
    at = f" {visible(origin.value)}" if several or origin.value != "out" else ""
    lines = _said(f"{own.glyph} {own.word}{at}", own.tone, visible(origin.statement), width)
    lines.append(_measured(origin.measured, origin.allowed, visible(origin.rule)))
    if origin.cause:
        lines.append(line(_label("cause"), (visible(origin.cause), Tone.STRONG)))
    rest = dict(origin.evidence)
    for key in _LADDER:
        if isinstance(rest.get(key), (list, tuple)):
            lines += _ladder(rest.pop(key))
    lines += _evidence(rest, width)
    return lines


def _measured(measured: float | None, allowed: float | None, rule: str) -> Line:
    over = times(measured, allowed, rule)
    figures = against(measured, allowed, rule) if measured is not None or allowed is not None else ""
    over = f"  {over}" if over else ""
    return line(
        _label(label(measured, allowed, rule) if figures else "rule"),
        figures,
        (over, Tone.STRONG),
        (f"{'  ' if figures else ''}{rule}", Tone.DIM),
    )


def _evidence(evidence: Mapping[str, Any], width: int) -> list[Line]:
    """Facts, as many to a line as fit; whatever the keys are."""
    found = facts(evidence)
    if not found:
        return []
    pieces = wrap(" · ".join(found), max(10, width - _LABEL), lines=12)
    return [line(_label("evidence" if i == 0 else ""), text) for i, text in enumerate(pieces)]


def _ladder(tests: Sequence[Any]) -> list[Line]:
    """Each test of the ladder with what it measured and what is allowed; the one that decided stands out."""
    lines = []
    for i, test in enumerate(tests[:20]):
        if not isinstance(test, Mapping):
            lines.append(line(_label("ladder" if i == 0 else ""), visible(str(test))))
            continue
        rest = dict(test)
        name = visible(str(rest.pop("name", None) or rest.pop("rung", None) or rest.pop("test", None) or f"test {i + 1}"))
        decided = bool(rest.pop("decided", False) or rest.pop("decides", False))
        measured, allowed = rest.pop("measured", None), rest.pop("allowed", None)
        numbers = isinstance(measured, (int, float)) and isinstance(allowed, (int, float))
        figures = f"  {against(float(measured), float(allowed), '')}" if numbers else ""
        if not numbers and (measured is not None or allowed is not None):
            rest |= {key: value for key, value in (("measured", measured), ("allowed", allowed)) if value is not None}
        more = " · ".join(facts(rest))
        lines.append(
            line(
                _label("ladder" if i == 0 else ""), ("▸ " if decided else "  ", Tone.ACCENT),
                (name, Tone.STRONG if decided else Tone.PLAIN), (figures, Tone.PLAIN), (f"  {more}" if more else "", Tone.DIM),
            )
        )  # fmt: skip
    return lines


def _worst(rows: Rows, row: int) -> list[Line]:
    """The element that differs most in the value that decided."""
    comparison, pair = rows.comparison, int(rows.comparison.sites["pair"][row])
    if pair < 0 or comparison.pairs["source"][pair] != Source.BYTES or comparison.pairs["worst"][pair] < 0:
        return []
    shape = shape_of(comparison.texts[int(comparison.pairs["reference_shape"][pair])])
    at = index_text(int(comparison.pairs["worst"][pair]), shape)
    apart = exact(known(float(comparison.pairs["max_abs"][pair])))
    return [line(_label("worst"), f"{position(comparison, pair)} {at}", (f"  |Δ| {apart}", Tone.PLAIN), ("  v shows its values", Tone.DIM))]


def _sources(record: Both[CallRecord | str] | None, alone: str, width: int) -> list[Line]:
    if record is None:
        return [line(_label("source"), ("reading the traces", Tone.DIM))]
    lines: list[Line] = []
    both = record.reference, record.target
    for what in ("stack", "scalars"):
        texts = [side if isinstance(side, str) else (side.stack if what == "stack" else "  ".join(side.scalars)) for side in both]
        label = "source" if what == "stack" else "scalars"
        if what == "scalars" and any(isinstance(side, str) for side in both):
            texts = ["" if isinstance(side, str) else text for side, text in zip(both, texts, strict=True)]
        if not any(texts):
            continue
        if texts[0] == texts[1]:
            lines.append(line(_label(label), shorten(texts[0], width - _LABEL, at="middle")))
            continue
        for name, text, side, tone in zip(("reference", "target"), texts, both, (Tone.REFERENCE, Tone.TARGET), strict=True):
            if alone and name != alone:
                continue
            text = shorten(text, width - _LABEL - 10, at="end" if isinstance(side, str) else "middle")
            lines.append(line(_label(label), (f"{name:<10}", tone), (text, Tone.NOTICE if isinstance(side, str) else Tone.PLAIN)))
            label = ""
    return lines


def _operands(rows: Rows, row: int, record: Both[CallRecord | str] | None, width: int) -> list[Line]:
    """One line a value: position, both sides, whether equal, and who made it. Where the two sides' makers are others, each has a line."""
    comparison, alone = rows.comparison, one_sided(rows, row)
    found = pairs_of(comparison, row).tolist()
    sides = [side for side in (record.reference, record.target) if isinstance(side, CallRecord)] if record is not None else []
    body: list[tuple[str, str, str, list[str]]] = []
    if not found and alone and sides:
        body = [(name, text, f"{alone} only", [sides[0].made_by.get(name, "")]) for name, text in list(sides[0].values.items())[:40]]
    if not found and not body:
        return [line(_label("values"), (f"the {alone} alone ran it" if alone else "none were recorded", Tone.DIM))]
    for pair in found[:40]:
        name = position(comparison, pair)
        reference, target = (value_name(comparison, pair, side) for side in ("reference", "target"))
        if reference.shape == target.shape and reference.dtype != target.dtype:
            both = f"{reference.dtype} ⇄ {target.text}"
        else:
            both = reference.text if reference == target else f"{reference.text} ⇄ {target.text}"
        makers = [side.made_by.get(name, "") for side in sides]
        body.append((name, both, equality(comparison, pair), makers if len(set(makers)) > 1 else makers[:1]))
    headings = ("values", "dtype and shape", "equal")
    wide = [max(map(cell_width, [head, *(str(cells[i]) for cells in body)])) for i, head in enumerate(headings)]
    wide[1] = min(wide[1], max(12, width // 2 - 12))
    heads = [fit(head, cells + 2) for head, cells in zip(headings, wide, strict=True)]
    lines = [line(("".join(heads) + "made by", Tone.DIM))]
    room = max(0, width - sum(wide) - 6)
    for name, both, equal, makers in body:
        tone = Tone.SAME if equal.startswith("=") else Tone.PLAIN
        head = [
            Segment(fit(name, wide[0] + 2), Tone.STRONG),
            Segment(fit(both, wide[1], at="middle") + "  "),
            Segment(fit(equal, wide[2] + 2), tone),
        ]
        if len(makers) < 2:
            lines.append(line(*head, *((shorten(maker, room, at="middle"), Tone.DIM) for maker in makers)))
            continue
        beside = max(map(cell_width, makers)) + _SIDE <= room
        indent, left = (width - room, room) if beside else (_SIDE, width - _SIDE)
        said = [
            ((f"{side:<{_SIDE}}", tone), (shorten(maker or "nothing that was recorded", max(1, left - _SIDE), at="middle"), Tone.PLAIN))
            for side, maker, tone in zip(("reference", "target"), makers, (Tone.REFERENCE, Tone.TARGET), strict=True)
        ]
        first = said.pop(0) if beside else ()
        lines += [line(*head, *first), *(line(" " * indent, *one) for one in said)]
    if len(found) > 40:
        lines.append(line((f"{count(len(found) - 40)} more values", Tone.DIM)))
    return lines


def equality(comparison: Comparison, pair: int) -> str:
    """Whether two values are the same bits, else how far apart they are."""
    pairs, source = comparison.pairs, int(comparison.pairs["source"][pair])
    if pairs["equal"][pair] == 1:
        return "= same bits"
    if source in (Source.NOTHING, Source.PENDING):
        return "∅ not compared" if source == Source.NOTHING else "· pending"
    if pairs["nonfinite_differ"][pair] > 0:
        return f"! {amount(int(pairs['nonfinite_differ'][pair]), 'class', 'classes')} differ"
    if pairs["mismatched"][pair] > 0:
        return f"≠ {count(int(pairs['mismatched'][pair]))} differ"
    number = known(float(pairs["statistic" if source == Source.STATISTICS else "rel_l2"][pair]))
    return f"≠ {UNKNOWN if number is None else figure(number)}" if source == Source.BYTES else f"≠ ~{figure(number)}"
