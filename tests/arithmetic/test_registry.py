from __future__ import annotations

import numpy as np
import pytest

from layerdiff.arithmetic.contract import EXACT, Contract, ContractError, bind
from layerdiff.arithmetic.registry import contract_of, register_contract
from layerdiff.trace.arguments import Arguments


def test_every_overload_and_the_in_place_twin_have_the_contract() -> None:
    add = contract_of("aten.add.Tensor")
    assert add is not None
    assert (add, add, add) == (contract_of("aten.add.Scalar"), contract_of("aten.add_.Tensor"), contract_of("aten.add_.Scalar"))


def test_overloads_that_are_other_functions_are_told_apart() -> None:
    assert contract_of("aten.max.other") is not contract_of("aten.max.default")
    assert contract_of("aten.where.self") is not None
    assert contract_of("aten.where.default") is None
    assert contract_of("npu.add.Tensor") is None


def test_a_users_contract_goes_first() -> None:
    def exact(arguments: Arguments):
        return (arguments.args[0] + 1.0,)

    contract = Contract(exact, lambda arguments, results, accumulator: (EXACT,))
    register_contract("mine.plus_one.default", contract)
    assert contract is contract_of("mine.plus_one.default")
    assert 2.0 == contract.exact(Arguments((np.ones(1),), {}))[0][0]


@pytest.mark.parametrize("name", ["", "add", "aten..default", "a.b.c.d"])
def test_a_name_that_is_no_operators_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"namespace\.name\.overload"):
        register_contract(name, Contract(None, lambda *_: ()))


def test_arguments_are_bound_by_place_name_and_default() -> None:
    assert (1, 2, 3) == bind(Arguments((1,), {"other": 2, "out": 9}), ("self", "other", "alpha"), alpha=3)
    for arguments in (Arguments((1, 2, 3, 4), {}), Arguments((1,), {}), Arguments((1, 2), {"beta": 1})):
        with pytest.raises(ContractError):
            bind(arguments, ("self", "other", "alpha"), alpha=3)
