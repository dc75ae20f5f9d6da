"""Bits of tensors in a safetensors file, without the library: no torch is needed, and numpy lacks half of the dtypes.

Written: a dtype that not every version of the format has is stored as its bytes; whoever reads it is told by `stored`.
Read: nothing but the header, every number of which is checked against the file before it is used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from layerdiff.errors import CheckpointError
from layerdiff.trace.dtypes import Dtype, dtype_named

_CODES: Final = {
    **{"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"},
    **{"int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL"},
}
_NAMES: Final = {
    **{code: name for name, code in _CODES.items()},
    **{"U64": "uint64", "U32": "uint32", "U16": "uint16", "F8_E8M0": "float8_e8m0fnu", "C64": "complex64"},
}
_ALIGNED: Final = 8
_LARGEST_HEADER: Final = 100_000_000
"""Bytes, as the format has it."""


@dataclass(frozen=True)
class Entry:
    """A tensor of a file: `nbytes` row-major bytes at byte `begin`."""

    path: Path
    key: str
    dtype: Dtype
    shape: tuple[int, ...]
    begin: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self) -> NDArray[Any]:
        """The bits: an array of its shape, of `dtype.raw`. Raises CheckpointError where they cannot be read."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.begin)
                bits = np.fromfile(file, self.dtype.raw, math.prod(self.shape))
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be read: {error.strerror or error}.") from None
        if bits.nbytes != self.nbytes:
            raise CheckpointError(f"{self.path} is cut short: {self.key} ends behind its last byte.")
        return bits.reshape(self.shape)


def entries(path: Path) -> list[Entry]:
    """The tensors of a file; those of a dtype that is not known are left out. Raises CheckpointError where it is no such file."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _LARGEST_HEADER):
                raise CheckpointError(f"{path} is no safetensors file, or it is cut short.")
            header: Any = json.loads(file.read(length))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError):
        raise CheckpointError(f"{path} is no safetensors file: its header is not JSON.") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{path} is no safetensors file: its header is no object.")
    found = []
    for key, told in header.items():
        dtype = dtype_named(_NAMES.get(str(told.get("dtype")), "")) if isinstance(told, dict) else None
        if key == "__metadata__" or dtype is None:
            continue
        shape, offsets = told.get("shape"), told.get("data_offsets")
        fine = isinstance(shape, list) and len(shape) <= 64 and all(type(n) is int and 0 <= n < 1 << 62 for n in shape)
        fine = fine and isinstance(offsets, list) and len(offsets) == 2 and all(type(n) is int for n in offsets)
        if fine:
            begin, end = offsets
            fine = 0 <= begin <= end <= size - 8 - length and end - begin == math.prod(shape) * dtype.itemsize
        if not fine:
            raise CheckpointError(f"{path}: the header says where {key[:200]!r} lies, and it does not lie there.")
        found.append(Entry(path, key, dtype, tuple(shape), 8 + length + begin))
    return found


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
