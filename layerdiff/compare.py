"""The flow, on one screen: open, align, pair, measure, judge, diagnose.

`compare_traces` returns when all is done; `compare_in_steps` hands out what is known so far, so that a
screen can be painted from the indexes at once; `judge_again` re-judges stored numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.aligning import align
from layerdiff.align.alignment import Alignment
from layerdiff.diagnose.evidence import Evidence
from layerdiff.diagnose.findings import Notice, Origin
from layerdiff.diagnose.notices import NOTICES_OF_VALUES, notices_of_traces, notices_of_values
from layerdiff.diagnose.origins import find_origins
from layerdiff.diagnose.programs import notices_of_programs, origins_of_programs
from layerdiff.diagnose.reconverging import mark_reconverging
from layerdiff.errors import ComparisonError
from layerdiff.judge.exact import Found, apply_exact, can_judge_exactly, judge_exactly
from layerdiff.judge.measuring import fill, total_bytes
from layerdiff.judge.pairing import Tables, add_file_pair, calls_of
from layerdiff.judge.profiles import Profile, load_profile
from layerdiff.judge.tables import BY_THRESHOLDS, Texts
from layerdiff.judge.thresholds import judge_by_thresholds
from layerdiff.saved.comparison import AlignmentSummary, Comparison, Side, Unpaired
from layerdiff.sides import Both
from layerdiff.trace.reader import Trace, open_trace

SNAPSHOT_SECONDS: Final = 0.5
"""How often a comparison in the making is judged again for the screen."""


@dataclass(frozen=True)
class Progress:
    """What is known so far: bytes read and bytes to read."""

    done: int
    total: int
    _judge: Callable[[], Comparison]

    @cached_property
    def comparison(self) -> Comparison:
        """The comparison as it stood when this was handed out; sites not reached are pending. Judged when asked for."""
        return self._judge()


def compare_traces(reference: str | Path, target: str | Path, *, profile: str | Path | Profile = "strict") -> Comparison:
    """Compare two traces.

    Raises:
        TraceError: one cannot be read.
        ProfileError: the profile is wrong.
        ComparisonError: nothing of the two pairs.
    """
    *_, last = compare_in_steps(reference, target, profile=profile)
    return last.comparison


def compare_in_steps(
    reference: str | Path, target: str | Path, *, profile: str | Path | Profile = "strict", snapshot_seconds: float = SNAPSHOT_SECONDS
) -> Iterator[Progress]:
    """Compare two traces, handing out the state at once, then every half second, then the result.

    A `Progress` has to be asked for its comparison before the next one is. Raises as `compare_traces`.
    """
    chosen = load_profile(profile)
    traces = Both(open_trace(reference), open_trace(target))
    tables, alignments = _align(traces, chosen)
    sites, pairs = tables.columns()
    files = traces.map(lambda trace: trace.files)
    told = tuple(notices_of_traces(traces, alignments))
    summary = _summary(alignments)

    found: list[Found] = []

    def judge() -> Comparison:
        described = _describe(traces, chosen, tables.texts, sites, pairs, summary)
        return _judged(replace(described, found=tuple(found)), chosen, files, told)

    total = total_bytes(pairs, sites, files)
    yield Progress(0, total, judge)
    last, done = time.monotonic(), 0
    for done in fill(pairs, sites, tables.texts, files):
        if time.monotonic() - last > snapshot_seconds:
            yield Progress(done, total, judge)
            last = time.monotonic()
    for numbers, _ in _file_pairs(traces):
        both = Both(files.reference[numbers.reference], files.target[numbers.target])
        reason = can_judge_exactly(both)
        if reason is not None:
            told = (*told, Notice("judged-by-thresholds", reason)) if reason else told
            continue
        before = list(found)
        rows = np.flatnonzero((sites["reference_file"] == numbers.reference) & (sites["target_file"] == numbers.target))
        for part, whole, here in judge_exactly(sites, pairs, tables.texts, both, rows):
            found[:] = [*before, *here]
            if time.monotonic() - last > snapshot_seconds:
                yield Progress(done + part, total + whole, judge)
                last = time.monotonic()
    yield Progress(total, total, judge)


def judge_again(comparison: Comparison, *, profile: str | Path | Profile) -> Comparison:
    """The same numbers under another profile; needs no traces. Causes that were found stay with their origins."""
    chosen = load_profile(profile)
    judged = _judged(comparison, chosen, None, ())
    kept = [notice for notice in comparison.notices if notice.kind not in _BY_PROFILE]
    again = [notice for notice in judged.notices if notice.kind in _BY_PROFILE]
    judged = replace(judged, notices=tuple(sorted([*kept, *again], key=lambda notice: _ORDER.get(notice.kind, -1))))
    found = {(origin.site, origin.rank): origin for origin in comparison.origins}
    return replace(judged, origins=tuple(_with_cause(origin, found.get((origin.site, origin.rank))) for origin in judged.origins))


_BY_PROFILE: Final = ("dtype-mismatch", "flip", "results-not-compared")
"""Notices that another profile may change; the others need the traces, and stay as they are."""
_ORDER: Final = {kind: i for i, kind in enumerate(NOTICES_OF_VALUES)}


def _align(traces: Both[Trace], profile: Profile) -> tuple[Tables, list[Alignment]]:
    tables, alignments = Tables(), []
    for numbers, rank in _file_pairs(traces):
        files = Both(traces.reference.files[numbers.reference], traces.target.files[numbers.target])
        calls = files.map(calls_of)
        alignment = align(calls.reference, calls.target, profile.renames)
        add_file_pair(tables, files, numbers, calls, alignment, rank=rank)
        alignments.append(alignment)
    if not any(len(alignment.pairs) for alignment in alignments):
        hints = [remark for alignment in alignments for remark in alignment.remarks]
        hints += [
            f"try the rename rule target = '{rule.target}', reference = '{rule.reference}'" for a in alignments for rule in a.proposed
        ]
        said = "".join(f"\n  {hint}" for hint in hints)
        raise ComparisonError(
            f"Nothing of {traces.reference.path} and {traces.target.path} pairs: no site has the same name, step and call.{said}"
        )
    return tables, alignments


def _file_pairs(traces: Both[Trace]) -> list[tuple[Both[int], int | None]]:
    """Which file goes with which: one against each of many, else by rank, in order within a rank."""
    reference, target = traces.reference.files, traces.target.files
    if len(reference) == len(target) == 1:
        return [(Both(0, 0), None)]
    if len(reference) == 1:
        return [(Both(0, i), file.rank) for i, file in enumerate(target)]
    left = {i: file.rank for i, file in enumerate(reference)}
    pairs: list[tuple[Both[int], int | None]] = []
    for j, file in enumerate(target):
        i = next((i for i, rank in left.items() if rank == file.rank), None)
        if i is not None:
            del left[i]
            pairs.append((Both(i, j), file.rank))
    if not pairs:
        raise ComparisonError(f"{traces.reference.path} and {traces.target.path} have no rank in common.")
    return pairs


def _judged(comparison: Comparison, profile: Profile, files: Any, told: tuple[Notice, ...]) -> Comparison:
    sites, pairs, texts = dict(comparison.sites), comparison.pairs, comparison.texts
    judged = judge_by_thresholds(sites, pairs, texts, profile)
    sites |= {"verdict": judged.verdict, "pair": judged.pair, "measured": judged.measured, "allowed": judged.allowed, "rule": judged.rule}
    sites["verdict"] = mark_reconverging(sites, pairs, texts)
    by_thresholds = sites["exact"] == BY_THRESHOLDS
    evidence = Evidence(sites, pairs, texts, files)
    origins = tuple(origin for origin in find_origins(evidence) if by_thresholds[origin.row])
    sites = apply_exact(sites, texts, comparison.found, profile)
    told_by_programs = origins_of_programs(comparison.found, sites, texts, profile)
    origins = tuple(sorted([*origins, *told_by_programs], key=lambda origin: origin.row))
    sites["verdict"], sites["statement"] = _with_findings(sites, texts, origins)
    said = (*notices_of_values(Evidence(sites, pairs, texts, files), profile), *notices_of_programs(comparison.found, sites, texts))
    return replace(comparison, profile=profile.to_json(), sites=sites, notices=(*told, *said), origins=origins)


def _with_findings(sites: dict[str, NDArray[Any]], texts: Texts, origins: tuple[Origin, ...]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Verdict and statement of each site, with what was found at the origins; further calls of an origin's site say the same."""
    verdict, statement = sites["verdict"].copy(), sites["statement"].copy()
    for origin in origins:
        same = (
            (sites["site"] == sites["site"][origin.row]) & (sites["rank"] == sites["rank"][origin.row]) & (verdict == verdict[origin.row])
        )
        statement[same] = texts.intern(origin.statement)
        verdict[same] = int(origin.verdict)
    return verdict, statement


