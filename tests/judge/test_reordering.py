"""A server may sort the requests of a batch: each is compared with itself, and faults are found as in one order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from captures.llama import SmallLlama, small_llama, tokens
from layerdiff import Recorder
from layerdiff.compare import compare_traces
from layerdiff.measure.full import full
from layerdiff.rows.tensor.pair import open_tensor
from layerdiff.rows.traces import Traces
from layerdiff.saved.comparison import Comparison
from layerdiff.trace.reader import open_trace
from layerdiff.trace.reordered import Reordered, Requests
from layerdiff.trace.schema import CallKind, Role

LENGTHS = (11, 18, 7, 18, 5)
ORDERS = [(4, 2, 0, 3, 1), (0, 1, 3, 2, 4)]
Change = Callable[[SmallLlama], object]


class Reads(nn.Module):
    """Reads requests a token after the other, keeps a state of each, and has a table with perhaps as many rows as there are requests."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.table = nn.Embedding(97, 16), nn.Embedding(rows, 16)
        self.adds, self.norm, self.score = nn.Linear(16, 16), nn.RMSNorm(16, eps=1e-6), nn.Linear(16, 3)
        self.state: Tensor | None = None

    def forward(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        table = self.table(torch.arange(self.table.num_embeddings))
        x = self.tokens(ids) + table[ids % len(table)]
        self.state = x.sum(1) if self.state is None else self.state + x.sum(1)
        scores = self.score(self.norm(self.adds(self.state) / lengths[:, None]))
        return scores, scores[:, 0]


def batch(order: Sequence[int], side: str = "right") -> tuple[Tensor, Tensor]:
    requests = [request[:length] for request, length in zip(tokens(batch=len(LENGTHS)), LENGTHS, strict=True)]
    ids = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, number in enumerate(order):
        length = LENGTHS[number]
        at = slice(0, length) if side == "right" else slice(-length, None)
        ids[row, at], mask[row, at] = requests[number], 1
    return ids, mask


def compared(
    folder: Path,
    order: Sequence[int],
    change: Change = lambda model: None,
    *,
    operators: bool,
    dtype: torch.dtype = torch.float32,
    side: str = "right",
    given: Callable[[Tensor, Tensor], object] = lambda ids, mask: None,
) -> Comparison:
    for name, own, kind in (("r.h5", range(len(LENGTHS)), torch.float32), ("t.h5", order, dtype)):
        model, (ids, mask) = small_llama(hidden=32, layers=2), batch(own, side)
        if name == "t.h5":
            change(model)
            given(ids, mask)
        with torch.no_grad(), Recorder(folder / name, model.to(kind), operators=operators):
            model(input_ids=ids, attention_mask=mask)
    return compare_traces(folder / "r.h5", folder / "t.h5")


def kinds(comparison: Comparison) -> set[str]:
    return {notice.kind for notice in comparison.notices}


@pytest.mark.parametrize("operators", [True, False], ids=["operators", "modules"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("side", "order"), [("left", ORDERS[0]), ("right", ORDERS[1])], ids=["left", "right"])
def test_sorted_requests_are_no_fault(tmp_path: Path, order: Sequence[int], side: str, dtype: torch.dtype, operators: bool) -> None:
    comparison = compared(tmp_path, order, operators=operators, dtype=dtype, side=side)
    assert not comparison.defect
    assert [] == [origin.site for origin in comparison.origins]
    assert "requests-reordered" in kinds(comparison)
    assert {"input-differs", "results-not-compared"}.isdisjoint(kinds(comparison))
    pairs, roots = comparison.pairs, (comparison.sites["parent"] < 0) & (comparison.sites["kind"] == CallKind.MODULE)
    (pair,) = np.flatnonzero(roots[pairs["site"]] & (pairs["role"] == Role.OUTPUT)).tolist()
    assert full(*open_tensor(Traces(), comparison, pair).measured).rel_l2 < (1e-5 if dtype is torch.float32 else 0.1)


def test_requests_in_one_order_are_as_they_are(tmp_path: Path) -> None:
    assert "requests-reordered" not in kinds(compared(tmp_path, range(len(LENGTHS)), operators=True))


def epsilon(model: SmallLlama) -> None:
    model.layers[1].post_attention_layernorm.variance_epsilon = 1e-4


def activation(model: SmallLlama) -> None:
    model.layers[1].mlp.act_fn = nn.GELU()


def base(model: SmallLlama) -> None:
    model.rotary_emb.base = 5000.0


def other_requests(module: nn.Module) -> None:
    """Hands the requests on in an order of its own."""
    module.register_forward_hook(lambda module, given, made: made.roll(1, 0))


def other_mask(model: SmallLlama) -> None:
    """Each request is masked as another."""
    model.layers[0].self_attn.register_forward_pre_hook(lambda module, given: (*given[:2], given[2].roll(1, 0)))


FAULTS: dict[str, tuple[Change, str]] = {
    "epsilon": (epsilon, "layers.1.post_attention_layernorm"),
    "activation": (activation, "layers.1.mlp.act_fn"),
    "base": (base, "rotary_emb"),
    "order in a layer": (lambda model: other_requests(model.layers[0].mlp), "layers.0.mlp"),
    "order of attention": (lambda model: other_requests(model.layers[1].self_attn), "layers.1.self_attn"),
    "order of the results": (other_requests, ""),
    "mask": (other_mask, "layers.0"),
}


@pytest.mark.parametrize(
    ("order", "dtype", "operators"),
    [(ORDERS[0], torch.float32, True), (ORDERS[1], torch.bfloat16, True), (ORDERS[1], torch.float32, False)],
    ids=["fp32", "bf16", "modules"],
)
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found_beside(tmp_path: Path, fault: str, order: Sequence[int], dtype: torch.dtype, operators: bool) -> None:
    change, site = FAULTS[fault]
    comparison = compared(tmp_path, order, change, operators=operators, dtype=dtype)
    assert comparison.defect
    assert {site} == {origin.site.partition("/")[0] for origin in comparison.origins}


def another_token(ids: Tensor, mask: Tensor) -> None:
    ids[1, 3] += 1


def one_token_less(ids: Tensor, mask: Tensor) -> None:
    mask[0, int(mask[0].sum()) - 1] = 0


def a_request_twice(ids: Tensor, mask: Tensor) -> None:
    ids[1], mask[1] = ids[0], mask[0]


@pytest.mark.parametrize("operators", [True, False], ids=["operators", "modules"])
@pytest.mark.parametrize("given", [another_token, one_token_less, a_request_twice])
def test_other_tokens_and_masks_are_said(tmp_path: Path, given: Callable[[Tensor, Tensor], object], operators: bool) -> None:
    comparison = compared(tmp_path, ORDERS[0], operators=operators, given=given)
    assert comparison.defect
    assert "input-differs" in kinds(comparison) and "requests-reordered" not in kinds(comparison)


def read(
    folder: Path, order: Sequence[int], rows: int, change: Callable[[Reads], object], operators: bool, then: Sequence[int] | None = None
) -> Comparison:
    """`then`: the order of the target's further steps, if it is another."""
    ids, lengths = tokens(batch=len(order)), torch.arange(2, len(order) + 2)
    for name, own in (("r.h5", range(len(order))), ("t.h5", order)):
        model = Reads(rows).eval()
        if name == "t.h5":
            change(model)
        with torch.no_grad(), Recorder(folder / name, model, operators=operators):
            model(ids[list(own), :6], lengths[list(own)])
            further = then if then is not None and name == "t.h5" else own
            for at in (6, 7):
                model(ids[list(further), at : at + 1], lengths[list(own)])
    return compare_traces(folder / "r.h5", folder / "t.h5")


@pytest.mark.parametrize("operators", [True, False], ids=["operators", "modules"])
@pytest.mark.parametrize("order", [(2, 0, 1, 3), (1, 0)])
@pytest.mark.parametrize("rows", [2, 8])
def test_what_lies_otherwise_is_told_from_requests(tmp_path: Path, order: Sequence[int], rows: int, operators: bool) -> None:
    """A table with as many rows, a number for each request, single tokens."""
    comparison = read(tmp_path, order, rows, lambda model: None, operators)
    if operators or rows != len(order):
        assert not comparison.defect
        assert [] == [origin.site for origin in comparison.origins]
    assert ("requests-reordered" in kinds(comparison)) != ("input-differs" in kinds(comparison))


@pytest.mark.parametrize("operators", [True, False], ids=["operators", "modules"])
@pytest.mark.parametrize("order", [(2, 0, 1, 3), (1, 0)])
@pytest.mark.parametrize("name", ["adds", "norm", "score", ""])
def test_single_tokens_in_a_wrong_order_are_found(tmp_path: Path, name: str, order: Sequence[int], operators: bool) -> None:
    def change(model: Reads) -> None:
        steps = iter(range(3))

        def turned(module: nn.Module, given: object, made: object) -> object:
            if next(steps) == 0:
                return made
            return tuple(one.flip(0) for one in made) if isinstance(made, tuple) else made.flip(0)  # type: ignore[attr-defined]

        model.get_submodule(name).register_forward_hook(turned)

    comparison = read(tmp_path, order, 8, change, operators)
    assert comparison.defect
    if "requests-reordered" in kinds(comparison):
        assert {name} == {origin.site.partition("/")[0] for origin in comparison.origins}


@pytest.mark.parametrize("operators", [True, False], ids=["operators", "modules"])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 1, 3)])
def test_tokens_that_go_to_other_requests_are_said(tmp_path: Path, order: Sequence[int], operators: bool) -> None:
    """Requests that go on have an order: theirs are other tokens then."""
    comparison = read(tmp_path, order, 8, lambda model: None, operators, then=order[::-1])
    (said,) = [notice.statement for notice in comparison.notices if notice.kind == "input-differs"]
    assert "in[0] of step 1" in said
    assert comparison.defect
    assert [] == [origin.site for origin in comparison.origins]


