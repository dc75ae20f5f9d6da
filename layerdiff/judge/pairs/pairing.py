"""The tables of a comparison before anything is measured: which calls and which values stand side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.alignment import Alignment, Calls
from layerdiff.align.forms import Shape
from layerdiff.align.positions import pair_positions
from layerdiff.judge.tables import BY_THRESHOLDS, PAIRS, SITES, Columns, Source, Texts, Verdict
from layerdiff.sides import Both
from layerdiff.trace.dtypes import dtype_named
from layerdiff.trace.enclosing import outermost
from layerdiff.trace.growing import GrowingTable
from layerdiff.trace.joined import Joined
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import ABSENT, CallKind, Role

_GROWN_SITES = (
    *("site", "kind", "type", "operator", "step", "occurrence", "rank", "parent", "handed_state"),
    *("reference_file", "target_file", "reference_call", "target_call", "verdict", "statement"),
)
_GROWN_PAIRS = ("site", "role", "position", "reference_value", "target_value")
_UNKNOWN = {"pair": -1, "rule": -1, "exact": BY_THRESHOLDS, "exact_rule": -1, "mismatched": -1, "worst": -1, "source": int(Source.PENDING)}
"""What a column says before anything is measured or judged; real numbers say nan, the rest 0."""


class Tables:
    """Sites and pairs, still growing, one process after another."""

    def __init__(self) -> None:
        self.texts = Texts()
        self.sites = GrowingTable({name: SITES[name] for name in _GROWN_SITES})
        self.pairs = GrowingTable({name: PAIRS[name] for name in _GROWN_PAIRS})
        self._parts: list[tuple[int, Both[TraceFile]]] = []

    def add_pair(self, row: int, role: int, position: int, reference: int, target: int) -> None:
        """Append a pair of values of the site at `row`; `position` as a number of the texts."""
        self.pairs.append((row, role, position, reference, target))

    def end_part(self, files: Both[TraceFile]) -> None:
        """What was added since the last part came from these two files."""
        self._parts.append((len(self.pairs), files))

    def columns(self) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        """Both tables as arrays, with nothing measured or judged yet."""
        sites, pairs = _complete(self.sites.finish(), SITES), _complete(self.pairs.finish(), PAIRS)
        start = 0
        for stop, files in self._parts:
            for side in ("reference", "target"):
                file, part = getattr(files, side), slice(start, stop)
                values = pairs[f"{side}_value"][part]
                pairs[f"{side}_dtype"][part] = interned(self.texts, file, file.values.dtype[values])
                pairs[f"{side}_shape"][part] = interned(self.texts, file, file.values.shape[values])
                if side == "target":
                    pairs["count"][part] = _counts(file, values)
            start = stop
        return sites, pairs


def _complete(grown: dict[str, NDArray[Any]], columns: dict[str, np.dtype[Any]]) -> dict[str, NDArray[Any]]:
    rows = len(next(iter(grown.values())))
    unknown = {name: _UNKNOWN.get(name, np.nan if dtype.kind == "f" else 0) for name, dtype in columns.items()}
    return {name: grown[name] if name in grown else np.full(rows, unknown[name], dtype) for name, dtype in columns.items()}


def interned(texts: Texts, file: TraceFile, numbers: NDArray[Any]) -> NDArray[np.int32]:
    """Texts of a file, by their numbers there, as numbers of the comparison's texts."""
    distinct, place = np.unique(numbers, return_inverse=True)
    known = np.array([texts.intern(file.text(number)) for number in distinct.tolist()], np.int32)
    found: NDArray[np.int32] = known[place.reshape(-1)] if len(known) else np.zeros(0, np.int32)
    return found


def _counts(file: TraceFile, values: NDArray[Any]) -> NDArray[np.int64]:
    """Elements of each value."""
    distinct, first, place = np.unique(file.values.shape[values], return_index=True, return_inverse=True)
    known = np.array([file.count(int(values[i])) for i in first.tolist()], np.int64)
    found: NDArray[np.int64] = known[place.reshape(-1)] if len(distinct) else np.zeros(0, np.int64)
    return found


def calls_of(file: TraceFile) -> Calls:
    """What alignment needs to know of one file."""
    calls = file.calls
    count = len(calls)
    top = (np.asarray(calls.parent) == ABSENT) & (np.asarray(calls.kind) == CallKind.MODULE)
    is_root = top & (np.asarray(calls.module) == _number_of(file, ""))
    names: dict[tuple[int, int, int, int], str] = {}
    sites: list[str] = []
    for call, key in enumerate(
        zip(calls.root.tolist(), calls.module.tolist(), calls.operator.tolist(), calls.number.tolist(), strict=True)
    ):
        found = names.get(key)
        if found is None:
            found = names[key] = file.site(call)
        sites.append(found)
    types = [file.text(text) for text in calls.type.tolist()]
    inputs = [""] * count
    joined = file.roots if isinstance(file, Joined) else {}
    for call in np.flatnonzero(is_root).tolist():
        inputs[call] = joined[call].inputs if call in joined else input_shapes(file, call)
    told = _signatures(file), _words(file), _closed(file)
    return Calls(sites, calls.kind, types, calls.parent, calls.root, calls.step, calls.occurrence, inputs, *told)


