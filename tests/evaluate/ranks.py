"""Many ranks against one process and against another layout: without a fault, and with one of all ranks or of one, over seeds, layers,
dtypes and sizes, with operators and without.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from captures.layouts import Case, Fault
from captures.parallel import record_ranks
from captures.processes import Processes
from layerdiff.compare import compare_traces
from layerdiff.saved.comparison import Comparison
from tests.parallel.expected import GRIDS, LAYOUTS, expected, placements, rules
from tests.parallel.faults import ALONE, FAULTS, IN_ROOT, OF_PROGRAMS, Found, at_layer

DTYPES = ("float32", "bfloat16")
KERNEL = "aten.mm.default#0"
Origin = tuple[str, str | None, int | None]


@dataclass
class Row:
    """One kind of trial: how many, and how many of them right."""

    trials: int = 0
    site: int = 0
    cause: int = 0
    named: int = 0
    """Trials whose cause has a name."""
    elsewhere: int = 0
    values: int = 0
    placed: int = 0


@dataclass(frozen=True)
class Trial:
    """A target of one reference. `found`: site, cause and rank of each origin; none of a run without a fault."""

    name: str
    case: Case
    size: int
    found: frozenset[Origin] = frozenset()
    also: frozenset[Origin] = frozenset()
    """Origins that may be found besides: what is given to every layer shows in every one."""
    ranked: bool = False
    """Whether the rank is part of what must be found."""
    layout: str | None = None
    operators: bool = False
    other: tuple[Case, int] | None = None
    """Another layout, and its ranks, in place of one process as the reference."""

    @property
    def said(self) -> str:
        """For a line of what went wrong."""
        where = f"layer {self.case.faults[0].layer}, " if self.case.faults else ""
        with_operators = ", operators" if self.operators else ""
        against = "" if self.other is None else f" against {self.other[1]}"
        return f"{self.name}, {where}seed {self.case.seed}, {self.case.dtype}, {self.size} ranks{against}{with_operators}"

    def recorded(self, folder: Path, processes: Processes) -> tuple[Path, Path]:
        """Reference and target."""
        if self.other is None:
            return record_ranks(folder, self.case, self.size, processes, operators=self.operators)
        first = record_ranks(folder / "first", self.other[0], self.other[1], processes, operators=self.operators)
        return first[1], record_ranks(folder / "second", self.case, self.size, processes, operators=self.operators)[1]


def ranks(folder: Path, seeds: int, *, quick: bool = False) -> list[str]:
    """Prints the table; returns what went wrong."""
    table: dict[str, Row] = {}
    wrong: list[str] = []
    choice = (range(1), DTYPES[:1], (0,)) if quick else (range(seeds), DTYPES, (0, 1))
    with Processes(4) as processes:
        for trial in (*_clean(*choice), *_faulty(*choice), *_of_programs(*choice), *_two_layouts(*choice)):
            shutil.rmtree(folder / "ranks", ignore_errors=True)
            comparison = compare_traces(*trial.recorded(folder / "ranks", processes))
            wrong += _noted(table.setdefault(trial.name, Row()), trial, comparison)
    print("\n| many ranks | trials | right site | cause named | elsewhere | placements right |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, row in [*table.items(), ("all", _total(table))]:
        site, cause, placed = _share(row.site, row.trials), _share(row.cause, row.named), _share(row.placed, row.values)
        print(f"| {name} | {row.trials} | {site} | {cause} | {row.elsewhere} | {placed} |", flush=True)
    return wrong


def _clean(seeds: range, dtypes: tuple[str, ...], layers: tuple[int, ...]) -> Iterator[Trial]:
    for seed, dtype, operators in product(seeds, dtypes, (False, True)):
        for name, case in LAYOUTS.items():
            for size in (2, 4):
                drawn = replace(case, seed=seed, dtype=dtype)
                yield Trial(f"no fault: {name}", drawn, size, layout=name, operators=operators)
        for name, case in GRIDS.items():
            yield Trial(f"no fault: {name}", replace(case, seed=seed, dtype=dtype), 4, operators=operators)


def _faulty(seeds: range, dtypes: tuple[str, ...], layers: tuple[int, ...]) -> Iterator[Trial]:
    for seed, dtype, layer, size, operators in product(seeds, dtypes, layers, (2, 4), (False, True)):
        for name, (case, found) in FAULTS.items():
            if layer == 0 or name not in IN_ROOT:
                must, also = _expected(name, found, layer)
                case = replace(case, seed=seed, dtype=dtype, faults=(Fault(name, layer),))
                yield Trial(name, case, size, must, also if operators else frozenset(), operators=operators)
        for name, (fault, case, site) in ALONE.items():
            case = replace(case, seed=seed, dtype=dtype, faults=(Fault(fault, layer, rank=size - 1),))
            within = f"{at_layer(site, layer)}/{KERNEL}" if operators and fault == "kernel_off" else at_layer(site, layer)
            cause = "k-range-missing" if within.endswith(KERNEL) else None
            yield Trial(f"one rank: {name}", case, size, frozenset({(within, cause, size - 1)}), ranked=True, operators=operators)


def _of_programs(seeds: range, dtypes: tuple[str, ...], layers: tuple[int, ...]) -> Iterator[Trial]:
    for seed, dtype, layer, size in product(seeds, dtypes, layers, (2, 4)):
        for name, (case, (site, cause), ranked) in OF_PROGRAMS.items():
            faults = tuple(replace(fault, layer=layer) for fault in case.faults)
            found = frozenset({(at_layer(site, layer), cause, 1 if ranked else None)})
            yield Trial(name, replace(case, seed=seed, dtype=dtype, faults=faults), size, found, ranked=ranked, operators=True)


def _two_layouts(seeds: range, dtypes: tuple[str, ...], layers: tuple[int, ...]) -> Iterator[Trial]:
    for seed, dtype, (first, second) in product(seeds, dtypes, ((2, 4), (4, 2), (2, 2), (4, 4))):
        for name, case in LAYOUTS.items():
            other = replace(case, seed=seed), first
            yield Trial(f"two layouts: {name}", replace(case, seed=seed, dtype=dtype), second, operators=True, other=other)
        for layer in layers:
            kinds = {name: (replace(case, faults=(Fault(name),)), found) for name, (case, found) in FAULTS.items() if name not in IN_ROOT}
            # Of an order of their own, which gathered keys have, two layouts do not tell the call.
            kinds |= {name: (case, {found}) for name, (case, found, _) in OF_PROGRAMS.items() if not name.startswith("causal")}
            for name, (case, found) in kinds.items():
                faults = tuple(replace(fault, layer=layer) for fault in case.faults)
                other = replace(case, seed=seed, faults=()), first
                must, _ = _expected(name, found, layer)
                target = replace(case, seed=seed, dtype=dtype, faults=faults)
                yield Trial(f"two layouts: {name}", target, second, must, operators=True, other=other)


def _expected(name: str, found: Collection[Found], layer: int) -> tuple[frozenset[Origin], frozenset[Origin]]:
    """What must be found, and what may be."""
    must = frozenset((at_layer(site, layer), cause, None) for site, cause in found)
    also = frozenset((at_layer(site, other), cause, None) for site, cause in found for other in (0, 1)) - must
    return must, also if name in IN_ROOT else frozenset()


def _noted(row: Row, trial: Trial, comparison: Comparison) -> list[str]:
    """Counts a trial, and says what is wrong with it."""
    origins = {(one.site, one.cause, one.rank if trial.ranked else None) for one in comparison.origins} - trial.also
    sites, must = {one[0] for one in origins}, {one[0] for one in trial.found}
    row.trials += 1
    row.site += must <= sites
    row.elsewhere += len(sites - must)
    if any(cause is not None for _, cause, _ in trial.found):
        row.named += 1
        row.cause += trial.found <= origins
    lines = [] if trial.found == origins else [f"{trial.said}: found {sorted(origins, key=str)}, expected {sorted(trial.found, key=str)}"]
    if not trial.case.faults:
        lines += [f"{trial.said}: {notice.statement}" for notice in comparison.notices if notice.defect]
    if trial.layout is not None:
        made, found = rules(trial.layout, trial.size), placements(comparison)
        right = {key: where == expected(made, *key) for key, where in found.items()}
        row.values += len(right)
        row.placed += sum(right.values())
        lines += [f"{trial.said}: {site} {value} is {found[site, value]}" for (site, value), good in right.items() if not good]
    return lines


def _total(table: dict[str, Row]) -> Row:
    return Row(*(sum(getattr(row, name) for row in table.values()) for name in Row.__dataclass_fields__))


def _share(good: int, of: int) -> str:
    return f"{100 * good / of:.1f} %" if of else ""
