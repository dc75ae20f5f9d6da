"""Rounding as noise: what a program's results look like once each is rounded, and summed, at the dtypes that the runs declare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.contract import ContractError
from layerdiff.arithmetic.formats import accumulator_for, format_named, rounding_of
from layerdiff.arithmetic.registry import contract_of
from layerdiff.judge.programs.bodies import Body
from layerdiff.replay.inner import is_layer
from layerdiff.replay.once import with_steps_rounded
from layerdiff.replay.program import positions_of
from layerdiff.replay.recorded import Operation, Recorded
from layerdiff.replay.refusal import CannotReplay
from layerdiff.sides import Both
from layerdiff.trace.arguments import Arguments
from layerdiff.trace.dtypes import dtype_named

Array = NDArray[Any]
Noise = Callable[[Operation, Arguments, dict[str, Array]], dict[str, Array]]
"""Results with what rounding may make of them, from exact ones."""


@dataclass
class Rounding:
    """Noise for the reference's program, at the dtypes that the target is expected to use. Seeded: the same each time."""

    runs: Both[Recorded]
    expected_dtype: Mapping[str, str]
    product_dtype: str | None = None
    """The dtype of most of the target's matrix products."""

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(20240501)

    def as_expected(self, operation: Operation, args: Arguments, results: dict[str, Array]) -> dict[str, Array]:
        """Results of the reference's call with a rounding at the expected dtype, and with the call's own allowance, drawn at random."""
        return self._noisy(operation, args, self._held(operation, results), self._dtype)

    def beside(self, body: Body, aligned: Mapping[int, int]) -> Noise:
        """Noise for the reference's calls at the dtypes of the target's calls beside them; of those alone at what came into the body.

        For bodies in which the target nowhere makes its values coarser than the run declares.
        """
        files = self.runs.map(lambda run: run.file)
        given: list[str | None] = [files.target.dtype_name(values[1]) for _, values in body.interface.inputs]
        given += [files.target.dtype_name(values[1]) for interface in body.children.values() for _, values in interface.outputs]
        coarsest = max(given, key=self._unit, default=None)

        def noisy(operation: Operation, args: Arguments, results: dict[str, Array]) -> dict[str, Array]:
            there = aligned.get(operation.call)
            names: dict[int, str | None] = {}
            for position, value in operation.outputs.items():
                beside = None if there is None else self.runs.target.operation(there).outputs.get(position)
                candidates: list[str | None] = [self._dtype(value)] if beside is None else [files.target.dtype_name(beside)]
                if beside is None:
                    candidates.append(coarsest)
                    if operation.is_product:
                        candidates.append(self.product_dtype)
                names[value] = max(candidates, key=self._unit)
            return self._noisy(operation, args, self._held(operation, results), lambda value: names.get(value))

        return noisy

    def declared(self, aligned: Mapping[int, int]) -> Noise:
        """Noise for the target's calls at what the dtype map says of the reference's calls beside them; of those alone, at most at that."""
        back = {t: r for r, t in aligned.items()}
        files = self.runs.map(lambda run: run.file)
        coarsest = max([*self.expected_dtype.values(), *self.expected_dtype], key=self._unit, default=None)

        def noisy(operation: Operation, args: Arguments, results: dict[str, Array]) -> dict[str, Array]:
            partner = back.get(operation.call)
            names: dict[int, str | None] = {}
            for position, value in operation.outputs.items():
                beside = None if partner is None else self.runs.reference.operation(partner).outputs.get(position)
                own = files.target.dtype_name(value)
                names[value] = self._dtype(beside) if beside is not None else min([own, coarsest], key=self._unit)
            return self._noisy(operation, args, results, lambda value: names.get(value))

        return noisy

    def as_recorded(self, operation: Operation, args: Arguments, results: dict[str, Array]) -> dict[str, Array]:
        """Results of the target's call with a rounding at its own dtype, and with the call's own allowance."""
        return self._noisy(operation, args, results, self.runs.target.file.dtype_name)

    def _held(self, operation: Operation, results: dict[str, Array]) -> dict[str, Array]:
        """Results of the reference's call, unknown where the dtype that it keeps them in has no such number.

        Squares of what nobody wrote overflow in the reference's way as in any other. What lies too far below hides as a mask does.
        """
        formats = {position: format_named(self.runs.reference.file.dtype_name(value)) for position, value in operation.outputs.items()}
        found = dict(results)
        for position, made in results.items():
            format = formats.get(position)
            if format is not None and made.dtype.kind == "f" and np.any(beyond := np.isfinite(made) & (np.abs(made) >= format.overflow)):
                found[position] = np.where(beyond, np.where(made < 0, -np.inf, np.nan), made)
        return found

    def _noisy(
        self, operation: Operation, args: Arguments, results: dict[str, Array], dtype_of: Callable[[int], str | None]
    ) -> dict[str, Array]:
        spreads: tuple[Any, ...] = ()
        dtypes = [dtype_of(value) for value in operation.outputs.values()]
        contract = contract_of(operation.name)
        if contract is not None:
            try:
                with np.errstate(all="ignore"):
                    spreads = contract.spread(args, tuple(results.values()), accumulator_for(*[name for name in dtypes if name]))
            except (ContractError, ValueError, TypeError, IndexError, KeyError, AttributeError):
                spreads = ()
        found = {}
        for i, (position, made) in enumerate(results.items()):
            if made.dtype.kind != "f":
                found[position] = made
                continue
            value = operation.outputs.get(position)
            most = rounding_of(None if value is None else dtype_of(value), np.where(np.isfinite(made), made, 0.0))
            noise = most * self._random.uniform(-1.0, 1.0, made.shape)
            if i < len(spreads):
                sigma = np.broadcast_to(np.where(np.isfinite(spreads[i].sigma), spreads[i].sigma, 0.0), made.shape)
                noise = noise + sigma * self._random.standard_normal(made.shape)
            found[position] = np.array(made + noise)
        for position, moved in self._steps_of(operation, args, results, dtypes).items():
            found[position] = found[position] + np.nan_to_num(moved - results[position], nan=0.0, posinf=0.0, neginf=0.0)
        return found

    def _steps_of(self, operation: Operation, args: Arguments, results: dict[str, Array], dtypes: list[str | None]) -> dict[str, Array]:
        """The results of a layer that one kernel makes, with each of its steps rounded; nothing for other operators."""
        format = format_named(dtypes[0]) if dtypes and dtypes[0] else None
        if format is None or not is_layer(operation.name):
            return {}
        try:
            made = with_steps_rounded(self.runs.reference, operation.name, args, format.unit, int(self._random.integers(1 << 62)))
        except CannotReplay:
            return {}
        moved = dict(zip(positions_of(operation, len(made)), made, strict=False))
        return {position: moved[position] for position, one in results.items() if one.dtype.kind == "f"}

    def of_operands(self, operation: Operation, size: Array) -> Array:
        """How far rounding may move operands of that size of the reference's call, in the coarsest dtype that the target is to keep one."""
        dtypes = {self._dtype(value) for value in operation.inputs.values()}
        found: Array = np.max([np.zeros(np.shape(size)), *(rounding_of(dtype, size) for dtype in dtypes)], axis=0)
        return found

    def dtype_at(self, body: Body, pair: tuple[int, int], position: str, *, expected: bool) -> str | None:
        """The dtype in which a value that crosses a cut is expected to be kept; as the target keeps it where nothing is amiss."""
        crossing = body.interface.outputs if pair == body.calls else body.children[pair].inputs
        values = next(values for at, values in crossing if at == position)
        return self._dtype(values[0]) if expected else self.runs.target.file.dtype_name(values[1])

    def coarsest(self, body: Body) -> float:
        """Unit roundoff of the coarsest value that either run hands into or out of a body."""
        pairs = [values for _, values in (*body.interface.inputs, *body.interface.outputs)]
        for interface in body.children.values():
            pairs += [values for _, values in (*interface.inputs, *interface.outputs)]
        files = self.runs.map(lambda run: run.file)
        return max((max(self._unit(files.reference.dtype_name(r)), self._unit(files.target.dtype_name(t))) for r, t in pairs), default=0.0)

    def _dtype(self, value: int) -> str | None:
        name = self.runs.reference.file.dtype_name(value)
        return self.expected_dtype.get(name, name)

    def _unit(self, name: str | None) -> float:
        known = None if name is None else dtype_named(name)
        return known.unit_roundoff or 0.0 if known is not None and known.kind == "float" else 0.0
