"""Files that are no traces, damaged ones, and ones made to harm."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from layerdiff.errors import NotATraceError, TraceError, TraceVersionError, UnsafeTraceError
from layerdiff.trace.reader import TraceFile, open_trace
from tests.trace.writing import write_model


@pytest.fixture
def path(tmp_path: Path) -> Path:
    large = np.arange(40_000, dtype=np.float32)
    return write_model(tmp_path / "t.h5", {"a": ("Linear", large), "b": ("Linear", large[:100].copy())}, inputs=np.ones(7, np.float32))


def read_all(path: Path) -> None:
    """Do with a trace all that the program does."""
    file = open_trace(path).files[0]
    assert len(file.calls.parent) == len(file.calls)
    for call in range(len(file.calls)):
        file.site(call)
        for edge in file.edges_of(call):
            file.statistics(edge.value)
            file.fingerprint(edge.value)
            stored = file.stored(edge.value)
            if stored is not None:
                for _ in stored.blocks(1000):
                    pass


def test_a_good_trace_reads(path: Path) -> None:
    read_all(path)


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n", b"PK\x03\x04" + b"x" * 5000, b"\x89HDF\r\n\x1a\n" + b"\0" * 100])
def test_other_files_are_named_as_such(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.h5").write_bytes(content)
    with pytest.raises(NotATraceError, match=r"x\.h5 is"):
        open_trace(tmp_path / "x.h5")


def test_another_hdf5_file(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["weights"] = np.ones(3)
    with pytest.raises(NotATraceError, match="an HDF5 file, and not a trace"):
        open_trace(tmp_path / "x.h5")
    with pytest.raises(NotATraceError, match="does not exist"):
        open_trace(tmp_path / "y.h5")


def test_another_version(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["version"] = np.array([2, 0], "<i4")
    with pytest.raises(TraceVersionError, match=r"version 2\.0 of the format; this layerdiff reads version 1"):
        open_trace(path)


def test_truncated_anywhere(path: Path) -> None:
    whole = path.read_bytes()
    for cut in [*range(0, 2048, 256), *np.linspace(2048, len(whole) - 1, 60).astype(int)]:
        path.write_bytes(whole[:cut])
        with pytest.raises(TraceError):
            read_all(path)


def test_bytes_flipped_anywhere_never_crash(path: Path) -> None:
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(150):
        damaged = bytearray(whole)
        for position in rng.integers(0, len(whole), 3):
            damaged[position] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        with contextlib.suppress(TraceError):
            read_all(path)


Change = Callable[[h5py.File], None]


def replace(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Change:
    def apply(file: h5py.File) -> None:
        found = file[name][:]
        del file[name]
        file[name] = change(found)

    return apply


def set_at(name: str, index: int, number: int) -> Change:
    def apply(file: h5py.File) -> None:
        file[name][index] = number

    return apply


def external_link(file: h5py.File) -> None:
    del file["data/0"]
    file["data/0"] = h5py.ExternalLink("/etc/hostname", "/x")


def soft_link(file: h5py.File) -> None:
    del file["data/0"]
    file["data/0"] = h5py.SoftLink("/text/bytes")


def external_storage(file: h5py.File) -> None:
    del file["data/0"]
    file.create_dataset("data/0", (40_000,), "<f4", external=[("/etc/passwd", 0, 160_000)])


def virtual(file: h5py.File) -> None:
    del file["data/0"]
    layout = h5py.VirtualLayout((40_000,), "<f4")
    layout[:] = h5py.VirtualSource("/etc/hostname", "x", (40_000,))
    file.create_virtual_dataset("data/0", layout)


def bomb(file: h5py.File) -> None:
    del file["calls/kind"]
    file.create_dataset("calls/kind", (1 << 40,), "u1", chunks=(1 << 20,))


def strings(file: h5py.File) -> None:
    del file["data/0"]
    file.create_dataset("data/0", (40_000,), h5py.string_dtype())


def plugin_filter(file: h5py.File) -> None:
    del file["data/0"]
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_chunk((1000,))
    creation.set_filter(32004, h5py.h5z.FLAG_OPTIONAL)  # lz4, which HDF5 does not bring
    space = h5py.h5s.create_simple((40_000,))
    h5py.h5d.create(file["data"].id, b"0", h5py.h5t.IEEE_F32LE, space, creation)


HOSTILE: dict[str, Change] = {
    "external link": external_link,
    "soft link": soft_link,
    "external storage": external_storage,
    "virtual dataset": virtual,
    "sizes beyond the file": bomb,
    "strings": strings,
    "filter of a plugin": plugin_filter,
    "columns of unequal length": replace("values/nbytes", lambda c: c[:-1]),
    "column of another type": replace("values/nbytes", lambda c: c.astype("<f8")),
    "column of two dimensions": replace("values/nbytes", lambda c: c.reshape(-1, 1)),
    "slab offset beyond the slab": set_at("values/offset", 0, 1 << 40),
    "negative offset": set_at("values/offset", 0, -8),
    "bytes unlike the shape": set_at("values/nbytes", 0, 3),
    "container that is not there": set_at("values/container", 0, 99),
    "text beyond the table": set_at("calls/module", 0, 10_000),
    "text below -1": set_at("calls/module", 0, -2),
    "unknown storage": set_at("values/storage", 0, 77),
    "parent that comes later": set_at("calls/parent", 0, 1),
    "edge to no value": set_at("edges/value", 0, 10_000),
    "edge from no call": set_at("edges/call", 0, -1),
    "edge without position": set_at("edges/position", 0, -1),
    "offsets that shrink": replace("text/offset", lambda c: c[::-1].copy()),
    "offsets beyond the text": replace("text/offset", lambda c: c + np.uint64(1 << 60)),
    "description that is no JSON": replace("meta/json", lambda c: c[:-1]),
    "description that is no object": replace("meta/json", lambda c: np.frombuffer(b"[1]", "u1")),
    "column that is missing": lambda file: file.__delitem__("values/dtype"),
    "table that is missing": lambda file: file.__delitem__("edges"),
    "group for a column": lambda file: (file.__delitem__("values/dtype"), file.create_group("values/dtype")),
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_hostile_files_are_refused_with_a_reason(path: Path, name: str) -> None:
    with h5py.File(path, "r+") as file:
        HOSTILE[name](file)
    with pytest.raises((UnsafeTraceError, NotATraceError), match=r"t\.h5"):
        read_all(path)


SHAPES = {
    "negative": "[-1]",
    "real": "[1.5]",
    "text": '["a"]',
    "object": "{}",
    "nested": "[[2]]",
    "null": "null",
    "deep": "[" * 5000,
    "huge": str([2**61] * 3),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_hostile_shapes(path: Path, shape: str) -> None:
    text = np.frombuffer(shape.encode(), "u1")
    with h5py.File(path, "r+") as file:
        number = file["text/offset"].shape[0] - 1
        joined, offsets = (
            np.concatenate([file["text/bytes"][:], text]),
            np.append(file["text/offset"][:], file["text/bytes"].shape[0] + len(text)),
        )
        replace("text/bytes", lambda _: joined)(file)
        replace("text/offset", lambda _: offsets.astype("<u8"))(file)
        file["values/shape"][0] = number
    with pytest.raises(UnsafeTraceError):
        read_all(path)


def test_a_compressed_copy_still_reads(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "packed.h5"
    with h5py.File(path) as source, h5py.File(copy, "w") as target:
        for name, value in source.attrs.items():
            target.attrs[name] = value

        def pack(name: str, item: h5py.Group | h5py.Dataset) -> None:
            if isinstance(item, h5py.Dataset):
                target.create_dataset(name, data=item[:], compression="gzip", shuffle=True)
            else:
                target.require_group(name)

        source.visititems(pack)
    original, packed = open_trace(path).files[0], open_trace(copy).files[0]
    for value in range(len(original.values)):
        assert np.array_equal(original.raw(value), packed.raw(value))


def test_nothing_is_opened_beside_the_file(path: Path) -> None:
    file = TraceFile(path)
    assert file.path == path
    file.close()
