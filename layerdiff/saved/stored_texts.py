"""The texts of a comparison as a file holds them: decoded one at a time, when somebody looks.

Decoding a hundred thousand names takes longer than the first screen may take, and that screen shows
forty of them. Whatever needs all of them (`all`, `intern`) pays once.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.tables import Texts
from layerdiff.trace.check import require


class StoredTexts(Texts):
    """`offsets` (n + 1 of them, checked here) into UTF-8 `data`. Bytes that are no UTF-8 read as U+FFFD."""

    def __init__(self, offsets: NDArray[np.uint64], data: NDArray[np.uint8], path: str) -> None:
        super().__init__()
        require(offsets.size >= 1 and int(offsets[0]) == 0, path, "text/offset must begin with 0")
        grows = bool(np.all(offsets[1:] >= offsets[:-1]))
        require(grows and int(offsets[-1]) == data.size, path, "text/offset must grow and end with the text")
        self._offsets = offsets
        self._data = data
        self._decoded: dict[int, str] = {}
        self._whole = False

    def __len__(self) -> int:
        return len(self._texts) if self._whole else self._offsets.size - 1

    def __getitem__(self, index: int) -> str | None:
        if index < 0:
            return None
        if self._whole:
            return self._texts[index]
        found = self._decoded.get(index)
        if found is None:
            found = self._decoded[index] = _decode(self._data[int(self._offsets[index]) : int(self._offsets[index + 1])].tobytes())
        return found

    def intern(self, text: str | None) -> int:
        """The index of `text`, added if new; -1 for None. Decodes every text the first time."""
        self._decode_all()
        return super().intern(text)

    def all(self) -> list[str]:
        """Every text, in the order of its index. Decodes them the first time."""
        self._decode_all()
        return super().all()

    def _decode_all(self) -> None:
        if self._whole:
            return
        data, ends = self._data.tobytes(), self._offsets.tolist()
        self._texts = [_decode(data[start:stop]) for start, stop in pairwise(ends)]
        self._index = {}
        for i, text in enumerate(self._texts):
            self._index.setdefault(text, i)
        self._whole = True


def encode(texts: Texts) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """(offsets, data) that `StoredTexts` reads."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts.all()]
    offsets = np.zeros(len(encoded) + 1, "<u8")
    np.cumsum(np.fromiter(map(len, encoded), "<u8", len(encoded)), out=offsets[1:])
    return offsets, np.frombuffer(b"".join(encoded), "u1")


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")
