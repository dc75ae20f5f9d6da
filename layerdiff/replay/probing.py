"""`probe`: the summation tree of an operator of this machine's torch, at given shapes and dtypes.

First all outputs are asked the same few questions, so that those that are not added alike are told apart; then the tree of the
largest group is found with a probe in each of its rows, and then those of the next. An operator is run here and nothing is read
from a trace: names of functions come from whoever calls.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerdiff.arithmetic.orders.probe import FoundTree, Probe, Products
from layerdiff.arithmetic.orders.probing import MOST_PROBES, ProbeError, Scale, Sums, find_tree, random_pairs, scale_for
from layerdiff.arithmetic.orders.tree import Tree
from layerdiff.arithmetic.orders.triples import find_tree_of_triples
from layerdiff.replay.like import Recording
from layerdiff.replay.positive import Positive
from layerdiff.replay.probed_operator import OPERATORS, Given, callable_named, device_name, device_of, dtype_of, resolved, summing_of
from layerdiff.replay.product_rounding import product_rounding
from layerdiff.replay.summing import Summing

Ints = NDArray[np.int64]
Shape = Sequence[int]

_ASKED: Final = 24
"""Pairs that all outputs are asked."""
_ASKING_SECONDS: Final = 20.0
_FEW: Final = 3
_MOST_ELEMENTS: Final = 1 << 28
"""Of one tensor of a recorded call."""


def probe(
    operator: str | Callable[..., Any],
    shapes: Sequence[Shape],
    dtype: str = "float32",
    *,
    form: str | None = None,
    dims: Sequence[int] | None = None,
    strides: Sequence[Shape | None] | None = None,
    device: str = "cpu",
    threads: int | None = None,
    element: Sequence[int] | None = None,
    most_trees: int = 4,
    most_probes: int = MOST_PROBES,
    name: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> Probe:
    """The order in which an operator adds.

    Args:
        operator: one of `OPERATORS`, or a callable that is called as the operator `form` is.
        shapes: of the operands, in the order of the operator (addmm: input, mat1, mat2).
        dtype: of all operands, by torch's name.
        form: for a callable: which of `OPERATORS` it stands for; sum for one operand, matmul for two.
        dims: which dimensions a sum, a mean or a softmax goes over; all for sums, the last for a softmax.
        strides: of the operands, where they are not contiguous; None for those that are.
        device, threads: where to run; threads as `torch.set_num_threads`, put back afterwards.
        element: the output whose tree is found first; one of the largest group without.
        most_trees: how many groups of outputs are looked at, at most.
        most_probes: where to give up.
        name: of the operator in the result.
        progress: told the number of each call before it is made.

    Raises:
        ProbeError: the operator fails at these shapes, or its order cannot be found; says why.
    """
    run, form, said = resolved(operator, form, len(shapes))
    given = Given(
        run,
        tuple(tuple(int(size) for size in shape) for shape in shapes),
        tuple(None if one is None else tuple(one) for one in strides) if strides is not None else (None,) * len(shapes),
        None if dims is None else tuple(dims),
        dtype_of(dtype),
        device_of(device),
    )
    started = time.perf_counter()
    with _threads(threads), torch.no_grad():
        summing = summing_of(form, given)
        summing.progress = progress
        found = _positive(summing) if isinstance(summing, Positive) else _sums(summing, dtype, element, most_trees, most_probes)
        used = torch.get_num_threads()
    return Probe(
        operator=name or said,
        shapes=given.shapes,
        dtypes=(dtype,) * len(given.shapes),
        result_dtype=str(summing.result_dtype).removeprefix("torch."),
        shape=summing.shape,
        trees=found.trees,
        outputs_elsewhere=found.elsewhere,
        products=found.products,
        device=str(given.device),
        device_name=device_name(given.device),
        torch=str(torch.__version__),
        threads=used,
        calls=summing.calls,
        probes=found.probes,
        seconds=round(time.perf_counter() - started, 3),
        notes=found.notes,
    )


def probe_like(
    recording: Recording,
    *,
    device: str = "cpu",
    threads: int | None = None,
    element: Sequence[int] | None = None,
    most_trees: int = 4,
    progress: Callable[[int], None] | None = None,
) -> Probe:
    """The order in which this machine's operator adds at the shapes, strides and dtype of a recorded call. Raises ProbeError."""
    operator: str | Callable[..., Any] = recording.form
    form = None
    if recording.settings is not None:
        stride, padding, dilation, groups = recording.settings
        form = f"conv{len(recording.shapes[0]) - 2}d"

        def convolve(image: Tensor, weight: Tensor) -> Tensor:
            return torch.convolution(image, weight, None, stride, padding, dilation, False, [0] * len(stride), groups)

        operator = convolve
    _require_modest(recording)
    return probe(
        operator,
        recording.shapes,
        recording.dtype,
        form=form,
        dims=recording.dims,
        strides=recording.strides,
        device=device,
        threads=threads,
        element=element,
        most_trees=most_trees,
        name=recording.form,
        progress=progress,
    )


