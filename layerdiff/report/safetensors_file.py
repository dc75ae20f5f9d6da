"""Bits of tensors in a safetensors file, without the library: a reporter needs no torch, and numpy lacks half of the dtypes.

A dtype that not every version of the format has is stored as its bytes; whoever reads it is told by `stored`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from layerdiff.trace.dtypes import Dtype

_CODES: Final = {
    **{"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"},
    **{"int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL"},
}
_ALIGNED: Final = 8


def stored(dtype: Dtype) -> Literal["itself", "bytes"]:
    """How a file holds a dtype: `bytes` is uint8 in one dimension."""
    return "itself" if dtype.name in _CODES else "bytes"


def write(path: Path, tensors: Mapping[str, tuple[Dtype, NDArray[Any]]]) -> None:
    """Write arrays of bits (of `dtype.raw`, any shape) under their keys. Raises OSError."""
    # wide types first, so that each tensor begins at a multiple of its element's size
    order = sorted(tensors, key=lambda key: -tensors[key][0].itemsize)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for key in order:
        dtype, raw = tensors[key]
        code = _CODES.get(dtype.name)
        shape = list(raw.shape) if code is not None else [raw.size * dtype.itemsize]
        header[key] = {"dtype": code or "U8", "shape": shape, "data_offsets": [position, position + raw.size * dtype.itemsize]}
        position += raw.size * dtype.itemsize
    text = json.dumps(header).encode("ascii")
    text += b" " * (-len(text) % _ALIGNED)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for key in order:
            dtype, raw = tensors[key]
            file.write(np.ascontiguousarray(raw, dtype.raw).reshape(-1).view(np.uint8).data)
