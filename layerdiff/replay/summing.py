"""`Summing`: an operator as a sum of terms that a probe chooses: which operand holds them, and where their sum comes out.

Terms lie in rows: every row of `values` is one sum, and all rows are added in one call. A row's terms lie in the first operand
(of a convolution in the weights), the other operand is all ones, so that a product is its term. A bias is one more term, the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerdiff.arithmetic.orders.probing import ProbeError
from layerdiff.arithmetic.orders.tree import MOST_LEAVES
from layerdiff.replay.sizes import first_line

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Summing:
    """One operator at given shapes. Subclasses lay out terms and results.

    Attributes:
        terms: of each sum.
        rows: sums whose terms can be chosen independently in one call.
        products: whether a term is a product of two operands that can be chosen.
        factor: what a result is multiplied by to give the sum.
        shape: of the result; set by the first call.
        calls: made so far.
        progress: told that number before each call.
    """

    products = False
    shares_last = False
    """Whether the last term (a bias) is the same number in all rows of a call."""

    def __init__(
        self, run: Callable[..., Any], dtype: torch.dtype, device: torch.device, terms: int, rows: int, factor: float = 1.0
    ) -> None:
        self.run, self.dtype, self.device = run, dtype, device
        self.terms, self.rows, self.factor = terms, rows, factor
        self.shape: tuple[int, ...] = ()
        self.result_dtype = dtype
        self.calls = 0
        self.progress: Callable[[int], None] | None = None
        if terms < 1 or rows < 1:
            raise ProbeError("An operand without elements has no sum.")
        if terms > MOST_LEAVES:
            raise ProbeError(f"A sum of {terms:,} terms is more than can be probed: at most {MOST_LEAVES:,}.")

    def tensor(self, values: Floats) -> Tensor:
        """Numbers in the dtype, on the device."""
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.dtype).to(self.device)  # which may lack float64

    def full(self, values: Floats, rows: Ints | None) -> Tensor:
        """`values` of shape (n, terms) at n rows, the others zero; without `rows`, a single row as all of them."""
        if rows is None:
            return self.tensor(values[:1]).expand(self.rows, values.shape[1]).contiguous()
        made = torch.zeros((self.rows, values.shape[1]), dtype=self.dtype, device=self.device)
        made[torch.from_numpy(rows[: len(values)]).to(self.device)] = self.tensor(values)
        return made

    def call(self, *operands: Tensor) -> Tensor:
        """The result of the operator; counted."""
        self.calls += 1
        if self.progress is not None:
            self.progress(self.calls)
        with torch.no_grad():
            try:
                result = self.run(*operands)
            except Exception as error:
                shapes = ", ".join(str(list(operand.shape)) for operand in operands)
                raise ProbeError(f"The operator fails on operands of shape {shapes}: {first_line(error)}.") from None
        if isinstance(result, (tuple, list)) and result:
            result = result[0]
        if not isinstance(result, Tensor) or not result.is_floating_point():
            raise ProbeError("The operator returns no tensor of floats, and only sums of floats have an order that matters.")
        self.shape, self.result_dtype = tuple(result.shape), result.dtype
        return result

    def __call__(self, values: Floats, rows: Ints | None = None) -> Tensor:
        """Results of shape (rows, columns), in the result's dtype.

        `values` has shape (n, terms) and lies at `rows`, the other rows are zero; without `rows`, its one row is in all of them.
        """
        raise NotImplementedError

    def with_factor(self, values: Floats, row: int, column: int, term: int, factor: float) -> float:
        """One sum, whose terms are `values`, shape (1, terms), with one of them multiplied by `factor` as the operator multiplies.

        Raises NotImplementedError where `products` is false.
        """
        raise NotImplementedError

    def element(self, row: int, column: int) -> tuple[int, ...]:
        """The index of an output in the result."""
        columns = max(1, math.prod(self.shape) // self.rows)
        return tuple(int(i) for i in np.unravel_index(row * columns + column, self.shape)) if self.shape else ()

    def place(self, element: Sequence[int]) -> tuple[int, int]:
        """Row and column of an output."""
        columns = max(1, math.prod(self.shape) // self.rows)
        return divmod(int(np.ravel_multi_index(tuple(element), self.shape)), columns) if self.shape else (0, 0)


class Reduced(Summing):
    """Sums of one operand over some of its dimensions, all of them where `dims` is None."""

    def __init__(
        self,
        run: Callable[..., Any],
        shape: Sequence[int],
        dims: Sequence[int] | None,
        dtype: torch.dtype,
        device: torch.device,
        *,
        mean: bool,
    ) -> None:
        count = len(shape)
        over = sorted(range(count) if dims is None else {d % count for d in dims if -count <= d < count}) if count else []
        if dims is not None and len(over) != len(set(dims)):
            raise ProbeError(f"An operand of shape {list(shape)} has not the dimensions {list(dims)}.")
        self._kept = [d for d in range(count) if d not in over]
        self._order = [*self._kept, *over]
        self._sizes = [shape[d] for d in self._order]
        terms = math.prod(shape[d] for d in over)
        super().__init__(run, dtype, device, terms, math.prod(shape[d] for d in self._kept), float(terms) if mean else 1.0)

    def __call__(self, values: Floats, rows: Ints | None = None) -> Tensor:
        """See `Summing`."""
        back = np.argsort(self._order).tolist()
        result = self.call(self.full(values, rows).reshape(self._sizes).permute(back).contiguous())
        return result.reshape(self.rows, -1)


class Multiplied(Summing):
    """Products of a left operand, in whose last dimension the terms lie, with a right one; perhaps with a bias.

    `across` is the dimension of the right operand that meets them; `operands` puts left, right and bias in the order of the operator.
    """

    products = True

    def __init__(
        self,
        run: Callable[..., Any],
        left: Sequence[int],
        right: Sequence[int],
        across: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        bias: Sequence[int] | None = None,
        strides: Sequence[Sequence[int] | None] = (None, None),
    ) -> None:
        if not left or len(right) < -across or left[-1] != right[across]:
            raise ProbeError(f"Operands of shape {list(left)} and {list(right)} do not multiply.")
        self._left, self._right, self._across = tuple(left), tuple(right), across % len(right)
        self._bias = None if bias is None else tuple(bias)
        rows = math.prod(left[:-1])
        self.shares_last = bias is not None and (len(bias) < 2 or math.prod(bias[:-1]) != rows)
        self._strides = strides
        self.has_bias = bias is not None
        super().__init__(run, dtype, device, left[-1] + (bias is not None), rows)
        self._ones: Tensor | None = None

    def __call__(self, values: Floats, rows: Ints | None = None) -> Tensor:
        """See `Summing`."""
        return self._product(values, rows, self._other(None))

    def with_factor(self, values: Floats, row: int, column: int, term: int, factor: float) -> float:
        """See `Summing`."""
        other = np.ones(self._left[-1])
        other[term] = factor
        return float(self._product(values, np.asarray([row]), self._other(other))[row, column])

    def _product(self, values: Floats, rows: Ints | None, right: Tensor) -> Tensor:
        terms = self._left[-1]
        left = _laid(self.full(values[:, :terms], rows).reshape(self._left), self._strides[0])
        if self._bias is None:
            return self._shaped(self.call(left, right))
        last = values[:, terms]
        if self.shares_last:
            assert np.all(last == last[0]), "rows of one call share their bias"
            bias = torch.full(self._bias, float(last[0]), dtype=self.dtype, device=self.device)
        else:
            bias = self.full(last[:, None], rows).expand(self.rows, self._bias[-1]).reshape(self._bias).contiguous()
        return self._shaped(self.call(left, right, bias))

    def _shaped(self, result: Tensor) -> Tensor:
        return result.reshape(self.rows, -1)

    def _other(self, other: Floats | None) -> Tensor:
        if other is None and self._ones is not None:
            return self._ones
        size = [1] * len(self._right)
        size[self._across] = self._right[self._across]
        line = torch.ones(size, dtype=self.dtype, device=self.device) if other is None else self.tensor(other).reshape(size)
        made = _laid(line.expand(self._right).contiguous(), self._strides[1])
        if other is None:
            self._ones = made
        return made


class Convolved(Summing):
    """Convolutions: the terms lie in the weights, a row is an output channel, and the input is all ones.

    Where padding leaves terms out, outputs at the border add fewer: they answer differently.
    """

    products = True

    def __init__(
        self, run: Callable[..., Any], image: Sequence[int], weight: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> None:
        if len(weight) < 3 or len(image) != len(weight):
            raise ProbeError(f"An input of shape {list(image)} and weights of shape {list(weight)} are no convolution.")
        self._weight = tuple(weight)
        super().__init__(run, dtype, device, math.prod(weight[1:]), weight[0])
        self._image = torch.ones(tuple(image), dtype=dtype, device=device)

    def __call__(self, values: Floats, rows: Ints | None = None) -> Tensor:
        """See `Summing`."""
        return self._convolved(self._image, self.full(values, rows))

    def _convolved(self, image: Tensor, weight: Tensor) -> Tensor:
        result = self.call(image, weight.reshape(self._weight))
        return result.movedim(1, 0).reshape(self.rows, -1)

    def with_factor(self, values: Floats, row: int, column: int, term: int, factor: float) -> float:
        """See `Summing`. Which element of the input a term is multiplied by, its derivative says."""
        one = np.zeros((1, self.terms))
        one[0, term] = 1.0
        with torch.enable_grad():
            image = self._image.detach().clone().requires_grad_()
            result = self.run(image, self.full(one, np.asarray([row])).reshape(self._weight))
            (slope,) = torch.autograd.grad(result.movedim(1, 0).reshape(self.rows, -1)[row, column], image)
        image = torch.where(slope != 0, torch.full_like(slope, factor), self._image)
        return float(self._convolved(image, self.full(values, np.asarray([row])))[row, column])

    def element(self, row: int, column: int) -> tuple[int, ...]:
        """The index of an output in the result."""
        batch, _, *rest = self.shape
        first, *others = (int(i) for i in np.unravel_index(column, (batch, *rest)))
        return (first, row, *others)

    def place(self, element: Sequence[int]) -> tuple[int, int]:
        """Row and column of an output."""
        first, row, *others = element
        batch, _, *rest = self.shape
        return row, int(np.ravel_multi_index((first, *others), (batch, *rest)))


def _laid(tensor: Tensor, strides: Sequence[int] | None) -> Tensor:
    """The tensor with other strides, where no two of its elements would share memory and little would be left between them."""
    if strides is None or tuple(strides) == tensor.stride() or len(strides) != tensor.dim():
        return tensor
    reach = 1
    for stride, size in sorted(zip(strides, tensor.shape, strict=True)):
        if size > 1:
            if stride < reach:
                return tensor
            reach = stride * size
    if reach > 4 * tensor.numel():
        return tensor
    made = torch.empty_strided(tuple(tensor.shape), tuple(strides), dtype=tensor.dtype, device=tensor.device)
    made.copy_(tensor)
    return made
