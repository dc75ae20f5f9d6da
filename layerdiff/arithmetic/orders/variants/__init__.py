"""How a fused attention, norm or softmax was computed: ways are emulated and held against what was recorded.

This is evidence beside the ladder: it never changes a verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.contract import ContractError
from layerdiff.arithmetic.orders.variants.attention import attention_variants
from layerdiff.arithmetic.orders.variants.norms import norm_variants
from layerdiff.arithmetic.orders.variants.ranking import Variants
from layerdiff.arithmetic.orders.variants.softmax import softmax_variants
from layerdiff.trace.arguments import Arguments

__all__ = ["Variants", "variants_of"]


def variants_of(operator_name: str, arguments: Arguments, recorded: Sequence[NDArray[Any]], dtypes: Sequence[str]) -> Variants | None:
    """The ways in which one call may have been computed, those that hold first.

    Args:
        operator_name: "aten._scaled_dot_product_flash_attention_for_cpu.default"; the overload may be left out.
        arguments: the operands as consumed, float64 for every float dtype.
        recorded: the results, decoded in the same way.
        dtypes: torch's names of their dtypes.

    Returns:
        None where the operator is no attention, norm or softmax, or is float64. At most 64 queries, or 256 rows, are looked at.

    Raises ContractError for arguments that do not fit the operator.
    """
    namespace, _, rest = operator_name.partition(".")
    name = rest.partition(".")[0]
    if namespace != "aten" or not recorded or not dtypes or not recorded[0].size:
        return None
    try:
        with np.errstate(all="ignore"):
            for of in (attention_variants, norm_variants, softmax_variants):
                found = of(name, arguments, recorded, dtypes)
                if found is not None:
                    return found
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ContractError(f"The recorded arguments do not fit {operator_name}: {type(error).__name__}: {error}") from error
    return None
