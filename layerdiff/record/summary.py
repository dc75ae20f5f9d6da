"""Statistics of a tensor, computed where it lies: minimum, maximum, mean and rms over finite elements.

Nothing is copied to the host but the numbers. On the CPU three reductions in the tensor's own type
come first; only where they show a non-finite element, or squares that leave float32, is the exact
way taken, in float64. Complex numbers count as their real and imaginary parts.
"""

from __future__ import annotations

import math
import struct
from typing import Final

import torch
from torch import Tensor

from layerdiff.trace.schema import Statistics

_CHUNK: Final = 1 << 22
_FAST: Final = (torch.float32, torch.bfloat16, torch.float16)
_BITS: Final = frozenset({"torch.float4_e2m1fn_x2"})
_SQUARES_FIT: Final = (1e-15, 1e15)  # between these, squares of float32 neither vanish nor overflow
_norm = torch.linalg.vector_norm
EMPTY: Final = Statistics(math.nan, math.nan, math.nan, math.nan)


def summarise(tensor: Tensor) -> Statistics | None:
    """Statistics of a CPU tensor; None for a dtype without numbers.

    Call with gradients, autocast and modes off. Raises what torch raises for a dtype that it cannot reduce.
    """
    count = tensor.numel()
    if count == 0:
        return EMPTY
    if tensor.dtype in _FAST:
        low, high = torch.aminmax(tensor)
        minimum, maximum = low.item(), high.item()
        largest = max(-minimum, maximum)
        if largest == 0.0:
            return Statistics(minimum, maximum, 0.0, 0.0)
        if _is_fast(largest):
            mean = tensor.sum(dtype=torch.float32).item() / count
            rms = _norm(tensor, dtype=torch.float32).item() / math.sqrt(count)
            if math.isfinite(mean):
                return Statistics(minimum, maximum, mean, rms)
    scalars = summarise_on_device(tensor)
    return None if scalars is None else from_scalars(scalars.tolist(), count)


def summarise_on_device(tensor: Tensor) -> Tensor | None:
    """The scalars that `from_scalars` reads: float64 of shape (7,), on the tensor's device; None for bits.

    Nothing waits for the device.
    """
    if str(tensor.dtype) in _BITS:
        return None
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    flat = tensor.reshape(-1)
    # Some devices have no float64; there float32 has to do.
    wide = torch.float64 if _has_float64(tensor.device) else torch.float32
    parts = [_chunk_scalars(flat[start : start + _CHUNK], wide) for start in range(0, flat.numel(), _CHUNK)]
    if len(parts) == 1:
        return parts[0]
    rows = torch.stack(parts)
    return torch.cat([rows[:, :1].amin(0), rows[:, 1:2].amax(0), rows[:, 2:].sum(0)])


def _chunk_scalars(flat: Tensor, wide: torch.dtype) -> Tensor:
    x = flat.to(wide)
    finite = torch.isfinite(x)
    zero = x.new_zeros(())
    kept = torch.where(finite, x, zero)
    infinite = math.inf
    return torch.stack(
        [
            torch.where(finite, x, zero + infinite).amin(),
            torch.where(finite, x, zero - infinite).amax(),
            kept.sum(),
            (kept * kept).sum(),
            torch.isnan(x).sum().to(wide),
            (x == infinite).sum().to(wide),
            (x == -infinite).sum().to(wide),
        ]
    )


def from_scalars(scalars: list[float], count: int) -> Statistics:
    """Statistics from the seven scalars of a tensor of `count` elements."""
    minimum, maximum, total, squares, nan, posinf, neginf = scalars
    finite = count - int(nan) - int(posinf) - int(neginf)
    if finite == 0:
        return Statistics(math.nan, math.nan, math.nan, math.nan, int(nan), int(posinf), int(neginf))
    return Statistics(minimum, maximum, total / finite, math.sqrt(squares / finite), int(nan), int(posinf), int(neginf))


def agrees(tensor: Tensor, known: Statistics | None) -> bool:
    """Whether a CPU tensor still has statistics that were computed before, bit for bit.

    Its sum and rms decide: two passes over memory instead of three, and rounding makes them depend on the
    order of the elements. A tensor with non-finite elements or extreme ones is summarised again.
    """
    count = tensor.numel()
    if tensor.dtype not in _FAST or known is None or not count or any(known[4:]) or not _is_fast(max(-known.minimum, known.maximum)):
        return same_bits(summarise(tensor), known)
    mean = tensor.sum(dtype=torch.float32).item() / count
    return mean == known.mean and _norm(tensor, dtype=torch.float32).item() / math.sqrt(count) == known.rms


def _is_fast(largest: float) -> bool:
    return _SQUARES_FIT[0] < largest < _SQUARES_FIT[1]  # false for nan and inf


def same_bits(one: Statistics | None, other: Statistics | None) -> bool:
    """Whether two statistics are equal bit for bit, nan included."""
    if one is None or other is None:
        return one is other
    return one[4:] == other[4:] and struct.pack("4d", *one[:4]) == struct.pack("4d", *other[:4])


_float64_devices: dict[str, bool] = {"cpu": True, "cuda": True, "mps": False}


def _has_float64(device: torch.device) -> bool:
    known = _float64_devices.get(device.type)
    if known is None:
        try:
            torch.zeros(1, dtype=torch.float64, device=device).sum()
            known = True
        except (RuntimeError, TypeError):
            known = False
        _float64_devices[device.type] = known
    return known
