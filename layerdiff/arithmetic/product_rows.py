"""Rows of a matrix product, and how far each lies from the product in fp32.

sigma is that of a sum of K products (sums.py) with V, the sum of their squares, from the norms of the row and the column,
|x|^2 |w|^2 / K: what it is on the average. Where one term outweighs the others, the result itself is as large as that term.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.contract import Array, bind
from layerdiff.arithmetic.formats import Format
from layerdiff.arithmetic.rows import SIGMA, Rows, blocks, distance, farthest, narrow
from layerdiff.trace.arguments import Arguments

_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "mm": ("self", "mat2"),
    "bmm": ("self", "mat2"),
    "addmm": ("self", "mat1", "mat2", "beta", "alpha"),
    "baddbmm": ("self", "batch1", "batch2", "beta", "alpha"),
    "linear": ("input", "weight", "bias"),
}
_OUT_DTYPE: Final = ("out_dtype",)


def product_rows(name: str, arguments: Arguments) -> Rows | None:
    """The rows of the call `aten.<name>`; None where it is no product of matrices that is known here. Raises ContractError."""
    names = _NAMES.get(name)
    if names is None:
        return None
    kwargs = {key: value for key, value in arguments.kwargs.items() if key not in _OUT_DTYPE}
    found = bind(Arguments(arguments.args[: len(names)], kwargs), names, bias=None, beta=1, alpha=1)
    added: Any
    if name == "linear":
        left, right, added = found[0], np.swapaxes(found[1], -1, -2), found[2]
        beta: Any = 1
        alpha: Any = 1
    elif len(names) == 2:
        left, right, added, beta, alpha = *found, None, 0, 1
    else:
        added, left, right, beta, alpha = found
    if left.ndim < 2 or right.ndim < 2 or left.dtype.kind != "f" or right.dtype.kind != "f" or left.shape[-1] != right.shape[-2]:
        return None
    if right.ndim == 2:
        left = left.reshape(-1, left.shape[-1])
    elif left.ndim != 3 or right.ndim != 3 or left.shape[0] != right.shape[0]:
        return None
    start: Array | None = None if added is None or beta == 0 else beta * np.asarray(added, np.float64)
    if start is None and alpha != 1:
        return None
    count, terms, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    shape = (*left.shape[:-1], columns)

    def start_of(rows: Any) -> Array | None:
        if start is None or start.ndim < 2 or start.shape[-2] == 1:
            return start
        return np.asarray(start[..., rows, :])

    def take(rows: NDArray[np.intp]) -> Arguments:
        few, base = left[..., rows, :], start_of(rows)
        if base is None:
            return Arguments((few, right), {})
        shape_of = (*few.shape[:-1], columns)
        return Arguments((np.broadcast_to(base, shape_of), few, right), {"alpha": alpha})

    def distances(recorded: tuple[Array, ...], format: Format) -> NDArray[np.float64]:
        stacked = left.reshape(-1, count, terms)
        rights = right.reshape(-1, terms, columns)
        results = recorded[0].reshape(-1, count, columns)
        found = np.zeros(count)
        scale = np.float32(alpha)
        for one, result in zip(range(stacked.shape[0]), results, strict=True):
            few, wide = narrow(stacked[one]), narrow(rights[one])
            norms = np.sqrt(np.einsum("ij,ij->i", few, few) / np.float32(6.0))
            widths = np.sqrt(np.einsum("ij,ij->j", wide, wide))
            base = None if start is None else narrow(np.broadcast_to(start, shape).reshape(-1, count, columns)[one])
            for part in blocks(count, columns):
                made = np.matmul(few[part], wide)
                if alpha != 1:
                    made *= scale
                if base is not None:
                    made += base[part]
                off = distance(result[part], made, format)
                sigma = np.abs(made, out=made)
                if base is not None:
                    np.maximum(sigma, np.abs(base[part]), out=sigma)
                sigma *= np.float32(SIGMA * math.sqrt(terms / 3.0))
                sigma += norms[part, None] * (widths * np.float32(SIGMA * abs(float(alpha))))
                found[part] = np.maximum(found[part], farthest(off, sigma))
        return found

    batched = "b" if right.ndim == 3 else ""
    operator = f"aten.{batched}mm.default" if start is None else f"aten.{'baddbmm' if batched else 'addmm'}.default"
    work = math.prod(shape) * terms
    return Rows(operator, count, work, take, (shape,), (len(shape) - 2,), distances)
