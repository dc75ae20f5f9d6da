"""Weights that one run keeps in another order or shape: transposed, unrolled, rows of a fused projection, pairs to rotate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from layerdiff.compare import compare_traces
from layerdiff.judge.programs.fused import rearranged
from layerdiff.saved.comparison import Comparison
from tests.programs import kinds, random, record, seeded

HEADS, WIDTH = 3, 4
X = random(2, 3, 8, 12)
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


class Embed(nn.Module):
    """Patches of an image, by a convolution; or unrolled, by a product."""

    def __init__(self, *, unrolled: bool) -> None:
        super().__init__()
        self.proj: nn.Module = nn.Linear(48, 12) if unrolled else nn.Conv2d(3, 12, 4, 4)
        self.unrolled = unrolled

    def forward(self, x: Tensor) -> Tensor:
        if not self.unrolled:
            return self.proj(x).flatten(2).transpose(1, 2)
        patches = x.unflatten(3, (-1, 4)).unflatten(2, (-1, 4)).permute(0, 2, 4, 3, 5, 1)  # channels last
        return self.proj(patches.flatten(3).flatten(1, 2))


class Attention(nn.Module):
    """The rows of its projection are heads of q, k and v; or q of all heads, then k, then v."""

    def __init__(self, *, by_heads: bool) -> None:
        super().__init__()
        self.qkv, self.by_heads, self.scale = nn.Linear(12, 36), by_heads, WIDTH**-0.5

    def forward(self, x: Tensor) -> Tensor:
        made = self.qkv(x)
        if self.by_heads:
            q, k, v = made.unflatten(-1, (HEADS, 3, WIDTH)).transpose(1, 2).unbind(3)
        else:
            q, k, v = made.unflatten(-1, (3, HEADS, WIDTH)).permute(2, 0, 3, 1, 4)
        return ((q @ k.mT * self.scale).softmax(-1) @ v).transpose(1, 2).flatten(2)


class Transposed(nn.Module):
    def __init__(self, *, transposed: bool) -> None:
        super().__init__()
        self.weight, self.bias, self.transposed = nn.Parameter(torch.empty(12, 12)), nn.Parameter(torch.empty(12)), transposed

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.flatten(0, 1), self.weight if self.transposed else self.weight.T).unflatten(0, x.shape[:2])


class Model(nn.Module):
    def __init__(self, *, other: bool = False) -> None:
        super().__init__()
        self.embed, self.attention = Embed(unrolled=other), Attention(by_heads=not other)
        self.out, self.act = Transposed(transposed=other), "none"

    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(self.out(self.attention(self.embed(x))), approximate=self.act)


def heads_apart(rows: Tensor) -> Tensor:
    return rows.unflatten(0, (HEADS, 3, WIDTH)).transpose(0, 1).flatten(0, 2).contiguous()


def other_form(change: Callable[[Model], object] | None = None) -> Model:
    """The same function with each weight in another order or shape, changed."""
    model, known = Model(other=True), seeded(Model()).state_dict()
    known["embed.proj.weight"] = known["embed.proj.weight"].permute(0, 2, 3, 1).flatten(1).contiguous()
    for name in ("attention.qkv.weight", "attention.qkv.bias"):
        known[name] = heads_apart(known[name])
    known["out.weight"] = known["out.weight"].T.contiguous()
    model.load_state_dict(known)
    with torch.no_grad():
        if change is not None:
            change(model)
    return model.eval()


def compared(folder: Path, target: Model, dtype: torch.dtype) -> Comparison:
    reference = record(folder / "r.h5", seeded(Model()), X)
    return compare_traces(reference, record(folder / "t.h5", target.to(dtype), X.to(dtype)))


@both_dtypes
def test_weights_in_another_order_are_no_defect(tmp_path: Path, dtype: torch.dtype) -> None:
    comparison = compared(tmp_path, other_form(), dtype)
    assert ([], False) == ([origin.site for origin in comparison.origins], comparison.defect)
    (said,) = [notice.statement for notice in comparison.notices if notice.kind == "constant-rearranged"]
    assert said.startswith("4 weights have the reference's elements in another order or shape")


@both_dtypes
def test_an_order_that_the_same_code_does_not_see(tmp_path: Path, dtype: torch.dtype) -> None:
    """Elements of heads of q and k, in one other order for both."""
    model = seeded(Model())
    with torch.no_grad():
        for known in (model.attention.qkv.weight, model.attention.qkv.bias):
            parts = known.unflatten(0, (HEADS, 3, WIDTH)).clone()
            parts[:, :2] = parts[:, :2].flip(2)
            known.copy_(parts.flatten(0, 2))
    comparison = compared(tmp_path, model, dtype)
    assert ([], False) == ([origin.site for origin in comparison.origins], comparison.defect)
    assert "constant-rearranged" in kinds(comparison)


def gelu(model: Model) -> None:
    model.act = "tanh"


def scale(model: Model) -> None:
    model.attention.scale *= 1.01


def rows(model: Model) -> None:
    model.attention.qkv.weight.copy_(seeded(Model()).attention.qkv.weight)


def unrolled_otherwise(model: Model) -> None:
    model.embed.proj.weight.copy_(seeded(Model()).embed.proj.weight.flatten(1))


def transposed(model: Model) -> None:
    model.out.weight.copy_(seeded(Model()).out.weight)


@both_dtypes
@pytest.mark.parametrize(
    ("change", "place"), [(gelu, "/"), (scale, "attention"), (rows, "attention"), (unrolled_otherwise, "embed"), (transposed, "out")]
)
def test_a_fault_beside_them_is_found_alone(tmp_path: Path, change: Callable[[Model], None], place: str, dtype: torch.dtype) -> None:
    """The approximation of gelu, in bfloat16, lies below the rounding of weights: they must not be taken for folded ones."""
    comparison = compared(tmp_path, other_form(change), dtype)
    assert comparison.origins and all(origin.site.startswith(place) for origin in comparison.origins)


class Tables(nn.Module):
    """A vocabulary and positions, of which an input reads a part, and stacked experts, of which it chooses some."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(20, 8), nn.Parameter(torch.empty(12, 8))
        self.gate, self.experts, self.head = nn.Linear(8, 4, bias=False), nn.Parameter(torch.empty(4, 8, 8)), nn.Linear(8, 20, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.positions[: ids.shape[1]]
        chosen = self.gate(x).argmax(-1, keepdim=True)
        weights = torch.zeros(*ids.shape, 4, dtype=x.dtype).scatter(-1, chosen, 1.0)
        return self.head((torch.einsum("bti,eio->beto", x, self.experts) * weights.mT[..., None]).sum(1))


IDS = torch.tensor([[3, 1, 4, 1, 5]])


def exchanged(first: int, second: int) -> Callable[[Tensor], Tensor]:
    return lambda x: x[[{first: second, second: first}.get(row, row) for row in range(len(x))]]


def unchosen() -> Callable[[Tensor], Tensor]:
    model, chosen = seeded(Tables()), set()
    model.gate.register_forward_hook(lambda module, given, made: chosen.update(made.argmax(-1).flatten().tolist()))
    model(IDS)
    one, other = [expert for expert in range(4) if expert not in chosen][:2]
    return exchanged(one, other)


@both_dtypes
@pytest.mark.parametrize(
    ("weight", "change"),
    [
        ("embed.weight", exchanged(18, 19)),  # no token reads them
        ("embed.weight", exchanged(3, 19)),
        ("positions", exchanged(10, 11)),
        ("positions", exchanged(0, 1)),
        ("experts", unchosen()),
        ("gate.weight", exchanged(0, 1)),
        ("head.weight", exchanged(0, 1)),
    ],
)
def test_rows_in_wrong_places_are_a_defect_though_nothing_reads_them(
    tmp_path: Path, weight: str, change: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    model = seeded(Tables())
    with torch.no_grad():
        model.state_dict()[weight].copy_(change(model.state_dict()[weight].clone()))
    reference = record(tmp_path / "r.h5", seeded(Tables()), IDS)
    comparison = compare_traces(reference, record(tmp_path / "t.h5", model.to(dtype), IDS))
    assert comparison.defect and "constant-rearranged" not in kinds(comparison)


def test_the_same_elements_each_as_often() -> None:
    a = random(4, 6).double().numpy()
    rounded = torch.from_numpy(a).bfloat16().double().numpy()
    assert rearranged(a, a.T, "float32", "float32")
    assert rearranged(a, rounded[::-1].reshape(3, 8), "float32", "bfloat16")
    assert rearranged(rounded, a.T, "bfloat16", "float32")
    assert not rearranged(a, np.where(a == a.max(), a.min(), a), "float32", "float32")
    assert not rearranged(a, rounded, "float32", "float32")
    assert not rearranged(a, a[:3], "float32", "float32")
    stacked = random(3, 4, 5).double().numpy()
    assert rearranged(stacked, stacked.swapaxes(1, 2), "float32", "float32")
    assert not rearranged(stacked, stacked[::-1], "float32", "float32")
