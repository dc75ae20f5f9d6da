"""The tables of a saved comparison, checked before anything follows a number of them.

A file may come from a stranger: a parent that is its own ancestor would hang a screen, a pair outside
its table would show another layer's numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.runs import read_runs
from layerdiff.judge.tables import PAIRS, PLACED, SITES, TEXT_COLUMNS, Again, Columns, Placing, Source, Texts, Verdict
from layerdiff.trace.check import require
from layerdiff.trace.schema import CallKind, Role

_CODES: Final[dict[tuple[str, str], Iterable[int]]] = {
    ("sites", "verdict"): Verdict,
    ("sites", "kind"): CallKind,
    ("sites", "again"): Again,
    ("pairs", "role"): Role,
    ("pairs", "source"): Source,
    ("placed", "kind"): Placing,
    ("placed", "agree"): (0, 1, 2),
}
_AT_LEAST: Final = {
    **{("sites", name): -1 for name in ("step", "occurrence", "rank", "reference_call", "target_call")},
    **{("pairs", name): -1 for name in ("reference_value", "target_value", "mismatched", "worst")},
    **{("pairs", name): 0 for name in ("count", "nonfinite_reference", "nonfinite_target", "nonfinite_differ")},
    ("placed", "rank"): 0,
    ("placed", "dim"): -1,
}
_LARGEST_RANK: Final = 64


def check_tables(
    sites: Columns, pairs: Columns, placed: Columns, texts: Texts, *, files: tuple[int, int], origin_rows: Sequence[int], path: str
) -> None:
    """Raise UnsafeTraceError unless every code is known and every index points inside.

    `files` says how many each side has, `origin_rows` which sites the origins name.
    """
    for table, columns, schema in (("sites", sites, SITES), ("pairs", pairs, PAIRS), ("placed", placed, PLACED)):
        for name in schema:
            _check_column(table, name, columns[name], texts, path)
    count, pair_count = sites["site"].size, pairs["site"].size
    _inside(sites["pair"], -1, pair_count, path, "sites/pair points outside the pairs")
    _inside(sites["parent"], -1, count, path, "sites/parent points outside the sites")
    _inside(pairs["site"], 0, count, path, "pairs/site points outside the sites")
    _inside(placed["pair"], 0, pair_count, path, "placed/pair points outside the pairs")
    _inside(placed["file"], 0, files[1], path, "placed/file points outside the files of the target")
    _inside(placed["dim"], -1, _LARGEST_RANK, path, f"placed/dim must be below {_LARGEST_RANK}")
    for side, number in zip(("reference_file", "target_file"), files, strict=True):
        _inside(sites[side], -1, max(1, number), path, f"sites/{side} points outside the files of its run")
    require(all(-1 <= row < count for row in origin_rows), path, "an origin points outside the sites")
    require(_is_forest(sites["parent"]), path, "a site is its own ancestor")
    for name in ("reference_shape", "target_shape"):
        used = np.zeros(len(texts) + 1, bool)
        used[pairs[name]] = True  # -1 is the last
        for text in np.flatnonzero(used[:-1]).tolist():
            require(_is_shape(texts[text]), path, f"pairs/{name} holds a text that is no shape")
    for text in set(placed["holds"].tolist()):  # np.unique would import np.ma: a fiftieth of the time to the first paint
        require(_are_runs(texts[text]), path, "placed/holds holds a text that is no runs of places")


def _check_column(table: str, name: str, column: NDArray[Any], texts: Texts, path: str) -> None:
    if not column.size:
        return
    if (table, name) in TEXT_COLUMNS:
        _inside(column, -1, len(texts), path, f"{table}/{name} points outside the texts")
    elif (table, name) in _CODES:
        known = np.zeros(256, bool)
        known[[int(code) for code in _CODES[table, name]]] = True
        require(bool(known[column].all()), path, f"{table}/{name} holds a code that this version does not know")
    elif (table, name) in _AT_LEAST:
        require(int(column.min()) >= _AT_LEAST[table, name], path, f"{table}/{name} must not be below {_AT_LEAST[table, name]}")


def _inside(column: NDArray[Any], low: int, stop: int, path: str, what: str) -> None:
    require(not column.size or (int(column.min()) >= low and int(column.max()) < stop), path, what)


def _is_forest(parent: NDArray[Any]) -> bool:
    """Whether every row reaches a root: ancestors are doubled until none is left, at most log2(rows) times.

    In the order of execution it does, since every parent stands before its children.
    """
    if bool(np.all(parent < np.arange(parent.size))):
        return True
    ancestor = parent.astype(np.int64)
    live = np.flatnonzero(ancestor >= 0)
    for _ in range(max(1, int(parent.size).bit_length() + 1)):
        if not live.size:
            return True
        ahead = ancestor.copy()
        ahead[live] = ancestor[ancestor[live]]
        ancestor = ahead
        live = live[ancestor[live] >= 0]
    return not live.size


def _is_shape(text: str | None) -> bool:
    try:
        shape = json.loads(text or "null")
    except (ValueError, RecursionError):
        return False
    return isinstance(shape, list) and len(shape) <= _LARGEST_RANK and all(type(n) is int and 0 <= n < 1 << 62 for n in shape)


def _are_runs(text: str | None) -> bool:
    try:
        read_runs(text)
    except ValueError:
        return False
    return True
