"""`find_rounded_sums`: a sum that the reference makes in one call, and the target by additions of its own, each rounded.

Both mean the same, and behind a sum of few terms the rounding may hide in what the region's result is allowed. It is seen at the sum
itself: there one call, with its operands and its result rounded as coarsely as anything in the target, is the unit.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.contract import ContractError
from layerdiff.arithmetic.formats import FLOAT32, accumulator_for, format_named, rounding_of
from layerdiff.arithmetic.registry import contract_of
from layerdiff.judge.local import Local
from layerdiff.judge.meaning.precision import ratio_to_spread
from layerdiff.judge.meaning.signatures import Known, Signatures
from layerdiff.judge.programs.running import Programs
from layerdiff.judge.programs.setting import NOTHING, Setting
from layerdiff.judge.tables import BEYOND, Verdict
from layerdiff.replay.recorded import Operation
from layerdiff.replay.refusal import CannotReplay
from layerdiff.trace.arguments import Arguments
from layerdiff.trace.schema import ABSENT

Array = NDArray[Any]
_TERMS: Final = 16
"""Below so many terms a call is judged element by element, as sums are nowhere else."""
_STEPS: Final = 4
"""Fewer additions are left to what the region's result is allowed."""
_RATIO: Final = 3.0
"""Measured in bf16 (norms, softmax, means of 64 and 256 terms): 4 to 16 parts and pairs of pairs up to 2.0; one by one where the first
term is massive 4.2 to 20, and 256 terms 1.9 to 9.0."""
_ADDS: Final = frozenset({"add", "add_", "addcmul", "addcmul_", "sum", "cumsum"})


def find_rounded_sums(setting: Setting, programs: Programs, kept: frozenset[int]) -> list[Local]:
    """The sums of one body that the target adds up in steps, further off than one rounding of operands and result explains."""
    adding = _rounded_additions(programs)
    ours = frozenset(call for call in programs.body.items.reference if _may_sum(programs, call))
    if len(adding) < _STEPS or not ours:
        return []
    alone = frozenset(call for call in _each_once(programs) if call not in programs.partners)
    coarsest = max(adding.values(), key=_unit)
    noise = _Noise(setting, programs, ours, coarsest)
    try:
        exact = programs.run("reference", watch=ours, kept=kept)
        noisy = programs.run("reference", watch=ours, kept=kept, noise=noise)
        theirs = programs.run("target", watch=alone)
    except CannotReplay:
        return []
    found = []
    made = [(call, position, value) for call in sorted(theirs.results) for position, value in theirs.results[call].items()]
    signatures = Signatures()
    known = Known([signatures.of(value) for _, _, value in made], NOTHING, either_sign=False)
    for call in sorted(noise.sums & exact.results.keys() & noisy.results.keys()):
        for position, value in exact.results[call].items():
            at = known.index(signatures.of(value)) if value.size and value.dtype.kind == "f" else None
            if at is not None and made[at][2].size == value.size:  # zeros are alike whatever their number
                local = _beside(setting, programs, adding, (call, *made[at]), (value, noisy.results[call][position]), coarsest)
                found += [] if local is None else [local]
    return found


def _beside(
    setting: Setting,
    programs: Programs,
    adding: dict[int, str],
    there: tuple[int, int, str, Array],
    made: tuple[Array, Array],
    coarsest: str,
) -> Local | None:
    call, maker, position, right = there
    recorded = _recorded(setting, programs, maker, position, right.size)
    exact, noisy = (one.reshape(recorded.shape) for one in made)
    ratio = ratio_to_spread(recorded - right.reshape(recorded.shape), noisy - exact, rounding_of(coarsest, exact))
    steps = [one for one in adding if one <= maker]
    if ratio <= _RATIO or len(steps) < _STEPS:
        return None
    name = setting.runs.reference.operation(call).base
    statement = (
        f"what the reference makes in one {name} is added up in {coarsest} here; {ratio:.3g} times the error that rounding it once makes"
    )
    evidence = {"dtype": coarsest, "additions": len(steps), "sum": name}
    return Local((call, steps[-1]), "out", Verdict.PRECISION, statement, ratio, _RATIO, BEYOND, "lower-precision", "accumulator", evidence)


def _recorded(setting: Setting, programs: Programs, maker: int, position: str, size: int) -> Array:
    """What the target's call made, as it was recorded: of a call in pieces together, where what its program makes is put together so."""
    run, together = setting.runs.target, programs.together.target
    parts = {one: setting.contents(run, run.operation(one).outputs[position]) for one in together.calls(maker)}
    joined = together.joined(maker, list(parts.values()))
    return joined[0] if joined is not None and joined[0].size == size else parts[maker]


class _Noise:
    """Rounding of the reference's program, with the operands of its sums rounded, too. Notes which calls are sums."""

    def __init__(self, setting: Setting, programs: Programs, calls: frozenset[int], dtype: str) -> None:
        self._rounding = setting.rounding.beside(programs.body, programs.aligned)
        self._calls, self._dtype = calls, dtype
        self._random = np.random.default_rng(20240502)
        self.sums: set[int] = set()

    def __call__(self, operation: Operation, args: Arguments, results: dict[str, Array]) -> dict[str, Array]:
        found = self._rounding(operation, args, results)
        contract = contract_of(operation.name) if operation.call in self._calls else None
        if contract is None or contract.exact is None:
            return found
        values = tuple(results.values())
        try:
            with np.errstate(all="ignore"):
                spreads = contract.spread(args, values, FLOAT32)
                if not any(spread.terms >= _TERMS for spread in spreads):
                    return found
                moved = contract.exact(args.mapped(self._rounded))
        except (ContractError, ValueError, TypeError, IndexError, KeyError, AttributeError):
            return found
        self.sums.add(operation.call)
        for position, one, other in zip(results, values, moved, strict=False):
            if one.dtype.kind == "f":
                found[position] = found[position] + np.nan_to_num(other - one, nan=0.0, posinf=0.0, neginf=0.0)
        return found

    def _rounded(self, thing: Any) -> Any:
        if not isinstance(thing, np.ndarray) or thing.dtype.kind != "f":
            return thing
        finite = np.where(np.isfinite(thing), thing, 0.0)
        return thing + rounding_of(self._dtype, finite) * self._random.uniform(-1.0, 1.0, thing.shape)


def _rounded_additions(programs: Programs) -> dict[int, str]:
    """The target's additions that have no partner and whose result is coarser than what sums are declared to be added up in."""
    run, found = programs.runs.target, {}
    for call in _each_once(programs):
        if call in programs.partners or run.is_module(call):
            continue
        operation = run.operation(call)
        if operation.base in _ADDS and operation.outputs:
            name = run.file.dtype_name(next(iter(operation.outputs.values())))
            if _unit(name) > accumulator_for(name).unit:
                found[call] = name
    return found


def _each_once(programs: Programs) -> list[int]:
    """The target's calls; of those that are one in pieces the last, which has what they make together."""
    together = programs.together.target
    return [call for call in programs.body.items.target if together.stands(call) or together.piece_of(call) != ABSENT]


def _may_sum(programs: Programs, call: int) -> bool:
    """Whether a call of the reference's is one of which a contract says how many terms it adds up."""
    run = programs.runs.reference
    if run.is_module(call):
        return False
    operation = run.operation(call)
    return bool(operation.outputs) and not run.is_view(operation) and contract_of(operation.name) is not None


def _unit(dtype: str) -> float:
    format = format_named(dtype)
    return 0.0 if format is None else format.unit
