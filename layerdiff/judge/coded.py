"""Weights that one run keeps as codes: whole numbers or 8-bit floats that a scale makes weights of, no numbers to hold against a weight.

Which scale goes with which codes only operators tell. Without them the module's results are all that there is, and what the codes
may be off is known by their width.
"""

from __future__ import annotations

import json
from typing import Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.tables import Columns, Texts
from layerdiff.trace.dtypes import dtype_named
from layerdiff.trace.schema import Role

_WHOLE: Final = frozenset({"int8", "uint8", "int16", "int32"})
INT8: Final = 2.0**-7
_PACKED: Final = 2.0**-4
"""Of codes of four bits, of which several lie in one element."""


def coded_roundoff(pairs: Columns, texts: Texts) -> NDArray[np.float64]:
    """Per pair of weights: the relative error of the codes in which one run keeps what is floats in the other; 0 where neither does."""
    found = np.zeros(len(pairs["site"]))
    weights = np.flatnonzero(pairs["role"] == Role.WEIGHT)
    keys = np.stack([pairs[f"{side}_{what}"][weights] for side in ("reference", "target") for what in ("dtype", "shape")], axis=1)
    distinct, number = np.unique(keys, axis=0, return_inverse=True)
    known = [_roundoff(*(texts[text] or "" for text in row)) for row in distinct.tolist()]
    if known:
        found[weights] = np.array(known)[number.reshape(-1)]
    return found


def _roundoff(reference: str, reference_shape: str, target: str, target_shape: str) -> float:
    for codes, shape, floats, whole in (
        (reference, reference_shape, target, target_shape),
        (target, target_shape, reference, reference_shape),
    ):
        other = dtype_named(floats)
        if other is None or other.kind != "float" or floats.startswith("float8"):
            continue
        if codes.startswith("float8"):
            own = dtype_named(codes)
            return own.unit_roundoff or 0.0 if own is not None else 0.0
        if codes in _WHOLE:
            return _PACKED if np.prod(json.loads(shape or "[]")) < np.prod(json.loads(whole or "[]")) else INT8
    return 0.0
