"""What a second run of the target adds to the findings: its own local errors, and the notice about self-noise.

Noise never excuses a local error: one that only the second run has is an origin of the comparison like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from layerdiff.diagnose.findings import Notice, Origin
from layerdiff.judge.second_run import SelfNoise
from layerdiff.judge.tables import Again, Columns, Texts


def origins_of_second(origins: Sequence[Origin], second: Sequence[Origin], row_of: Mapping[int, int]) -> tuple[Origin, ...]:
    """The second run's origins at sites where the first has none, at the rows of the first; `row_of` says which those are."""
    known = {(origin.site, origin.rank) for origin in origins}
    return tuple(
        replace(
            origin,
            row=row_of[origin.row],
            statement=f"in the second run of the target: {origin.statement}",
            evidence={**origin.evidence, "run": "the second of the target"},
        )
        for origin in second
        if origin.row in row_of and (origin.site, origin.rank) not in known
    )


def notice_of_noise(noise: SelfNoise, sites: Columns, texts: Texts, codes: Columns, second: Sequence[Origin], path: str) -> Notice | None:
    """What two runs of the target say of each other; None where all bits are the same.

    `noise` and `sites` are the table of the two runs, `codes` the table of the comparison.
    """
    if noise.given:
        said = ", ".join(dict.fromkeys(noise.given[:5]))
        return Notice("again-differs", f"{path} was not given what the target was ({said}), so it cannot tell self-noise from other input")
    differ = int(np.count_nonzero(codes["again"] >= Again.DIFFERS))
    if not differ:
        return None
    compared = int(np.count_nonzero(codes["again"] > Again.UNKNOWN))
    entering = np.flatnonzero(noise.codes >= Again.ENTERS)
    first = next(iter(sorted([*entering.tolist(), *noise.drawn])), None)
    statement = f"the target differs from itself between two runs at {differ} of {compared} calls"
    site = None
    if first is not None:
        site = texts[int(sites["site"][first])] or ""
        operator = texts[int(sites["operator"][first])]
        statement += f", first at {site or 'the root'}"
        statement += f" ({operator})" if operator is not None and operator not in site else ""
        if len(entering) > 1:
            statement += f"; it enters at {len(entering)} calls"
    if noise.drawn:
        statement += f"; {len(noise.drawn)} of them drew other random numbers, so give both runs one seed"
    if second:
        statement += f"; at {len(second)} sites the second run has a local error, which no noise excuses"
    return Notice("nondeterministic", statement, site)
