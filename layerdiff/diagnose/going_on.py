"""Requests that two runs go on with other tokens, in batches of their own: each with the token that its own logits say, or with another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.diagnose.findings import Notice
from layerdiff.errors import TraceError
from layerdiff.judge.pairs.in_batches import Parted
from layerdiff.judge.pairs.in_chunks import Steps
from layerdiff.sides import Both
from layerdiff.trace.joined import Joined
from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallKind, Role
from layerdiff.trace.tokens import Tokens

Array = NDArray[Any]
_MOST: Final = 1 << 28
"""Bytes of results that are looked at."""


def notices_of_going_on(joined: Sequence[Steps], files: Both[TraceFile]) -> Iterator[Notice]:
    """One for all requests of some steps that go on each with the largest logit of its own run; one for the first that does not."""
    for steps in joined:
        if steps.places is None or not steps.parted:
            continue
        logits = Both(*(list(_results(*one)) for one in zip(files, steps.numbers, steps.places, strict=True)))
        told = [(one, _said(one, steps.places, logits)) for one in steps.parted]
        chosen = [said for _, said in told if said is not None]
        if chosen:
            more = f" (and so do {len(chosen) - 1} more)" if len(chosen) > 1 else ""
            yield Notice("generations-part", f"{chosen[0]}{more}", site=steps.site)
        for one, said in told:
            if said is None:
                said = f"after {one.count} tokens a request goes on with others"
                if None not in one.tokens:
                    both = f"{one.tokens.reference} in the reference, {one.tokens.target} in the target"
                    said = f"{said} ({both}), and these are not the largest logits of each run"
                yield Notice("input-differs", f"{said}: give both runs the same tokens", site=steps.site, defect=True)
                break


def _said(parted: Parted, places: Both[Tokens], logits: Both[list[Array]]) -> str | None:
    """In words, where both go on with the token of their own largest logit."""
    if parted.tokens.reference is None or parted.tokens.target is None:
        return None
    both = Both(parted.tokens.reference, parted.tokens.target)
    for each in zip(*logits, strict=False):
        lines = Both(*(_line(x, tokens, parted.last) for x, tokens in zip(each, places, strict=True)))
        if lines.reference is None or lines.target is None or lines.reference.shape != lines.target.shape:
            continue
        if any(
            not 0 <= token < line.size or line[token] != line.max()
            for line, token in ((lines.reference, both.reference), (lines.target, both.target))
        ):
            continue
        apart = float(lines.reference[both.reference] - lines.reference[both.target])
        moved = max(abs(float(lines.reference[token] - lines.target[token])) for token in both)
        lie = f"{apart:.2g} apart in the reference" if apart else "alike in the reference"
        return (
            f"after {parted.count} tokens a request goes on with another one in each run, that of its own largest logit: "
            f"{both.reference} against {both.target}, which lie {lie} and are moved by up to {moved:.2g}"
        )
    return None


def _line(x: Array, tokens: Tokens, number: int) -> Array | None:
    line = tokens.line(x.shape, number)
    return None if line is None else x.reshape(-1, x.shape[-1])[line].astype(np.float64)


def _results(file: TraceFile, numbers: Sequence[int], tokens: Tokens) -> Iterator[Array]:
    """What the root hands on of the steps of these numbers that may be logits."""
    for call in np.flatnonzero((np.asarray(file.calls.parent) < 0) & (np.asarray(file.calls.kind) == CallKind.MODULE)).tolist():
        chunks = file.roots.get(call) if isinstance(file, Joined) else None
        own = [int(file.calls.step[call])] == list(numbers) if chunks is None else any(tokens is one for one in chunks.tokens or ())
        for edge in file.edges_of(call) if own else ():
            dtype = file.dtype(edge.value)
            if edge.role != Role.OUTPUT or dtype is None or dtype.kind != "float" or len(file.shape(edge.value)) < 2:
                continue
            if file.has_bytes(edge.value) and int(file.values.nbytes[edge.value]) <= _MOST:
                try:
                    yield file.read(edge.value)
                except TraceError:
                    continue
