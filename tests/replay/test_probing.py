"""Probes of this machine's torch. What is found is held against what torch then computes: bit for bit."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import layerdiff
from layerdiff.arithmetic.orders.outline import describe
from layerdiff.arithmetic.orders.probe import open_probe, probe_from_json
from layerdiff.arithmetic.orders.probing import ProbeError
from layerdiff.arithmetic.orders.tree import Tree
from layerdiff.replay.like import Recording
from layerdiff.replay.probing import probe, probe_like
from layerdiff.replay.recorded import row_major
from tests.arithmetic.trees import sequential


@pytest.fixture(autouse=True)
def one_thread() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def replayed(tree: Tree, products: torch.Tensor, *, fused: bool) -> torch.Tensor:
    """The sum of exact products, float64 of shape (terms, ...), in this order in fp32.

    With `fused` a product joins its sum in one rounding, but for the first of two products that meet.
    """
    products = products.numpy()
    known: list[np.ndarray | None] = [None] * (tree.leaves + len(tree.nodes))

    def of(number: int, whole: bool) -> np.ndarray:
        found = known[number]
        if number >= tree.leaves:
            assert found is not None
            known[number] = None
            return found
        return products[number] if whole else products[number].astype(np.float32).astype(np.float64)

    for i, children in enumerate(tree.nodes):
        terms = [child for child in children if child < tree.leaves]
        last = terms[-1] if fused and terms else -1
        total = sum(of(child, child == last) for child in children)
        known[tree.leaves + i] = np.asarray(total, np.float64).astype(np.float32).astype(np.float64)
    found = known[-1]
    assert found is not None
    return torch.from_numpy(found).to(torch.float32)


def operands(rows: int, terms: int, columns: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, terms, generator=draw), torch.randn(terms, columns, generator=draw)


@pytest.mark.parametrize("terms", [64, 256, 1024])
def test_the_tree_of_mm_reproduces_its_output_bit_for_bit(terms: int) -> None:
    found = probe("mm", [(64, terms), (terms, 64)])
    a, b = operands(64, terms, 64)
    products = a.double().T[:, :, None] * b.double()[:, None, :]
    again = replayed(found.tree, products, fused=found.products == "fused")
    assert 4096 == int((again == torch.mm(a, b)).sum())
    assert (0, 4096) == (found.outputs_elsewhere, found.trees[0].outputs)


def test_an_order_that_is_not_the_one_found_does_not() -> None:
    a, b = operands(64, 1024, 64)
    products = a.double().T[:, :, None] * b.double()[:, None, :]
    assert 500 > int((replayed(sequential(1024), products, fused=True) == torch.mm(a, b)).sum())


@pytest.mark.parametrize("shape", [(64, 256), (7, 1000)])
@pytest.mark.parametrize("dim", [-1, 0])
def test_the_tree_of_a_sum_reproduces_it(shape: tuple[int, int], dim: int) -> None:
    found = probe("sum", [shape], dims=(dim,))
    x = operands(*shape, 1)[0]
    terms = x.double().movedim(dim, 0)
    for one in found.trees:
        at = one.element[0]
        again = replayed(one.tree, terms[:, at : at + 1], fused=False)
        assert torch.equal(again[0], x.sum(dim)[at])


def test_a_sum_of_everything_and_a_mean() -> None:
    x = operands(1, 777, 1)[0][0]
    found = probe("sum", [(777,)])
    assert torch.equal(x.sum(), replayed(found.tree, x.double(), fused=False))
    assert ((), 1) == (found.trees[0].element, found.trees[0].outputs)
    assert probe("sum", [(64, 256)], dims=(1,)).tree == probe("mean", [(64, 256)], dims=(1,)).tree


def test_the_denominator_of_a_softmax() -> None:
    """One term of 1 and many of 0.4 of its last digit: how many digits they make depends on which of them meet first."""
    found = probe("softmax", [(16, 256)])
    assert found.tree == probe("log_softmax", [(16, 256)]).tree
    draw = torch.Generator().manual_seed(0)
    x = torch.where(torch.rand(16, 256, generator=draw) < 0.3, math.log(0.4 * 2.0**-23), -200.0)
    x[torch.arange(16), torch.randint(0, 256, (16,), generator=draw)] = 0.0
    result = torch.softmax(x, -1).amax(dim=-1)
    terms = torch.exp(x).double().T
    assert torch.equal(result, 1.0 / replayed(found.tree, terms, fused=False))
    assert not torch.equal(result, 1.0 / replayed(sequential(256), terms, fused=False))


def test_the_sum_of_squares_of_a_norm() -> None:
    found = probe("rms_norm", [(16, 1000)])
    x = operands(16, 1000, 1)[0]
    total = replayed(found.tree, x.double().T ** 2, fused=False)
    again = x * torch.rsqrt(total / 1000 + 1e-5)[:, None]
    assert torch.equal(torch.nn.functional.rms_norm(x, [1000], None, 1e-5), again)
    wrong = x * torch.rsqrt(replayed(sequential(1000), x.double().T ** 2, fused=False) / 1000 + 1e-5)[:, None]
    assert not torch.equal(again, wrong)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_outputs_of_more_terms_than_they_count(dtype: str) -> None:
    found = probe("mm", [(16, 1024), (1024, 16)], dtype)
    assert (1024, dtype) == (found.tree.leaves, found.result_dtype)
    kind = getattr(torch, dtype)
    a, b = (one.to(kind) for one in operands(16, 1024, 16))
    products = a.double().T[:, :, None] * b.double()[:, None, :]
    again = replayed(found.tree, products, fused=found.products != "rounded").to(kind)
    assert torch.equal(torch.mm(a, b), again)


def test_a_bias_is_one_more_term() -> None:
    for operator, shapes in (
        ("linear", [(32, 128), (16, 128), (16,)]),
        ("addmm", [(16,), (32, 128), (128, 16)]),
        ("addmm", [(32, 16), (32, 128), (128, 16)]),
    ):
        found = probe(operator, shapes)
        assert (129, (32, 16)) == (found.tree.leaves, found.shape)
        draw = torch.Generator().manual_seed(1)
        x, w, b = (torch.randn(*size, generator=draw) for size in ((32, 128), (16, 128), (16,)))
        result = torch.nn.functional.linear(x, w, b) if operator == "linear" else torch.addmm(b.expand(shapes[0]), x, w.T.contiguous())
        products = x.double().T[:, :, None] * w.double().T[:, None, :]
        terms = torch.cat([products, b.double().expand(1, 32, 16)])
        assert torch.equal(result, replayed(found.tree, terms, fused=True))


def test_the_tree_of_a_convolution_reproduces_it() -> None:
    found = probe("conv2d", [(2, 16, 10, 10), (32, 16, 3, 3)])
    draw = torch.Generator().manual_seed(1)
    x, w = torch.randn(2, 16, 10, 10, generator=draw), torch.randn(32, 16, 3, 3, generator=draw)
    under = torch.nn.functional.unfold(x, 3).double()  # images, terms, positions
    products = (under[:, None] * w.reshape(1, 32, 144, 1).double()).movedim(2, 0)
    again = replayed(found.tree, products, fused=found.products == "fused").reshape(2, 32, 8, 8)
    assert torch.equal(torch.conv2d(x, w), again)
    assert ("fused", 0) == (found.products, found.outputs_elsewhere)


@pytest.mark.parametrize(("operator", "shapes"), [("dot", [(1000,), (1000,)]), ("mv", [(64, 512), (512,)])])
def test_the_tree_of_a_product_with_a_vector_reproduces_it(operator: str, shapes: list[tuple[int, ...]]) -> None:
    found = probe(operator, shapes)
    draw = torch.Generator().manual_seed(1)
    a, b = (torch.randn(*shape, generator=draw) for shape in shapes)
    again = replayed(found.tree, (a.double() * b.double()).movedim(-1, 0), fused=found.products == "fused")
    assert torch.equal(getattr(torch, operator)(a, b), again)


def test_other_forms() -> None:
    assert 128 == probe("bmm", [(4, 32, 128), (4, 128, 32)]).tree.leaves
    assert (4, 32, 8) == probe("matmul", [(4, 32, 128), (128, 8)]).shape
    assert 200 == probe("dot", [(200,), (200,)]).tree.leaves
    assert 144 == probe("conv2d", [(1, 16, 8, 8), (8, 16, 3, 3)]).tree.leaves
    found = probe("conv1d", [(2, 4, 20), (6, 4, 5)])
    assert (20, (2, 6, 16), 3) == (found.tree.leaves, found.shape, len(found.trees[0].element))


def test_outputs_that_are_added_otherwise_are_told_apart() -> None:
    """The last columns and the last rows in another order each."""

    def kernel(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        products = x[:, None, :] * w.T[None, :, :]
        total = torch.zeros(products.shape[:2])
        other = torch.zeros(products.shape[:2])
        for k in range(products.shape[2]):
            total = total + products[..., k]
            other = other + products[..., -1 - k]
        total[:, 6:] = other[:, 6:]
        total[9, 0] = products[9, 0, ::2].sum() + products[9, 0, 1::2].sum()
        return total

    found = probe(kernel, [(10, 24), (24, 8)], most_trees=2, name="kernel")
    assert [(59, "one chain of 24"), (20, "one chain of 24, last term first")] == [(one.outputs, describe(one.tree)) for one in found.trees]
    assert 1 == found.outputs_elsewhere
    assert ("kernel", "rounded") == (found.operator, found.products)
    chosen = probe(kernel, [(10, 24), (24, 8)], element=(3, 7), most_trees=1)
    assert [((3, 7), 20)] == [(one.element, one.outputs) for one in chosen.trees]


def test_how_products_enter() -> None:
    def rounded(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(x.shape[0], w.shape[1])
        for k in range(x.shape[1]):
            total = total + x[:, k : k + 1] * w[k]
        return total

    def whole(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(x.shape[0], w.shape[1])
        for k in range(x.shape[1]):
            total = (total.double() + x[:, k : k + 1].double() * w[k].double()).float()
        return total

    def truncated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return whole(x.bfloat16().float(), w.bfloat16().float())

    shapes = [(4, 16), (16, 4)]
    assert ["rounded", "fused", "truncated"] == [probe(one, shapes).products for one in (rounded, whole, truncated)]
    assert "exact" == probe("mm", shapes, "bfloat16").products
    assert "unknown" == probe("sum", [(4, 16)]).products


def test_a_callable_by_name() -> None:
    found = probe("torch:mm", [(8, 32), (32, 8)])
    assert ("torch:mm", probe("mm", [(8, 32), (32, 8)]).tree) == (found.operator, found.tree)
    assert probe("torch:nn.functional.linear", [(8, 32), (8, 32)], form="linear").tree == probe("linear", [(8, 32), (8, 32)]).tree


def test_there_and_back() -> None:
    found = probe("linear", [(2, 8, 32), (4, 32)], "bfloat16", threads=1)
    assert found == probe_from_json(found.to_json())
    assert (1, "cpu", torch.__version__) == (found.threads, found.device, found.torch)


def test_threads_are_put_back() -> None:
    assert 2 == probe("sum", [(64, 64)], dims=(1,), threads=2).threads
    assert 1 == torch.get_num_threads()


def test_strides_are_those_given() -> None:
    """A right operand that is a transposed weight is handed on as one; strides that no dense tensor has are left out."""
    seen: list[tuple[int, ...]] = []

    def kernel(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        seen.append(b.stride())
        return a @ b

    shapes = [(4, 32), (32, 8)]
    assert probe(kernel, shapes, strides=[None, (1, 32)]).tree == probe("mm", shapes, strides=[(32, 1), (1, 32)]).tree
    assert {(1, 32)} == set(seen)
    for strange in [(0, 1), (1, 1), (1 << 40, 1), (8,)]:
        seen.clear()
        probe(kernel, shapes, strides=[None, strange])
        assert {(8, 1)} == set(seen)


def test_a_recorded_call_of_a_strangers_trace_makes_nothing_huge() -> None:
    def recorded(form: str, *shapes: tuple[int, ...], dims: tuple[int, ...] | None = None) -> Recording:
        return Recording("site", form, shapes, tuple(row_major(shape) for shape in shapes), "float32", dims)

    for huge in (
        recorded("mm", (1 << 17, 1), (1, 1 << 17)),
        recorded("sum", (1 << 30,)),
        recorded("sum", (1 << 21,)),
        recorded("bmm", (1 << 15, 1 << 10, 1), (1 << 15, 1, 1 << 10)),
    ):
        with pytest.raises(ProbeError, match="more than"):
            probe_like(huge)
    with pytest.raises(ProbeError):
        probe_like(recorded("sum", (4, 4), dims=(9,)))
    assert (32, "mm") == (probe_like(recorded("mm", (4, 32), (32, 8))).tree.leaves, probe_like(recorded("mm", (4, 32), (32, 8))).operator)


WRONG = [
    ("cannot be probed by name", lambda: probe("relu", [(4,)])),
    ("mm has 2 operands; 1 shapes", lambda: probe("mm", [(4, 4)])),
    ("do not multiply", lambda: probe("mm", [(4, 5), (4, 5)])),
    ("no dtype of floats", lambda: probe("mm", [(4, 4), (4, 4)], "int32")),
    ("no dtype of floats", lambda: probe("mm", [(4, 4), (4, 4)], "load")),
    ("do not multiply", lambda: probe("addmm", [(4,), (4,), (4,)])),
    ("no convolution", lambda: probe("conv1d", [(4, 4), (4, 4)])),
    ("the dimensions", lambda: probe("sum", [(4, 4)], dims=(2,))),
    ("without elements", lambda: probe("sum", [(0,)])),
    ("cannot be used", lambda: probe("sum", [(4,)], device="meta:9x")),
    ("cannot be imported", lambda: probe("nothing_here:f", [(4,)])),
    ("is not callable", lambda: probe("torch:float32", [(4,)])),
    ("cannot be probed as", lambda: probe("torch:sum", [(4,)], form="relu")),
    ("no element", lambda: probe("mm", [(4, 4), (4, 4)], element=(4, 0))),
    ("give one at least", lambda: probe("sum", [(4,)], threads=0)),
    ("no plain sum", lambda: probe(lambda x: x.amax(), [(40,)])),
    ("no tensor of floats", lambda: probe(lambda x: x > 0, [(40,)])),
    ("fails on operands", lambda: probe(lambda x: x @ torch.ones(3), [(40,)])),
    ("fails on operands", lambda: probe("bmm", [(4, 8, 8), (5, 8, 8)])),
    ("does more than add", lambda: probe("layer_norm", [(4, 64)])),
    ("last digit of its denominator", lambda: probe("softmax", [(4, 64)], "bfloat16")),
    ("one order only", lambda: probe("softmax", [(4, 2)])),
    ("probe the norm in float32", lambda: probe("rms_norm", [(4, 64)], "bfloat16")),
    ("another shape than its operand", lambda: probe(lambda x: x.sum(-1), [(4, 64)], form="softmax")),
    ("last digit does not show", lambda: probe(torch.ones_like, [(4, 64)], form="softmax")),
    ("reach too little", lambda: probe(lambda x: x.float().sum(-1), [(4, 64)], "float8_e4m3fn", dims=(-1,))),
]


@pytest.mark.parametrize(("said", "call"), WRONG)
def test_what_cannot_be_probed_says_why(said: str, call: object) -> None:
    with pytest.raises(ProbeError) as refusal:
        call()  # type: ignore[operator]
    assert said in str(refusal.value)


def test_an_order_that_changes_has_no_tree() -> None:
    draw = torch.Generator().manual_seed(0)

    def kernel(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(x.shape[0])
        for k in torch.randperm(x.shape[1], generator=draw).tolist():
            total = total + x[:, k]
        return total

    with pytest.raises(ProbeError, match="no fixed tree"):
        probe(kernel, [(4, 64)], dims=(1,))


GROUP = """
import os, sys
import torch
import torch.distributed as dist
from layerdiff.arithmetic.orders.probe import save_probe
from layerdiff.replay.probing_group import probe_all_reduce

