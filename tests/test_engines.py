"""A serving engine against the model that it serves: flattened tokens, fused projections, a residual handed along, a paged cache."""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from captures.llama import RMSNorm, SmallLlama, small_llama, tokens
from layerdiff import Recorder, compare_traces
from layerdiff.cli.exits import UNUSABLE, code_of
from layerdiff.judge.tables import BY_THRESHOLDS
from layerdiff.measure.full import full
from layerdiff.rows.tensor.pair import open_tensor
from layerdiff.rows.traces import Traces
from layerdiff.saved.comparison import Comparison
from layerdiff.trace.schema import CallKind, Role

BLOCK, BLOCKS = 4, 24
HIDDEN, LAYERS = 32, 2


class Norm(nn.Module):
    """Adds to the residual first, where there is one."""

    def __init__(self, norm: RMSNorm) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.variance_epsilon

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        if residual is not None:
            x = residual = x + residual
        wide = x.float()
        y = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight
        return y if residual is None else (y, residual)


class Attention(nn.Module):
    def __init__(self, attention: nn.Module, fault: str) -> None:
        super().__init__()
        self.heads, self.fault = attention.heads, fault
        weights = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
        self.qkv_proj = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.qkv_proj.weight = nn.Parameter(torch.cat(weights).detach())
        self.o_proj = attention.o_proj

    def forward(self, x: Tensor, cos_sin: Tensor, cache: Tensor, slots: Tensor, tables: list[Tensor], lengths: list[int]) -> Tensor:
        head = HIDDEN // self.heads
        q, k, v = (part.view(-1, self.heads, head) for part in self.qkv_proj(x).chunk(3, -1))
        if self.fault == "split":
            k, v = v, k
        cos, sin = cos_sin[:, None].to(x.dtype).chunk(2, -1)
        q, k = (self._rotated(part, cos, sin) for part in (q, k))
        if self.fault == "slot":
            slots = torch.cat([slots[1:], slots[-1:]])
        cache[0].view(-1, self.heads, head)[slots], cache[1].view(-1, self.heads, head)[slots] = k, v
        scale = 0.5 * head**-0.5 if self.fault == "scale" else head**-0.5
        out, begin = torch.empty_like(q), 0
        for table, length in zip(tables, lengths, strict=True):
            pages = table.flip(0) if self.fault == "table" else table
            keys, values = (part[pages].reshape(-1, self.heads, head)[:length] for part in cache)
            scores = torch.einsum("qhd,khd->hqk", q[begin : begin + length], keys) * scale
            later = torch.ones(length, length, dtype=torch.bool).triu(2 if self.fault == "mask" else 1)
            probabilities = scores.masked_fill(later, float("-inf")).softmax(-1, dtype=torch.float32).to(x.dtype)
            out[begin : begin + length] = torch.einsum("hqk,khd->qhd", probabilities, values)
            begin += length
        return self.o_proj(out.reshape(-1, HIDDEN))  # type: ignore[no-any-return]

    @staticmethod
    def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class MLP(nn.Module):
    def __init__(self, mlp: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault, self.down_proj = fault, mlp.down_proj
        self.gate_up_proj = nn.Linear(HIDDEN, 2 * mlp.gate_proj.out_features, bias=False)
        self.gate_up_proj.weight = nn.Parameter(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).detach())

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        if self.fault == "halves":
            gate, up = up, gate
        return self.down_proj(functional.silu(gate) * up)  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, layer: nn.Module, fault: str) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(layer.self_attn, fault), MLP(layer.mlp, fault)
        self.input_layernorm, self.post_attention_layernorm = Norm(layer.input_layernorm), Norm(layer.post_attention_layernorm)
        if fault == "epsilon":
            self.post_attention_layernorm.eps = 1e-5

    def forward(self, x: Tensor, residual: Tensor | None, *cached: object) -> tuple[Tensor, Tensor]:
        if residual is None:
            residual, x = x, self.input_layernorm(x)
        else:
            x, residual = self.input_layernorm(x, residual)
        x, residual = self.post_attention_layernorm(self.self_attn(x, *cached), residual)
        return self.mlp(x), residual


