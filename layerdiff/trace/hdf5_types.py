"""The HDF5 type of each dtype: equal to HDF5's own where it has one, so that other tools read it too."""

from __future__ import annotations

from functools import cache

import numpy as np
from h5py import h5t

from layerdiff.trace.dtypes import Dtype


@cache
def hdf5_type(dtype: Dtype) -> h5t.TypeID:
    """The type of a dataset of `dtype`.

    bfloat16 and float8_e5m2 are built bit by bit, equal to H5T_FLOAT_BFLOAT16LE and
    H5T_FLOAT_F8E5M2. Types that HDF5 lacks, or reads otherwise than torch (float8_e4m3fn), are
    bytes; complex numbers too, since a trace holds no compound types.
    """
    if dtype.name == "bfloat16":
        return _float(size=2, sign=15, exponent=(7, 8), mantissa=(0, 7), bias=127)
    if dtype.name == "float8_e5m2":
        return _float(size=1, sign=7, exponent=(2, 5), mantissa=(0, 2), bias=15)
    if dtype.kind == "complex":
        return h5t.STD_U8LE
    return h5t.py_create(np.dtype(dtype.raw))


def _float(*, size: int, sign: int, exponent: tuple[int, int], mantissa: tuple[int, int], bias: int) -> h5t.TypeID:
    built = h5t.IEEE_F32LE.copy()
    built.set_fields(sign, *exponent, *mantissa)  # before the size, or HDF5 refuses the fields
    built.set_size(size)
    built.set_precision(8 * size)
    built.set_ebias(bias)
    built.lock()
    return built