rank = 0
children = []
for other in (1, 2, 3):  # one import for all of them
    child = os.fork()
    if not child:
        rank, children = other, []
        break
    children.append(child)
folder = sys.argv[1]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=4)
found = probe_all_reduce((64, 8))
narrow = probe_all_reduce((5,), "bfloat16")
mine = torch.randn(4, 64, 8, generator=torch.Generator().manual_seed(0))[rank].clone()
dist.all_reduce(mine)
if rank == 0:
    save_probe(found, f"{folder}/all_reduce.json")
    save_probe(narrow, f"{folder}/narrow.json")
    torch.save(mine, f"{folder}/sum.pt")
dist.destroy_process_group()
for child in children:
    assert os.waitpid(child, 0)[1] == 0
os._exit(0)
"""


def test_all_reduce_on_four_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(layerdiff.__file__).parent.parent))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    subprocess.run([sys.executable, "-c", GROUP, str(tmp_path)], check=True, timeout=100)
    found = open_probe(tmp_path / "all_reduce.json")
    assert (512, 0) == (sum(one.outputs for one in found.trees), found.outputs_elsewhere)
    assert {4} == {one.tree.leaves for one in found.trees}
    assert "the terms are the 4 ranks of a group of gloo" in found.notes
    every = torch.randn(4, 64, 8, generator=torch.Generator().manual_seed(0))
    result = torch.load(tmp_path / "sum.pt", weights_only=True)
    for one in found.trees:
        assert result[one.element] == replayed(one.tree, every[(slice(None), *one.element)].double(), fused=False)
    assert 5 == sum(one.outputs for one in open_probe(tmp_path / "narrow.json").trees)


def test_all_reduce_without_a_group() -> None:
    from layerdiff.replay.probing_group import group_of_environment, probe_all_reduce

    with pytest.raises(ProbeError, match="torchrun"):
        probe_all_reduce((4,))
    with pytest.raises(ProbeError, match="torchrun"), group_of_environment("cpu"):
        pass