@pytest.mark.parametrize("operators", [True, False], ids=["operators", "modules"])
def test_each_batch_has_an_order_of_its_own(tmp_path: Path, operators: bool) -> None:
    for name, orders in (("r.h5", [range(5)] * 3), ("t.h5", [ORDERS[0], range(5), ORDERS[1]])):
        with torch.no_grad(), Recorder(tmp_path / name, model := small_llama(hidden=32, layers=1), operators=operators):
            for number, order in enumerate(orders):
                ids, mask = batch(order)
                model(input_ids=ids[:, number:], attention_mask=mask[:, number:])
    comparison = compare_traces(tmp_path / "r.h5", tmp_path / "t.h5")
    assert not comparison.defect
    assert [] == [origin.site for origin in comparison.origins]


def test_values_are_read_in_the_other_order(tmp_path: Path) -> None:
    with torch.no_grad(), Recorder(tmp_path / "r.h5", model := small_llama(hidden=32, layers=1), operators=True):
        model(input_ids=tokens(batch=3))
    (file,) = open_trace(tmp_path / "r.h5").files
    (root,) = np.flatnonzero((file.calls.parent < 0) & (file.calls.kind == CallKind.MODULE)).tolist()
    order = np.array([2, 0, 1])
    sorted_file = Reordered(file, {root: Requests(18, frozenset({18}), order)}, ())
    seen = set()
    for value in range(len(file.values)):
        ours, shape = file.read(value), file.shape(value)
        theirs = sorted_file.read(value)
        dtype = file.dtype(value)
        assert dtype is not None and np.array_equal(dtype.decode(sorted_file.raw(value)), theirs)
        if shape[0] == 3:
            assert np.array_equal(ours[order], theirs)
            seen.add(len(shape))
        elif shape[0] == 54:
            assert np.array_equal(ours.reshape(3, 18, -1)[order], theirs.reshape(3, 18, -1))
        else:
            assert np.array_equal(ours, theirs) or shape[0] % 3 == 0
    assert {2, 3, 4} <= seen
