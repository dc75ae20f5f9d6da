"""What is said of what a side filled up, and of requests that it has otherwise; and where what fills weights up is taken for words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from layerdiff.align.packing import Packing
from layerdiff.diagnose.findings import Notice
from layerdiff.diagnose.whereabouts import ranges
from layerdiff.errors import TraceError
from layerdiff.judge.found import Found
from layerdiff.judge.local import Local
from layerdiff.judge.pairs.filling import Filled
from layerdiff.judge.pairs.in_chunks import Steps
from layerdiff.judge.pairs.packing import FormsOfSteps
from layerdiff.judge.pairs.placed import Part, Placed
from layerdiff.judge.pairs.reordering import Sorted
from layerdiff.judge.pairs.unused_rows import Unused
from layerdiff.judge.tables import Columns, Source, Texts, Verdict
from layerdiff.sides import Both
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind, Role

REORDERED: Final = "requests-reordered"
IN_CHUNKS: Final = "steps-joined"
TURNED: Final = "layout-turned"
_SHOWN: Final = 3
_REQUESTS: Final = 8
_RULE: Final = "filling: numbers that name what one side filled up"


def notices_of_filling(filled: Sequence[Filled]) -> Iterator[Notice]:
    """One for each pair of sizes."""
    sizes = list(dict.fromkeys((one.sizes.reference, one.sizes.target) for one in filled))
    for ours, theirs in sizes:
        names = [one.name for one in filled if (one.sizes.reference, one.sizes.target) == (ours, theirs)]
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        side, count, places = ("target", ours, theirs) if theirs > ours else ("reference", theirs, ours)
        said = f"the {side} fills {count} places up to {places}; the {places - count} at the end are compared with nothing"
        yield Notice("layout-padded", f"{names[0]}{more}: {said}")


def notices_of_unused(unused: Sequence[Unused]) -> Iterator[Notice]:
    """One for each vocabulary that both runs fill up with other numbers."""
    for one in unused:
        more = f" and {len(one.names) - 1} more" if len(one.names) > 1 else ""
        rows = f"rows {one.count} to {one.size - 1} of {one.size} have other numbers"
        said = f"{rows}, and nothing depends on them: no id names them, and their logits are cut off or hidden"
        yield Notice("unused-rows", f"{one.names[0]}{more}: {said}; they are compared with nothing")


def notices_of_order(reordered: Sequence[Sorted]) -> Iterator[Notice]:
    """One for each root that is given its requests in another order."""
    of_site = {one.site: one.order for one in reversed(reordered)}
    for site, order in reversed(of_site.items()):
        shown = ", ".join(map(str, order[:_REQUESTS])) + (", ..." if len(order) > _REQUESTS else "")
        said = f"the target has the {len(order)} requests of a batch in another order ({shown} of the reference)"
        yield Notice(REORDERED, f"{said}: each is compared with itself", site)


def notices_of_chunks(joined: Sequence[Steps]) -> Iterator[Notice]:
    """One for each prompt that the runs had in other pieces, and one for all requests of a root that they had in other batches."""
    for site in dict.fromkeys(one.site for one in joined if one.requests):
        yield Notice(IN_CHUNKS, _in_batches([one for one in joined if one.requests and one.site == site]), site)
    for one in joined:
        if one.requests:
            continue
        said = [_pieces(name, one.tokens, one.numbers) for name in ("target", "reference")]
        yield Notice(IN_CHUNKS, f"{', '.join(said)}: what the chunks make together is compared", one.site)


def _in_batches(every: Sequence[Steps]) -> str:
    """Requests that the runs had in other batches."""
    each, alone = [], []
    for name in ("target", "reference"):
        numbers = sorted(number for one in every for number in getattr(one.numbers, name))
        count = sum(getattr(one.alone, name) for one in every)
        each.append(
            f"{'in one forward (step' if len(numbers) == 1 else f'in {len(numbers)} forwards (steps'} {ranges(numbers)}) in the {name}"
        )
        alone += [f"{count} {'token' if count == 1 else 'tokens'} of the {name}"] if count else []
    more = f"; compared with nothing: {', '.join(alone)}" if alone else ""
    begun = [name for name in ("target", "reference") if any(getattr(one.begun, name) for one in every)]
    more += f"; first tokens lay in a cache of the {' and of the '.join(begun)} before anything was recorded" if begun else ""
    requests = sum(one.requests for one in every)
    whose = "a request" if requests == 1 else f"{requests} requests"
    return f"the tokens of {whose} ran {', '.join(each)}: each is compared with the same one of the other run{more}"


def _pieces(name: str, tokens: Both[tuple[int, ...]], numbers: Both[tuple[int, ...]]) -> str:
    own, steps = getattr(tokens, name), getattr(numbers, name)
    if len(own) == 1:
        return f"the {name} ran them in one forward (step {steps[0]})"
    sizes = ", ".join(map(str, own[:_REQUESTS])) + (", ..." if len(own) > _REQUESTS else "")
    return f"the {name} ran the {sum(own)} tokens of a prompt in {len(own)} chunks of {sizes} (steps {ranges(steps)})"


def notices_of_packing(forms: FormsOfSteps, sites: Columns, texts: Texts) -> Iterator[Notice]:
    """One for each root whose tokens lie otherwise in the two runs: in a row, without padding, or before the requests."""
    said: set[str] = set()
    for (file, call), step in forms.steps.items():
        here = (sites["target_file"] == file) & (sites["target_call"] == call)
        site, packing = texts[int(sites["site"][here][0])] or "", step.packing
        if step.ends is not None and not (step.ends.last or step.ends.first):
            yield _other_positions(step.ends.row, site)
        if packing is None or site in said or step.further:
            continue
        said.add(site)
        requests, positions = packing.batch
        other = "target" if packing.padded == "reference" else "reference"
        if packing.row:
            said_first = f"the {packing.padded} has the {requests} requests first, the {other} their {positions} tokens"
            yield Notice(TURNED, f"{said_first}: each token is compared with its own", site)
            continue
        batch, row = f"a batch of {requests} padded to {positions} tokens", f"{packing.places.size} tokens in a row"
        yield Notice("layout-packed", f"{batch} in the {packing.padded}, {row} in the {other}: these are compared", site)


def notices_of_turned(placed: Iterable[Placed]) -> Iterator[Notice]:
    """One where ranks have the tokens before the requests, or the reference has."""
    if any(one.placement.turned for one in placed):
        yield Notice(TURNED, "the ranks have requests and tokens in the other order of dimensions: each token is compared with its own")


def _other_positions(row: Packing, site: str) -> Notice:
    """A run that hands on one token of each request, and not the last nor the first of each."""
    whose = "target" if row.padded == "reference" else "reference"
    shown = [f"{place % row.batch[1]} of request {place // row.batch[1]}" for place in row.places.tolist()]
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    said = f"of each request the {whose} hands on one token, and not the last: position {', '.join(shown[:_SHOWN])}{more}"
    return Notice("results-differ", said, site=site, defect=True)


def chosen_filling(
    sites: Columns,
    pairs: Columns,
    texts: Texts,
    files: Both[tuple[TraceFile, ...]],
    filled: Sequence[Filled],
    parts_of: Both[list[tuple[Part, ...]]] | None,
) -> list[Found]:
    """Modules that hand on whole numbers of which some name what fills up the target's weights, and none of the reference's does.

    The innermost modules, once each: a token that was chosen there is no word of the model's.
    """
    sizes = sorted({(one.sizes.reference, one.sizes.target) for one in filled if one.sizes.target > one.sizes.reference})
    found: dict[int, Found] = {}
    differing = (pairs["role"] == Role.OUTPUT) & (pairs["source"] == Source.BYTES) & (pairs["mismatched"] > 0)
    for pair in np.flatnonzero(differing).tolist() if sizes else ():
        row = int(pairs["site"][pair])
        if row in found or sites["kind"][row] != CallKind.MODULE:
            continue
        ours = files.reference[int(sites["reference_file"][row])], int(pairs["reference_value"][pair])
        theirs = [(int(sites["target_file"][row]), int(pairs["target_value"][pair]))] if parts_of is None else parts_of.target[pair]
        every = [ours, *((files.target[file], value) for file, value in theirs)]
        if any((dtype := file.dtype(value)) is None or dtype.kind != "integer" for file, value in every):
            continue
        try:
            numbers = ours[0].read(ours[1]), [files.target[file].read(value) for file, value in theirs]
        except TraceError:
            continue
        if not numbers[0].size:
            continue
        for count, places in sizes:
            beyond = [int(np.count_nonzero((x >= count) & (x < places))) for x in numbers[1]]
            if max(beyond, default=0) and numbers[0].max() < count and all(x.max(initial=0) < places for x in numbers[1]):
                which = f"{count} to {places - 1}, which is what weights were filled up with"
                said = f"{max(beyond)} of {numbers[0].size} numbers that it hands on are {which}"
                position = texts[int(pairs["position"][pair])] or "out"
                calls = int(sites["reference_call"][row]), int(sites["target_call"][row])
                found[row] = Found(row, Local(calls, position, Verdict.DEFECT, said, float(max(beyond)), 0.0, _RULE, "vocab-padding"))
                break
    around = {above for row in found for above in _around(sites, row)}
    first: dict[int, Found] = {}
    for row, one in found.items():
        if row not in around:
            first.setdefault(int(sites["site"][row]), one)
    return list(first.values())


def _around(sites: Columns, row: int) -> Iterator[int]:
    """The rows of the calls around a call."""
    above = int(sites["parent"][row])
    while above >= 0:
        yield above
        above = int(sites["parent"][above])
