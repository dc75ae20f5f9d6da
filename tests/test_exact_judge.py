"""The exact judge, from the recording of a small model to what is said of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import layerdiff.saved
from captures.kernels import PRODUCTS, Kernel, product, split_dropped
from layerdiff.compare import compare_traces
from layerdiff.judge.tables import Verdict
from layerdiff.saved.comparison import Comparison
from layerdiff.saved.file import open_comparison, save
from layerdiff.verdicts import judge_again
from tests.models import MiniLlama, tokens
from tests.programs import IDS, Decoder, Record, decoder, kinds, origins, quantised

BF16 = torch.bfloat16
LOWEST = torch.finfo(torch.float32).min


@pytest.fixture(scope="module")
def reference(write: Record) -> Path:
    return write(decoder(), IDS)


def verdict_at(comparison: Comparison, site: str) -> str:
    rows = [row for row, text in enumerate(comparison.sites["site"].tolist()) if comparison.texts[text] == site]
    return Verdict(int(comparison.sites["verdict"][rows[0]])).label


# faults in a program


def epsilon(model: Decoder) -> None:
    model.layers[1].input_layernorm.variance_epsilon = 1e-5


def scale(model: Decoder) -> None:
    model.layers[0].self_attn.scale = 1.0


def swapped(model: Decoder) -> None:
    mlp = model.layers[1].mlp
    mlp.forward = lambda x: mlp.down_proj(mlp.gate_proj(x) * functional.silu(mlp.up_proj(x)))


def commuted(model: Decoder) -> None:
    mlp = model.layers[1].mlp
    mlp.forward = lambda x: mlp.down_proj(mlp.up_proj(x) * functional.silu(mlp.gate_proj(x)))


def without_residual(model: Decoder) -> None:
    layer = model.layers[0]

    def forward(x: Tensor, mask: Tensor | None = None) -> Tensor:
        return layer.mlp(layer.post_attention_layernorm(x + layer.self_attn(layer.input_layernorm(x), mask)))

    layer.forward = forward


def another_weight(model: Decoder) -> None:
    model.layers[1].self_attn.v_proj.weight.mul_(1.01)


def factor_and_scale(model: Decoder) -> None:
    attention = model.layers[1].self_attn
    forward = attention.forward
    attention.scale, attention.forward = 0.5, lambda x, mask=None: forward(x * 1.5, mask)


def another_function_and_a_factor(model: Decoder) -> None:
    mlp = model.layers[0].mlp
    mlp.forward = lambda x: mlp.down_proj(torch.sigmoid(mlp.gate_proj(x)) * mlp.up_proj(x) * 0.9)


def norm_of_another_kind(model: Decoder) -> None:
    norm = model.layers[0].input_layernorm
    norm.variance_epsilon = 1e-5
    norm.weight.mul_(1.01)


EPSILON = ("layers.1.input_layernorm/aten.add.Tensor#0", "defect", "rmsnorm-eps")
SCALE = ("layers.0.self_attn/aten.mul.Tensor#5", "defect", "scalar-differs")


@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (epsilon, [EPSILON]),
        (scale, [SCALE]),
        (without_residual, [("layers.0/aten.add.Tensor#1", "defect", "operator-missing")]),
        (another_weight, [("layers.1.self_attn.v_proj/aten.mm.default#0", "defect", "weight-differs")]),
        (lambda model: (epsilon(model), scale(model)), [SCALE, EPSILON]),
        (
            norm_of_another_kind,
            [
                ("layers.0.input_layernorm/aten.add.Tensor#0", "defect", "rmsnorm-eps"),
                ("layers.0.input_layernorm/aten.mul.Tensor#1", "defect", "weight-differs"),
            ],
        ),
        (
            factor_and_scale,
            [
                ("layers.1.self_attn/aten.mul.Tensor#0", "defect", "operator-added"),
                ("layers.1.self_attn/aten.mul.Tensor#6", "defect", "scalar-differs"),
            ],
        ),
        (
            another_function_and_a_factor,
            [
                ("layers.0.mlp/aten.sigmoid.default#0", "defect", "operator-differs"),
                ("layers.0.mlp/aten.mul.Tensor#1", "defect", "operator-added"),
            ],
        ),
        (commuted, []),
    ],
    ids=["epsilon", "scale", "residual", "weight", "two bodies", "two in one body", "added and scale", "function and factor", "commuted"],
)
def test_faults_of_programs(
    write: Record, reference: Path, change: Callable[[Decoder], Any], expected: list[Any], dtype: torch.dtype
) -> None:
    comparison = compare_traces(reference, write(decoder(change, dtype), IDS))
    assert expected == origins(comparison)
    assert bool(expected) == comparison.defect


@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=["fp32", "bf16"])
def test_gate_and_up_exchanged_in_code(write: Record, reference: Path, dtype: torch.dtype) -> None:
    """Both operands of the product are others: the activation is given another value, and the product has one that was gated not."""
    comparison = compare_traces(reference, write(decoder(swapped, dtype), IDS))
    assert "layers.1.mlp/aten.silu.default#0" == comparison.origins[0].site
    assert {"layers.1.mlp"} == {origin.site.partition("/")[0] for origin in comparison.origins}
    assert comparison.defect


def test_the_static_difference_is_the_evidence(write: Record, reference: Path) -> None:
    (origin,) = compare_traces(reference, write(decoder(epsilon, BF16), IDS)).origins
    assert "add(1e-05), reference add(1e-06)" == origin.statement
    assert "aten.add.Tensor" == origin.operator
    assert "meaning" in origin.rule
    assert 1e-9 < origin.measured < 1e-3  # far below a rounding of bfloat16, 4e-3


def test_the_same_run_again_is_identical(write: Record, reference: Path) -> None:
    comparison = compare_traces(reference, write(decoder(), IDS))
    assert (Verdict.IDENTICAL, False, [], set()) == (comparison.verdict, comparison.defect, origins(comparison), kinds(comparison))


# faults below the recorder


@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=["fp32", "bf16"])
def test_a_kernel_that_drops_a_part_of_its_sum(write: Record, reference: Path, dtype: torch.dtype) -> None:
    model = decoder(dtype=dtype)
    broken = Kernel(model.layers[0].mlp.down_proj, PRODUCTS, product(split_dropped))
    comparison = compare_traces(reference, write(model, IDS, below=[broken]))
    assert ["layers.0.mlp.down_proj/aten.mm.default#0"] == [origin.site for origin in comparison.origins]
    assert comparison.defect


def test_one_wrong_element_of_a_kernel(write: Record, reference: Path) -> None:
    def one(func: Any, args: Any, kwargs: Any, result: Tensor) -> Tensor:
        changed = result.clone()
        changed.view(-1)[7] *= 1 + 1e-4
        return changed

    model = decoder()
    comparison = compare_traces(reference, write(model, IDS, below=[Kernel(model.layers[1].mlp, ("aten.mul.Tensor",), one)]))
    (origin,) = comparison.origins
    assert "layers.1.mlp/aten.mul.Tensor#0" == origin.site
    assert "1 of 288 elements" in origin.statement  # 2 x 6 x 24


# what is no fault


def fused(model: Decoder) -> None:
    for layer in model.layers:
        layer.self_attn.fused = True


@pytest.fixture(scope="module")
def mask() -> Tensor:
    """Which key a query may see: those before it, and in the second row not the first two, but for itself."""
    seen = torch.ones(6, 6, dtype=torch.bool).tril().expand(2, 1, 6, 6).clone()
    seen[1, :, :, :2] = False
    seen[:, :, range(6), range(6)] = True
    return seen


@pytest.fixture(scope="module")
def masked(write: Record, mask: Tensor) -> Path:
    return write(decoder(), IDS, torch.zeros(2, 1, 6, 6).masked_fill(~mask, LOWEST))


@pytest.mark.parametrize(
    ("change", "as_given"),
    [
        (fused, lambda seen: torch.zeros(2, 1, 6, 6).masked_fill(~seen, LOWEST)),
        (fused, lambda seen: seen),
        (None, lambda seen: torch.zeros(2, 1, 6, 6).masked_fill(~seen, -torch.inf)),
    ],
    ids=["sdpa", "sdpa, boolean mask", "eager, -inf"],
)
def test_another_attention_and_another_form_of_its_mask(
    write: Record, masked: Path, mask: Tensor, change: Any, as_given: Callable[[Tensor], Tensor]
) -> None:
    comparison = compare_traces(masked, write(decoder(change), IDS, as_given(mask)))
    assert ([], False) == (origins(comparison), comparison.defect)


def test_a_mask_that_lets_through_what_it_should_hide(write: Record, masked: Path, mask: Tensor) -> None:
    comparison = compare_traces(masked, write(decoder(), IDS, torch.zeros(2, 1, 6, 6)))
    assert ([], True) == (origins(comparison), comparison.defect)
    assert "input-differs" in kinds(comparison)


class FusedProjections(nn.Module):
    """Attention with one projection in place of three."""

    def __init__(self, attention: Any, order: tuple[int, int, int] = (0, 1, 2)) -> None:
        super().__init__()
        parts = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
        self.qkv_proj = nn.Linear(16, 48, bias=False)
        self.qkv_proj.weight = nn.Parameter(torch.cat([parts[i] for i in order]))
        self.o_proj = attention.o_proj
        self._attention = [attention]

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        parts = self.qkv_proj(x).chunk(3, -1)
        whole = self._attention[0]
        kept = {name: whole._modules.pop(name) for name in ("q_proj", "k_proj", "v_proj")}
        for name, part in zip(kept, parts, strict=True):
            object.__setattr__(whole, name, lambda _, part=part: part)
        try:
            return type(whole).forward(whole, x, mask)
        finally:
            for name, module in kept.items():
                object.__delattr__(whole, name)
                whole._modules[name] = module


@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=["fp32", "bf16"])
def test_projections_fused_into_one(write: Record, reference: Path, dtype: torch.dtype) -> None:
    def fuse(model: Decoder) -> None:
        for layer in model.layers:
            layer.self_attn = FusedProjections(layer.self_attn)

    comparison = compare_traces(reference, write(decoder(fuse, dtype), IDS))
    assert ([], False) == (origins(comparison), comparison.defect)
    assert verdict_at(comparison, "layers.0.self_attn") == ("identical" if dtype == torch.float32 else "inherited")
    assert "not-comparable" == verdict_at(comparison, "layers.0.self_attn.qkv_proj")


def test_projections_fused_in_the_wrong_order(write: Record, reference: Path) -> None:
    def fuse(model: Decoder) -> None:
        model.layers[1].self_attn = FusedProjections(model.layers[1].self_attn, (1, 0, 2))

    comparison = compare_traces(reference, write(decoder(fuse), IDS))
    assert ["layers.1.self_attn.qkv_proj/aten.mm.default#0"] == [origin.site for origin in comparison.origins]


def test_autocast(write: Record, reference: Path) -> None:
    comparison = compare_traces(reference, write(decoder(), IDS, below=[torch.autocast("cpu", BF16)]))
    assert ([], False) == (origins(comparison), comparison.defect)


def test_an_epsilon_under_autocast(write: Record, reference: Path) -> None:
    comparison = compare_traces(reference, write(decoder(epsilon), IDS, below=[torch.autocast("cpu", BF16)]))
    assert [EPSILON] == origins(comparison)


def test_a_bf16_reference_and_target(write: Record) -> None:
    one = write(decoder(dtype=BF16), IDS)
    comparison = compare_traces(one, write(decoder(fused, BF16), IDS))
    assert ([], False) == (origins(comparison), comparison.defect)


@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=["fp32", "bf16"])
def test_positions_that_cancel_again(write: Record, dtype: torch.dtype) -> None:
    """Queries and keys both five positions further on: cosines differ, scores do not."""

    def shifted(by: int, of: torch.dtype = torch.float32) -> Path:
        model = MiniLlama().to(of)
        rotary = model.rotary_emb.forward
        model.rotary_emb.forward = lambda x, positions: rotary(x, positions + by)
        return write(model, tokens())

    comparison = compare_traces(shifted(0), shifted(5, dtype))
    assert [("rotary_emb/aten.add.Tensor#0", "reconverges", None)] == origins(comparison)
    assert not comparison.defect


def test_another_base_of_positions_does_not_cancel(write: Record) -> None:
    comparison = compare_traces(write(MiniLlama(), tokens()), write(MiniLlama(base=5000.0), tokens()))
    assert [("rotary_emb/aten.pow.Scalar#0", "defect", "scalar-differs")] == origins(comparison)


# kept, and read again


def test_a_saved_comparison_is_judged_again_without_its_traces(write: Record, reference: Path, tmp_path: Path) -> None:
    comparison = compare_traces(reference, write(decoder(lambda model: (epsilon(model), scale(model))), IDS))
    save(comparison, tmp_path / "run.ldiff")
    again = judge_again(open_comparison(tmp_path / "run.ldiff"), profile="relaxed")
    assert origins(comparison) == origins(again)
    assert comparison.found == again.found
    assert np.array_equal(comparison.sites["verdict"], again.sites["verdict"])
    assert [origin.statement for origin in comparison.origins] == [origin.statement for origin in again.origins]


def test_json_is_what_its_schema_says(write: Record, reference: Path) -> None:
    schema = json.loads((Path(layerdiff.saved.__file__).parent / "comparison.schema.json").read_text())
    for change in (without_residual, quantised):
        data = compare_traces(reference, write(decoder(change, BF16), IDS)).to_json()
        jsonschema.validate(json.loads(json.dumps(data, allow_nan=False)), schema)


class Flat(nn.Module):
    """A model as one graph, as an export has it: no module is called inside."""

    def __init__(self, change: Callable[[Decoder], Any] | None = None) -> None:
        super().__init__()
        model = decoder(change)
        self.weights = nn.ParameterList(model.parameters())
        object.__setattr__(self, "graph", torch.export.export(model, (IDS,)).module())

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.graph(input_ids)  # type: ignore[no-any-return]


def test_a_flat_graph_is_told_by_the_modules_of_the_reference(reference: Path, write: Record) -> None:
    assert not compare_traces(reference, write(Flat(), IDS)).origins
    (found,) = compare_traces(reference, write(Flat(epsilon), IDS)).origins
    assert (found.cause, found.evidence["reference_site"]) == ("scalar-differs", EPSILON[0])
