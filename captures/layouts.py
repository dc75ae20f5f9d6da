"""How a small Llama is cut over ranks: a case, this process in its group, the whole weights and what a module has to know of them.

One process is a group of one, which issues no collective; so the reference and every rank are made by the same classes. Collectives go
through torch.distributed's public functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

Kind = Literal["alone", "tensor", "sequence", "context", "experts", "pipeline"]
"""How ranks share the work: tensor (columns and rows of weights), sequence (tensor, and tokens between the blocks), context (tokens in
zigzag order), experts (each rank has some), pipeline (each rank has some layers)."""
BATCH, LENGTH = 2, 16
PAD_TO = 8
"""Rows that each rank's part of the head is padded to, where a case says so."""


@dataclass(frozen=True)
class Fault:
    """What is wrong: one of FAULTS, in a layer, on a rank where it is of one rank alone."""

    name: str
    layer: int = 0
    rank: int = 1
    alone: bool = False  # of a fault that all ranks may have


FAULTS = (
    "sum_missing", "inner_sum_missing", "sum_twice", "bias_every_rank", "inner_bias_every_rank", "residual_every_rank", "fused_one_block",
    "duplicate_shard", "vocabulary_padding", "local_norm", "gather_order", "contiguous_positions", "expert_offset", "stage_offset",
    "weight_off", "kernel_off", "epsilon", "score_scale", "experts_idle", "causal_offset",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model, its layout, and what is wrong with the target."""

    kind: Kind = "tensor"
    layers: int = 2
    separate: bool = False  # q_proj, k_proj and v_proj, not qkv_proj
    bias: bool = False  # of o_proj and down_proj
    query_norm: bool = False  # over the channels of all query heads
    experts: int = 0
    exchanged: bool = False  # tokens are sent to the experts' ranks and back; else each rank's experts make a part of a sum
    reduced_inside: bool = False  # the module of the experts adds up what each rank's make, and hands on the whole
    padded_head: bool = False
    replicas: int = 1  # of a tensor layout: each has a part of the batch
    stages: int = 1  # of a tensor layout: each has some layers
    scaled_query: bool = False  # a part of the scores' scale lies on the queries: another program of the same meaning
    seed: int = 0
    dtype: str = "float32"
    faults: tuple[Fault, ...] = ()
    hidden: int = 32
    inner: int = 48
    heads: int = 4
    kv_heads: int = 2
    vocabulary: int = 97

    @property
    def alone(self) -> Case:
        """The same model in one process, right."""
        return replace(self, kind="alone", faults=())


@dataclass(frozen=True)
class Ranks:
    """This process in its group; `members`: the ranks of all of the group, in its order."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None
    members: tuple[int, ...] = ()

    def sum(self, x: Tensor) -> Tensor:
        x = x.clone()
        if self.size > 1:
            dist.all_reduce(x, group=self.group)
        return x

    def gather(self, x: Tensor, dim: int, order: Sequence[int] | None = None) -> Tensor:
        if self.size == 1:
            return x
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x.contiguous(), group=self.group)
        return torch.cat([parts[rank] for rank in order or range(self.size)], dim)

    def sum_and_cut(self, x: Tensor, dim: int) -> Tensor:
        if self.size == 1:
            return x
        parts = [part.contiguous() for part in x.chunk(self.size, dim)]
        mine = torch.empty_like(parts[0])
        dist.reduce_scatter(mine, parts, group=self.group)
        return mine

    def exchange(self, x: Tensor, counts: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Send `counts` rows to each rank, in order; the rows that came, and how many from each."""
        if self.size == 1:
            return x, list(counts)
        theirs = torch.empty(self.size, dtype=torch.long)
        dist.all_to_all_single(theirs, torch.tensor(counts), group=self.group)
        came = theirs.tolist()
        rows = x.new_empty(sum(came), *x.shape[1:])
        dist.all_to_all_single(rows, x.contiguous(), came, list(counts), group=self.group)
        return rows, came

    def places(self, size: int) -> Tensor:
        """This rank's part of `size` places, contiguous."""
        return torch.arange(size).chunk(self.size)[self.rank]

    def part(self, first: int, step: int, count: int) -> Ranks:
        """The group of `count` ranks from `first` on, `step` apart, that this process is in. All processes must ask for all groups."""
        members = tuple(range(first, first + step * count, step))
        group = dist.new_group(list(members)) if count > 1 else None
        return Ranks(members.index(self.rank), count, group, members) if self.rank in members else Ranks()


@dataclass(frozen=True)
class Mesh:
    """This process among the ranks that share its weights, its layers, and its part of the batch."""

    tensor: Ranks
    stages: Ranks
    replicas: Ranks

    @classmethod
    def of(cls, case: Case, ranks: Ranks) -> Mesh:
        """Ranks in the order replica, stage, tensor: those that cut one weight are neighbours."""
        if case.kind not in ("tensor", "sequence"):
            return cls(Ranks(), ranks if case.kind == "pipeline" else Ranks(), Ranks())
        width = ranks.size // (case.replicas * case.stages)
        if case.replicas * case.stages == 1 or ranks.size == 1:
            return cls(ranks, Ranks(), Ranks())
        found: dict[str, Ranks] = {}
        each = case.stages * width
        lines = [("tensor", first, 1, width) for first in range(0, ranks.size, width)]
        lines += [("stages", replica * each + at, width, case.stages) for replica in range(case.replicas) for at in range(width)]
        lines += [("replicas", at, each, case.replicas) for at in range(each)]
        for name, first, step, count in lines:
            part = ranks.part(first, step, count)
            if ranks.rank in range(first, first + step * count, step):
                found[name] = part
        return cls(**found)


@dataclass
class Cut:
    """What a module has to know when it is made: the case, this rank, and whether weights are cut (tensor parallel)."""

    case: Case
    ranks: Ranks
    mesh: Mesh
    layer: int | None = None  # None: outside the layers
    path: str = ""
    weights: dict[str, Tensor] = field(default_factory=dict)

    def at(self, name: str) -> Cut:
        return replace(self, path=f"{self.path}.{name}" if self.path else name)

    @property
    def tensor(self) -> Ranks:
        """The ranks among which weights are cut."""
        return self.mesh.tensor

    def wrong(self, name: str) -> bool:
        """Whether this fault is here."""
        here = (fault for fault in self.case.faults if not fault.alone or fault.rank == self.ranks.rank)
        return any(fault.name == name and self.layer in (None, fault.layer) for fault in here)

    def weight(self, name: str, *shape: int) -> Tensor:
        """The whole weight: the same on every rank, whatever it holds of it."""
        whole = self.weights[f"{self.path}.{name}"]
        assert whole.shape == shape, f"{self.path}.{name}: {tuple(whole.shape)} for {shape}"
        return whole


def weights_of(case: Case) -> dict[str, Tensor]:
    """The whole weights, by name: they follow from the seed."""
    hidden, inner, vocabulary = case.hidden, case.inner, case.vocabulary
    width = hidden // case.heads
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (vocabulary, hidden)}
    for layer in range(case.layers):
        own: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            "self_attn.qkv_proj.weight": (hidden + 2 * case.kv_heads * width, hidden),
            "self_attn.q_norm.weight": (hidden,),
            "self_attn.o_proj.weight": (hidden, hidden),
            "self_attn.o_proj.bias": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            "mlp.gate_up_proj.weight": (2 * inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
            "mlp.down_proj.bias": (hidden,),
            "mlp.gate.weight": (case.experts, hidden),
            "mlp.experts.gate_up": (case.experts, 2 * hidden, hidden),
            "mlp.experts.down": (case.experts, hidden, hidden),
        }
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in own.items()}
    shapes |= {"norm.weight": (hidden,), "lm_head.weight": (vocabulary, hidden)}
    random = torch.Generator().manual_seed(case.seed)
    weights = {}
    for name, shape in shapes.items():
        drawn = torch.randn(shape, generator=random)
        scaled = 1 + 0.1 * drawn if "norm" in name else 0.3 * drawn if name.endswith("bias") else drawn * shape[-1] ** -0.5
        weights[name] = scaled.to(getattr(torch, case.dtype))
    return weights


def ids_of(case: Case) -> Tensor:
    """Token ids, shape (BATCH, LENGTH)."""
    return torch.randint(0, case.vocabulary, (BATCH, LENGTH), generator=torch.Generator().manual_seed(case.seed + 1))
