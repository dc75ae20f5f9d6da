"""`with_verdicts`: what is said of a comparison, by the numbers that it stores; `judge_again`: of the same ones under another profile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.diagnose.evidence import Evidence
from layerdiff.diagnose.findings import Notice, Origin
from layerdiff.diagnose.generation import Parting
from layerdiff.diagnose.notices import NOTICES_OF_VALUES, notices_of_values
from layerdiff.diagnose.origins import find_origins
from layerdiff.diagnose.programs import explained_weights, notices_of_programs, origins_of_programs
from layerdiff.diagnose.ranks import with_ranks
from layerdiff.diagnose.reconverging import mark_reconverging
from layerdiff.diagnose.run_again import acquit, may_be_acquitted
from layerdiff.judge.exact import apply_exact
from layerdiff.judge.profiles import Profile, load_profile
from layerdiff.judge.second_run import apply_noise
from layerdiff.judge.tables import BY_THRESHOLDS, Texts, Verdict
from layerdiff.judge.thresholds import judge_by_thresholds
from layerdiff.judge.unfinished import Unfinished, stopped
from layerdiff.saved.comparison import Comparison

_BY_PROFILE: Final = ("dtype-mismatch", "weight-coded", "flip", "results-not-compared")
"""Notices that another profile may change; the others need the traces, and stay as they are."""
_ORDER: Final = {kind: i for i, kind in enumerate(NOTICES_OF_VALUES)}


def with_verdicts(
    comparison: Comparison, profile: Profile, files: Any, told: tuple[Notice, ...], parted: Parting, unfinished: Unfinished | None = None
) -> Comparison:
    """Verdicts, origins and notices of a measured comparison; `told`: notices that were said before, `parted`: where generations parted.

    `files`: the traces, where they are at hand. `unfinished`: of a comparison in the making what nothing that comes can withdraw.
    """
    sites, pairs, texts = dict(comparison.sites), comparison.pairs, comparison.texts
    found = judge_by_thresholds(sites, pairs, texts, profile)
    sites |= {"verdict": found.verdict, "pair": found.pair, "measured": found.measured, "allowed": found.allowed, "rule": found.rule}
    sites["verdict"] = mark_reconverging(sites, pairs, texts)
    evidence = Evidence(sites, pairs, texts, files)
    convicted = (sites["verdict"] == Verdict.UNEXPLAINED) & (sites["exact"] == BY_THRESHOLDS)
    blamed: list[int] = [] if files is None else np.flatnonzero(convicted).tolist()
    if unfinished is None and blamed:
        sites |= acquit(evidence, blamed, profile, evidence.of_one_process)
    by_thresholds = sites["exact"] == BY_THRESHOLDS
    origins = tuple(origin for origin in find_origins(evidence) if by_thresholds[origin.row])
    sites = apply_exact(sites, texts, comparison.found)
    told_by_programs = origins_of_programs(comparison.found, sites, texts, profile)
    if unfinished is not None:
        waits = unfinished.open_rows(sites)
        waits[[row for row in blamed if may_be_acquitted(evidence, row)]] = True
        sites["verdict"] = np.where(waits, np.uint8(Verdict.PENDING), sites["verdict"])
        origins = tuple(origin for origin in origins if not waits[origin.row])
    origins = with_ranks(sorted([*origins, *told_by_programs], key=lambda origin: origin.row), sites, comparison.placed)
    sites["verdict"], sites["statement"] = _with_findings(sites, texts, origins)
    evidence = Evidence(sites, pairs, texts, files)
    said: list[Notice] = []
    if comparison.reference is not None:
        packed = {notice.site or "" for notice in told if notice.kind in ("layout-packed", "layout-turned")}
        said += notices_of_values(evidence, profile, explained_weights(comparison.found), packed, parted, unfinished)
    said += notices_of_programs(comparison.found, sites, texts)
    return said_again(replace(comparison, profile=profile.to_json(), sites=sites, notices=(*told, *said), origins=origins))


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
    if before is None or before.cause is None or origin.cause is not None:
        return origin
    return replace(
        origin, cause=before.cause, statement=before.statement, verdict=before.verdict, defect=before.defect, evidence=before.evidence
    )


def said_again(comparison: Comparison) -> Comparison:
    """What a second run says, in the verdicts and among the origins; nothing where there was none."""
    if comparison.again is None:
        return comparison
    sites = apply_noise(comparison.sites, comparison.texts)
    known = {(origin.site, origin.rank) for origin in comparison.origins}
    more = [origin for origin in comparison.again.origins if (origin.site, origin.rank) not in known]
    origins = tuple(sorted([*comparison.origins, *more], key=lambda origin: origin.row))
    sites["verdict"], sites["statement"] = _with_findings(sites, comparison.texts, origins)
    return replace(comparison, sites=sites, origins=origins)


def judge_again(comparison: Comparison, *, profile: str | Path | Profile) -> Comparison:
    """The same numbers under another profile; needs no traces. Causes that were found stay with their origins."""
    chosen = load_profile(profile)
    made = with_verdicts(comparison, chosen, None, (), Parting(), stopped(comparison.sites))
    kept = [notice for notice in comparison.notices if notice.kind not in _BY_PROFILE]
    again = [notice for notice in made.notices if notice.kind in _BY_PROFILE]
    made = replace(made, notices=tuple(sorted([*kept, *again], key=lambda notice: _ORDER.get(notice.kind, -1))))
    found = {(origin.site, origin.rank): origin for origin in comparison.origins}
    return replace(made, origins=tuple(_with_cause(origin, found.get((origin.site, origin.rank))) for origin in made.origins))
