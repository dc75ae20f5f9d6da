"""Variations without a fault: the same model in other calls, other precision, another order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from captures.kernels import PRODUCTS, Kernel, product
from tests.evaluate.operators.attention import Attn, Steps, use
from tests.evaluate.operators.families import Place
from tests.evaluate.operators.faults_of_weights import integers
from tests.evaluate.operators.routing import Loop, loop

Put = Callable[[Place], bool]
"""Changes a layer; False where the model has no such place."""


@dataclass(frozen=True)
class Harmless:
    """One variation of the target; `put` is done in every layer. Nothing may be convicted."""

    name: str
    put: Put | None = None
    scenario: str = "prefill"
    dtype: torch.dtype = torch.float32
    attention: str = "eager"
    around: Callable[[], Any] | None = None
    """A context that the target runs in."""
    options: tuple[tuple[str, Any], ...] = ()
    """What the target's scenario is told beside."""
    allow: tuple[str, ...] = ()
    """What the profile allows."""
    families: tuple[str, ...] = ()
    equal_in_float64: bool = True
    """Whether it computes the very same in exact arithmetic, and can be run in it."""
    loop: bool = True
    """Whether experts run one after the other."""
    warm_up: bool = False
    """Whether a forward on other tokens precedes the target's run."""


def _steps(steps: type[Steps]) -> Put:
    def put(place: Place) -> bool:
        if not place.has("rotary"):
            return False
        use(place.at("attention"), steps())
        return True

    return put


def _own(put: Put) -> Put:
    return lambda place: place.family.own and put(place)


def _replaced(role: str, forward: Callable[..., Any]) -> Put:
    def put(place: Place) -> bool:
        return place.has(role) and bool(place.replace(role, forward))

    return put