class Engine(nn.Module):
    """`faults` are those of each layer."""

    def __init__(self, model: SmallLlama, faults: tuple[str, ...] = ("", "")) -> None:
        super().__init__()
        self.embed_tokens, self.lm_head, self.norm = model.embed_tokens, model.lm_head, Norm(model.norm)
        self.layers = nn.ModuleList(Layer(layer, fault) for layer, fault in zip(model.layers, faults, strict=True))
        head = HIDDEN // model.layers[0].self_attn.heads
        angles = torch.arange(64).float()[:, None] * 10000.0 ** (-torch.arange(0, head, 2).float() / head)
        self.register_buffer("cos_sin_cache", torch.cat([angles.cos(), angles.sin()], -1))
        self.head = head

    def forward(
        self, ids: Tensor, positions: Tensor, caches: list[Tensor], slots: Tensor, tables: list[Tensor], lengths: list[int]
    ) -> Tensor:
        x, residual, cos_sin = self.embed_tokens(ids), None, self.cos_sin_cache[positions]
        for layer, cache in zip(self.layers, caches, strict=True):
            x, residual = layer(x, residual, cos_sin, cache, slots, tables, lengths)
        return self.lm_head(self.asked_for(self.norm(x, residual)[0], lengths))  # type: ignore[no-any-return]

    def asked_for(self, x: Tensor, lengths: list[int]) -> Tensor:
        """The tokens of which logits are made."""
        return x


class Sampling(Engine):
    """Makes logits of the last token of each request alone; or of the one `early` before it."""

    early = 0

    def asked_for(self, x: Tensor, lengths: list[int]) -> Tensor:
        return x[torch.tensor(lengths).cumsum(0) - 1 - self.early]


