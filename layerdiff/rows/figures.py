"""Numbers as text. Three digits in a table, where columns must line up; all that float64 tells apart in a detail.

`0` is exactly zero, `nan` a value that is not a number, `-` a number that nobody knows: they are never mixed.
"""

from __future__ import annotations

import math
from typing import Final

from layerdiff.judge.tables import is_fit

UNKNOWN: Final = "-"
FIGURE_CELLS: Final = 8
RATIO_CELLS: Final = 8


def known(value: float) -> float | None:
    """A number of a table, None where it is nan there: nobody knows it."""
    return None if math.isnan(value) else value


def _power(text: str) -> str:
    mantissa, exponent = text.split("e")
    return f"{mantissa}e{int(exponent)}"


def figure(value: float | None) -> str:
    """Three significant digits with a power of ten, `2.41e-2`, at most 8 characters; None is unknown."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return _power(f"{value:.2e}")


def ratio(value: float | None) -> str:
    """How many times the allowance, `0.81×`, `4.13e3×`."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0×"
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf×"
    if value < 0.001 or value >= 999.5:
        return _power(f"{value:.1e}") + "×"
    digits = max(0, 2 - math.floor(math.log10(value))) if value >= 1 else 3
    return f"{value:.{digits}f}×"


def exact(value: float | None) -> str:
    """Every digit that matters of a float64 measure: seven significant, whatever the magnitude."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return figure(value)
    text = f"{value:.7g}"
    return _power(text) if "e" in text else text


_COUNTED: Final = ("non-finite", "discrete values", "flip")
"""Rules that count elements, by the ends of their names."""


def fits(measured: float | None, allowed: float | None, rule: str) -> bool:
    """Whether the figure is that of an explanation, and says that it holds."""
    return is_fit(rule) and measured is not None and allowed is not None and measured <= allowed


def label(measured: float | None, allowed: float | None, rule: str) -> str:
    """What stands before `against`."""
    return "fit" if fits(measured, allowed, rule) else "measured"


def times(measured: float | None, allowed: float | None, rule: str) -> str:
    """How many times the allowance was measured; nothing of an explanation that fits, nor where one is unknown or nothing allowed."""
    return "" if measured is None or not allowed or fits(measured, allowed, rule) else ratio(measured / allowed)


def against(measured: float | None, allowed: float | None, rule: str) -> str:
    """`0.0492 of 0.012 allowed`: both in the same notation, since they are there to be compared; counts say what they count.

    Of an explanation `3e-7 off what was recorded, at most 0.02 may be`: it holds because it is that near.
    """
    if measured is not None and rule.endswith(_COUNTED) and float(measured).is_integer():
        return f"{amount(int(measured), 'element')}, {'none' if not allowed else count(int(allowed))} allowed"
    texts = [exact(measured), exact(allowed)]
    if sum("e" in text for text in texts) == 1 and "0" not in texts:
        both = zip(texts, (measured, allowed), strict=True)
        texts = [text if value is None or "e" in text else _scientific(value) for text, value in both]
    if fits(measured, allowed, rule):
        return f"the explanation is {texts[0]} off what was recorded, at most {texts[1]} may be"
    return f"{texts[0]} of {texts[1]} allowed"


def _scientific(value: float) -> str:
    if not math.isfinite(value):
        return figure(value)
    mantissa, exponent = f"{value:.6e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def count(number: int) -> str:
    """A whole number with its thousands apart from 10,000 on."""
    return f"{number:,}" if abs(number) >= 10_000 else str(number)


def amount(number: int, noun: str, plural: str | None = None) -> str:
    """`1 origin`, `3 origins`."""
    return f"{count(number)} {noun if number == 1 else plural or noun + 's'}"


def size(count_bytes: float) -> str:
    """Bytes as people read them: `412 MB`, `2.1 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count_bytes < 999.5:
            return f"{count_bytes:.0f} {unit}" if unit in ("B", "kB") or count_bytes >= 99.5 else f"{count_bytes:.1f} {unit}"
        count_bytes /= 1000
    return f"{count_bytes:.1f} TB"


def span(seconds: float) -> str:
    """Seconds as people read them: `8 s`, `3 min 20 s`, `2 h 10 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
