"""The reference's weights as ranks may hold them: whose bits a weight of a rank has, and of which it is a part."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.global_numbers import Figures, Offsets, PartsOf, Print, stage_offsets
from layerdiff.align.placement import SURELY
from layerdiff.errors import TraceError
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import ValueKind

_HEX: Final = re.compile("[0-9a-f]{32}")
_PROJECTIONS: Final = 12
"""Numbers that stand for a slice of a weight: random projections of it."""
_TELLING: Final = 4
"""Numbers of a slice under which it resembles too many others."""
_LOOKED_AT: Final = 1 << 12
"""Numbers of a slice that are projected."""
_SLICES: Final = 8
"""Slices of a part that are looked for."""
_LOOKED_FOR: Final = 8
"""Weights that are asked whether they are parts of those of their names."""
_KEPT: Final = 1 << 10
"""Weights of the reference whose projections are kept."""
_EXACTLY: Final = 1e-6
Renamed = Callable[[str], str]
Projected = NDArray[np.float64]


class KnownWeights:
    """The reference's weights, all ranks together, by their names in the whole model.

    Attributes:
        prints: the bits of each, of the first rank that has it.
        figures: what statistics say of each.
    """

    def __init__(self) -> None:
        self.prints: dict[str, Print] = {}
        self.figures: dict[str, Figures] = {}
        self._others: list[tuple[str, Print]] = []
        """Further bits of these names: those of other ranks, and those that narrower dtypes would have."""
        self._values: dict[str, list[tuple[TraceFile, int]]] = {}
        self._alike: dict[str, list[str]] = {}
        self._projected: dict[tuple[str, int, int, int], Projected] = {}

    def add(self, file: TraceFile, renamed: Renamed) -> None:
        """The weights of a file of the reference."""
        for own, value in weights_of(file).items():
            name = renamed(own)
            if name not in self._values:
                self._alike.setdefault(_pattern(name), []).append(name)
            self._values.setdefault(name, []).append((file, value))
            bits = print_of(file, value)
            if bits is not None and self.prints.setdefault(name, bits) != bits:
                self._others.append((name, bits))
            self._others += [(name, narrower) for narrower in _rounded(file, value)]
        self.figures = {**{renamed(own): one for own, one in figures_of(file).items()}, **self.figures}

    def offsets(self, file: TraceFile, values: Mapping[str, int]) -> dict[str, Offsets]:
        """What has to be added to the numbers of a rank's lists of layers. `values`: its weights, by their names so far."""
        prints = {name: bits for name, value in values.items() if (bits := print_of(file, value)) is not None}
        return stage_offsets(self.prints, prints, self._others, self._parts_of(file, values))

    def heads(self, names: Iterable[str]) -> list[str]:
        """What the reference may have before the names of a root's weights, where their numbers do not count: nothing, or `model.`."""
        own = {_pattern(name) for name in names}
        return sorted({head for one in own for there in self._alike if there.endswith(one) and _is_head(head := there[: -len(one)])})

    def has(self, names: Collection[str]) -> bool:
        """Whether the reference has most of these names, where their numbers do not count."""
        return 2 * sum(_pattern(name) in self._alike for name in names) > len(names)

    def share(self, file: TraceFile, values: Mapping[str, int]) -> float:
        """The share of a rank's weights that are the reference's of that name, or parts of them; of parts a few are looked at."""
        there: dict[str, set[Print]] = {}
        for name, bits in (*self.prints.items(), *self._others):
            there.setdefault(name, set()).add(bits)
        others = [name for name, value in values.items() if print_of(file, value) not in there.get(name, ())]
        asked, ask = others[:: max(1, len(others) // _LOOKED_FOR)], self._parts_of(file, values)
        parts = sum(name in ask(name) for name in asked) / len(asked) if asked else 0.0
        return 1.0 - len(others) * (1.0 - parts) / len(values) if values else 0.0

    def _parts_of(self, file: TraceFile, values: Mapping[str, int]) -> PartsOf:
        """Asks of which weights those of a rank may be parts. `values`: of the file, by the names that are asked."""
        before: dict[str, tuple[int, ...]] = {}

        def ask(name: str) -> list[str]:
            part, pattern = _read(file, values.get(name, -1)), _pattern(name)
            if part is None:
                return []
            unit = getattr(file.dtype(values[name]), "unit_roundoff", None) or 0.0
            numbers = _numbers(name)
            likely = [name, _with_numbers(name, tuple(a + b for a, b in zip(numbers, before.get(pattern, ()), strict=False)))]
            for other in likely:
                error, coarser = self._error(part, other)
                if error <= max(_EXACTLY, 2.0 * unit, 2.0 * coarser):
                    return [other]
            for differing in (1, 2):
                found = {
                    other: self._error(part, other)[0]
                    for other in self._alike.get(pattern, ())
                    if sum(a != b for a, b in zip(numbers, _numbers(other), strict=True)) == differing
                }
                if name in self._values and differing == 1:
                    found[name] = self._error(part, name)[0]
                least = min(found.values(), default=math.inf)
                if least <= SURELY:
                    same = [other for other, error in found.items() if error <= 2.0 * least + _EXACTLY]
                    before[pattern] = tuple(b - a for a, b in zip(numbers, _numbers(same[0]), strict=True))
                    return same
            return []

        return ask

    def _error(self, part: NDArray[Any], name: str) -> tuple[float, float]:
        """How far the slices of a part are from the nearest of a weight's, of their size, and the unit roundoff of its dtype.

        Infinity where the part has the sizes of none.
        """
        least, unit = math.inf, 0.0
        known: dict[int, list[Projected]] = {}
        for file, value in self._values.get(name, ()):
            shape = file.shape(value)
            differing = [dim for dim, size in enumerate(shape) if len(shape) == part.ndim and size != part.shape[dim]]
            if len(shape) != part.ndim or len(differing) > 1 or part.ndim < 2:
                continue
            dim = differing[0] if differing else 0
            slices = self._slices(file, value, dim)
            if slices is not None:
                known.setdefault(dim, []).append(slices)
                unit = getattr(file.dtype(value), "unit_roundoff", None) or 0.0
        for dim, of in known.items():
            least = min(least, _apart(np.concatenate(of), _project(part, dim)))
        return least, unit

    def _slices(self, file: TraceFile, value: int, dim: int) -> Projected | None:
        key = str(file.path), file.rank or 0, value, dim
        if key not in self._projected:
            whole = _read(file, value)
            if whole is None:
                return None
            while len(self._projected) >= _KEPT:
                del self._projected[next(iter(self._projected))]
            self._projected[key] = _project(whole, dim)
        return self._projected[key]


def weights_of(file: TraceFile) -> dict[str, int]:
    """The value of each parameter, by its name."""
    named = [(file.text(int(file.values.name[value])), value) for value in np.flatnonzero(file.values.kind == ValueKind.PARAMETER).tolist()]
    return {name: value for name, value in named if name is not None}


def print_of(file: TraceFile, value: int) -> Print | None:
    """The bits of a value; None where they were not noted."""
    bits = file.fingerprint(value)
    return None if bits is None else (bits, file.dtype_name(value), file.shape(value))


def prints_of(file: TraceFile) -> dict[str, Print]:
    """The bits of each parameter, by its name."""
    return {name: bits for name, value in weights_of(file).items() if (bits := print_of(file, value)) is not None}


def figures_of(file: TraceFile) -> dict[str, Figures]:
    """What statistics say of each parameter, by its name."""
    found: dict[str, Figures] = {}
    for name, value in weights_of(file).items():
        statistics = file.statistics(value)
        if statistics is not None and math.isfinite(statistics.mean) and math.isfinite(statistics.rms):
            found[name] = file.dtype_name(value), file.shape(value), statistics.mean, statistics.rms
    return found


def _rounded(file: TraceFile, value: int) -> Iterator[Print]:
    """The bits that a parameter would have in narrower dtypes, as a recorder notes them."""
    detail = file.json(int(file.values.detail[value]))
    rounded = detail.get("rounded") if isinstance(detail, dict) else None
    for dtype, text in rounded.items() if isinstance(rounded, dict) else ():
        if isinstance(text, str) and _HEX.fullmatch(text):
            yield (int(text[:16], 16), int(text[16:], 16)), dtype, file.shape(value)


def _read(file: TraceFile, value: int) -> NDArray[Any] | None:
    """A weight as floats; None where it is none, or has no bytes."""
    if value < 0 or not file.has_bytes(value):
        return None
    try:
        read = file.read(value)
    except TraceError:
        return None
    return read if read.dtype.kind == "f" and read.ndim >= 2 and read.size else None


def _project(x: NDArray[Any], dim: int) -> Projected:
    """A few numbers for each slice along a dimension, alike for alike slices."""
    flat = np.moveaxis(x, dim, 0).reshape(x.shape[dim], -1)[:, :_LOOKED_AT]
    random = np.random.default_rng(0).standard_normal((flat.shape[1], _PROJECTIONS))
    if flat.shape[1] < _TELLING:
        return np.zeros((len(flat), _PROJECTIONS))
    with np.errstate(all="ignore"):
        return np.asarray(np.nan_to_num(flat.astype(np.float64) @ random))


def _apart(known: Projected, mine: Projected) -> float:
    """The median distance of the largest slices of a part to the nearest known ones, of their size; infinity where all are zero."""
    size = np.sqrt(np.square(mine).sum(1))
    chosen = np.argsort(-size, kind="stable")[:_SLICES]
    chosen = chosen[size[chosen] > 0]
    if not chosen.size:
        return math.inf
    nearest = [float(np.sqrt(np.square(known - mine[one]).sum(1).min()) / size[one]) for one in chosen.tolist()]
    return float(np.median(nearest))


def _pattern(name: str) -> str:
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))


def _is_head(head: str) -> bool:
    return not head or (head.endswith(".") and "*" not in head)


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split(".") if part.isdecimal())


def _with_numbers(name: str, numbers: tuple[int, ...]) -> str:
    left = iter(numbers)
    return ".".join(str(next(left, part)) if part.isdecimal() else part for part in name.split("."))
