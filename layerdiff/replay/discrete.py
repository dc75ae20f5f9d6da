"""Operators in which a float decides something discrete: an index, a truth value, a code.

Rounding to whole numbers counts, since its result jumps; `remainder` and `frac` do not, since what they hand on is a
measure again. Operators with a continuous result beside the indices (`topk`, `max.dim`) count too.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from layerdiff.replay.allowed import OperatorName, listed
from layerdiff.trace.arguments import Token

_DISCRETE: Final = listed("""
    topk argmax argmin sort argsort kthvalue median nanmedian mode cummax cummin multinomial searchsorted bucketize bincount
    histc nonzero nonzero_static argwhere unique_consecutive unique_dim unique_dim_consecutive _unique _unique2 isin
    count_nonzero eq ne lt le gt ge equal not_equal less less_equal greater greater_equal isclose allclose isnan isinf isfinite
    isneginf isposinf isreal signbit logical_and logical_or logical_not logical_xor any all is_nonzero _is_all_true _is_any_true
    round special_round floor ceil trunc fix sign sgn heaviside floor_divide adaptive_max_pool1d adaptive_max_pool2d
    adaptive_max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices quantize_per_tensor
    quantize_per_channel _choose_qparams_per_tensor
""")
_WITH_INDICES: Final = frozenset({("max", "dim"), ("min", "dim"), ("max", "names_dim"), ("min", "names_dim")})


def is_discrete(name: str) -> bool:
    """Whether a float operand of the operator decides an integer, boolean or rounded result; casts, and divisions that round, left out."""
    parts = name.split(".")
    if len(parts) != 3 or parts[0] != "aten":
        return False
    operator = OperatorName(*parts)
    overload = operator.overload.removesuffix("_out").removesuffix("_max").removesuffix("_min")
    return operator.function in _DISCRETE or (operator.function, overload) in _WITH_INDICES


def is_float(thing: Any) -> bool:
    """Whether it is a tensor of floats or complex numbers, or a list that holds one."""
    if isinstance(thing, (list, tuple)) and not isinstance(thing, Token):
        return any(is_float(item) for item in thing)
    return isinstance(thing, torch.Tensor) and (thing.is_floating_point() or thing.is_complex())
