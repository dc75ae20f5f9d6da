"""Collectives in lines: in order, on which ranks, what each put in and what came out; a rank that disagrees stands out.

Where every rank got the same bits that is one row; a rank with other bits, or with none, has a row of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from layerdiff.judge.issued import listed
from layerdiff.judge.tables import Verdict
from layerdiff.rows.cells import cell_width, fit, shorten, visible
from layerdiff.rows.figures import amount, count, figure, known
from layerdiff.rows.ranks.meetings import Load, Meeting, Seat
from layerdiff.rows.section import heading, said
from layerdiff.rows.tones import Line, Segment, Tone, line, mark, rank_tone
from layerdiff.trace.schema import POINT_TO_POINT

MOST: Final = 60
"""Collectives of one call that are shown."""
_MOST_RANKS: Final = 16
_LABEL: Final = 8
_WIDE: Final = 108
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_UNSAID: Final = (Verdict.NOT_COMPARABLE, Verdict.PENDING)


def meeting_lines(meetings: Sequence[Meeting], verdicts: Mapping[tuple[str, int, int], int], width: int, *, outer: str = "") -> list[Line]:
    """All collectives inside a call, at most `width` cells; nothing where there are none.

    `verdicts`: what was said of a collective, by site, step and occurrence. `outer`: the site of the call, left out of their names.
    """
    if not meetings:
        return []
    total = len(meetings)
    told = f"{count(total)} in order: rms that went in and came out" + (", ≤ the largest magnitude" if width >= _WIDE else "")
    lines = [heading("collectives inside", width, told)]
    for number, meeting in enumerate(meetings[:MOST], 1):
        lines += _meeting(number, meeting, verdicts.get(meeting.first.place), width, outer)
    if total > MOST:
        lines.append(line((f"  and {count(total - MOST)} more: open a call inside this one", Tone.DIM)))
    return [made.clipped(width) for made in lines]


def _meeting(number: int, meeting: Meeting, verdict: int | None, width: int, outer: str) -> Iterator[Line]:
    first = meeting.first
    shown = mark(verdict) if verdict is not None and verdict not in _UNSAID else None
    right = f"  {shown.glyph} {shown.word}" if shown else ""
    name = " ".join(visible(word) for word in (first.name, first.op) if word)
    where = _where(meeting, outer)
    load = _load(meeting)
    what = f"{visible(load.dtype)} {_shapes(load)}" if load else ""
    text = f"{_who(meeting)}   {what}".rstrip()
    used = 7 + cell_width(name) + 2 + cell_width(text) + cell_width(right)
    where = shorten(where, width - used - 3, at="middle") if width - used > 12 else ""
    gap = " " * max(0, width - used - 3 - cell_width(where)) if shown else ""
    yield line(
        (f"  {number:>3}  ", Tone.DIM),
        (name, Tone.STRONG),
        (f"  {text}", Tone.PLAIN),
        (f"   {where}" if where else "", Tone.DIM),
        gap,
        (right, shown.tone if shown else Tone.PLAIN),
    )
    yield from _seats(meeting, width)
    yield from _remarks(meeting, width)


def _where(meeting: Meeting, outer: str) -> str:
    """The module that issued it, as seen from the enclosing one: `self_attn.o_proj`; `#1` for its second of the kind."""
    module, _, operator = meeting.first.site.rpartition("/")
    number = operator.rpartition("#")[2]
    inner = module[len(outer) :].lstrip("./") if outer and module.startswith(outer) else module
    return visible(inner) + (f" #{number}" if number.isdecimal() and number != "0" else "")


def _load(meeting: Meeting) -> Load | None:
    return next((load for seat in meeting.seats for load in (seat.given, seat.got) if load is not None), None)


def _shapes(load: Load) -> str:
    kinds = list(dict.fromkeys(load.shapes))
    if len(load.shapes) == 1:
        return str(list(load.shapes[0]))
    return f"{len(load.shapes)} × {list(kinds[0])}" if len(kinds) == 1 else f"{len(load.shapes)} tensors"


def _who(meeting: Meeting) -> str:
    first = meeting.first
    if first.operator in POINT_TO_POINT:
        source = first.rank if first.operator == "c10d.send" else first.source
        destination = first.destination if first.operator == "c10d.send" else first.rank
        return f"rank {'?' if source is None else source} → {'?' if destination is None else destination}"
    root = first.source if first.source is not None else first.destination
    way = "" if root is None else f" {'from' if first.source is not None else 'to'} {root}"
    return f"ranks {listed(first.group.ranks)}{way}"


def _odd_seats(meeting: Meeting) -> dict[int, str]:
    """What is wrong at each rank: another call, no end, or other bits than most of them got."""
    found: dict[int, str] = {}
    usual = Counter(seat.call.signature for seat in meeting.seats).most_common(1)[0][0] if meeting.seats else None
    point = meeting.first.operator in POINT_TO_POINT
    for seat in meeting.seats:
        if seat.call.ended != "finished":
            found[seat.rank] = f"raised: {visible(seat.call.why or '')}" if seat.call.ended == "raised" else "was not waited for"
        elif not point and seat.call.signature != usual:
            found[seat.rank] = f"issued {visible(str(seat.call))}"
    if point:
        sent = next((seat.given.prints for seat in meeting.seats if seat.given is not None), None)
        for seat in meeting.seats:
            if sent is not None and seat.got is not None and seat.got.prints not in (None, sent):
                found.setdefault(seat.rank, "got other bits than were sent")
    if meeting.alike:
        prints = {seat.rank: seat.got.prints for seat in meeting.seats if seat.got is not None and seat.got.prints is not None}
        common = _common(list(prints.values()))
        for rank, one in prints.items():
            if one != common:
                found.setdefault(rank, "got other bits than the others" if common is not None else "no two got the same bits")
    return found


def _common(prints: Sequence[Any]) -> Any:
    """What most ranks got; None where no two got the same."""
    if not prints:
        return None
    most, times = Counter(prints).most_common(1)[0]
    return most if times > 1 or len(prints) == 1 else None


def _seats(meeting: Meeting, width: int) -> Iterator[Line]:
    odd = _odd_seats(meeting)
    got = [seat.got for seat in meeting.seats if seat.got is not None]
    same = meeting.alike and len(got) == len(meeting.seats) and not odd and len(got) > 1 and all(one.prints is not None for one in got)
    scale = max((load.rms for seat in meeting.seats for load in (seat.given, seat.got) if load and math.isfinite(load.rms)), default=0.0)
    kept = [seat for seat in meeting.seats if seat.rank in odd][:_MOST_RANKS]
    kept += [seat for seat in meeting.seats if seat.rank not in odd][: _MOST_RANKS - len(kept)]
    for seat in sorted(kept, key=lambda seat: seat.rank):
        yield from _seat(seat, odd.get(seat.rank), scale, width, with_got=not same)
    if len(meeting.seats) > len(kept):
        yield line((f"       and {amount(len(meeting.seats) - len(kept), 'more rank')}", Tone.DIM))
    if same:
        head = [("       ", Tone.PLAIN), (fit(f"all {len(got)}", _LABEL), Tone.PLAIN)]
        yield _line_of(head, None, got[0], scale, width, ("= same bits", Tone.SAME))
    for rank in meeting.absent:
        yield line(("     ✗ ", Tone.FAULT), (fit(f"rank {rank}", _LABEL), Tone.FAULT), ("did not issue it", Tone.FAULT))
    if meeting.unrecorded:
        plural = "s" if len(meeting.unrecorded) > 1 else ""
        yield line(("     ∅ ", Tone.UNKNOWN), (f"of rank{plural} {listed(meeting.unrecorded)} there is no trace", Tone.UNKNOWN))


def _seat(seat: Seat, odd: str | None, scale: float, width: int, *, with_got: bool) -> Iterator[Line]:
    tone = Tone.FAULT if odd else rank_tone(seat.rank)
    head = [("     ✗ " if odd else "       ", Tone.FAULT), (fit(f"rank {seat.rank}", _LABEL), tone)]
    yield _line_of(head, seat.given, seat.got if with_got else None, scale, width, ("", Tone.PLAIN), tone)
    if odd:
        yield from said(" " * (7 + _LABEL) + "└", Tone.FAULT, odd, width, tone=Tone.FAULT, lines=3)


def _line_of(
    head: Sequence[tuple[str, Tone]], given: Load | None, got: Load | None, scale: float, width: int, note: tuple[str, Tone],
    tone: Tone = Tone.PLAIN,
) -> Line:  # fmt: skip
    """`rank 0  in ███ 7.86e-3  →  out ████ 1.57e-2  note`."""
    wide = width >= _WIDE
    bar = 12 if wide else 10 if width >= 84 else 7
    left = _side("in", given, scale, bar, tone, wide=wide) if given is not None else [Segment(" " * (5 + bar + 9 + (11 if wide else 0)))]
    right = [Segment("  →  " if given is not None else "     ", Tone.DIM), *_side("out", got, scale, bar, tone, wide=wide)] if got else []
    return line(*head, *left, *right, (f"  {note[0]}" if note[0] else "", note[1]))


def _side(word: str, load: Load, scale: float, cells: int, tone: Tone, *, wide: bool) -> list[Segment]:
    share = load.rms / scale if scale > 0 and math.isfinite(load.rms) else 0.0
    eighths = min(8 * cells, max(1 if load.rms > 0 else 0, round(share * 8 * cells)))
    bar = ("█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()).ljust(cells)
    odd = f"{count(load.nonfinite)} not finite" if load.nonfinite else ""
    largest = f"  ≤ {figure(known(load.largest))}".ljust(11)[:11] if wide and not odd else ""
    return [
        Segment(f"{word:<4} ", Tone.DIM),
        Segment(bar, tone),
        Segment(f" {fit(figure(known(load.rms)), 8, align='right')}", Tone.PLAIN),
        Segment(largest, Tone.FAINT),
        Segment(f"  {odd}" if odd else "", Tone.BROKEN),
    ]


def _remarks(meeting: Meeting, width: int) -> Iterator[Line]:
    prints = [seat.given.prints for seat in meeting.seats if seat.given is not None]
    if meeting.reduces and len(prints) > 1 and prints[0] is not None and all(one == prints[0] for one in prints):
        times = f"the {visible(meeting.first.op or '')} is {len(prints)} times it" if meeting.first.op == "sum" else "so it changes nothing"
        if any(seat.given is not None and seat.given.rms > 0 for seat in meeting.seats):
            yield from said("     ◆", Tone.NOTICE, f"every rank put in the same bits: {times}", width)
