"""A summation tree as lines: where its largest parts lie among the terms, the formula that adds them, and an outline with repeats folded.

Every face draws a tree with this, at whatever width it has; nothing here is wider than `width` cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from layerdiff.arithmetic.orders.outline import outline, said
from layerdiff.arithmetic.orders.parts import How, Part, Run, is_solid, last_term, moved, stride, unfolded
from layerdiff.arithmetic.orders.tree import Tree
from layerdiff.rows.cells import cell_width, fit, shorten
from layerdiff.rows.figures import amount, count
from layerdiff.rows.tones import Line, Segment, Tone, line

MOST_LINES: Final = 40
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MOST_IN_FORMULA: Final = 8
_RUNS_SHOWN: Final = 8
_DEEPEST: Final = 12
_ADDED: Final = {
    How.CHAIN: "added in order",
    How.PAIRS: "added in pairs of neighbours",
    How.HALVES: "added in pairs of halves",
    How.FUSED: "added at once",
    How.JOINED: "added at once",
    How.TERM: "",
}


def tree_lines(tree: Tree, width: int = 80, *, most: int = MOST_LINES) -> list[Line]:
    """The drawing of a tree, at most `most` lines: a phrase, a ruler, a formula, an outline."""
    part = outline(tree)
    text = said(part)
    lines = [*_wrapped(text if str(part.terms) in text or part.terms == 1 else f"{count(part.terms)} terms: {text}", width)]
    if part.terms > 1:
        lines.append(line((f"at most {amount(part.height, 'addition')} between a term and the sum", Tone.DIM)))
        lines += [line(), *_picture(part, width)]
        outlined = _outlined(part, width, most - len(lines) - 1)
        if len(outlined) > 1:
            lines += [line(), *outlined]
    return [one.clipped(width) for one in lines]


def _wrapped(text: str, width: int) -> Iterator[Line]:
    while cell_width(text) > width:
        cut = text.rfind(" ", 0, width + 1)
        if cut <= 0:
            break
        yield line((text[:cut], Tone.STRONG))
        text = text[cut + 1 :]
    yield line((text, Tone.STRONG))


def _picture(part: Part, width: int) -> list[Line]:
    """A ruler of the terms with a letter a part, and the formula of the letters; of many parts, or of single terms, the formula alone."""
    items = unfolded(part)
    fused = items[0].how is How.JOINED
    ruler: list[Line] = []
    if all(item.how is How.TERM for item in items):
        names = [f"t{item.first}" for item in items]
    elif len(items) > len(_LETTERS):
        names = [f"P{i}" for i in range(1, len(items) + 1)]
    else:
        names = list(_LETTERS[: len(items)])
        named = {item.first: name for item, name in zip(items, names, strict=True)}
        ruler = _ruler(items, named, width) or _lanes(items, named, width)
    return [*ruler, line(("sum = ", Tone.DIM), _formula(part.how, names, width - 6, fused=fused))]


def _ruler(items: list[Part], named: dict[int, str], width: int) -> list[Line]:
    """Parts that lie one after the other, to scale; the numbers are those of their first terms, and the last one."""
    lying = sorted(items, key=lambda item: item.first)
    room = min(width, 76) - 1
    if room < 3 * len(items) or not all(is_solid(item) for item in items):
        return []
    total, held, narrowest = sum(item.terms for item in items), 0, min(4, room // len(items))
    ends = [0]
    for i, item in enumerate(lying):
        held += item.terms
        ends.append(min(max(round(held * room / total), ends[-1] + narrowest), room - narrowest * (len(lying) - 1 - i)))
    bar = [Segment("├", Tone.FAINT)]
    numbers = ""
    last = str(last_term(lying[-1]))
    for i, item in enumerate(lying):
        inner = ends[i + 1] - ends[i] - 1
        left = (inner - 1) // 2
        end = "┤" if i == len(lying) - 1 else "┼"
        bar += [
            Segment("─" * left, Tone.FAINT),
            Segment(named[item.first], Tone.ACCENT),
            Segment("─" * (inner - 1 - left) + end, Tone.FAINT),
        ]
        text = str(item.first)
        if len(numbers) + (1 if numbers else 0) <= ends[i] <= room - len(text) - len(last):
            numbers += " " * (ends[i] - len(numbers)) + text
    numbers += " " * (room + 1 - len(last) - len(numbers)) + last
    return [line((numbers, Tone.DIM)), Line(tuple(bar))]


def _lanes(items: list[Part], named: dict[int, str], width: int) -> list[Line]:
    """Parts that lie in each other as teeth do: which letter each of the first terms belongs to."""
    step = stride(items[0])
    by_term = {item.first: named[item.first] for item in items}
    if step != len(items) or any(stride(item) != step for item in items) or sorted(by_term) != list(range(step)):
        return []
    room = min(width, 76) - 8
    period = "".join(by_term[i] for i in sorted(by_term))
    repeats = max(1, min(room // (step + 1) - 1, items[0].terms))
    end = " …" if repeats < items[0].terms else ""
    return [line(("terms ", Tone.DIM), (" ".join([period] * repeats), Tone.ACCENT), (end, Tone.FAINT))]


def _formula(how: How, names: list[str], room: int, *, fused: bool) -> str:
    """The sum of the names as it is bracketed; shortened in its middle where it is long."""
    few = len(names) <= _MOST_IN_FORMULA
    if fused and not few:
        return f"round(round(round({names[0]}) + {names[1]}) + …) + {names[-1]})"
    if fused:
        text = names[0]
        for name in names[1:]:
            text = f"round({text}) + {name}"
        return f"round({text})"
    if how is How.CHAIN:
        if not few:
            return f"((({names[0]} + {names[1]}) + {names[2]}) + …) + {names[-1]}"
        text = names[0]
        for i, name in enumerate(names[1:]):
            text = f"{text} + {name}" if i == len(names) - 2 else f"({text} + {name})"
        return text if len(text) <= room else f"(({names[0]} + {names[1]}) + …) + {names[-1]}"
    if how in (How.FUSED, How.JOINED):
        text = " ⊕ ".join(names if few else [*names[:3], "…", names[-1]])
        return f"{text}, rounded once"
    rounds = 0
    level = names
    while len(level) > 1 and (few or rounds < 2):
        half = (len(level) + 1) // 2
        couples = [(i, i + half) for i in range(half)] if how is How.HALVES else [(2 * i, 2 * i + 1) for i in range(half)]
        level = [f"({level[a]} + {level[b]})" if b < len(level) else level[a] for a, b in couples]
        rounds += 1
    if few:
        return level[0][1:-1]
    return (
        f"({level[0]} + {level[1] if len(level[1]) + len(level[0]) + 12 < room else '…'}) + …"
        if len(level) > 2
        else f"{level[0]} + {level[1]}"
    )


def _outlined(part: Part, width: int, most: int) -> list[Line]:
    """The outline, as deep as there is room for."""
    for depth in range(_DEEPEST, 0, -1):
        lines = [_entry("", part, None, width), *_inside(part, "", width, depth)]
        if len(lines) <= most or depth == 1:
            break
    if len(lines) > most:
        lines = [*lines[: max(most - 1, 1)], line((f"… {amount(len(lines) - most + 1, 'more line')} of the outline", Tone.DIM))]
    return lines


def _inside(part: Part, guide: str, width: int, depth: int) -> Iterator[Line]:
    """The runs of a part, under its line; single terms that the line itself has told are left out."""
    if _told(part):
        return
    if depth == 0:
        yield line((f"{guide}└─ ", Tone.FAINT), (f"… {amount(part.items, 'part')}, not shown", Tone.DIM))
        return
    shown = list(part.runs)
    hidden = 0
    if len(shown) > _RUNS_SHOWN + 1:
        hidden = len(shown) - _RUNS_SHOWN
        shown = [*shown[: _RUNS_SHOWN - 1], shown[-1]]
    for i, run in enumerate(shown):
        is_last = i == len(shown) - 1
        if is_last and hidden:
            yield line((f"{guide}│  ", Tone.FAINT), (f"… {amount(hidden, 'more part')}", Tone.DIM))
        yield _entry(f"{guide}{'└─ ' if is_last else '├─ '}", run.part, run, width)
        yield from _inside(run.part, f"{guide}{'   ' if is_last else '│  '}", width, depth - 1)


def _told(part: Part) -> bool:
    """Whether a line says all of a part: one run of single terms."""
    return part.how is How.TERM or (len(part.runs) == 1 and part.runs[0].part.how is How.TERM and part.runs[0].times == 1)


def _entry(guide: str, part: Part, run: Run | None, width: int) -> Line:
    times = ""
    if run is not None and run.count > 1:
        times = f"{count(run.times)} × {count(run.count)} × " if run.times > 1 else f"{count(run.count)} × "
    name = _name(part)
    where = "" if run is None else _where(run)
    room = width - cell_width(guide)
    left = min(max(min(34, width * 2 // 5) - cell_width(guide), cell_width(times + name) + 2), room)
    return line(
        (guide, Tone.FAINT),
        (fit(times + name, left) if where else shorten(times + name, room), Tone.PLAIN),
        (shorten(where, max(0, room - left)), Tone.DIM),
    )


def _name(part: Part) -> str:
    if part.how is How.TERM:
        return "term"
    if all(run.part.how is How.TERM for run in part.runs):
        only = part.runs[0] if len(part.runs) == 1 and part.runs[0].times == 1 else None
        backward = " backward" if part.how is How.CHAIN and only is not None and only.step < 0 else ""
        kind = {
            How.CHAIN: "chain of {}",
            How.PAIRS: "{} in pairs of neighbours",
            How.HALVES: "{} in pairs of halves",
            How.FUSED: "{} at once",
            How.JOINED: "{} at once with the sum so far",
        }[part.how]
        return kind.format(count(part.terms)) + backward
    return f"sum of {count(part.terms)}: {count(part.items)} parts {_ADDED[part.how]}"


def _where(run: Run) -> str:
    """Which terms a run holds: those of its first parts, and of its last."""
    if run.count == 1:
        return _span(run.part)
    if run.times > 1:
        once = Run(run.part, run.count, run.step)
        starts = (1, run.times - 1) if run.times > 2 else (1,)
        further = [Run(moved(run.part, by * run.shift), run.count, run.step) for by in starts]
        return "; ".join([_where(once), *(_where(one) for one in further[:-1]), ("… " if run.times > 3 else "") + _where(further[-1])])
    last = moved(run.part, run.step * (run.count - 1))
    if run.part.how is How.TERM and run.count > 2:
        gap = "…" if abs(run.step) == 1 else f"{run.part.first + run.step}, …"
        return f"{run.part.first}, {gap} {last.first}" if abs(run.step) != 1 else f"{run.part.first} … {last.first}"
    joint = ", " if is_solid(run.part) else "; "
    second = [_span(moved(run.part, run.step))] if run.count > 2 else []
    return joint.join([_span(run.part), *second, ("… " if run.count > 3 else "") + _span(last)])


def _span(part: Part) -> str:
    """The terms of a part: `0–191`; `0, 8, … 248`; `3 of 5–90`."""
    first, last = part.first, last_term(part)
    if first == last:
        return str(first)
    if is_solid(part):
        return f"{first}–{last}"
    step = stride(part)
    if step is not None:
        return f"{first}, {first + step}, … {last}" if part.terms > 2 else f"{first}, {last}"
    return f"{part.terms} of {first}–{last}"