class FusedProjection(Steps):
    """One product for queries, keys and values."""

    def __init__(self, fused: nn.Linear) -> None:
        self.fused = fused

    def project(self, attn: Attn, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (*x.shape[:-1], -1, attn.head_dim)
        sizes = [attn.q_proj.out_features, attn.k_proj.out_features, attn.v_proj.out_features]
        q, k, v = (part.view(shape) for part in self.fused(x).split(sizes, -1))
        q, k = self.normalise(attn, "q_norm", q), self.normalise(attn, "k_norm", k)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def _fused_qkv(place: Place) -> bool:
    if not place.has("rotary"):
        return False
    attn = place.at("attention")
    weights = torch.cat([attn.q_proj.weight.data, attn.k_proj.weight.data, attn.v_proj.weight.data])
    attn.qkv_proj = nn.Linear(weights.shape[1], len(weights), bias=False)
    attn.qkv_proj.weight.data = weights
    use(attn, FusedProjection(attn.qkv_proj))
    return True


def _fused_gate_up(place: Place) -> bool:
    if not place.has("gate", "up", "down"):
        return False
    mlp = place.at("mlp")
    weights = torch.cat([mlp.gate_proj.weight.data, mlp.up_proj.weight.data])
    mlp.gate_up_proj = nn.Linear(weights.shape[1], len(weights), bias=False)
    mlp.gate_up_proj.weight.data = weights

    def forward(x: Tensor) -> Tensor:
        gate, up = mlp.gate_up_proj(x).chunk(2, -1)
        return mlp.down_proj(mlp.act_fn(gate) * up)

    mlp.forward = forward
    return True


class ScaledQueries(Steps):
    def score(self, attn: Attn, q: Tensor, k: Tensor) -> Tensor:
        return torch.matmul(q * attn.scaling, k.transpose(2, 3))


class EinsteinScores(Steps):
    def score(self, attn: Attn, q: Tensor, k: Tensor) -> Tensor:
        return torch.einsum("bhqd,bhkd->bhqk", q, k) * attn.scaling


class WrittenSoftmax(Steps):
    def softmax(self, attn: Attn, scores: Tensor) -> Tensor:
        wide = scores.to(torch.float32)
        wide = (wide - wide.amax(-1, keepdim=True)).exp()
        return wide / wide.sum(-1, keepdim=True)


class BooleanMask(Steps):
    def mask(self, attn: Attn, scores: Tensor, mask: Tensor) -> Tensor:
        if getattr(attn, "window", None) is not None:
            return super().mask(attn, scores, mask)
        return scores.masked_fill(mask != 0, float("-inf"))


class Interleave(Steps):
    def repeat(self, x: Tensor, groups: int) -> Tensor:
        return x.repeat_interleave(groups, 1)


class RotatedByHalves(Steps):
    def rotate(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        half = q.shape[-1] // 2
        cos, sin = cos.unsqueeze(1)[..., :half], sin.unsqueeze(1)[..., :half]

        def turned(x: Tensor) -> Tensor:
            a, b = x.split(half, -1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

        return turned(q), turned(k)


class CopiesAndCasts(Steps):
    def project(self, attn: Attn, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(attn, x.clone())
        return q.contiguous(), k.to(k.dtype), v.float().to(v.dtype) if v.dtype != torch.float64 else v.clone()

    def join(self, attn: Attn, mixed: Tensor) -> Tensor:
        return mixed.permute(0, 2, 1, 3).flatten(2)


def _inner_products(linear: nn.Linear, x: Tensor) -> Tensor:
    pieces = zip(x.chunk(4, -1), linear.weight.chunk(4, -1), strict=True)
    y = sum(functional.linear(a, w) for a, w in pieces)
    assert isinstance(y, Tensor)
    return y if linear.bias is None else y + linear.bias


def _backwards(linear: nn.Linear, x: Tensor) -> Tensor:
    return functional.linear(x.flip(-1), linear.weight.flip(-1), linear.bias)


def _einsum(linear: nn.Linear, x: Tensor) -> Tensor:
    y = torch.einsum("...i,oi->...o", x, linear.weight)
    return y if linear.bias is None else y + linear.bias


def _inverse_root(norm: Any, x: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    wide = wide / torch.sqrt((wide * wide).sum(-1, keepdim=True) / x.shape[-1] + norm.variance_epsilon)
    return norm.weight * wide.to(x.dtype)


def _one_kernel(norm: Any, x: Tensor) -> Tensor:
    return functional.rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon)


def _written_layer_norm(norm: Any, x: Tensor) -> Tensor:
    y = x - x.mean(-1, keepdim=True)
    return y / torch.sqrt((y * y).mean(-1, keepdim=True) + norm.eps) * norm.weight + norm.bias


def _in_place(layer: Any, x: Tensor, rotary: Any, mask: Any, cache: Any) -> Tensor:
    y = layer.self_attn(layer.input_layernorm(x), rotary, mask, cache)
    y += x
    z = layer.mlp(layer.post_attention_layernorm(y))
    return z.add_(y)


def _pair(place: Place) -> bool:
    """Layers hand on what they made and the stream apart; their sum is what the reference returns."""
    layer = place.at("layer")

    def forward(x: Any, rotary: Any, mask: Any, cache: Any) -> Any:
        x = x[0] + x[1] if isinstance(x, tuple) else x
        x = x + layer.self_attn(layer.input_layernorm(x), rotary, mask, cache)
        return layer.mlp(layer.post_attention_layernorm(x)), x

    layer.forward = forward
    if place.k == 0:
        norm = place.at("final_norm")
        right = norm.forward
        norm.forward = lambda pair: right(pair[0] + pair[1])
    return True


def _transposed_layout(place: Place) -> bool:
    for module in place.model.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = module.weight.data.t().contiguous().t()
    return place.k == 0 or place.layers > 1


def _int8(place: Place) -> bool:
    if not place.has("down"):
        return False
    weight = place.at("down").weight
    weight.data = integers(weight.data, 8, weight.shape[1])
    return True


class Reversed(Loop):
    def order(self, hit: Tensor) -> Any:
        return hit.flip(0)


class AllExperts(Loop):
    """Every expert computes every token, with weight zero for those that did not choose it."""

    def run(self, experts: Any, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        table = torch.zeros(len(x), experts.num_experts, dtype=weights.dtype).scatter(1, chosen, weights)
        return sum(self.expert(experts, torch.tensor(e), x) * table[:, e, None] for e in range(experts.num_experts)).to(x.dtype)  # type: ignore[union-attr]


def _experts(steps: type[Loop]) -> Put:
    def put(place: Place) -> bool:
        if not place.has("experts"):
            return False
        loop(place.at("experts"), steps())
        return True

    return put


def _infinite_mask(place: Place) -> bool:
    place.model.lowest = lambda dtype: float("-inf")
    return True


def _kernel(role: str, change: Callable[[Tensor, Tensor], Tensor], *, call: int | None = None) -> Put:
    def put(place: Place) -> bool:
        if not place.has(role):
            return False
        mode = Kernel(place.at(role), PRODUCTS, product(change), call=call)
        place.runs.append(lambda: mode)
        return True

    return put


def _shuffled(a: Tensor, b: Tensor) -> Tensor:
    """The sum in another order, in float32 where operands are no wider."""
    order = torch.randperm(a.shape[-1], generator=torch.Generator().manual_seed(5))
    return a.float()[..., order] @ b.float()[..., order, :]


def _split(a: Tensor, b: Tensor) -> Tensor:
    pieces = zip(a.float().chunk(4, -1), b.float().chunk(4, -2), strict=True)
    return sum((x @ y for x, y in pieces), torch.zeros(()))


def _rows_apart(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat([row @ b.float() for row in a.float().split(1, -2)], -2)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if threads > 1 else 2)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


_CACHED = ("mini", "mini-moe", "llama", "qwen3-moe", "mixtral")


def variations() -> Iterator[Harmless]:
    """Every variation."""
    half = torch.bfloat16
    yield Harmless("the same again")
    yield Harmless("bf16", dtype=half)
    yield Harmless("fp16", dtype=torch.float16)
    yield Harmless("fp64", dtype=torch.float64)
    yield Harmless("sdpa", attention="sdpa", families=("llama", "qwen3-moe", "mixtral", "bert", "minilm"))
    yield Harmless("sdpa bf16", attention="sdpa", dtype=half, families=("llama", "qwen3-moe", "mixtral", "bert", "minilm"))
    yield Harmless("autocast", around=lambda: torch.autocast("cpu", half))
    yield Harmless("another number of threads", around=_one_thread)
    yield Harmless("decode", scenario="decode", families=_CACHED)
    yield Harmless("decode bf16", scenario="decode", dtype=half, families=_CACHED)
    yield Harmless("padding", scenario="padded")
    yield Harmless("padding bf16", scenario="padded", dtype=half)
    yield Harmless("padding of garbage", scenario="padded", options=(("garbage", 17),), equal_in_float64=False)
    yield Harmless("dropout with the same seed", scenario="trained")
    yield Harmless("a warm-up before", warm_up=True)
    yield Harmless("int8 weights that are allowed", _int8, allow=("quantised",), equal_in_float64=False)
    yield Harmless("fused qkv", _fused_qkv)
    yield Harmless("fused qkv bf16", _fused_qkv, dtype=half)
    yield Harmless("fused gate and up", _fused_gate_up)
    yield Harmless("scale on the queries", _steps(ScaledQueries))
    yield Harmless("scores by einsum", _steps(EinsteinScores))
    yield Harmless("softmax written out", _steps(WrittenSoftmax))
    yield Harmless("boolean mask", _steps(BooleanMask))
    yield Harmless("mask of -inf", _own(_infinite_mask))
    yield Harmless("heads by repeat_interleave", _steps(Interleave))
    yield Harmless("rotary by halves", _steps(RotatedByHalves))
    yield Harmless("copies and casts", _steps(CopiesAndCasts))
    yield Harmless("copies and casts bf16", _steps(CopiesAndCasts), dtype=half)
    yield Harmless("split of K in the program", _replaced("down", _inner_products))
    yield Harmless("sum backwards", _replaced("o", _backwards))
    yield Harmless("products by einsum", _replaced("up", _einsum))
    yield Harmless("inverse root", _replaced("input_norm", _inverse_root))
    yield Harmless("norm in one kernel", _replaced("input_norm", _one_kernel))
    yield Harmless("layer norm written out", _replaced("layer_norm", _written_layer_norm))
    yield Harmless("gelu written out", _replaced("act", lambda _, x: x * 0.5 * (1 + torch.erf(x * 0.5**0.5))), families=("bert", "minilm"))
    yield Harmless("silu written out", _replaced("act", lambda _, x: x * torch.sigmoid(x)), families=("mini", "llama"))
    yield Harmless("residual in place", _own(_replaced("layer", _in_place)))
    yield Harmless("residual as a pair", _own(_pair))
    yield Harmless("residual as a pair bf16", _own(_pair), dtype=half)
    yield Harmless("weights in another layout", _transposed_layout)
    yield Harmless("experts in another order", _experts(Reversed))
    yield Harmless("every expert on every token", _experts(AllExperts), families=("mini-moe", "qwen3-moe"))
    yield Harmless("experts in one kernel", loop=False, equal_in_float64=False, families=("qwen3-moe", "mixtral"))
    yield Harmless("experts in one kernel bf16", loop=False, equal_in_float64=False, dtype=half, families=("qwen3-moe", "mixtral"))
    yield Harmless("kernel: K in another order", _kernel("down", _shuffled))
    yield Harmless("kernel: split of K", _kernel("down", _split))
    yield Harmless("kernel: split of K bf16", _kernel("down", _split), dtype=half)
    yield Harmless("kernel: rows one by one", _kernel("up", _rows_apart))
    yield Harmless("kernel: scores in another order", _kernel("attention", _shuffled, call=0))