def _words(file: TraceFile) -> list[str]:
    """For each call of a module that runs several times in a step: the words among its arguments, as one text."""
    calls = file.calls
    modules = np.asarray(calls.kind) == CallKind.MODULE
    several = modules & np.isin(calls.module, np.unique(calls.module[modules & (np.asarray(calls.occurrence) > 0)]))
    if not several.any():
        return []
    details = np.where(several, calls.detail, ABSENT).tolist()
    said = {number: _words_in(file.json(number)) if number != ABSENT else "" for number in dict.fromkeys(details)}
    return [said[number] for number in details]


def _words_in(detail: Any) -> str:
    arguments = detail.get("arguments") if isinstance(detail, dict) else None
    args, kwargs = (arguments.get("args"), arguments.get("kwargs")) if isinstance(arguments, dict) else (None, None)
    given = [*(args if isinstance(args, list) else []), *(kwargs.values() if isinstance(kwargs, dict) else [])]
    return " ".join(sorted(one for one in given if isinstance(one, str)))


def _closed(file: TraceFile) -> frozenset[str]:
    skipped = file.meta.get("skipped")
    reasons = skipped if isinstance(skipped, dict) else {}
    return frozenset(path for path, reason in reasons.items() if str(reason).startswith("compiled"))


def _signatures(file: TraceFile) -> list[str]:
    """For each call of an operator: the shapes of its results, as one text; nothing where no operator was recorded."""
    calls = file.calls
    if not bool(np.any(np.asarray(calls.kind) == CallKind.OPERATOR)):
        return []
    found = [""] * len(calls)
    edges = file.edges
    for row in np.flatnonzero((edges.role == Role.OUTPUT) & (calls.kind[edges.call] == CallKind.OPERATOR)).tolist():
        found[int(edges.call[row])] += f"{file.text(int(file.values.shape[int(edges.value[row])]))} "
    return found


def _number_of(file: TraceFile, text: str) -> int:
    """The number of a module path that some call has; -2 where none has it."""
    return next((number for number in np.unique(file.calls.module).tolist() if file.text(number) == text), -2)


def input_shapes(file: TraceFile, call: int) -> str:
    """The inputs of a call of a root and their shapes, as one text."""
    shapes = [(e.position, file.shape(e.value)) for e in file.edges_of(call) if e.role == Role.INPUT]
    return ", ".join(f"{position} {'x'.join(map(str, shape)) or 'scalar'}" for position, shape in shapes)


def add_file_pair(
    tables: Tables, files: Both[TraceFile], numbers: Both[int], calls: Both[Calls], alignment: Alignment, *, rank: int | None
) -> None:
    """Append the sites and pairs of one process's file on each side, in the order in which the target's calls began.

    Calls that only the reference ran stand behind the last target call before them.
    """
    texts = tables.texts
    row_of: Both[dict[int, int]] = Both({}, {})
    edges = files.map(lambda file: Edges(file, texts))
    operators = files.map(lambda file: interned(texts, file, file.calls.operator))
    handed = files.map(handed_state)
    pieces = in_pieces(files, alignment)
    for reference, target, reason in merged(alignment):
        row = len(tables.sites)
        side, call = ("target", target) if target >= 0 else ("reference", reference)
        own = getattr(calls, side)
        known = calls.reference.type[reference] if reference >= 0 else None
        statement = reason if reason is not None else add_values(tables, edges, row, reference, target)
        if pieces is not None and reason is None:
            statement = pieces.target.get(target) or statement
        tables.sites.append(
            (
                texts.intern(getattr(alignment.sites, side)[call]),
                own.kind[call],
                texts.intern(known or own.type[call]),
                getattr(operators, side)[call],
                own.step[call],
                own.occurrence[call],
                -1 if rank is None else rank,
                getattr(row_of, side).get(int(getattr(alignment.parents, side)[call]), -1),
                (reference >= 0 and handed.reference[reference]) or (target >= 0 and handed.target[target]),
                numbers.reference,
                numbers.target,
                reference,
                target,
                int(Verdict.PENDING if reason is None else Verdict.NOT_COMPARABLE),
                texts.intern(statement),
            )
        )
        if reference >= 0:
            row_of.reference[reference] = row
        if target >= 0:
            row_of.target[target] = row
    tables.end_part(files)


