"""The help page: keys, columns, verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from layerdiff.judge.tables import Verdict
from layerdiff.rows.tones import MARKS, Line, Tone, line
from layerdiff.tui.actions import LAYERS_ACTIONS, MOVES, Action

_MEANINGS = {
    Verdict.IDENTICAL: "the same bits",
    Verdict.INHERITED: "differs, and does nothing wrong itself: the difference came in",
    Verdict.ORDER_EXACT: "another order of summation, reproduced bit for bit",
    Verdict.ORDER_CONSISTENT: "within what rounding and the order of summation can make",
    Verdict.RECONVERGES: "an origin after which the runs meet again",
    Verdict.FLIP: "a discrete choice that was too close to call",
    Verdict.NONDETERMINISTIC: "the target differs from itself between two runs",
    Verdict.PRECISION: "explained by lower precision than declared",
    Verdict.UNEXPLAINED: "more than arithmetic allows, no cause found",
    Verdict.DEFECT: "more than arithmetic allows, and the cause is named",
    Verdict.BROKEN: "not finite where the reference is",
    Verdict.NOT_COMPARABLE: "no partner, or nothing to compare; the finding says which",
    Verdict.PENDING: "not compared yet",
}


def help_of(actions: Sequence[Action], words: Sequence[tuple[str, str]]) -> list[Line]:
    """The page of a screen: its keys, and what its words mean."""
    lines = _keys(actions)
    lines += [line(), line(("Words", Tone.TITLE))]
    wide = max((len(word) for word, _ in words), default=0) + 2
    return [*lines, *(line((f"  {word:<{wide}}", Tone.STRONG), meaning) for word, meaning in words)]


def help_lines() -> list[Line]:
    """The whole page."""
    lines = _keys(LAYERS_ACTIONS)
    lines += [
        line(),
        line(("Columns", Tone.TITLE)),
        line(
            ("  rel L2      ", Tone.STRONG),
            "|target - reference| / |reference| of its own outputs; ~ from statistics; - unknown",
        ),
        line(("              ", Tone.STRONG), "nan: NaN or Inf on one side; the figures of such a value are of its other elements"),
        line(("  worst ×     ", Tone.STRONG), "measured over allowed, the worst of the call and of all inside; over 1× needs a reason"),
        line(("  verdict     ", Tone.STRONG), "the worst of the call and all calls inside it"),
        line(),
        line(("Difference by depth", Tone.TITLE)),
        line(("  bar            ", Tone.STRONG), "the largest difference of the calls at that depth, green up to what is allowed"),
        line(("  × on the axis  ", Tone.STRONG), "the bar goes over what is allowed: it came in, or it is an origin"),
        line(("  ▒              ", Tone.STRONG), "NaN or Inf on one side, so there is no height"),
        line(("  ▲              ", Tone.STRONG), "an origin"),
        line(),
        line(("Verdicts, from harmless to worst", Tone.TITLE)),
    ]
    for verdict, meaning in _MEANINGS.items():
        mark = MARKS[verdict]
        lines.append(line((f"  {mark.glyph} {mark.word:<18}", mark.tone), meaning))
    return lines


def _keys(actions: Sequence[Action]) -> list[Line]:
    keys = [(action.key, action.long) for action in actions] + list(MOVES)
    wide = max(len(key) for key, _ in keys) + 2
    lines = [line(("Keys", Tone.TITLE))]
    lines += [line((f"  {key:<{wide}}", Tone.ACCENT), text) for key, text in keys]
    return lines