def _require_modest(recording: Recording) -> None:
    """Raises ProbeError where operands or result of a recorded call are too large to be made for a stranger's trace."""
    sizes = [math.prod(shape) for shape in recording.shapes]
    if recording.form in ("mm", "bmm", "matmul", "addmm", "baddbmm") and all(len(shape) > 1 for shape in recording.shapes[-2:]):
        left, right = recording.shapes[-2:]
        sizes.append(math.prod(left[:-1]) * right[-1])
    elif recording.form == "linear" and all(recording.shapes):
        sizes.append(math.prod(recording.shapes[0][:-1]) * recording.shapes[1][0])
    elif recording.form == "convolution" and all(recording.shapes) and recording.settings is not None:
        image, weight = recording.shapes
        padded = (size + 2 * max(recording.settings[1], default=0) for size in image[2:])
        sizes += [image[0] * weight[0] * math.prod(padded)]
    if max(sizes, default=0) > _MOST_ELEMENTS:
        raise ProbeError(
            f"{recording.site!r} has a tensor of {max(sizes):,} elements, more than {_MOST_ELEMENTS:,}: probe it with --shape."
        )


@dataclass(frozen=True)
class _Result:
    trees: tuple[FoundTree, ...]
    elsewhere: int
    products: Products
    probes: int
    notes: tuple[str, ...] = ()


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if number is not None:
        if number < 1:
            raise ProbeError(f"{number} threads: give one at least.")
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _positive(summing: Positive) -> _Result:
    asked = 0

    def together(triples: Ints) -> NDArray[np.bool_]:
        nonlocal asked
        asked += len(triples)
        return summing.together(triples)

    if summing.terms < 3:
        raise ProbeError(f"A sum of {summing.terms} has one order only.")
    tree = find_tree_of_triples(together, summing.terms)
    return _Result((FoundTree(tree, summing.element(0, 0), summing.rows),), 0, "unknown", asked, (summing.note,))


def _sums(summing: Summing, dtype: str, element: Sequence[int] | None, most_trees: int, most_probes: int) -> _Result:
    zeros = np.zeros((1, summing.terms))
    summing(zeros)
    result = str(summing.result_dtype).removeprefix("torch.")
    scale = scale_for(dtype, result, factor=summing.factor)
    place = None if element is None else _place(summing, element)
    groups, probes = _groups(summing, scale)
    sizes = np.bincount(groups.reshape(-1))
    order = np.argsort(-sizes, kind="stable").tolist()
    if place is not None:
        order.remove(int(groups[place]))
        order.insert(0, int(groups[place]))
    trees: list[FoundTree] = []
    products: Products = "unknown"
    notes: list[str] = []
    for group in order[:most_trees]:
        alike = groups == group
        column = int(np.argmax(alike.sum(axis=0))) if place is None or trees else place[1]
        rows = np.flatnonzero(alike[:, column])
        if place is not None and not trees:
            rows = np.concatenate([[place[0]], rows[rows != place[0]]])
        try:
            tree, made = _tree(summing, scale, rows, column, most_probes)
        except ProbeError as error:
            if not trees:
                raise
            notes.append(f"{_outputs(int(sizes[group]))} at {list(summing.element(int(rows[0]), column))} and alike: {error}"[:400])
            continue
        probes += made
        trees.append(FoundTree(tree, summing.element(int(rows[0]), column), int(sizes[group])))
        if len(trees) == 1 and summing.products:
            try:
                products = product_rounding(summing, tree, int(rows[0]), column, dtype)
            except (ProbeError, RuntimeError) as error:  # a convolution without a derivative
                notes.append(f"how products are rounded was not found: {error}"[:400])
    known = sum(found.outputs for found in trees)
    return _Result(tuple(trees), int(groups.size) - known, products, probes, tuple(notes))


