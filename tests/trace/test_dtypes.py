"""Numbers as bits and back, as torch casts them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from layerdiff.trace.dtypes import dtype_named


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (3,), (4, 5, 6)])
def test_encoded_as_torch_casts(name: str, shape: tuple[int, ...]) -> None:
    dtype, kind = dtype_named(name), getattr(torch, name)
    assert dtype is not None and dtype.encodes
    random = np.random.default_rng(0)
    numbers = (random.standard_normal(shape) * 2.0 ** random.integers(-140, 128, shape)).astype(np.float32)
    expected = torch.from_numpy(np.array(numbers)).to(kind)
    assert torch.equal(expected, torch.from_numpy(np.array(dtype.encode(numbers))).view(kind))
    assert np.array_equal(expected.float().numpy(), dtype.decode(dtype.encode(numbers)).astype(np.float32))


def test_the_ends_of_bfloat16_and_ties() -> None:
    dtype = dtype_named("bfloat16")
    assert dtype is not None
    largest = float(np.finfo(np.float32).max)
    numbers = np.array([largest, -largest, np.inf, -np.inf, 1 + 2.0**-8, 1 + 3 * 2.0**-8, -0.0, 1e-45], np.float32)
    expected = torch.from_numpy(numbers).bfloat16().view(torch.uint16).numpy()
    assert np.array_equal(expected, dtype.encode(numbers).view(np.uint16))
    assert np.isnan(dtype.decode(dtype.encode(np.array([np.nan], np.float32)))).all()


@pytest.mark.parametrize("name", ["float8_e4m3fn", "int32", "bool", "complex64"])
def test_what_is_not_encoded(name: str) -> None:
    dtype = dtype_named(name)
    assert dtype is not None and not dtype.encodes
