"""`run64`: one recorded ATen call run again, in float64 and with nothing of the process it runs in.

The order is what makes it safe with a stranger's trace: the name is found on the list of allowed operators before torch is
asked for it, the arguments are checked against the schema before they are handed on, and the size of the result is known
before the call is made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from layerdiff.replay.allowed import UNWRITTEN, VIEWS, OperatorName, is_random, parse, require_allowed
from layerdiff.replay.casts import as_tensor, is_narrower, prepared, widened
from layerdiff.replay.discrete import is_discrete
from layerdiff.replay.fused import FORMULAS, bound
from layerdiff.replay.inner import InnerRounding, is_layer
from layerdiff.replay.refusal import CannotReplay
from layerdiff.replay.sizes import extent, first_line, require_room, require_within, tensors_of
from layerdiff.replay.trusting import require_sound
from layerdiff.trace.arguments import Arguments

__all__ = ["ELEMENT_LIMIT", "CannotReplay", "is_discrete", "is_random", "run64"]

ELEMENT_LIMIT: Final = 1 << 31
"""Elements of one result, 16 GiB of float64."""
_overloads: Final[dict[OperatorName, Any]] = {}


def run64(
    name: str,
    args: Arguments,
    *,
    trust: Collection[str] = frozenset(),
    limit: int = ELEMENT_LIMIT,
    inner: InnerRounding | None = None,
) -> tuple[Tensor, ...]:
    """The results of the operator `name` (`aten.addmm.default`) on `args`, one tensor a result.

    Tensors of `args` are on the host: float64 for every float dtype, complex128, whole numbers and booleans as they are. Float
    casts are left out: a float dtype among the arguments means float64. An operator that writes in place writes to the tensors
    given. Lists of results are laid out in order. A result that is a number is a tensor without dimensions; one that only the
    kernel can define has no elements; memory that nobody has written yet is nan (0 in whole numbers).

    `trust` names further namespaces whose operators may run; `limit` is in elements of one result. `inner` rounds the steps
    of an operator that is a layer (`is_layer`).

    Raises CannotReplay, with a reason of one line, for everything that is not run or that fails.
    """
    operator = parse(name)
    require_allowed(operator, trust)
    overload = _found(operator)
    try:
        with _alone():
            return _checked(operator, overload, args, limit, inner)
    except CannotReplay as refusal:
        raise CannotReplay(f"{name} is not run: {refusal.reason}") from None
    except Exception as error:  # whatever an operator says about its operands
        raise CannotReplay(f"{name} failed: {first_line(error)}") from None


def _checked(operator: OperatorName, overload: Any, args: Arguments, limit: int, inner: InnerRounding | None) -> tuple[Tensor, ...]:
    schema = overload._schema
    positional, named = prepared(schema, args)
    writes = operator.in_place or operator.overload.endswith("out") or "out" in named
    if writes and any(tensor.is_inference() for tensor in tensors_of([*positional, *named.values()])):
        with torch.inference_mode():  # nowhere else may such a tensor be written to
            made = _run(operator, overload, positional, named, limit, inner)
    else:
        made = _run(operator, overload, positional, named, limit, inner)
    results = _results(schema, made)
    if is_narrower(list(results)):
        raise CannotReplay("it computes in torch's default dtype, and has no form in float64")
    if operator.function in VIEWS or operator.namespace != "aten":
        for result in results:
            require_within(extent(result.shape), limit)
    if operator.function in UNWRITTEN:
        for result in results:
            result.fill_(torch.nan if result.is_floating_point() or result.is_complex() else 0)
    return results


def _run(
    operator: OperatorName, overload: Any, positional: list[Any], named: dict[str, Any], limit: int, inner: InnerRounding | None
) -> Any:
    ours = operator.namespace == "aten"
    formula = (FORMULAS.get(operator.base) or FORMULAS.get(f"{operator.base}.{operator.overload}")) if ours else None
    if ours:
        require_sound(operator.function, lambda: bound(overload._schema, positional, named))
    if formula is not None:
        given = bound(overload._schema, positional, named)
        if "out" in given:
            raise CannotReplay("it writes to a tensor that was handed in, which its formula does not")
        for tensor in tensors_of(given.values()):
            require_within(extent(tensor.shape), limit)
        require_within(formula.elements(given), limit)
        with inner if inner is not None and is_layer(".".join(operator)) else nullcontext():
            return formula.run(given)
    _require_defined(operator, positional, named)
    require_room(operator, overload, positional, named, limit, known=ours)
    made = overload(*positional, **named)
    if not is_narrower(made):
        return made
    positional, named = widened(overload._schema, positional, named)
    return overload(*positional, **named)


def _results(schema: Any, made: Any) -> tuple[Tensor, ...]:
    if not schema.returns:
        return ()
    flat: list[Tensor] = []
    for result in made if isinstance(made, (list, tuple)) else [made]:
        if isinstance(result, (list, tuple)):
            flat += [as_tensor(item) for item in result]
        else:
            flat.append(as_tensor(result))
    return tuple(flat)


def _found(operator: OperatorName) -> Any:
    """The overload, where this torch has it."""
    found = _overloads.get(operator)
    if found is not None:
        return found
    qualified = f"{operator.namespace}::{operator.base}"
    overload = "" if operator.overload == "default" else operator.overload
    try:
        known = {schema.overload_name for schema in torch._C._jit_get_schemas_for_operator(qualified)}
        if overload not in known:
            raise CannotReplay(f"this machine lacks the operator {'.'.join(operator)} (torch {torch.__version__})")
        found = _overloads[operator] = getattr(getattr(getattr(torch.ops, operator.namespace), operator.base), operator.overload)
        return found
    except (AttributeError, RuntimeError) as error:
        raise CannotReplay(f"this machine lacks the operator {'.'.join(operator)}: {first_line(error)}") from None


def _require_defined(operator: OperatorName, positional: list[Any], named: dict[str, Any]) -> None:
    """Refuses calls whose meaning is in the recorded dtype, or in the device's kernel."""
    tensors = list(tensors_of(positional))
    if operator.base in ("view", "view_copy") and operator.overload == "dtype":
        wanted = positional[1] if len(positional) > 1 else named.get("dtype")
        if torch.float64 in (wanted, tensors[0].dtype) or torch.complex128 in (wanted, tensors[0].dtype):
            raise CannotReplay("it reads the bits of floats as another type, which only the recorded dtype has")
    if operator.function == "nan_to_num" and len(positional) < 4 and tensors and bool(tensors[0].isinf().any()):
        raise CannotReplay("what it puts for infinity is the largest number of the recorded dtype, which is not among its arguments")
    if operator.function == "_addmm_activation" and (named.get("use_gelu") or (len(positional) > 5 and positional[5])):
        raise CannotReplay("which approximation of gelu it adds depends on the device")


@contextmanager
def _alone() -> Iterator[None]:
    """Without gradients, autocast and modes of whoever is around: settings of this thread, put back afterwards."""
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch._C._DisableAutocast())
        stack.enter_context(torch._C.DisableTorchFunction())
        if torch._C._len_torch_dispatch_stack():
            stack.enter_context(_disable_current_modes())
        yield