def _outputs(count: int) -> str:
    return "1 output" if count == 1 else f"{count} outputs"


def _place(summing: Summing, element: Sequence[int]) -> tuple[int, int]:
    if len(element) != len(summing.shape) or any(not 0 <= i < size for i, size in zip(element, summing.shape, strict=True)):
        raise ProbeError(f"The result has the shape {list(summing.shape)}, and no element {list(element)}.")
    return summing.place(element)


def _groups(summing: Summing, scale: Scale) -> tuple[Ints, int]:
    """Which outputs answer alike: a number for each, shape (rows, columns); and how many probes that took."""
    random = np.random.default_rng(1)
    pairs = random_pairs(summing.terms, _ASKED, 2) if summing.terms > 1 else np.zeros((0, 2), np.int64)
    most = min(scale.most, summing.terms)
    key: Tensor | None = None
    begun, asked = time.perf_counter(), 0
    for number, (i, j) in enumerate(pairs.tolist()):
        values = np.zeros((1, summing.terms))
        values[0, np.sort(random.choice(summing.terms, most, replace=False)) if most < summing.terms else slice(None)] = scale.unit
        values[0, i], values[0, j] = scale.mask, -scale.mask
        answer = _bits(summing(values))
        if number < _FEW:
            changed = int((answer != _bits(summing(values))).sum())
            if changed:
                raise ProbeError(
                    f"There is no fixed tree: {changed} of {answer.numel()} outputs changed when the same operands were "
                    f"added once more. The "
                    "order changes from call to call (atomic additions, or a race); ask the backend for its "
                    "deterministic kernels and probe those."
                )
        key = answer if key is None else key * 1_000_003 + answer
        asked += 1
        if number >= _FEW and time.perf_counter() - begun > _ASKING_SECONDS:
            break
    if key is None:
        key = _bits(summing(np.zeros((1, summing.terms))))
    _, groups = torch.unique(key, return_inverse=True)
    return groups.numpy().astype(np.int64), asked


def _bits(result: Tensor) -> Tensor:
    return result.cpu().to(torch.float64).view(torch.int64)  # a device may lack float64


def _tree(summing: Summing, scale: Scale, rows: Ints, column: int, most_probes: int) -> tuple[Tree, int]:
    """The tree of the outputs of one column in these rows: a probe a row, or one at a time where that gives no tree."""
    probes = 0

    def sums(at: Ints) -> Sums:
        def run(values: NDArray[np.float64]) -> NDArray[np.float64]:
            nonlocal probes
            probes += len(values)
            return _run(summing, values, at, column)

        return run

    try:
        return find_tree(sums(rows), summing.terms, scale, rows=len(rows), most_probes=most_probes), probes
    except ProbeError:
        if len(rows) == 1:
            raise
        return find_tree(sums(rows[:1]), summing.terms, scale, most_probes=most_probes), probes


def _run(summing: Summing, values: NDArray[np.float64], rows: Ints, column: int) -> NDArray[np.float64]:
    """The sums of the rows of `values`, as many to a call as there are rows to put them in."""
    found = np.zeros(len(values))
    last = values[:, -1] if summing.shares_last else np.zeros(len(values))
    for same in np.unique(last):
        chosen = np.flatnonzero(last == same)
        for begin in range(0, len(chosen), len(rows)):
            part = chosen[begin : begin + len(rows)]
            result = summing(values[part], rows)[:, column]
            found[part] = result.cpu().to(torch.float64).numpy()[rows[: len(part)]]
    return found


__all__ = ["OPERATORS", "callable_named", "device_name", "device_of", "dtype_of", "probe", "probe_like"]
