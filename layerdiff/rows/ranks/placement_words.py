"""Words for values that are made up of many ranks' parts: how many of each kind, which rank is off, which places it holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from layerdiff.align.runs import Run
from layerdiff.judge.tables import Placing
from layerdiff.rows.cells import visible
from layerdiff.rows.figures import amount, count, figure
from layerdiff.saved.comparison import Comparison
from layerdiff.saved.placements import FAR, Part, PlacedValue, Placements, counted

_NAMED: Final = 8
_RUNS: Final = 3


def placed_text(comparison: Comparison) -> str | None:
    """`412 values: 231 replicated, 168 sharded, 9 partial, 4 unknown`; None where each process is compared by itself."""
    kinds = counted(comparison)
    if not kinds:
        return None
    each = ", ".join(f"{count(number)} {'in a grid' if kind is Placing.NESTED else kind.name.lower()}" for kind, number in kinds.items())
    return f"{amount(sum(kinds.values()), 'value')}: {each}"


def origin_text(placements: Placements, row: int, position: str) -> str | None:
    """Where the ranks of an origin's value are far apart, each one's error; None elsewhere."""
    value = placements.of_value(row, position)
    return None if value is None else ranks_text(value)


def ranks_text(value: PlacedValue) -> str | None:
    """`rank 2 alone is off: 3.00e-1, the others up to 1.30e-7`; None where no two ranks are more than ten times apart."""
    known = [part for part in value.parts if not math.isnan(part.error)]
    if len(known) < 2 or not max(part.error for part in known) > FAR * min(part.error for part in known):
        return None
    off = value.off
    if not off:
        more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
        return f"error by rank: {', '.join(f'{part.rank}: {figure(part.error)}' for part in known[:_NAMED])}{more}"
    others = max(part.error for part in known if part not in off)
    rest = f"the other{'s up to' if len(known) - len(off) > 1 else ''} {figure(others)}"
    if len(off) == 1:
        return f"rank {off[0].rank} alone is off: {figure(off[0].error)}, {rest}"
    return f"ranks {ranks_listed(off)} are off: up to {figure(max(part.error for part in off))}, {rest}"


def ranks_listed(parts: Sequence[Part]) -> str:
    """`0..3`, `0, 2, 5`, `0, 2, 4 and 9 more`."""
    ranks = [part.rank for part in parts]
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[0] + len(ranks))):
        return f"{ranks[0]}..{ranks[-1]}"
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    return ", ".join(map(str, ranks[:_NAMED])) + more


def holds_text(runs: Sequence[Run]) -> str:
    """`0..127`, `0..15, 112..127`, `every 4th from 1`, `480..499 +12 padding`."""
    real, padding = [run for run in runs if run.start >= 0], sum(run.places for run in runs if run.start < 0)
    said = [_run(run) for run in real[:_RUNS]]
    more = f" +{len(real) - _RUNS} more" if len(real) > _RUNS else ""
    pads = f"{' ' if said else ''}+{count(padding)} padding" if padding else ""
    return (", ".join(said) + more + pads) or "nothing"


def _run(run: Run) -> str:
    if run.places == 1:
        return str(run.start)
    if run.step == 1:
        return f"{run.start}..{run.last}"
    if run.step == 0:
        return f"{run.places} × {run.start}"
    return f"{run.start}..{run.last} by {run.step}"


def kind_text(value: PlacedValue) -> str:
    """How it is placed, with the logical shape: `sharded along 2 of [1, 128, 512], contiguous`."""
    name = visible(value.name)
    along = f"along {value.dim}"
    if value.shape and value.dim >= 0 and along in name:
        return name.replace(along, f"{along} of {list(value.shape)}", 1)
    return f"{name}  {list(value.shape)}" if value.shape else name
