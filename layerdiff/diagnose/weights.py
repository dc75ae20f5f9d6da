"""Notices of weights that differ, that one run keeps as codes, or that are rounded."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from layerdiff.diagnose.differing import differs_beyond_rounding, how_much
from layerdiff.diagnose.evidence import Evidence
from layerdiff.diagnose.findings import Notice
from layerdiff.judge.coded import coded_roundoff
from layerdiff.judge.profiles import Profile
from layerdiff.judge.tables import Source, of_another_form
from layerdiff.trace.schema import Role


def notices_of_weights(evidence: Evidence, explained: Collection[str], profile: Profile) -> Iterator[Notice]:
    """One for all weights that differ, one for those kept as codes, one for those rounded. As in `notices_of_values`."""
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
        if codes[pair] and (other_form[pair] or differs_beyond_rounding(evidence, pair)):
            coded.append((site, position, pair))
        elif other_form[pair] or differs_beyond_rounding(evidence, pair):
            differing.append((site, position, pair))
        elif not pairs["equal"][pair] and (pairs["source"][pair] == Source.BYTES or pairs["mismatched"][pair] == 0):
            rounded.append(f"{site}.{position}".lstrip("."))
        elif not pairs["equal"][pair] and pairs["source"][pair] == Source.STATISTICS:
            unsure.append(f"{site}.{position}".lstrip("."))
    if differing:
        site, position, pair = differing[0]
        how = "another shape" if other_form[pair] else how_much(evidence, pair)
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
