"""`write_index`: the index of a trace as it stands in its file, made once from the journal when the trace is closed."""

from __future__ import annotations

import json

import h5py
import numpy as np

from layerdiff.trace.journal import Index


def write_index(file: h5py.File, index: Index, *, complete: bool) -> None:
    """Write tables, texts and description, and at last whether the trace is complete."""
    for table, columns in index.columns.items():
        group = file.create_group(table)
        for name, column in columns.items():
            group.create_dataset(name, data=column, track_times=False)
    encoded = [text.encode("utf-8", "surrogatepass") for text in index.texts]
    offsets = np.zeros(len(encoded) + 1, "<u8")
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    group = file.create_group("text")
    group.create_dataset("offset", data=offsets, track_times=False)
    group.create_dataset("bytes", data=np.frombuffer(b"".join(encoded), "u1"), track_times=False)
    described = json.dumps(index.meta, allow_nan=False).encode()
    file.create_group("meta").create_dataset("json", data=np.frombuffer(described, "u1"), track_times=False)
    file.attrs["complete"] = np.uint8(complete)