def _with_cause(origin: Origin, before: Origin | None) -> Origin:
    if before is None or before.cause is None:
        return origin
    return replace(
        origin, cause=before.cause, statement=before.statement, verdict=before.verdict, defect=before.defect, evidence=before.evidence
    )


def _describe(traces: Both[Trace], profile: Profile, texts: Texts, sites: Any, pairs: Any, summary: AlignmentSummary) -> Comparison:
    sides = traces.map(_side)
    return Comparison(sides.reference, sides.target, profile.to_json(), texts, dict(sites), pairs, alignment=summary)


def _side(trace: Trace) -> Side:
    environment = trace.files[0].meta.get("environment")
    environment = environment if isinstance(environment, dict) else {}
    files = tuple(file.path.name for file in trace.files)
    return Side(str(trace.path), environment, files, trace.complete, _label(environment, len(files)))


def _label(environment: dict[str, Any], files: int) -> str:
    """A few words for a header: class and dtype of the model, device, number of processes."""

    def first(key: str) -> dict[str, Any]:
        listed = environment.get(key)
        found = listed[0] if isinstance(listed, list) and listed else {}
        return found if isinstance(found, dict) else {}

    model, device = first("models"), first("devices")
    words = [model.get("class"), model.get("dtype"), device.get("type"), f"x{files}" if files > 1 else None]
    return " ".join(word for word in words if isinstance(word, str))


def _summary(alignments: list[Alignment]) -> AlignmentSummary:
    def alone(name: str) -> tuple[Unpaired, ...]:
        return tuple(Unpaired(getattr(a.sites, name)[call], reason) for a in alignments for call, reason in getattr(a, f"{name}_only"))

    first = alignments[0]
    remarks = list(dict.fromkeys(remark for alignment in alignments for remark in alignment.remarks))
    remarks += [f"a rename rule would pair more: target = '{rule.target}', reference = '{rule.reference}'" for rule in first.proposed]
    return AlignmentSummary(
        sum(len(alignment.pairs) for alignment in alignments),
        alone("reference"),
        alone("target"),
        first.steps,
        first.steps_all,
        tuple(remarks),
    )
