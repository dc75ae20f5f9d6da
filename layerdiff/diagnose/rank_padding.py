"""Rows of padding in the values of many ranks: left out of what was measured, once it is known how their parts lie."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.diagnose.rank_values import RankValues
from layerdiff.judge.pairs.measuring import without_padding
from layerdiff.judge.pairs.padded_rows import PaddedRows
from layerdiff.judge.tables import Source
from layerdiff.measure.blocks import ArrayBlocks
from layerdiff.sides import Both
from layerdiff.trace.dtypes import dtype_named
from layerdiff.trace.schema import Role


def leave_out_padding(pairs: dict[str, NDArray[Any]], values: RankValues) -> None:
    """Measure anew what differs, and has tokens that both runs were told are none, without these."""
    sites, padded = values.sites, PaddedRows(values.files)
    dtype = dtype_named("float64")
    assert dtype is not None
    differs = (pairs["source"] == Source.BYTES) & (pairs["equal"] == 0) & (pairs["mismatched"] < 0) & (pairs["role"] != Role.WEIGHT)
    for pair in np.flatnonzero(differs).tolist():
        row = int(pairs["site"][pair])
        numbers, calls = (Both(int(sites[f"reference_{name}"][row]), int(sites[f"target_{name}"][row])) for name in ("file", "call"))
        padding = padded.of_shape(values.shape(pair), numbers, calls) if min(calls) >= 0 and min(numbers) >= 0 else None
        both = None if padding is None else values.numbers(pair)
        if padding is None or both is None or padding.all() or any(side.shape != padding.shape or side.dtype.kind != "f" for side in both):
            continue
        ours, theirs = (ArrayBlocks(dtype, np.ascontiguousarray(side, np.float64).view(dtype.raw)) for side in both)
        columns = without_padding({name: column[pair] for name, column in pairs.items()}, ours, theirs, padding)
        for name, number in columns.items():
            pairs[name][pair] = number
