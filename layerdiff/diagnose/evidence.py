"""What a cause may look at: the tables, and the recorded values behind a row, read only when asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.diagnose.whereabouts import whereabouts
from layerdiff.errors import TraceError
from layerdiff.judge.coded import coded_roundoff
from layerdiff.judge.pairs.pairing import rows_of
from layerdiff.judge.tables import Columns, Source, Texts, Verdict
from layerdiff.sides import Both
from layerdiff.trace.dtypes import dtype_named
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind, Role

Attributes = dict[str, Any]
Numbers = Callable[[int], Sequence[Both[NDArray[Any]]]]
"""Both sides' numbers of a pair of values, of each rank; none where they are not at hand."""
LARGEST = 1 << 24
"""Elements of a value that a form is held against: it is read whole."""
_NAMES = ("name_or_path", "layer_idx", "layer_id", "prefix")
"""Attributes that say which module it is, and not what it computes."""


@dataclass(frozen=True)
class Evidence:
    """A judged comparison and its traces. Rows are rows of the table of sites."""

    sites: Columns
    pairs: Columns
    texts: Texts
    files: Both[tuple[TraceFile, ...]] | None
    """None where the traces are not at hand: what is static or stored is still evidence."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_grouped", rows_of(self.pairs, len(self.sites["site"])))

    def pairs_of(self, row: int) -> list[int]:
        """The pairs of values of a site."""
        order, start = self._grouped  # type: ignore[attr-defined]  # set once above
        pairs: list[int] = order[start[row] : start[row + 1]].tolist()
        return pairs

    def side(self, name: str, row: int) -> tuple[TraceFile, int] | None:
        """The file and the call of one side of a site."""
        if self.files is None:
            return None
        call = int(self.sites[f"{name}_call"][row])
        return None if call < 0 else (getattr(self.files, name)[int(self.sites[f"{name}_file"][row])], call)

    def detail(self, name: str, row: int) -> dict[str, Any]:
        """What the recorder noted of the call: attributes of the module, structure of its arguments."""
        found = self.side(name, row)
        if found is None:
            return {}
        file, call = found
        detail = file.json(int(file.calls.detail[call]))
        return detail if isinstance(detail, dict) else {}

    def attributes(self, row: int) -> Both[Attributes]:
        """Simple attributes of the called module on both sides."""
        sides = Both("reference", "target").map(lambda name: self.detail(name, row).get("attributes"))
        return sides.map(lambda found: found if isinstance(found, dict) else {})

    def changed_attributes(self, row: int) -> dict[str, tuple[Any, Any]]:
        """Attributes with other values on the two sides, None where a side has none of that name; without texts that name a file."""
        both = self.attributes(row)
        names = [name for name in dict.fromkeys([*both.reference, *both.target]) if name not in _NAMES]
        return {
            name: (both.reference.get(name), both.target.get(name)) for name in names if both.reference.get(name) != both.target.get(name)
        }

    def classes(self, row: int) -> Both[str]:
        """The class of the called module on each side; empty where a side has none."""
        found = Both("reference", "target").map(lambda name: self.side(name, row))
        return found.map(lambda side: "" if side is None else side[0].text(int(side[0].calls.type[side[1]])) or "")

    def values(self, row: int, role: Role, position: str) -> Both[NDArray[Any]] | None:
        """Both sides' numbers at a position of a site; None where bytes are missing on a side."""
        for pair in self.pairs_of(row):
            if self.pairs["role"][pair] == role and self.texts[int(self.pairs["position"][pair])] == position:
                return self.numbers(pair)
        return None

    def numbers(self, pair: int) -> Both[NDArray[Any]] | None:
        """Both sides' numbers of a pair of values; None where bytes are missing on a side."""
        if self.files is None or self.pairs["source"][pair] != Source.BYTES:
            return None
        row = int(self.pairs["site"][pair])
        read: list[NDArray[Any]] = []
        for name in ("reference", "target"):
            file = getattr(self.files, name)[int(self.sites[f"{name}_file"][row])]
            try:
                read.append(file.read(int(self.pairs[f"{name}_value"][pair])))
            except TraceError:
                return None
        return Both(*read)

    def of_one_process(self, pair: int) -> list[Both[NDArray[Any]]]:
        """`Numbers` of runs of one process."""
        both = self.numbers(pair)
        return [] if both is None else [both]

    def roundoffs(self, pair: int) -> list[float] | None:
        """Unit roundoffs of a pair's dtypes; None where one does not round."""
        dtypes = [dtype_named(self.texts[int(self.pairs[f"{side}_dtype"][pair])] or "") for side in ("reference", "target")]
        known = [dtype.unit_roundoff for dtype in dtypes if dtype is not None and dtype.unit_roundoff]
        return known if len(known) == 2 else None

    def inputs_and_output(self, row: int) -> tuple[list[int], int]:
        """The pairs of all inputs of a site, and of its one output, or -1; without those that are too large to be read whole."""
        pairs = self.pairs
        here = [pair for pair in self.pairs_of(row) if pairs["count"][pair] <= LARGEST]
        given, made = ([pair for pair in here if pairs["role"][pair] == role] for role in (Role.INPUT, Role.OUTPUT))
        return given, made[0] if len(made) == 1 else -1

    def children(self, row: int) -> list[int]:
        """The modules that a site calls."""
        found: list[int] = np.flatnonzero((self.sites["parent"] == row) & (self.sites["kind"] == CallKind.MODULE)).tolist()
        return found

    def position(self, row: int) -> str | None:
        """Where the deciding value stood: `out`, `in[0]`."""
        pair = int(self.sites["pair"][row])
        return None if pair < 0 else self.texts[int(self.pairs["position"][pair])]

    def handed_to(self, row: int) -> tuple[str, str] | None:
        """(child site, position) where what is wrong is what the module's own glue hands to a child."""
        pair = int(self.sites["pair"][row])
        if pair < 0 or int(self.pairs["site"][pair]) == row:
            return None
        child = int(self.pairs["site"][pair])
        return self.texts[int(self.sites["site"][child])] or "", self.position(row) or ""

    def lost_children(self, row: int) -> list[str]:
        """In words: which modules inside a site only one side ran."""
        inside = self.sites["parent"] == row
        alone = inside & ((self.sites["reference_call"] < 0) | (self.sites["target_call"] < 0))
        reasons = [self.texts[text] for text in self.sites["statement"][alone].tolist()]
        return [reason for reason in dict.fromkeys(reasons) if reason]

    @cached_property
    def _codes(self) -> NDArray[np.float64]:
        """Per pair: whether it is a weight that one run keeps as codes, by their roundoff."""
        return coded_roundoff(self.pairs, self.texts)

    def incoming(self, row: int) -> str:
        """In words: how far inputs and weights of a site agree."""
        worst, named, compared, other, coded = 0.0, "", 0, [], ""
        for pair in self.pairs_of(row):
            if self._codes[pair]:
                coded = f"{self.texts[int(self.pairs['position'][pair])]} is kept in codes"
                continue
            if self.pairs["role"][pair] == Role.OUTPUT:
                continue
            if self.pairs["source"][pair] not in (Source.BYTES, Source.STATISTICS):
                if self.pairs["reference_shape"][pair] != self.pairs["target_shape"][pair]:
                    other.append(self.texts[int(self.pairs["position"][pair])] or "")
                continue
            compared += 1
            if self.pairs["equal"][pair]:
                continue
            number = self.pairs["rel_l2" if self.pairs["source"][pair] == Source.BYTES else "statistic"][pair]
            if not number <= worst:
                worst, named = float(number), self.texts[int(self.pairs["position"][pair])] or ""
        if not compared:
            return "no input of it was recorded"
        if not named and other:
            return f"what else comes in agrees, and {', '.join(other)} could not be compared, having other shapes" if worst == 0 else ""
        if not named:
            agree = f"its inputs agree, and {coded}" if coded else "its inputs and weights agree"
            return agree if worst == 0 else ""
        return f"what comes in differs by at most {worst:.2g} ({named})" + (f", and {coded}" if coded else "")

    def _nonfinite(self, pair: int) -> tuple[str, str]:
        """What the target has where the reference is finite, and in words where, and how far the other elements agree."""
        both = self.numbers(pair)
        if both is None:
            return "NaN or Inf", ""
        reference, target = both
        if reference.size != target.size:  # two forms of one thing: the places of one are none of the other's
            return "NaN" if np.isnan(target).any() else "Inf", ""
        reference = reference.reshape(target.shape)
        new = np.isfinite(reference) & ~np.isfinite(target)
        odd = target[new]
        what = "NaN" if np.isnan(odd).all() else "NaN or Inf" if np.isnan(odd).any() else "Inf"
        said = whereabouts(new, what)
        rest = float(self.pairs["rel_l2"][pair])
        if new.all() or np.isnan(rest):
            return what, f": {said}" if said else ""
        others = "; the other elements agree exactly" if rest == 0 else f"; the other elements differ by {rest:.2g}"
        return what, (f": {said}" if said else "") + others

    def statement(self, row: int, verdict: Verdict) -> str:
        """One sentence: what differs, by how much, what was allowed, what came in."""
        pair = int(self.sites["pair"][row])
        where = self.position(row) or "out"
        handed = self.handed_to(row)
        what = f"what it hands to {handed[0]} ({handed[1]})" if handed else where
        came = self.incoming(row) + "".join(f"; {lost}" for lost in self.lost_children(row)[:2])
        if pair >= 0 and self.pairs["nonfinite_differ"][pair] > 0:
            count, elements = int(self.pairs["nonfinite_differ"][pair]), int(self.pairs["count"][pair])
            if verdict == Verdict.BROKEN:
                odd, where = self._nonfinite(pair)
                return f"{what} is {odd} at {count} of {elements} elements where the reference is finite{where}; {came}"
            return f"{what} is finite at {count} of {elements} elements where the reference is not; {came}"
        if pair >= 0 and self.pairs["source"][pair] == Source.BYTES and self.pairs["mismatched"][pair] > 0:
            return f"{what} differs at {int(self.pairs['mismatched'][pair])} of {int(self.pairs['count'][pair])} elements; {came}"
        measured, allowed = float(self.sites["measured"][row]), float(self.sites["allowed"][row])
        if np.isnan(measured) or verdict == Verdict.FLIP:
            return f"{what} differs; {came}"
        return f"{what} differs by {measured:.2g}, allowed {allowed:.2g}; {came}"
