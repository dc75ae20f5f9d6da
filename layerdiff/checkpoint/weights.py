"""`CheckpointWeights`: the bytes of weights that a trace has none of, out of the checkpoint that was loaded.

A tensor is taken for a weight only where it has the weight's bits, which the trace knows by their fingerprint: as it is, rounded or
widened to the weight's dtype, or the part of it that one rank holds. Names only say where to look first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.checkpoint.safetensors_file import Entry, entries
from layerdiff.errors import CheckpointError
from layerdiff.trace.dtypes import Dtype

Bits = NDArray[Any]
_LOOKED_AT: Final = 8
"""Tensors of a weight's shape under other names that are looked at."""
_PARTS: Final = 128
"""Parts of a tensor, one behind another, that are looked at."""


class CheckpointWeights:
    """The tensors of checkpoints, each a folder of safetensors files or such a file."""

    def __init__(self, paths: Sequence[str | Path]) -> None:
        """Raises CheckpointError where one is not there, or is no checkpoint."""
        self._entries = [entry for path in paths for file in _files(Path(path)) for entry in entries(file)]

    def find(self, name: str, dtype: Dtype, shape: tuple[int, ...], is_it: Callable[[Bits], bool]) -> Callable[[], Bits] | None:
        """Reads the bits of a weight: an array of its shape, of `dtype.raw`; None where no tensor has them.

        `is_it` says of bits whether they are the weight's. Raises CheckpointError where a file cannot be read.
        """
        for entry in self._likely(name, dtype, shape):
            whole = _as(entry, dtype)
            for part in _parts(entry.shape, shape):
                if is_it(np.ascontiguousarray(whole[part])):
                    return lambda entry=entry, part=part: np.ascontiguousarray(_as(entry, dtype)[part])  # type: ignore[misc]  # bound early
        return None

    def _likely(self, name: str, dtype: Dtype, shape: tuple[int, ...]) -> list[Entry]:
        """By name first; then, for tied weights and models that name them otherwise, by shape."""

        def by_name(entry: Entry) -> int:
            if entry.key == name:
                return 0
            return 1 if entry.key.endswith("." + name) or name.endswith("." + entry.key) else 2

        fitting = [entry for entry in self._entries if _castable(entry.dtype, dtype) and any(True for _ in _parts(entry.shape, shape))]
        ordered = sorted(fitting, key=by_name)
        named = [entry for entry in ordered if by_name(entry) < 2]
        return named + [entry for entry in ordered if by_name(entry) == 2 and entry.shape == shape][:_LOOKED_AT]


def weights_of(checkpoints: Sequence[str | Path]) -> CheckpointWeights | None:
    """The weights of checkpoints; None where there are none. Raises CheckpointError."""
    return CheckpointWeights(checkpoints) if checkpoints else None


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    found = sorted(path.glob("*.safetensors")) if path.is_dir() else []
    if not found:
        what = "holds no *.safetensors file" if path.is_dir() else "is not there"
        raise CheckpointError(f"{path} {what}. --checkpoint takes the folder, or the safetensors file, that the weights were loaded from.")
    return found


def _parts(whole: tuple[int, ...], part: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Where a part of this shape may lie: the whole, or one of equal parts along one dimension."""
    if whole == part:
        yield ()
        return
    differing = [dim for dim, (n, m) in enumerate(zip(whole, part, strict=False)) if n != m]
    if len(whole) != len(part) or len(differing) != 1:
        return
    dim = differing[0]
    size = part[dim]
    if 0 < size < whole[dim] and whole[dim] <= _PARTS * size:
        for begin in range(0, whole[dim] - size + 1, size):
            yield (*(slice(None) for _ in range(dim)), slice(begin, begin + size))


def _castable(stored: Dtype, wanted: Dtype) -> bool:
    return stored == wanted or (stored.kind == "float" and wanted.encodes)


def _as(entry: Entry, dtype: Dtype) -> Bits:
    """The bits of a tensor in another dtype: widened exactly, or rounded to nearest, as torch does."""
    bits = entry.read()
    if entry.dtype == dtype:
        return bits
    return dtype.encode(entry.dtype.decode(bits))