def in_pieces(files: Both[TraceFile], alignment: Alignment) -> Both[dict[int, str]] | None:
    """By operator call in steps that are one in one run, or both, that it is compared with others; None where there are none."""
    said: Both[dict[int, str]] = Both({}, {})
    tops = files.map(lambda file: outermost(file.calls.parent))
    for name, other, index in (("reference", "target", 0), ("target", "reference", 1)):
        file = getattr(files, name)
        roots = file.roots if isinstance(file, Joined) else {}
        for pair in alignment.pairs.tolist() if roots else ():
            chunks = roots.get(pair[index])
            if chunks is None:
                continue
            words = f"the {name} runs it in {len(chunks.roots)} steps: what they make together is compared, in its module"
            for side, root in ((name, pair[index]), (other, pair[1 - index])):
                kinds = np.asarray(getattr(files, side).calls.kind)
                for call in np.flatnonzero((getattr(tops, side) == root) & (kinds == CallKind.OPERATOR)).tolist():
                    getattr(said, side).setdefault(call, words)
    return said if said.reference or said.target else None


class Edges:
    """The edges of one file, call by call: roles, positions as numbers of the comparison's texts, values."""

    def __init__(self, file: TraceFile, texts: Texts) -> None:
        order = file.edge_order
        self.shape = file.shape
        self._dtype_name = file.dtype_name
        self.inside = np.asarray(file.calls.parent) >= 0
        self.start = file.edge_start
        self.role = file.edges.role[order]
        self.position = interned(texts, file, file.edges.position[order])
        self.value = file.edges.value[order]

    def kind(self, value: int) -> str:
        """What a value's elements are: "float", "integer", "boolean", ...; the name of a dtype that is not known."""
        name = self._dtype_name(value)
        known = dtype_named(name)
        return name if known is None else known.kind

    def of(self, call: int) -> tuple[list[int], list[int], list[int]]:
        """Roles, positions and values of a call."""
        part = slice(self.start[call], self.start[call + 1])
        return self.role[part].tolist(), self.position[part].tolist(), self.value[part].tolist()


_SEEN_OBJECT: Final = '{"seen": "'
"""How a recorder's picture of arguments shows an object whose tensors an enclosing call already showed."""


def handed_state(file: TraceFile) -> list[bool]:
    """Per call: whether a module was handed such an object."""
    modules = np.asarray(file.calls.kind) == CallKind.MODULE
    details = np.asarray(file.calls.detail)
    noted = [text for text in np.unique(details[modules]).tolist() if _SEEN_OBJECT in (file.text(text) or "")]
    found: list[bool] = (modules & np.isin(details, noted)).tolist()
    return found


def merged(alignment: Alignment) -> list[tuple[int, int, str | None]]:
    """(reference call or -1, target call or -1, reason where unpaired), in order."""
    target_alone = dict(alignment.target_only)
    reference_alone = dict(alignment.reference_only)
    paired = {int(t): int(r) for r, t in alignment.pairs}
    rows: list[tuple[int, int, str | None]] = []
    waiting = sorted(reference_alone)
    position = 0
    for target in sorted({*paired, *target_alone}):
        reference = paired.get(target, -1)
        if reference >= 0:
            while position < len(waiting) and waiting[position] < reference:
                rows.append((waiting[position], -1, reference_alone[waiting[position]]))
                position += 1
        rows.append((reference, target, None if reference >= 0 else target_alone[target]))
    rows.extend((call, -1, reference_alone[call]) for call in waiting[position:])
    return rows


def add_values(tables: Tables, edges: Both[Edges], row: int, reference: int, target: int) -> str | None:
    """Append the pairs of one pair of calls; returns, in words, what has no partner."""
    ours, theirs = edges.reference.of(reference), edges.target.of(target)
    if ours[:2] == theirs[:2]:
        for role, position, r, t in zip(*theirs[:2], ours[2], theirs[2], strict=True):
            tables.add_pair(row, role, position, r, t)
        return None
    texts = tables.texts
    keys = Both(ours, theirs).map(lambda side: [(role, texts[text] or "") for role, text in zip(*side[:2], strict=True)])
    shapes: Both[Sequence[Shape]] = Both(
        [edges.reference.shape(value) for value in ours[2]],
        [edges.target.shape(value) for value in theirs[2]],
    )
    kinds: Both[Sequence[str]] = Both([edges.reference.kind(value) for value in ours[2]], [edges.target.kind(value) for value in theirs[2]])
    paired, reference_left, target_left = pair_positions(
        keys.reference, keys.target, shapes, kinds, inside=bool(edges.reference.inside[reference] and edges.target.inside[target])
    )
    for i, j in paired:
        tables.add_pair(row, theirs[0][j], theirs[1][j], ours[2][i], theirs[2][j])
    left = [f"{keys.reference[i][1]} only in the reference" for i in reference_left]
    left += [f"{keys.target[j][1]} only in the target" for j in target_left]
    if not left:
        return None
    return "Not compared: " + ", ".join(left[:4]) + (f" and {len(left) - 4} more" if len(left) > 4 else "")


def rows_of(pairs: Columns, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs grouped by site: order, and start of each site's run in it; shapes (pairs,) and (count + 1,)."""
    sites: Sequence[int] | NDArray[Any] = pairs["site"]
    start = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(np.asarray(sites, np.int64), minlength=count), out=start[1:])
    return np.argsort(np.asarray(sites), kind="stable").astype(np.int64), start
