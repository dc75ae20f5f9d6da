"""Notices: what is said before any layer is blamed. Inputs, dtypes, shapes, weights, steps, seeds, and the recording itself."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.alignment import Alignment
from layerdiff.align.steps import NOT_RECORDED
from layerdiff.arithmetic.formats import format_named
from layerdiff.diagnose.evidence import Evidence
from layerdiff.diagnose.findings import Notice
from layerdiff.diagnose.generation import Parting
from layerdiff.diagnose.whereabouts import ranges
from layerdiff.judge.classes import STATISTICS_ROUNDOFF
from layerdiff.judge.coded import coded_roundoff
from layerdiff.judge.profiles import Profile
from layerdiff.judge.tables import LEFT_TO_THRESHOLDS, Source, Verdict, of_another_form
from layerdiff.judge.unfinished import Unfinished
from layerdiff.sides import Both
from layerdiff.trace.dtypes import dtype_named
from layerdiff.trace.reader import Trace
from layerdiff.trace.schema import CallKind, Role

_SHOWN: Final = 3
_DRAWN: Final = "; it began with the same: if a loop drew these tokens from the results, decode greedily, or feed both runs the same"
_LAYERS: Final = 32.0
"""Unit roundoffs that what a model keeps from step to step may lie apart. Measured, three layers and five steps: 1.6 in bf16, 2 in fp32."""
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
        yield from _inputs(evidence, packed, parting)
    if unfinished is None:
        yield from _weights(evidence, explained, profile)
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


def _inputs(evidence: Evidence, packed: Collection[str], parting: Parting) -> Iterator[Notice]:
    sites, pairs, texts = evidence.sites, evidence.pairs, evidence.texts
    if not len(pairs["site"]):
        return
    top = (sites["parent"][pairs["site"]] < 0) & (pairs["role"] == Role.INPUT) & (sites["kind"][pairs["site"]] == CallKind.MODULE)
    roots = top & ~_is_state(evidence, top)
    begins = _as_it_begins(evidence, top)
    other_form = of_another_form(pairs, texts)
    seen: set[tuple[str, str]] = set()
    for pair in np.flatnonzero(roots).tolist():
        row = int(pairs["site"][pair])
        position, step, site = texts[int(pairs["position"][pair])] or "", int(sites["step"][row]), texts[int(sites["site"][row])] or ""
        if other_form[pair]:
            if site in packed and position.endswith("attention_mask"):
                continue  # by it the tokens were told: what it lets through is judged where it is read
            kind = "shape-differs"
            shapes = f"{texts[int(pairs['reference_shape'][pair])]} against {texts[int(pairs['target_shape'][pair])]}"
            said = f"the input {position} of step {step} has another shape: {shapes}"
        elif _differs_beyond_rounding(evidence, pair):
            if pair in parting.given or _only_at_padding(evidence, row, pair) or _made_in_both(evidence, row, pair):
                continue
            made_here = begins.get((site, position), step) < step
            if made_here and (_within_what_layers_make(evidence, pair) or _follows_on(evidence, pair, parting, step)):
                continue
            kind = "input-differs"
            drawn = _DRAWN if made_here and int(pairs["mismatched"][pair]) > 0 else ""
            said = f"the input {position} of step {step} is not the same in both runs ({_how_much(evidence, pair)}){drawn}"
        else:
            continue
        if (kind, position) not in seen:
            seen.add((kind, position))
            yield Notice(kind, said, site=site, defect=True)


def _as_it_begins(evidence: Evidence, inputs: NDArray[np.bool_]) -> dict[tuple[str, str], int]:
    """By site and position of an input of a root: the first compared step, where it was absent there, or the same in both runs.

    What differs in a later step then comes out of the run itself: a cache that is handed in as plain tensors.
    """
    pairs, texts = evidence.pairs, evidence.texts
    rows, steps = np.asarray(pairs["site"]), np.asarray(evidence.sites["step"])
    places = [(texts[int(evidence.sites["site"][row])] or "", int(steps[row])) for row in rows.tolist()]
    chosen = np.flatnonzero(inputs).tolist()
    first: dict[str, int] = {}
    for pair in chosen:
        site, step = places[pair]
        first[site] = min(step, first.get(site, step))
    found: dict[tuple[str, str], int] = {}
    other: set[tuple[str, str]] = set()
    for pair in chosen:
        site, step = places[pair]
        key = site, texts[int(pairs["position"][pair])] or ""
        found[key] = first[site]
        if step == first[site] and not pairs["equal"][pair]:
            other.add(key)
    return {key: step for key, step in found.items() if key not in other}


def _within_what_layers_make(evidence: Evidence, pair: int) -> bool:
    """Whether two floats lie no further apart than what layers make of the same in the coarser of their dtypes."""
    dtypes = [dtype_named(evidence.texts[int(evidence.pairs[f"{side}_dtype"][pair])] or "") for side in ("reference", "target")]
    units = [dtype.unit_roundoff for dtype in dtypes if dtype is not None and dtype.kind == "float" and dtype.unit_roundoff is not None]
    return len(units) == 2 and float(evidence.pairs["rel_l2"][pair]) <= _LAYERS * max(units)


def _follows_on(evidence: Evidence, pair: int, parting: Parting, step: int) -> bool:
    """Whether floats are state, such as a cache in plain tensors, of generations that had parted before."""
    dtype = dtype_named(evidence.texts[int(evidence.pairs["target_dtype"][pair])] or "")
    return dtype is not None and dtype.kind == "float" and parting.before(step)


def _made_in_both(evidence: Evidence, row: int, pair: int) -> bool:
    """Whether an input of a root is what an earlier root returned, on both sides: an encoder's states, handed to the decoder."""
    for name in ("reference", "target"):
        found = evidence.side(name, row)
        if found is None:
            return False
        file, call = found
        value = int(evidence.pairs[f"{name}_value"][pair])
        roots = np.flatnonzero((file.calls.parent < 0) & (file.calls.kind == CallKind.MODULE))
        edges = file.edges
        if not np.any((edges.value == value) & (edges.role == Role.OUTPUT) & np.isin(edges.call, roots[roots < call])):
            return False
    return True


