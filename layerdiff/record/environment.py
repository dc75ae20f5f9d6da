"""The environment of a run: a fixed list, so that two runs compare and nothing secret is written.

No variable outside `VARIABLES` is ever read into a trace; none of them can hold a credential. Of the
command line only the script's name is kept.
"""

from __future__ import annotations

import os
import platform
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]  # missing from its stub

import layerdiff

VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_CBWR",
    "MKL_DEBUG_CPU_TYPE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "HIP_VISIBLE_DEVICES",
    "ASCEND_RT_VISIBLE_DEVICES",
    "HCCL_DETERMINISTIC",
    "NVIDIA_TF32_OVERRIDE",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_NTHREADS",
    "NCCL_BUFFSIZE",
    "NCCL_NVLS_ENABLE",
    "NCCL_COLLNET_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
    "NCCL_LAUNCH_ORDER_IMPLICIT",
    "RCCL_MSCCL_ENABLE",
    "HCCL_ALGO",
    "HCCL_OP_EXPANSION_MODE",
    "HCCL_BUFFSIZE",
    "HCCL_INTRA_PCIE_ENABLE",
    "HCCL_INTRA_ROCE_ENABLE",
    "MCCL_ALGO",
    "MCCL_PROTO",
    "MCCL_MIN_NCHANNELS",
    "MCCL_MAX_NCHANNELS",
    "CNCL_ALGO",
    "CNCL_PROTO",
    "GLOO_DEVICE_TRANSPORT",
    "TORCH_NCCL_AVOID_RECORD_STREAMS",
    "TORCH_NCCL_BLOCKING_WAIT",
    "PYTORCH_JIT",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "TORCHDYNAMO_DISABLE",
    "TORCH_COMPILE_DISABLE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "PYTHONHASHSEED",
    "VLLM_BATCH_INVARIANT",
    "VLLM_ATTENTION_BACKEND",
    "VLLM_USE_V1",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
)
_MAX_TEXT: Final = 200


def rank_of_process() -> tuple[int | None, int]:
    """(rank, world size); the rank of a single process is None."""
    world = _number("WORLD_SIZE") or 1
    rank = _number("RANK")
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        world, rank = distributed.get_world_size(), distributed.get_rank()
    return (rank or 0, world) if world > 1 else (None, 1)


def describe(models: list[nn.Module]) -> dict[str, Any]:
    """The environment now, JSON-ready. Never starts a device, and draws no random numbers."""
    rank, world = rank_of_process()
    return {
        "layerdiff": layerdiff.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "script": os.path.basename(sys.argv[0]) if sys.argv else None,
        "rank": rank,
        "world_size": world,
        "devices": _devices(),
        "flags": _flags(),
        "seed": torch.initial_seed(),
        "autocast": _autocast(),
        "variables": {name: os.environ[name][:_MAX_TEXT] for name in VARIABLES if name in os.environ},
        "models": [_model(model) for model in models],
    }


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else None


def _devices() -> list[dict[str, Any]]:
    devices: list[dict[str, Any]] = [{"type": "cpu", "name": platform.processor() or platform.machine()}]
    if torch.cuda.is_initialized():
        count = torch.cuda.device_count()
        devices.append({"type": "cuda", "name": torch.cuda.get_device_name(), "count": count, "version": torch.version.cuda})
        return devices
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None and accelerator.is_available():
        devices.append({"type": str(accelerator.current_accelerator()), "count": accelerator.device_count()})
    return devices


def _flags() -> dict[str, Any]:
    matmul = torch.backends.cuda.matmul
    flags: dict[str, Callable[[], object]] = {
        "num_threads": torch.get_num_threads,
        "float32_matmul_precision": torch.get_float32_matmul_precision,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
        "cuda_allow_tf32": lambda: matmul.allow_tf32,
        "cudnn_allow_tf32": lambda: torch.backends.cudnn.allow_tf32,
        "cudnn_deterministic": lambda: torch.backends.cudnn.deterministic,
        "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
        "fp16_reduced_precision_reduction": lambda: matmul.allow_fp16_reduced_precision_reduction,
        "bf16_reduced_precision_reduction": lambda: matmul.allow_bf16_reduced_precision_reduction,
        "mkldnn": lambda: torch.backends.mkldnn.enabled,
        "default_dtype": lambda: str(torch.get_default_dtype())[6:],
    }
    described: dict[str, Any] = {}
    for name, read in flags.items():
        try:
            value = read()  # torch leaves some of these unannotated
        except (RuntimeError, AttributeError):  # set through newer settings, or not known to this torch
            continue
        described[name] = value if isinstance(value, (bool, int, float, str)) else str(value)
    return described


def _autocast() -> dict[str, str]:
    on: dict[str, str] = {}
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            on[device] = str(torch.get_autocast_dtype(device))[6:]
    return on


def _model(model: nn.Module) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    modules = 0
    for module in model.modules():
        modules += 1
        for parameter in module._parameters.values():
            if parameter is not None and not isinstance(parameter, UninitializedTensorMixin):
                counts[str(parameter.dtype)[6:]] += parameter.numel()
    return {
        "class": type(model).__qualname__,
        "modules": modules,
        "parameters": sum(counts.values()),
        "dtype": counts.most_common(1)[0][0] if counts else None,
    }
