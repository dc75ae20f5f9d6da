"""Which contract an operator has: those that ship, and those that a user registers.

A contract is found by the full name first, then by the name without its overload, then by the name of the functional twin
of an in-place operator: `aten.add_.Tensor` computes what `aten.add` does.
"""

from __future__ import annotations

from typing import Final

from layerdiff.arithmetic.contract import Contract
from layerdiff.arithmetic.contracts import (
    attention,
    choices,
    convolution,
    copies,
    elementwise,
    indexing,
    joined,
    matmul,
    norms,
    packed,
    reductions,
    softmax,
)

_SHIPPED: Final[dict[str, Contract]] = {
    **matmul.CONTRACTS,
    **elementwise.CONTRACTS,
    **copies.CONTRACTS,
    **reductions.CONTRACTS,
    **softmax.CONTRACTS,
    **norms.CONTRACTS,
    **attention.CONTRACTS,
    **convolution.CONTRACTS,
    **packed.CONTRACTS,
    **indexing.CONTRACTS,
    **choices.CONTRACTS,
    **joined.CONTRACTS,
}
_NONE: Final = frozenset({"aten.where.default"})
"""Overloads that share a name with another function."""
_registered: Final[dict[str, Contract]] = {}


def register_contract(operator: str, contract: Contract) -> None:
    """Judge `operator` ("namespace.name.overload", or "namespace.name" for every overload) by `contract`, in this process.

    A registered contract goes before one that ships. Raises ValueError where the name is no operator's.
    """
    if operator.count(".") not in (1, 2) or not all(operator.split(".")):
        raise ValueError(f"{operator!r} is no operator's name. Write namespace.name.overload, as in aten.addmm.default.")
    _registered[operator] = contract


def contract_of(operator: str) -> Contract | None:
    """The contract of "namespace.name.overload", or None where there is none."""
    if operator in _NONE:
        return None
    namespace, _, rest = operator.partition(".")
    name, _, overload = rest.partition(".")
    keys = [operator, f"{namespace}.{name}"]
    if name.endswith("_") and not name.endswith("__"):
        keys += [f"{namespace}.{name[:-1]}.{overload}", f"{namespace}.{name[:-1]}"]
    for contracts in (_registered, _SHIPPED):
        for key in keys:
            if key in contracts:
                return contracts[key]
    return None
