"""Faults over ranks, with where they must be found and what they must be called: those of all ranks, those of one alone, and those
that only programs show, since what they change is less than the rounding of bfloat16.

Sites are of layer 0.
"""

from __future__ import annotations

from captures.layouts import Case, Fault

ATTENTION, MLP = "layers.0.self_attn", "layers.0.mlp"
Found = tuple[str, str | None]
"""Site and cause."""

IN_ROOT = ("vocabulary_padding", "contiguous_positions")
"""Faults outside the layers."""

FAULTS: dict[str, tuple[Case, set[Found]]] = {
    "sum_missing": (Case(), {(f"{ATTENTION}.o_proj", "allreduce-missing")}),
    "inner_sum_missing": (Case(), {(f"{MLP}.down_proj", "allreduce-missing")}),
    "sum_twice": (Case(), {(f"{ATTENTION}.o_proj", "allreduce-duplicated")}),
    "bias_every_rank": (Case(bias=True), {(f"{ATTENTION}.o_proj", "bias-added-per-rank")}),
    "inner_bias_every_rank": (Case(bias=True), {(f"{MLP}.down_proj", "bias-added-per-rank")}),
    "residual_every_rank": (Case(), {("layers.0", "residual-added-per-rank")}),
    "fused_one_block": (Case(separate=True, kv_heads=4), {(f"{ATTENTION}.{name}_proj", "tp-fused-shard") for name in "qkv"}),
    "duplicate_shard": (Case(), {(f"{ATTENTION}.qkv_proj", "tp-duplicate-shard")}),
    "vocabulary_padding": (Case(padded_head=True), {("", "parts-shifted")}),
    "local_norm": (Case(query_norm=True), {(f"{ATTENTION}.q_norm", "tp-norm-local-statistic")}),
    "gather_order": (Case("sequence"), {(f"{ATTENTION}.qkv_proj", "sequence-order")}),
    "contiguous_positions": (Case("context"), {(ATTENTION, "cp-position-ids")}),
    "experts_idle": (Case("experts", experts=8), {(f"{MLP}.experts", "ep-expert-index")}),
    "expert_offset": (Case("experts", experts=8), {(f"{MLP}.experts", "ep-expert-index")}),
}
ALONE: dict[str, tuple[str, Case, str]] = {
    "kernel": ("kernel_off", Case(), f"{MLP}.gate_up_proj"),
    "kernel, whole model": ("kernel_off", Case("context"), f"{MLP}.gate_up_proj"),
    "weight": ("weight_off", Case(), f"{ATTENTION}.o_proj"),
    "weight, whole model": ("weight_off", Case("experts", experts=8), f"{ATTENTION}.o_proj"),
}


def at_layer(site: str, layer: int) -> str:
    """A site of layer 0 in another layer."""
    return site.replace("layers.0", f"layers.{layer}")


NORM = "layers.0.post_attention_layernorm/aten.add.Tensor#0"
SCALE = "layers.0.self_attn.mixing/aten.mul.Tensor#0"
AHEAD = "layers.0.self_attn.mixing/aten.bmm.default#1"
OF_PROGRAMS: dict[str, tuple[Case, Found, bool]] = {
    "epsilon, tensor": (Case(faults=(Fault("epsilon"),)), (NORM, "rmsnorm-eps"), False),
    "epsilon, sequence": (Case("sequence", faults=(Fault("epsilon"),)), (NORM, "rmsnorm-eps"), False),
    "epsilon, pipeline": (Case("pipeline", layers=4, faults=(Fault("epsilon"),)), (NORM, "rmsnorm-eps"), False),
    "scale, tensor": (Case(faults=(Fault("score_scale"),)), (SCALE, "scalar-differs"), False),
    "scale, context": (Case("context", faults=(Fault("score_scale"),)), (SCALE, "scalar-differs"), False),
    "epsilon of one rank": (Case(faults=(Fault("epsilon", alone=True),)), (NORM, "rmsnorm-eps"), True),
    "causal offset of one rank": (Case("context", faults=(Fault("causal_offset", alone=True),)), (AHEAD, None), True),
    "scale of one rank": (Case(faults=(Fault("score_scale", alone=True),)), (SCALE, "scalar-differs"), True),
}
"""Case, what must be found, and whether its rank must be named. Recorded with operators."""
