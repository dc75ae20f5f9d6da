"""Another epsilon in a norm, told by the factors of its rows: what is hidden in each number shows in their sum.

An epsilon that is larger by d makes each row smaller by the factor 1 - 1/2 d / (mean square + epsilon), the same in all channels. A row's
factor is its projection on what the reference's form makes of its input, and rounding moves it by u / sqrt(3 channels) alone. Rounded
weights, or rounding towards zero, make one factor of all rows; so rows with other mean squares must tell the epsilon by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.classes import FP32_ROUNDOFF, NORM
from layerdiff.judge.norms import LEAST, Form, as_rows, cancels, centred, fitted_form, relative, scaled, square_of

Array = NDArray[Any]
Reals = NDArray[np.float64]
_ROWS: Final = 16
"""Rows from which on they tell an epsilon: of a few, chance tells as much."""
_NEARER: Final = 8
"""How often the target's epsilon is taken nearer."""
_CLOSE: Final = 1e-6
"""The share of what is off the line below which a further step is not worth it."""
_DEVIATIONS: Final = 8.0
"""Standard errors from which on rows tell another epsilon. Measured: at most 3.3 of 407 right norms whose rows tell as
large a change; where a kernel rounds each row's mean square to bf16, of 4096 rows up to 18."""
_EXPLAINED: Final = 0.25
"""The share of what the rows' factors vary that another epsilon must explain: of such a kernel at most 0.19 where nothing is wrong."""
_LEVEL: Final = 2.0
"""Roundoffs by which all rows may be off: rounding twice towards zero makes 1.7."""
_CHANGE: Final = 0.25
"""The least change of an epsilon, as a share of it: in fp16 1e-6 is 1.01e-6."""


@dataclass(frozen=True)
class OtherEpsilon:
    """An epsilon that the target's norm has in place of the reference's.

    Attributes:
        fitted, reference: the target's, and the reference's, by their rows.
        uncertainty: the standard error of their difference.
        rows: how many there are.
        effect: relative L2 of what it makes of the result.
        centred: whether the norm takes the mean away.
    """

    fitted: float
    reference: float
    uncertainty: float
    rows: int
    effect: float
    centred: bool

    @property
    def allowed(self) -> float:
        """Of the effect, what so many standard errors make."""
        return self.effect * _DEVIATIONS * self.uncertainty / abs(self.fitted - self.reference)


def other_epsilon(inputs: Sequence[Array], outputs: Sequence[Array], epsilon: float, roundoffs: Sequence[float]) -> OtherEpsilon | None:
    """None where the rows do not tell another; arguments as of `local_error`."""
    known = as_rows(inputs, outputs)
    if known is None or len(known[0]) < _ROWS:
        return None
    x, given, made, own = known
    for form in (scaled, centred):
        ours = NORM.rounding * roundoffs[0] + NORM.summing * FP32_ROUNDOFF * (cancels(x) if form is centred else 1.0)
        for with_offset in (False, True):
            fitted = fitted_form(form, x, made, epsilon, with_offset=with_offset, until=ours)
            if fitted is None:
                continue
            factor, offset, start = fitted
            told = [_told_by_rows(form, *both, factor, offset, start) for both in ((x, made), (given, own))]
            if told[0] is None or told[1] is None or not _are_two(told[0], told[1], max(roundoffs)):
                return None
            effect = relative(factor * form(given, told[0].epsilon), factor * form(given, told[1].epsilon))
            error = float(np.hypot(told[0].error, told[1].error))
            return OtherEpsilon(told[1].epsilon, told[0].epsilon, error, told[1].rows, effect, form is centred)
    return None


@dataclass(frozen=True)
class _Told:
    """The epsilon that the factors of rows tell, its standard error, how many rows, and the line through the factors."""

    epsilon: float
    error: float
    rows: int
    line: _Line


def _told_by_rows(form: Form, x: Reals, made: Reals, factor: Reals, offset: Reals, epsilon: float) -> _Told | None:
    line, rows = None, 0
    for _ in range(_NEARER):
        meant = factor * form(x, epsilon)
        energy = np.sum(meant * meant, axis=1)
        used = energy > 0
        rows = int(used.sum())
        if rows < _ROWS:
            return None
        share = np.sum((made - offset)[used] * meant[used], axis=1) / energy[used] - 1.0
        line = _line(-0.5 / (square_of(form, x)[used, 0] + max(epsilon, LEAST)), share)
        if line is None:
            return None
        epsilon = max(epsilon + line.slope, 0.0)
        if line.slope * line.slope * line.spread < _CLOSE * line.rest:
            break
    assert line is not None
    return _Told(epsilon, float(np.sqrt(line.rest / (rows - 2) / line.spread)), rows, line)


def _are_two(ours: _Told, theirs: _Told, roundoff: float) -> bool:
    """Whether the two epsilons are two."""
    change, error = abs(theirs.epsilon - ours.epsilon), float(np.hypot(ours.error, theirs.error))
    explained = change * change * theirs.line.spread
    if change < _CHANGE * ours.epsilon or abs(theirs.line.level) > _LEVEL * roundoff:
        return False
    return explained >= _EXPLAINED * (explained + theirs.line.rest) and 0 < _DEVIATIONS * error < change


@dataclass(frozen=True)
class _Line:
    """A line through points: by least squares. `spread`, `rest`: sums of squares, of x around its mean, and of what is off the line."""

    slope: float
    level: float
    spread: float
    rest: float


def _line(x: Reals, y: Reals) -> _Line | None:
    """None where all x are one."""
    apart = x - x.mean()
    spread = float(np.sum(apart * apart))
    if not spread > 0:
        return None
    slope = float(np.sum(apart * y)) / spread
    level = float(y.mean() - slope * x.mean())
    return _Line(slope, level, spread, float(np.sum(np.square(y - level - slope * x))))