def serve(engine: Engine, requests: list[Tensor]) -> None:
    """All requests in one batch without padding, each in pages of its own, in an order of no meaning."""
    free, slots, tables = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(3)), [], []
    for request in requests:
        table, free = free[: -(-len(request) // BLOCK)], free[-(-len(request) // BLOCK) :]
        at = torch.arange(len(request))
        tables.append(table)
        slots.append(table[at // BLOCK] * BLOCK + at % BLOCK)
    positions = torch.cat([torch.arange(len(request)) for request in requests])
    left = torch.randn(LAYERS, 2, BLOCKS, BLOCK, HIDDEN // engine.head, engine.head, generator=torch.Generator().manual_seed(5))
    caches = list(left.to(engine.lm_head.weight.dtype))  # what others left there
    engine(torch.cat(requests), positions, caches, torch.cat(slots), tables, [len(request) for request in requests])


def compared(
    folder: Path, batch: int, faults: tuple[str, ...], dtype: torch.dtype = torch.float32, *, operators: bool = True
) -> Comparison:
    ids = tokens(batch=batch)
    with torch.no_grad(), Recorder(folder / "r.h5", model := small_llama(hidden=HIDDEN, layers=LAYERS), operators=operators):
        model(input_ids=ids)
    engine = Engine(small_llama(hidden=HIDDEN, layers=LAYERS), faults)
    table = engine.cos_sin_cache
    engine.to(dtype).cos_sin_cache = table
    with torch.no_grad(), Recorder(folder / "t.h5", engine, operators=operators):
        serve(engine, list(ids))
    return compare_traces(folder / "r.h5", folder / "t.h5")


@pytest.mark.parametrize("operators", [True, False], ids=["operators", "modules"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("batch", [1, 2])
def test_an_engine_that_is_right(tmp_path: Path, batch: int, dtype: torch.dtype, operators: bool) -> None:
    comparison = compared(tmp_path, batch, ("", ""), dtype, operators=operators)
    assert [] == [origin.site for origin in comparison.origins]
    assert [] == [notice.statement for notice in comparison.notices if notice.defect]
    assert {"results-not-compared", "shape-differs"}.isdisjoint(notice.kind for notice in comparison.notices)


FAULTS = {
    "split": ("self_attn/aten.mul*", None),
    "slot": ("self_attn/aten.cat*", None),
    "table": ("self_attn/aten.flip*", None),
    "scale": ("self_attn/aten.mul*", "scalar-differs"),
    "mask": ("self_attn/aten.triu*", None),
    "halves": ("mlp/aten.silu*", None),
    "epsilon": ("post_attention_layernorm/aten.add*", "rmsnorm-eps"),
}
"""The call that is wrong, and the cause where it is proven: a write to the cache, right for any place and any other slots, is not named."""


@pytest.mark.parametrize(("fault", "batch"), zip(FAULTS, cycle([1, 2]), strict=False))
def test_a_fault_of_an_engine_is_found_at_its_call(tmp_path: Path, fault: str, batch: int) -> None:
    layer, dtype = batch % LAYERS, torch.bfloat16 if batch == 2 else torch.float32
    faults = tuple(fault if here == layer else "" for here in range(LAYERS))
    (origin,) = compared(tmp_path, batch, faults, dtype).origins
    place, cause = FAULTS[fault]
    assert fnmatchcase(origin.site, f"layers.{layer}.{place}") and cause == origin.cause, (origin.site, origin.cause)


def of_several_lengths(
    folder: Path,
    faults: tuple[str, ...] = ("", ""),
    dtype: torch.dtype = torch.float32,
    *,
    operators: bool = True,
    told: bool = True,
    side: str = "right",
    lengths: tuple[int, ...] = (11, 18, 7),
    engine: Engine | None = None,
) -> Comparison:
    """A model is given requests of several lengths as a padded batch, an engine their tokens in a row, in another order."""
    requests = [request[:length] for request, length in zip(tokens(batch=len(lengths)), lengths, strict=True)]
    ids = torch.nn.utils.rnn.pad_sequence(requests, batch_first=True, padding_side=side)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(request) for request in requests], batch_first=True, padding_side=side)
    with torch.no_grad(), Recorder(folder / "r.h5", model := small_llama(hidden=HIDDEN, layers=LAYERS), operators=operators):
        model(input_ids=ids, **({"attention_mask": mask} if told else {}))
    engine = engine or Engine(small_llama(hidden=HIDDEN, layers=LAYERS), faults)
    table = engine.cos_sin_cache
    engine.to(dtype).cos_sin_cache = table
    with torch.no_grad(), Recorder(folder / "t.h5", engine, operators=operators):
        serve(engine, requests[::-1])
    return compare_traces(folder / "r.h5", folder / "t.h5")


@pytest.mark.parametrize("operators", [True, False], ids=["operators", "modules"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_requests_of_several_lengths_in_a_row_are_those_of_a_padded_batch(tmp_path: Path, dtype: torch.dtype, operators: bool) -> None:
    comparison = of_several_lengths(tmp_path, dtype=dtype, operators=operators)
    assert [] == [origin.site for origin in comparison.origins]
    assert not comparison.defect
    kinds = {notice.kind for notice in comparison.notices}
    assert "layout-packed" in kinds and {"results-not-compared", "shape-differs", "input-differs"}.isdisjoint(kinds)
    pairs, roots = comparison.pairs, (comparison.sites["parent"] < 0) & (comparison.sites["kind"] == CallKind.MODULE)
    (pair,) = np.flatnonzero(roots[pairs["site"]] & (pairs["role"] == Role.OUTPUT)).tolist()
    tensor = open_tensor(Traces(), comparison, pair)
    assert (36, 97) == tensor.shape
    numbers = full(*tensor.measured)
    assert numbers.rel_l2 < (1e-5 if dtype is torch.float32 else 0.1)


@pytest.mark.parametrize(
    ("fault", "place", "side", "layer"),
    [
        ("split", "self_attn*", "right", 0),
        ("slot", "self_attn/*", "left", 1),
        ("table", "self_attn/*", "left", 1),
        ("scale", "self_attn/*", "right", 1),
        ("mask", "self_attn/*", "left", 1),
        ("halves", "mlp/*", "right", 0),
        ("epsilon", "post_attention_layernorm/aten.add*", "left", 1),
    ],
)
def test_a_fault_is_found_in_its_module_beside_a_padded_batch(tmp_path: Path, side: str, fault: str, place: str, layer: int) -> None:
    """Padded to the left, the model counts positions from the padding, and the tables that the engine looks up are none of its own."""
    dtype = torch.bfloat16 if layer else torch.float32
    faults = tuple(fault if here == layer else "" for here in range(LAYERS))
    sites = [origin.site for origin in of_several_lengths(tmp_path, faults, dtype, side=side).origins]
    assert sites and all(fnmatchcase(site, f"layers.{layer}.{place}") for site in sites), sites


SEVERAL = pytest.mark.parametrize("lengths", [(11, 18, 7), (18, 18), (18,)], ids=["ragged", "two", "one"])


def sampling(*, early: int = 0, epsilon: float = 1e-6, rolled: int = 0) -> Sampling:
    engine = Sampling(small_llama(hidden=HIDDEN, layers=LAYERS))
    engine.early, engine.norm.eps = early, epsilon
    engine.lm_head.weight.data = engine.lm_head.weight.data.roll(rolled, 0)
    return engine


@SEVERAL
@pytest.mark.parametrize("operators", [True, False], ids=["operators", "modules"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_logits_of_the_last_tokens_are_compared(tmp_path: Path, lengths: tuple[int, ...], dtype: torch.dtype, operators: bool) -> None:
    comparison = of_several_lengths(tmp_path, dtype=dtype, lengths=lengths, engine=sampling(), operators=operators)
    assert [] == [origin.site for origin in comparison.origins]
    assert not comparison.defect
    assert {"results-not-compared", "results-differ"}.isdisjoint(notice.kind for notice in comparison.notices)


@pytest.mark.parametrize(
    ("lengths", "dtype"), [((11, 18, 7), torch.float32), ((18,), torch.bfloat16), ((18, 18), torch.bfloat16)], ids=["ragged", "one", "two"]
)
def test_faults_before_the_logits_of_the_last_tokens_are_found(tmp_path: Path, lengths: tuple[int, ...], dtype: torch.dtype) -> None:
    comparison = of_several_lengths(tmp_path, dtype=dtype, lengths=lengths, engine=sampling(epsilon=1e-4))
    assert ["norm/aten.add.Tensor#1"] == [origin.site for origin in comparison.origins]
    comparison = of_several_lengths(tmp_path, dtype=dtype, lengths=lengths, engine=sampling(rolled=1))
    assert ["lm_head/aten.mm.default#0"] == [origin.site for origin in comparison.origins]


@SEVERAL
@pytest.mark.parametrize("operators", [True, False], ids=["operators", "modules"])
def test_logits_of_another_token_are_said(tmp_path: Path, lengths: tuple[int, ...], operators: bool) -> None:
    comparison = of_several_lengths(tmp_path, lengths=lengths, engine=sampling(early=1), operators=operators)
    (said,) = [notice.statement for notice in comparison.notices if notice.kind == "results-differ"]
    assert f"position {lengths[-1] - 2} of request {len(lengths) - 1}" in said
    assert comparison.defect


class Positioned(nn.Module):
    """Is given the position of each token beside it."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.model = small_llama(hidden=HIDDEN, layers=1)
        self.model.norm.variance_epsilon = epsilon

    def forward(self, positions: Tensor, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids) + positions[..., None]  # type: ignore[no-any-return]


@pytest.mark.parametrize("operators", [True, False], ids=["operators", "modules"])
@pytest.mark.parametrize("batch", [2, 3, 4])
@pytest.mark.parametrize("epsilon", [1e-6, 1e-3])
def test_requests_that_are_as_far_are_in_their_own_order(tmp_path: Path, batch: int, epsilon: float, operators: bool) -> None:
    """One token of each: the positions, the same for all, might lie in any order."""
    for name, chosen in (("r.h5", 1e-6), ("t.h5", epsilon)):
        with torch.no_grad(), Recorder(tmp_path / name, model := Positioned(chosen), operators=operators):
            model(torch.full((batch, 1), 8), tokens(batch=batch)[:, :1])
    comparison = compare_traces(tmp_path / "r.h5", tmp_path / "t.h5")
    assert {"layout-packed", "input-differs"}.isdisjoint(notice.kind for notice in comparison.notices)
    assert (["model.norm"] if epsilon > 1e-6 else []) == [origin.site.partition("/")[0] for origin in comparison.origins]


@pytest.mark.parametrize("operators", [True, False], ids=["operators", "modules"])
@pytest.mark.parametrize("batch", [2, 4])
def test_tokens_of_other_requests_are_other_tokens(tmp_path: Path, batch: int, operators: bool) -> None:
    """Both runs have a batch of one token each: neither is a row."""
    for name, order in (("r.h5", range(batch)), ("t.h5", range(batch)[::-1])):
        with torch.no_grad(), Recorder(tmp_path / name, model := Positioned(1e-6), operators=operators):
            model(torch.full((batch, 1), 8), tokens(batch=batch)[list(order), :1])
    comparison = compare_traces(tmp_path / "r.h5", tmp_path / "t.h5")
    assert ["input-differs"] == [notice.kind for notice in comparison.notices if notice.defect]


class Forgetful(Engine):
    """Returns something that is no part of what the model returns."""

    def asked_for(self, x: Tensor, lengths: list[int]) -> Tensor:
        return x.mean(0)


@pytest.mark.parametrize("operators", [True, False], ids=["operators", "modules"])
def test_a_run_whose_results_have_no_form_in_common_does_not_look_right(tmp_path: Path, operators: bool) -> None:
    """No cut shows what the last norm does."""
    engine = Forgetful(small_llama(hidden=HIDDEN, layers=LAYERS))
    comparison = of_several_lengths(tmp_path, lengths=(18,), engine=engine, operators=operators)
    assert "results-not-compared" in [notice.kind for notice in comparison.notices]
    norm = next(row for row, site in enumerate(comparison.sites["site"]) if comparison.texts[int(site)] == "norm")
    assert comparison.sites["exact"][norm] == BY_THRESHOLDS


def test_what_has_no_form_in_common_is_not_called_right(tmp_path: Path) -> None:
    """Nothing says which positions of the batch are padding."""
    comparison = of_several_lengths(tmp_path, told=False)
    assert ("not-comparable", False, UNUSABLE) == (comparison.verdict.label, comparison.defect, code_of(comparison))
    assert "results-not-compared" in [notice.kind for notice in comparison.notices]
