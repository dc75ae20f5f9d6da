"""safetensors files: what the library wrote is read, and a header that lies is refused before anything is read by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from layerdiff.checkpoint.safetensors_file import entries
from layerdiff.errors import CheckpointError

TENSORS = {
    "float32": torch.randn(3, 4),
    "bfloat16": torch.randn(5).to(torch.bfloat16),
    "float16": torch.randn(2, 1, 3).half(),
    "float8_e4m3fn": torch.randn(7).to(torch.float8_e4m3fn),
    "int64": torch.arange(6).reshape(2, 3),
    "bool": torch.tensor([True, False]),
    "empty": torch.empty(0, 4),
    "scalar": torch.tensor(2.5),
}


def test_the_librarys_files_are_read(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "a.safetensors", metadata={"format": "pt"})
    found = {entry.key: entry for entry in entries(tmp_path / "a.safetensors")}
    assert set(TENSORS) == set(found)
    for key, tensor in TENSORS.items():
        assert tuple(tensor.shape) == found[key].shape
        assert str(tensor.dtype) == f"torch.{found[key].dtype.name}"
        bits = tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else np.empty(0, np.uint8)
        assert bytes(bits) == found[key].read().tobytes(), key


GOOD: dict[str, Any] = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
BAD: dict[str, Any] = {
    "beyond the end": {**GOOD, "data_offsets": [4, 12]},
    "before the beginning": {**GOOD, "data_offsets": [-8, 0]},
    "not its size": {**GOOD, "data_offsets": [0, 4]},
    "a size below zero": {**GOOD, "shape": [-2]},
    "a size that is no number": {**GOOD, "shape": ["2"]},
    "huge": {**GOOD, "shape": [1 << 61, 1 << 61], "data_offsets": [0, 8]},
    "no offsets": {"dtype": "F32", "shape": [2]},
}


@pytest.mark.parametrize("name", BAD)
def test_a_header_that_lies_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.safetensors"
    _write(path, json.dumps({"x": BAD[name]}).encode(), bytes(8))
    with pytest.raises(CheckpointError, match="the header says where 'x' lies, and it does not lie there"):
        entries(path)


@pytest.mark.parametrize("header", [b"{", b"[1]", b"[" * 100_000, b"\xff"])
def test_a_header_that_is_no_object_is_refused(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "a.safetensors"
    _write(path, header, b"")
    with pytest.raises(CheckpointError, match="is no safetensors file"):
        entries(path)


@pytest.mark.parametrize("content", [b"", b"abc", (1 << 40).to_bytes(8, "little") + b"{}"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="is no safetensors file, or it is cut short"):
        entries(path)


def test_dtypes_of_a_later_version_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    _write(path, json.dumps({"x": {**GOOD, "dtype": "F3"}, "y": GOOD}).encode(), bytes(8))
    assert ["y"] == [entry.key for entry in entries(path)]


def test_a_file_that_shrank_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    _write(path, json.dumps({"x": GOOD}).encode(), bytes(8))
    (entry,) = entries(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="cut short"):
        entry.read()
    path.unlink()
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        entry.read()


def _write(path: Path, header: bytes, data: bytes) -> None:
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