def _only_at_padding(evidence: Evidence, row: int, pair: int) -> bool:
    """Whether two inputs of a root differ at no position that its attention mask, the same on both sides, lets through."""
    pairs, texts = evidence.pairs, evidence.texts
    for other in evidence.pairs_of(row):
        position = texts[int(pairs["position"][other])] or ""
        if pairs["role"][other] != Role.INPUT or not position.endswith("attention_mask") or not pairs["equal"][other] or other == pair:
            continue
        mask = evidence.values(row, Role.INPUT, position)
        found = evidence.values(row, Role.INPUT, texts[int(pairs["position"][pair])] or "")
        if mask is None or found is None or mask.target.ndim != 2 or found.target.shape[:2] != mask.target.shape:
            continue
        kept = mask.target != 0
        return bool(np.array_equal(found.reference[kept], found.target[kept]))
    return False


def _is_state(evidence: Evidence, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Per pair: root inputs that are state of the run itself, such as a cache: held by an object, not handed in as tensors."""
    state = np.zeros(len(chosen), bool)
    held: dict[int, set[str]] = {}
    for pair in np.flatnonzero(chosen).tolist():
        row = int(evidence.pairs["site"][pair])
        if row not in held:
            held[row] = set(_held_by_objects(evidence.detail("target", row).get("arguments"), inside=False))
        state[pair] = evidence.texts[int(evidence.pairs["position"][pair])] in held[row]
    return state


def _held_by_objects(picture: Any, *, inside: bool) -> Iterator[str]:
    """Positions of the tensors that a recorded picture of arguments shows inside objects."""
    if isinstance(picture, dict):
        inside = inside or "object" in picture
        if inside and isinstance(picture.get("tensor"), str):
            yield picture["tensor"]
        for part in picture.values():
            yield from _held_by_objects(part, inside=inside)
    elif isinstance(picture, list):
        for part in picture:
            yield from _held_by_objects(part, inside=inside)


def _coarser(evidence: Evidence, pair: int) -> tuple[float, float]:
    """Of the coarser dtype where the two differ: its unit roundoff, and half of its smallest number. 0: equal dtypes need not differ."""
    names = [evidence.texts[int(evidence.pairs[f"{side}_dtype"][pair])] or "" for side in ("reference", "target")]
    formats = [format for format in map(format_named, names) if format is not None]
    if names[0] == names[1] or not formats:
        return 0.0, 0.0
    return max(format.unit for format in formats), max(format.smallest_subnormal for format in formats) / 2


def _differs_beyond_rounding(evidence: Evidence, pair: int) -> bool:
    pairs = evidence.pairs
    source = int(pairs["source"][pair])
    if source not in (Source.BYTES, Source.STATISTICS) or pairs["equal"][pair]:
        return False
    if pairs["nonfinite_differ"][pair] > 0 or (source == Source.BYTES and pairs["mismatched"][pair] > 0):
        return True
    roundoff, least = _coarser(evidence, pair)
    if source == Source.STATISTICS:
        verified = int(pairs["mismatched"][pair])
        return verified > 0 if verified >= 0 else not float(pairs["statistic"][pair]) <= roundoff + STATISTICS_ROUNDOFF
    sizes = (("max_abs", "max_reference"), ("rms_difference", "rms_reference"))
    return any(float(pairs[off][pair]) > roundoff * float(pairs[size][pair]) + least for off, size in sizes)


def _how_much(evidence: Evidence, pair: int) -> str:
    pairs = evidence.pairs
    if pairs["source"][pair] == Source.STATISTICS:
        known = "their checksums differ; " if pairs["mismatched"][pair] > 0 else ""
        return f"{known}mean, size or range differ by at least {float(pairs['statistic'][pair]):.2g}; the elements were not kept"
    if pairs["mismatched"][pair] > 0:
        return f"{int(pairs['mismatched'][pair])} of {int(pairs['count'][pair])} elements"
    if pairs["nonfinite_differ"][pair] > 0:
        return f"{int(pairs['nonfinite_differ'][pair])} elements are finite on one side only"
    return f"relative difference {float(pairs['rel_l2'][pair]):.2g}"


def _weights(evidence: Evidence, explained: Collection[str], profile: Profile) -> Iterator[Notice]:
    sites, pairs, texts = evidence.sites, evidence.pairs, evidence.texts
    differing: list[tuple[str, str, int]] = []
    rounded: list[str] = []
    unsure: list[str] = []
    coded: list[tuple[str, str, int]] = []
    codes = coded_roundoff(pairs, texts)
    known: set[tuple[str, str]] = set()
    other_form = of_another_form(pairs, texts)
    for pair in np.flatnonzero(pairs["role"] == Role.WEIGHT).tolist():
        site, position = texts[int(sites["site"][int(pairs["site"][pair])])] or "", texts[int(pairs["position"][pair])] or ""
        if (site, position) in known:
            continue
        known.add((site, position))
        if f"{site}.{position}".lstrip(".") in explained:
            continue
        if codes[pair] and (other_form[pair] or _differs_beyond_rounding(evidence, pair)):
            coded.append((site, position, pair))
        elif other_form[pair] or _differs_beyond_rounding(evidence, pair):
            differing.append((site, position, pair))
        elif not pairs["equal"][pair] and (pairs["source"][pair] == Source.BYTES or pairs["mismatched"][pair] == 0):
            rounded.append(f"{site}.{position}".lstrip("."))
        elif not pairs["equal"][pair] and pairs["source"][pair] == Source.STATISTICS:
            unsure.append(f"{site}.{position}".lstrip("."))
    if differing:
        site, position, pair = differing[0]
        how = "another shape" if other_form[pair] else _how_much(evidence, pair)
        more = f", and {len(differing) - 1} more" if len(differing) > 1 else ""
        yield Notice(
            "weight-differs",
            f"{f'{site}.{position}'.lstrip('.')} is not the same weight in both runs ({how}){more}",
            site=site,
            defect=True,
        )
    if coded:
        site, position, pair = coded[0]
        dtypes = [texts[int(pairs[f"{side}_dtype"][pair])] for side in ("reference", "target")]
        more = f", and {len(coded) - 1} more" if len(coded) > 1 else ""
        yield Notice(
            "weight-coded",
            f"{f'{site}.{position}'.lstrip('.')} is {dtypes[0]} in the reference and {dtypes[1]} in the target{more}: codes, which only"
            " operators hold against a weight (record --operators)",
            site=site,
            defect="quantised" not in profile.allow,
        )
    if rounded:
        yield Notice("constant-dtype", f"{len(rounded)} weights are the reference's rounded to the target's dtype, {rounded[0]} the first")
    if unsure:
        statement = (
            f"{len(unsure)} weights have the reference's statistics in another dtype, {unsure[0]} the first; --weights used compares them"
        )
        yield Notice("constant-dtype", statement)


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
