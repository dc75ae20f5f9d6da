"""Statistics of a tensor, computed where it lies: minimum, maximum, mean and rms over finite elements.

Nothing is copied to the host but the numbers. On the CPU three reductions in the tensor's own type
come first; only where they show a non-finite element, or squares that leave float32, is the exact
way taken, in float64. Complex numbers count as their real and imaginary parts.
"""

from __future__ import annotations

import math
import struct
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from layerdiff.trace.schema import Statistics

_CHUNK: Final = 1 << 22
_ROW: Final = 2048
_SMALL: Final = 1 << 17
"""Up to here float32 is summed by dot products: one core does it faster than two can be woken."""
_ONES: Final = torch.ones(_SMALL)
_ones: Final = lru_cache(maxsize=256)(lambda count: _ONES[:count])
_LARGE: Final = 1 << 22
"""Parts of a large tensor, so that sums of parts are added in float64."""
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
        found = _fast_summary(tensor.reshape(-1), count)
        if found is not None:
            return found
    elif not (tensor.is_floating_point() or tensor.is_complex()) and count <= _CHUNK and str(tensor.dtype) not in _BITS:
        return _whole_summary(tensor.reshape(-1), count)
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


def _fast_summary(flat: Tensor, count: int) -> Statistics | None:
    """Statistics by float32 reductions of a part after another, while it is in the cache; None where that is not exact enough."""
    minimum, maximum, total, squares = math.inf, -math.inf, 0.0, 0.0
    for part in (flat,) if count <= _LARGE else flat.split(_LARGE):
        low, high = torch.aminmax(part)
        least, most = low.item(), high.item()
        largest = max(-least, most)
        if largest != 0.0:
            if not _SQUARES_FIT[0] < largest < _SQUARES_FIT[1]:  # nan and inf, too
                return None
            part_total, part_squares = _sums(part)
            total += part_total
            squares += part_squares
        minimum, maximum = min(minimum, least), max(maximum, most)
    return Statistics(minimum, maximum, total / count, math.sqrt(squares / count))


def _whole_summary(flat: Tensor, count: int) -> Statistics:
    """Statistics of integers or booleans, all of which are finite: the numbers of `_chunk_scalars` in a tenth of the operators."""
    x = flat.to(torch.float64)
    low, high = torch.aminmax(x)
    return Statistics(low.item(), high.item(), x.sum().item() / count, math.sqrt((x * x).sum().item() / count))


def _sums(part: Tensor) -> tuple[float, float]:
    """The sum, and the sum of squares."""
    if part.numel() <= _SMALL and part.dtype is torch.float32:
        return torch.dot(part, _ones(part.numel())).item(), _squares(part)
    return part.sum(dtype=torch.float32).item(), _squares(part)


def _squares(part: Tensor) -> float:
    """The sum of squares, in rows: one float32 sum of 4 million squares is off by 1e-4."""
    count = part.numel()
    if count <= _SMALL and part.dtype is torch.float32:
        return torch.dot(part, part).item()
    whole = count // _ROW * _ROW
    squares: float = 0.0
    if whole:
        squares = _norm(_norm(part[:whole].view(-1, _ROW), dim=1, dtype=torch.float32), dtype=torch.float64).item() ** 2
    if whole < count:
        squares += _norm(part[whole:], dtype=torch.float32).item() ** 2
    return squares


def agrees(tensor: Tensor, known: Statistics | None) -> bool:
    """Whether a CPU tensor still has statistics that were computed before, bit for bit.

    The rms decides: one pass over memory instead of four, in which rounding depends on the order of the
    elements. Signs that flip are left to the caller's samples, and to fingerprints. A tensor with non-finite
    elements or extreme ones is summarised again.
    """
    count = tensor.numel()
    if tensor.dtype not in _FAST or known is None or not count or any(known[4:]):
        return same_bits(summarise(tensor), known)
    largest = max(-known.minimum, known.maximum)
    if not _SQUARES_FIT[0] < largest < _SQUARES_FIT[1]:
        return same_bits(summarise(tensor), known)
    flat = tensor.view(-1)
    squares = _squares(flat) if count <= _LARGE else sum(map(_squares, flat.split(_LARGE)))
    if known.rms == math.sqrt(squares / count):
        return True
    return same_bits(summarise(tensor), known)  # parts of it may have needed the exact way


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
