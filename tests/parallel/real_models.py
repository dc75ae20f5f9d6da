"""Tasks of a process of the group: models that libraries cut over ranks by themselves."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from layerdiff import Recorder


def ids() -> Tensor:
    return torch.randint(0, 90, (2, 12), generator=torch.Generator().manual_seed(1))


def families() -> dict[str, Callable[[], nn.Module]]:
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM, logging

    logging.disable_progress_bar()

    sizes: dict[str, Any] = dict(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        attn_implementation="eager",
    )  # fmt: skip
    experts = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=64, head_dim=8)
    return {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**sizes)),
        "qwen3_moe": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **experts)),
    }


def padded() -> dict[str, Tensor]:
    """What says that the first tokens of one request are padding."""
    mask = torch.ones_like(ids())
    mask[0, :5] = 0
    return {"attention_mask": mask}


def save_and_record(family: str, folder: Path, dtype: torch.dtype, operators: bool = True, **inputs: Tensor) -> Path:
    """One process: the weights in `folder`/weights, and the trace."""
    torch.manual_seed(0)
    model = families()[family]().to(dtype).eval()
    model.save_pretrained(folder / "weights")
    return _record(folder / "reference.h5", model, operators, input_ids=ids(), use_cache=False, **inputs)


def record_padded(rank: int, size: int, folder: Path, operators: bool, factor: float) -> None:
    """transformers' own plan with other attention than the reference's, and scores that are `factor` times too large in a layer."""
    record_by_tp_plan(rank, size, folder, attention="sdpa", operators=operators, factor=factor, inputs=padded())


def record_by_tp_plan(
    rank: int,
    size: int,
    folder: Path,
    other: dict[str, int] | None = None,
    attention: str = "eager",
    operators: bool = True,
    factor: float = 1.0,
    inputs: dict[str, Tensor] | None = None,
) -> None:
    """transformers' own plan; `other`: its other layouts, by modules."""
    from transformers import AutoModelForCausalLM, logging
    from transformers.distributed import DistributedConfig

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    named = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ.update(named)
    try:
        plan: dict[str, Any] = dict(distributed_config=DistributedConfig(**other)) if other else dict(tp_plan="auto")
        model = AutoModelForCausalLM.from_pretrained(folder / "weights", attn_implementation=attention, **plan).eval()
        if factor != 1:
            model.model.layers[1].self_attn.scaling *= factor
        (folder / "target").mkdir(exist_ok=True)
        whole = operators and not other
        _record(folder / "target" / f"rank{rank:05d}.h5", model, whole, input_ids=ids(), use_cache=False, **(inputs or {}))
    finally:
        for name in named:
            del os.environ[name]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.up_proj = nn.Linear(32, 64)
        self.act = nn.SiLU()
        self.down_proj = nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down_proj(self.act(self.up_proj(self.norm(x))))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(96, 32)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(32, 96)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def stack(dtype: torch.dtype) -> Stack:
    torch.manual_seed(0)
    return Stack().to(dtype).eval()


def record_stack(folder: Path, dtype: torch.dtype) -> Path:
    return _record(folder / "reference.h5", stack(dtype), input_ids=ids())


def record_by_torch_plan(rank: int, size: int, folder: Path, dtype: torch.dtype, sequence: bool) -> None:
    """torch.distributed.tensor.parallel: columns and rows, and with `sequence` tokens on several ranks between them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

    model = stack(dtype)
    tokens = Shard(1) if sequence else Replicate()
    plan: dict[str, Any] = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=tokens),
        "blocks.*.up_proj": ColwiseParallel(input_layouts=tokens),
        "blocks.*.down_proj": RowwiseParallel(output_layouts=tokens),
        "head": ColwiseParallel(input_layouts=tokens, output_layouts=Replicate()),
    }
    if sequence:
        plan["blocks.*.norm"] = SequenceParallel(use_local_output=True)
    parallelize_module(model, init_device_mesh("cpu", (size,)), plan)
    (folder / "target").mkdir(exist_ok=True)
    _record(folder / "target" / f"rank{rank:05d}.h5", model, input_ids=ids())


def _record(path: Path, model: nn.Module, operators: bool = True, **inputs: Any) -> Path:
    torch.manual_seed(0)
    with Recorder(path, model, operators=operators, weights="used"), torch.no_grad():
        model(**inputs)
    return path
