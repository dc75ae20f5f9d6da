"""Many ranks against one process: layouts without a fault, and faults of all ranks and of one, over seeds, layers, dtypes and sizes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from captures.layouts import Case, Fault
from captures.parallel import record_ranks
from captures.processes import Processes
from layerdiff.compare import compare_traces
from layerdiff.saved.comparison import Comparison
from tests.parallel.expected import LAYOUTS, expected, placements, rules
from tests.parallel.faults import ALONE, FAULTS, IN_ROOT, at_layer

DTYPES = ("float32", "bfloat16")


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
    found: frozenset[tuple[str, str | None, int | None]] = frozenset()
    ranked: bool = False
    """Whether the rank is part of what must be found."""
    layout: str | None = None

    @property
    def said(self) -> str:
        """For a line of what went wrong."""
        where = f"layer {self.case.faults[0].layer}, " if self.case.faults else ""
        return f"{self.name}, {where}seed {self.case.seed}, {self.case.dtype}, {self.size} ranks"


def ranks(folder: Path, seeds: int, *, quick: bool = False) -> list[str]:
    """Prints the table; returns what went wrong."""
    table: dict[str, Row] = {}
    wrong: list[str] = []
    with Processes(4) as processes:
        for trial in [*_clean(seeds, quick), *_faulty(seeds, quick)]:
            shutil.rmtree(folder / "ranks", ignore_errors=True)
            comparison = compare_traces(*record_ranks(folder / "ranks", trial.case, trial.size, processes))
            wrong += _noted(table.setdefault(trial.name, Row()), trial, comparison)
    print("\n| many ranks | trials | right site | cause named | elsewhere | placements right |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, row in [*table.items(), ("all", _total(table))]:
        site, cause, placed = _share(row.site, row.trials), _share(row.cause, row.named), _share(row.placed, row.values)
        print(f"| {name} | {row.trials} | {site} | {cause} | {row.elsewhere} | {placed} |", flush=True)
    return wrong


def _clean(seeds: int, quick: bool) -> Iterator[Trial]:
    for name, case in LAYOUTS.items():
        for seed in range(1 if quick else seeds):
            for dtype in DTYPES[:1] if quick else DTYPES:
                for size in (2, 4):
                    yield Trial(f"no fault: {name}", replace(case, seed=seed, dtype=dtype), size, layout=name)


def _faulty(seeds: int, quick: bool) -> Iterator[Trial]:
    for seed in range(1 if quick else seeds):
        for dtype in DTYPES[:1] if quick else DTYPES:
            for layer in (0,) if quick else (0, 1):
                for size in (2, 4):
                    for name, (case, found) in FAULTS.items():
                        if layer == 0 or name not in IN_ROOT:
                            case = replace(case, seed=seed, dtype=dtype, faults=(Fault(name, layer),))
                            yield Trial(name, case, size, frozenset((at_layer(site, layer), cause, None) for site, cause in found))
                    for name, (fault, case, site) in ALONE.items():
                        case = replace(case, seed=seed, dtype=dtype, faults=(Fault(fault, layer, rank=size - 1),))
                        yield Trial(f"one rank: {name}", case, size, frozenset({(at_layer(site, layer), None, size - 1)}), ranked=True)


def _noted(row: Row, trial: Trial, comparison: Comparison) -> list[str]:
    """Counts a trial, and says what is wrong with it."""
    origins = {(one.site, one.cause, one.rank if trial.ranked else None) for one in comparison.origins}
    sites, must = {one[0] for one in origins}, {one[0] for one in trial.found}
    row.trials += 1
    row.site += must <= sites
    row.elsewhere += len(sites - must)
    if any(cause is not None for _, cause, _ in trial.found):
        row.named += 1
        row.cause += trial.found <= origins
    lines = [] if trial.found == origins else [f"{trial.said}: found {sorted(origins, key=str)}, expected {sorted(trial.found, key=str)}"]
    if trial.layout is not None:
        lines += [f"{trial.said}: {notice.statement}" for notice in comparison.notices if notice.defect]
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
