"""Notices: what is said before any layer is blamed. Inputs, dtypes, shapes, weights, steps, seeds, and the recording itself."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any, Final

import numpy as np

from layerdiff.align.alignment import Alignment
from layerdiff.align.steps import NOT_RECORDED
from layerdiff.diagnose.between_steps import notices_of_state
from layerdiff.diagnose.evidence import Evidence
from layerdiff.diagnose.findings import Notice
from layerdiff.diagnose.generation import Parting
from layerdiff.diagnose.root_inputs import notices_of_inputs
from layerdiff.diagnose.weights import notices_of_weights
from layerdiff.diagnose.whereabouts import ranges
from layerdiff.judge.profiles import Profile
from layerdiff.judge.tables import LEFT_TO_THRESHOLDS, Source, Verdict
from layerdiff.judge.unfinished import Unfinished
from layerdiff.sides import Both
from layerdiff.trace.reader import Trace
from layerdiff.trace.schema import CallKind, Role

_SHOWN: Final = 3
NOTICES_OF_VALUES: Final = (
    *("dtype-mismatch", "input-differs", "shape-differs", "weight-differs", "weight-coded", "constant-dtype", "flip"),
    *("generations-part", "results-not-compared", "input-too-short"),
)
"""The kinds that `notices_of_values` yields, in this order."""


def notices_of_traces(traces: Both[Trace]) -> Iterator[Notice]:
    """What the recordings say, before a value is read."""
    for name in ("reference", "target"):
        for file in getattr(traces, name).files:
            if not file.complete:
                reason = file.meta.get("incomplete") or "its writer did not say why"
                yield Notice("recording-incomplete", f"the {name}'s trace {file.path.name} is incomplete: {reason}")
            skipped = file.meta.get("skipped")
            if isinstance(skipped, dict) and skipped:
                path, reason = next(iter(skipped.items()))
                more = f", and {len(skipped) - 1} more" if len(skipped) > 1 else ""
                yield Notice("recording-skipped", f"not all of the {name} was recorded as it ran: {path or 'the root'}: {reason}{more}")
    if len(traces.reference.files) != len(traces.target.files) and len(traces.reference.files) > 1:
        counts = f"{len(traces.reference.files)} files against {len(traces.target.files)}"
        yield Notice("ranks-differ", f"the runs have different numbers of processes ({counts})")
    seeds = Both(traces.reference, traces.target).map(lambda trace: _environment(trace).get("seed"))
    draws = _draws(traces)
    if draws:
        yield Notice("seed-differs", draws, site="", defect=True)
    elif None not in (seeds.reference, seeds.target) and seeds.reference != seeds.target:
        yield Notice("seed-differs", f"the seeds differ ({seeds.reference}, {seeds.target}); no random number was drawn in a compared step")


def _environment(trace: Trace) -> dict[str, Any]:
    found = trace.files[0].meta.get("environment")
    return found if isinstance(found, dict) else {}


def notices_of_steps(alignments: list[Alignment], parting: Parting) -> Iterator[Notice]:
    """Steps that one run alone has; no fault where they follow on generations that parted, of which one may be longer."""
    for alignment in alignments:
        yield from _steps(alignment, parting)


def _steps(alignment: Alignment, parting: Parting) -> Iterator[Notice]:
    if not alignment.steps:
        return
    for name, index, every in (("reference", 0, alignment.steps_all.reference), ("target", 1, alignment.steps_all.target)):
        compared = {pair[index] for pair in alignment.steps}
        alone = [step for step in range(min(compared), len(every)) if step not in compared and every[step] != NOT_RECORDED]
        if alone:
            word = "step" if len(alone) == 1 else "steps"
            shapes = list(dict.fromkeys(every[step] for step in alone))
            inputs = "; ".join(shapes[:_SHOWN]) + (f"; and {len(shapes) - _SHOWN} other inputs" if len(shapes) > _SHOWN else "")
            longer = alone[0] > max(compared) and parting.before(max(compared))
            after = "; its tokens had parted from the other's before" if longer else ""
            yield Notice(
                "steps-differ",
                f"the {name} ran {len(alone)} {word} that the other run did not: {word} {ranges(alone)}, of {inputs}{after}",
                defect=not longer,
            )


def _draws(traces: Both[Trace]) -> str | None:
    """In words: that random numbers were drawn during a forward, from other states. None where that is not known."""
    for reference, target in zip(traces.reference.files, traces.target.files, strict=False):
        drawn = Both(reference, target).map(_random_states)
        common = sorted(set(drawn.reference) & set(drawn.target), reverse=True)
        for step in common:
            ours, theirs = drawn.reference[step], drawn.target[step]
            if ours[0] != theirs[0] and (ours[0] != ours[1] or theirs[0] != theirs[1]):
                drawn_in = f"random numbers were drawn in step {step}, from different states of the generator"
                return f"{drawn_in}: seed both runs alike, or switch dropout off"
    return None


def _random_states(file: Any) -> dict[int, tuple[str, str]]:
    """State of the generators before and after each forward of a root."""
    found: dict[int, tuple[str, str]] = {}
    calls = file.calls
    for call in np.flatnonzero((calls.parent < 0) & (calls.kind == CallKind.MODULE)).tolist():
        detail = file.json(int(calls.detail[call]))
        random = detail.get("random") if isinstance(detail, dict) else None
        if isinstance(random, dict) and "before" in random and "after" in random:
            found[int(calls.step[call])] = (str(random["before"]), str(random["after"]))
    return found


def notices_of_values(
    evidence: Evidence,
    profile: Profile,
    explained: Collection[str],
    packed: Collection[str],
    parting: Parting,
    unfinished: Unfinished | None = None,
) -> Iterator[Notice]:
    """What inputs, dtypes, shapes and weights say.

    `explained`: weights of which something more exact is said. `packed`: roots whose tokens one run has without padding.
    `parting`: where generations go on with other tokens.
    `unfinished`: of a comparison in the making only what nothing that comes can withdraw.
    """
    measured = unfinished is None or unfinished.measured
    yield from _dtypes(evidence, profile)
    if measured:
        yield from notices_of_inputs(evidence, packed, parting)
    if unfinished is None:
        yield from notices_of_state(evidence, parting, profile)
        yield from notices_of_weights(evidence, explained, profile)
        yield from _flips(evidence)
        yield from (Notice("generations-part", str(choice), site=choice.site) for choice in parting.choices)
        yield from _results(evidence)
    if measured:
        yield from _too_short(evidence)


def _dtypes(evidence: Evidence, profile: Profile) -> Iterator[Notice]:
    pairs = evidence.pairs
    outputs = pairs["role"] == Role.OUTPUT
    keys = np.stack([pairs["reference_dtype"][outputs], pairs["target_dtype"][outputs]], axis=1)
    if not len(keys):
        return
    distinct, counts = np.unique(keys, axis=0, return_counts=True)
    reference, target = (evidence.texts[int(text)] or "" for text in distinct[np.argmax(counts)])
    if reference != target:
        yield Notice("dtype-mismatch", f"the reference computed in {reference}, the target in {target}", defect=profile.same_dtype)


def _flips(evidence: Evidence) -> Iterator[Notice]:
    rows = np.flatnonzero(evidence.sites["verdict"] == Verdict.FLIP).tolist()
    if rows:
        site = evidence.texts[int(evidence.sites["site"][rows[0]])] or ""
        more = f" and {len(rows) - 1} more calls" if len(rows) > 1 else ""
        after = _reached_by_integers(evidence, rows[0])
        beyond = f"; {after} calls that got other integers could not be judged" if after else ""
        yield Notice("flip", f"{site or 'the root'}{more}: {evidence.statement(rows[0], Verdict.FLIP)}{beyond}", site=site)


def _reached_by_integers(evidence: Evidence, row: int) -> int:
    """How many calls after `row` were handed integers that differ."""
    pairs = evidence.pairs
    differing = (pairs["role"] == Role.INPUT) & (pairs["mismatched"] > 0) & (pairs["source"] == Source.BYTES) & (pairs["site"] > row)
    return int(np.unique(pairs["site"][differing]).size)


def _results(evidence: Evidence) -> Iterator[Notice]:
    """A run whose results were not compared must not look like one whose results agree."""
    sites, pairs, texts = evidence.sites, evidence.pairs, evidence.texts
    paired = (sites["parent"] < 0) & (sites["reference_call"] >= 0) & (sites["target_call"] >= 0)
    unseen = np.flatnonzero(paired & (sites["verdict"] == Verdict.NOT_COMPARABLE)).tolist()
    if unseen:
        reason = (texts[int(sites["statement"][unseen[0]])] or "nothing of them was recorded").removeprefix(LEFT_TO_THRESHOLDS)
        more = f" ({len(unseen)} forwards)" if len(unseen) > 1 else ""
        site = texts[int(sites["site"][unseen[0]])] or ""
        yield Notice("results-not-compared", f"the results of the run were not compared{more}: {reason}", site=site)
    elif not len(pairs["site"]):
        yield Notice("results-not-compared", "no value of any site could be compared")


def _too_short(evidence: Evidence) -> Iterator[Notice]:
    """An input that cannot show a whole kind of faults: one token has no other position to attend to."""
    sites, pairs, texts = evidence.sites, evidence.pairs, evidence.texts
    if not len(pairs["site"]):
        return
    roots = (sites["parent"][pairs["site"]] < 0) & (pairs["role"] == Role.INPUT)
    shapes = [json.loads(texts[int(text)] or "[]") for text in np.unique(pairs["target_shape"][roots])]
    tokens = [shape for shape in shapes if len(shape) == 2]
    longer = any(len(shape) == 3 and shape[1] > 1 for shape in shapes)  # frames of a sound, what an encoder made
    if tokens and not longer and all(shape[1] == 1 for shape in tokens):
        yield Notice("input-too-short", "every input is one token long: faults of position, mask and attention scale cannot show")
