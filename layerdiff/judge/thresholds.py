"""The judge without operands: thresholds on what each region adds.

A module is an origin when what leaves its region differs by more than rounding at the coarser dtype
and a bounded magnification of what came in can make. Thresholds are wrong both ways in principle (a
small fault under bfloat16 passes); every rule that was used says so by its name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.classes import CLASSES, FP32_ROUNDOFF, OTHER, ROTARY, STATISTICS_ROUNDOFF, module_class
from layerdiff.judge.coded import INT8, coded_roundoff
from layerdiff.judge.profiles import Profile
from layerdiff.judge.regions import Flags, Incoming, PairNumbers, Reals, Regions, Rows, regions
from layerdiff.judge.state import made_below, state_coming_in
from layerdiff.judge.tables import Columns, Source, Texts, Verdict, of_another_form
from layerdiff.trace.dtypes import dtype_named
from layerdiff.trace.schema import CallKind, Role

PEAK: Final = 4.0
"""The largest error of one element, over the largest element, may be this many times the relative L2 error."""
_TF32_ROUNDOFF: Final = 2.0**-11
_ROUNDED: Final = 0.5
"""Rounding changes many numbers by at most this much of the roundoff, in relative L2: rotary frequencies by up to 0.42 of it."""
_WHOLLY_WRONG: Final = 0.5
"""Relative difference of an output beyond what a few tokens that were dealt otherwise make of it."""
_MASK_AGREES: Final = 4.0
"""A boolean made from inputs that agree within this many roundoffs has no excuse to differ."""


@dataclass(frozen=True)
class Judged:
    """Columns of SITES that judging fills, and the region of each verdict's pair."""

    verdict: NDArray[np.uint8]
    pair: Rows
    measured: Reals
    allowed: Reals
    rule: NDArray[np.int32]


def judge_by_thresholds(sites: Columns, pairs: Columns, texts: Texts, profile: Profile) -> Judged:
    """Verdicts of all sites, from stored numbers alone. Sites already `not-comparable` keep that."""
    return _Judge(sites, pairs, texts, profile).run()


class _Judge:
    def __init__(self, sites: Columns, pairs: Columns, texts: Texts, profile: Profile) -> None:
        self._sites, self._pairs, self._texts, self._profile = sites, pairs, texts, profile
        self._count = len(sites["site"])
        self._site: Rows = pairs["site"].astype(np.int64)
        self._measured = np.isin(pairs["source"], (Source.BYTES, Source.STATISTICS))
        self._roundoff, self._is_float, self._is_bool = self._dtypes()
        self._l2, self._peak = self._differences()
        coded = coded_roundoff(pairs, texts) * self._other_weight(np.maximum(self._l2, self._peak / PEAK))
        self._coded: Reals = coded if "quantised" in profile.allow else np.zeros(len(coded))
        """Per pair: the roundoff of codes, where they are allowed."""
        self._unpaired: Flags = (sites["reference_call"] < 0) | (sites["target_call"] < 0)

    def _dtypes(self) -> tuple[Reals, Flags, Flags]:
        """Per pair: unit roundoff of the coarser side, whether either side is a float, whether both are booleans."""
        known = [dtype_named(text) for text in self._texts.all()]
        roundoff = np.array([d.unit_roundoff or 0.0 if d else 0.0 for d in known] + [0.0])
        floats = np.array([d is not None and d.kind in ("float", "complex") for d in known] + [False])
        booleans = np.array([d is not None and d.kind == "boolean" for d in known] + [False])
        r, t = self._pairs["reference_dtype"], self._pairs["target_dtype"]
        return np.maximum(roundoff[r], roundoff[t]), floats[r] | floats[t], booleans[r] & booleans[t]

    def _differences(self) -> tuple[Reals, Reals]:
        pairs = self._pairs
        l2 = np.where(pairs["source"] == Source.STATISTICS, pairs["statistic"], pairs["rel_l2"])
        with np.errstate(divide="ignore", invalid="ignore"):
            peak = pairs["max_abs"] / pairs["max_reference"]
        known = self._measured & self._is_float & (pairs["equal"] == 0)
        return np.where(known, np.nan_to_num(l2, nan=0.0, posinf=np.inf), 0.0), np.where(
            known, np.nan_to_num(peak, nan=0.0, posinf=np.inf), 0.0
        )

    def run(self) -> Judged:
        pairs = self._pairs
        differs = self._measured & (pairs["equal"] == 0)
        statistics = pairs["source"] == Source.STATISTICS
        discrete = differs & ~self._is_float & ((pairs["mismatched"] > 0) | statistics)
        nonfinite = self._measured & (pairs["nonfinite_differ"] > 0)
        difference = np.maximum(self._l2, self._peak / PEAK)
        unknown = (
            statistics & self._is_float & (difference > 0) & (pairs["role"] != Role.WEIGHT)
        )  # at least that, and nobody knows how much
        put_apart = (pairs["source"] == Source.NOTHING) & np.isinf(pairs["rel_l2"])  # parts of ranks that are not put together
        unknown |= put_apart
        apart = np.zeros(self._count, bool)
        apart[self._site[put_apart & (pairs["role"] != Role.WEIGHT)]] = True
        coming = np.where(self._other_weight(difference) | unknown, np.inf, difference)
        coming[self._coded > 0] = 0.0  # what they may be off is allowed below
        numbers = PairNumbers(self._site, pairs["role"], coming, discrete, nonfinite)
        state = state_coming_in(self._sites, pairs, self._texts, coming, nonfinite)
        region = regions(self._sites, numbers, state, self._unpaired, self._unseen_results(), apart)
        limits = _Limits(self, region)

        is_output = pairs["role"] == Role.OUTPUT
        parent = self._sites["parent"][self._site] if self._count else np.zeros(0, np.int64)
        module = self._sites["kind"][self._site] != CallKind.OPERATOR if self._count else np.zeros(0, bool)
        handed = (pairs["role"] == Role.INPUT) & (parent >= 0) & ~self._unpaired[self._site] & module
        owner = np.where(is_output, self._site, np.where(handed, parent, -1))
        leaves = (is_output | handed) & self._measured
        incoming = _choose(is_output, region.at_end, region.at_call, self._site)
        allowed = limits.allowed(owner, incoming.difference, self._weight_difference(coming)[np.maximum(owner, 0)], self._roundoff)

        allowed = np.where(is_output & region.hides[np.maximum(owner, 0)], np.maximum(allowed, _WHOLLY_WRONG), allowed)
        candidate = leaves & ~self._unpaired[np.maximum(owner, 0)] & ~incoming.nonfinite_differs
        broken = candidate & nonfinite & (pairs["nonfinite_target"] > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(difference > 0, difference / allowed, 0.0)
        over = candidate & self._is_float & ((ratio > 1) | (nonfinite & ~broken)) & ~incoming.discrete_differs
        decided = candidate & discrete & ~incoming.discrete_differs
        masks = decided & self._is_bool & (incoming.difference <= _MASK_AGREES * np.maximum(self._run_roundoff(), FP32_ROUNDOFF))
        no_float = ~self._float_comes_in(owner)
        nothing_differs = (incoming.difference == 0) & ~is_output
        counted = handed & (limits.class_number[self._site] == CLASSES.index(ROTARY))  # positions, which no float decides
        from_nothing = decided & (no_float | nothing_differs | counted)
        convicted = over | masks | from_nothing
        convicted &= ~made_below(self._sites, pairs, self._texts, owner, convicted)
        flips = decided & ~convicted

        verdict = self._base_verdicts(region, pairs["equal"] == 1)
        for flags, code in ((flips, Verdict.FLIP), (convicted, Verdict.UNEXPLAINED), (broken, Verdict.BROKEN)):
            rows = owner[flags]
            verdict[rows] = np.maximum(verdict[rows], int(code))
        return self._with_numbers(verdict, owner, leaves, ratio, allowed, broken, convicted, flips, limits)

    def _other_weight(self, difference: Reals) -> Flags:
        """Per pair: a weight that differs by more than rounding. It is named by a notice, and excuses its own module."""
        pairs = self._pairs
        rounded = np.where(pairs["reference_dtype"] == pairs["target_dtype"], 0.0, self._roundoff)
        shapes = of_another_form(pairs, self._texts)
        from_statistics = pairs["source"] == Source.STATISTICS
        rounded = rounded + np.where(from_statistics, STATISTICS_ROUNDOFF, 0.0)
        verified = np.where(from_statistics, pairs["mismatched"], -1)  # what fingerprints say, where bytes are not kept
        differs = np.where(verified < 0, difference > rounded, verified > 0)
        other: Flags = (pairs["role"] == Role.WEIGHT) & (differs | shapes)
        return other

    def _run_roundoff(self) -> float:
        """The coarsest roundoff that any float value of the two runs has."""
        used = self._roundoff[self._is_float & self._measured]
        return float(used.max()) if used.size else 0.0

    def _unseen_results(self) -> Flags:
        """Per site: a paired call that returned values of which none could be compared."""
        is_output = self._pairs["role"] == Role.OUTPUT
        compared = np.zeros(self._count, bool)
        compared[self._site[is_output & self._measured]] = True
        returned = np.zeros(self._count, bool)
        returned[self._site[is_output & (self._pairs["source"] != Source.PENDING)]] = True
        said: Flags = np.asarray(self._sites["statement"] >= 0)
        unseen: Flags = ~compared & (returned | said) & ~self._unpaired & (self._sites["kind"] == CallKind.MODULE)
        return unseen

    def _weight_difference(self, coming: Reals) -> Reals:
        """Per site: the worst difference of its own weights. Statistics bound a rounding from below only; its size bounds it from above."""
        pairs = self._pairs
        worst = np.zeros(self._count)
        weights = pairs["role"] == Role.WEIGHT
        rounded = (pairs["source"] == Source.STATISTICS) & (pairs["equal"] == 0)
        difference = np.maximum(coming, np.where(rounded, _ROUNDED * self._roundoff, 0.0))
        np.maximum.at(worst, self._site[weights], difference[weights])
        return worst if self._count else np.zeros(1)

    def _float_comes_in(self, owner: Rows) -> Flags:
        """Per pair: whether its region has any float among what comes in, from which a decision could be made."""
        has_float = np.zeros(self._count + 1, bool)
        has_float[self._site[self._is_float & (self._pairs["role"] != Role.OUTPUT)]] = True
        returned = self._site[self._is_float & (self._pairs["role"] == Role.OUTPUT)]
        has_float[self._sites["parent"][returned]] = True  # -1 falls on the spare last entry
        return has_float[owner]

    def _base_verdicts(self, region: Regions, equal: Flags) -> NDArray[np.uint8]:
        """Verdicts of sites in which nothing is wrong: by what came in and what went out."""
        outputs, differs_out, differs_in, known = (np.zeros(self._count, bool) for _ in range(4))
        is_output = self._pairs["role"] == Role.OUTPUT
        outputs[self._site[is_output]] = True
        known[self._site[is_output & self._measured]] = True
        differs_out[self._site[is_output & self._measured & ~equal]] = True
        differs_in[self._site[~is_output & self._measured & ~equal]] = True
        differs_in |= (region.at_end.difference > 0) | region.at_end.discrete_differs | region.at_end.nonfinite_differs
        differs = np.where(outputs, differs_out, differs_in)
        verdict = np.where(differs, np.where(differs_in, Verdict.INHERITED, Verdict.ORDER_CONSISTENT), Verdict.IDENTICAL).astype(np.uint8)
        settled = self._sites["verdict"] == Verdict.NOT_COMPARABLE
        pending = np.zeros(self._count, bool)
        pending[self._site[self._pairs["source"] == Source.PENDING]] = True
        unseen = ~known & (outputs | (self._sites["statement"] >= 0))
        verdict[unseen | settled | self._unpaired] = Verdict.NOT_COMPARABLE
        verdict[pending & ~settled] = Verdict.PENDING
        return verdict

    def _with_numbers(
        self,
        verdict: NDArray[np.uint8],
        owner: Rows,
        leaves: Flags,
        ratio: Reals,
        allowed: Reals,
        broken: Flags,
        convicted: Flags,
        flips: Flags,
        limits: _Limits,
    ) -> Judged:
        """The pair that decided each site: broken first, then convicted, then the nearest to its limit."""
        rank = np.where(broken, 3, np.where(convicted, 2, np.where(flips, 1, 0))).astype(float)
        chosen = np.full(self._count, -1, np.int64)
        candidates = np.flatnonzero(leaves & (owner >= 0) & ((self._pairs["role"] == Role.OUTPUT) | (rank > 0)))
        order = candidates[np.lexsort((-candidates, np.nan_to_num(ratio[candidates], posinf=1e300), rank[candidates]))]
        chosen[owner[order]] = order
        judged = (verdict != Verdict.NOT_COMPARABLE) & (verdict != Verdict.PENDING) & (chosen >= 0)
        chosen[~judged] = -1
        pair = np.maximum(chosen, 0)
        measured, limit = np.full(self._count, np.nan), np.full(self._count, np.nan)
        rule = np.full(self._count, -1, np.int32)
        if len(self._site):
            by_peak = self._peak[pair] / PEAK > self._l2[pair]
            relative = np.where(by_peak, self._peak[pair], self._l2[pair])
            elements = np.where(broken[pair], self._pairs["nonfinite_differ"][pair], self._pairs["mismatched"][pair])
            counted = broken[pair] | (~self._is_float[pair] & (elements >= 0))
            measured = np.where(judged, np.where(counted, elements, relative), np.nan)
            limit = np.where(judged, np.where(counted, 0.0, np.where(by_peak, PEAK, 1.0) * allowed[pair]), np.nan)
            rule = self._rules(judged, pair, by_peak, broken, convicted & ~self._is_float, flips, limits)
        return Judged(verdict, chosen, measured, limit, rule)

    def _rules(
        self, judged: Flags, pair: Rows, by_peak: Flags, broken: Flags, decided: Flags, flips: Flags, limits: _Limits
    ) -> NDArray[np.int32]:
        """The name of the rule that decided, interned: measure, class, dtype."""
        kind = np.where(broken[pair], 3, np.where(decided[pair], 2, np.where(flips[pair], 1, 0)))
        statistics = self._pairs["source"][pair] == Source.STATISTICS
        coarser = self._coarser_dtype()[pair]
        keys = np.stack([kind, by_peak, statistics, limits.class_number, coarser], axis=1).astype(np.int64)
        distinct, number = np.unique(keys, axis=0, return_inverse=True)
        names = []
        for what, peak, from_statistics, class_number, dtype in distinct.tolist():
            measure = "recorded statistics" if from_statistics else "largest element error" if peak else "relative L2"
            named = ("", "threshold: flip", "threshold: discrete values", "threshold: non-finite")[what]
            names.append(named or f"threshold: {measure}, {CLASSES[class_number].name}, {self._texts[dtype]}")
        interned = np.array([self._texts.intern(name) for name in names], np.int32)
        return np.where(judged, interned[number.reshape(-1)], -1).astype(np.int32)

    def _coarser_dtype(self) -> NDArray[Any]:
        """Per pair: the text of the dtype with the larger roundoff."""
        known = np.array([(d.unit_roundoff or 0.0) if (d := dtype_named(text)) else 0.0 for text in self._texts.all()] + [0.0])
        r, t = self._pairs["reference_dtype"], self._pairs["target_dtype"]
        return np.where(known[r] > known[t], r, t)


class _Limits:
    """What each region may add and magnify, by class, profile and the user's thresholds."""

    def __init__(self, judge: _Judge, region: Regions) -> None:
        self._judge = judge
        sites, texts = judge._sites, judge._texts
        operators = sites["kind"] != CallKind.MODULE
        keys = np.stack([sites["type"], region.has_children & ~region.lost_children], axis=1).astype(np.int64)
        distinct, number = np.unique(keys, axis=0, return_inverse=True)
        classes = [CLASSES.index(module_class(texts[type_text], has_children=bool(whole))) for type_text, whole in distinct.tolist()]
        found = np.array(classes, np.int64)[number.reshape(-1)] if classes else np.zeros(0, np.int64)
        lost = region.lost_children & region.has_children
        self.class_number = np.where(operators | lost, CLASSES.index(OTHER), found)

    def allowed(self, owner: Rows, incoming: Reals, weights: Reals, roundoff: Reals) -> Reals:
        """Per pair: the relative difference that its region may hand on. `weights`: the difference of the module's own."""
        if not len(owner):
            return np.zeros(0)
        number = self.class_number[np.maximum(owner, 0)]
        rounding, summing, gain = (np.array([getattr(c, name) for c in CLASSES])[number] for name in ("rounding", "summing", "gain"))
        coded = np.zeros(self._judge._count)
        np.maximum.at(coded, self._judge._site, self._judge._coded)
        floor = np.maximum(self._profile_floor(number), coded[np.maximum(owner, 0)])
        local = rounding * np.maximum(roundoff, floor) + summing * np.where(roundoff < FP32_ROUNDOFF, roundoff, FP32_ROUNDOFF)
        local, gain = self._users(owner, local, gain)
        with np.errstate(invalid="ignore"):  # an unknown difference times no position
            from_frequencies = np.where((number == CLASSES.index(ROTARY)) & (weights > 0), self._positions() * weights, 0.0)
        return local + np.maximum(gain * incoming, from_frequencies)

    def _profile_floor(self, number: Rows) -> Reals:
        """The roundoff that the profile tolerates in modules that multiply matrices."""
        allow = self._judge._profile.allow
        floor = INT8 if "quantised" in allow else _TF32_ROUNDOFF if "tf32" in allow else 0.0
        multiplies = np.array([c.name in ("linear", "attention", "other") for c in CLASSES])
        return np.where(multiplies[number], floor, 0.0)

    def _positions(self) -> Reals:
        """Per pair: the number of positions of its site's rotary table, by which an error of a frequency grows.

        The largest position that the site was ever handed, or the longest table that it made: a decoded token has a short
        table at a far position.
        """
        judge = self._judge
        pairs, texts = judge._pairs, judge._texts
        distinct, number = np.unique(pairs["target_shape"], return_inverse=True)
        shapes = [json.loads(texts[text] or "[]") for text in distinct.tolist()]
        longest = np.array([float(max(shape[:-1], default=1)) for shape in shapes])[number.reshape(-1)]
        handed = (pairs["role"] == Role.INPUT) & ~judge._is_float & judge._measured
        positions = np.where(handed, np.nan_to_num(pairs["max_reference"], nan=0.0, posinf=0.0) + 1, 0.0)
        where = judge._sites["site"][judge._site]  # one number a site, whatever the step
        most = np.ones(len(texts) + 1)
        np.maximum.at(most, where, np.maximum(longest, positions))
        return most[where]

    def _users(self, owner: Rows, local: Reals, gain: Reals) -> tuple[Reals, Reals]:
        """Limits after the user's thresholds; the first that matches a site holds."""
        judge = self._judge
        thresholds = judge._profile.thresholds
        if not thresholds:
            return local, gain
        coarser = judge._coarser_dtype()
        distinct, number = np.unique(judge._sites["site"], return_inverse=True)
        for threshold in reversed(thresholds):
            matching = np.array([threshold.matches(judge._texts[text] or "") for text in distinct.tolist()])
            chosen = matching[number.reshape(-1)][np.maximum(owner, 0)]
            if threshold.dtype is not None:
                chosen &= coarser == judge._texts.intern(threshold.dtype)
            if threshold.local is not None:
                local = np.where(chosen, threshold.local, local)
            if threshold.gain is not None:
                gain = np.where(chosen, threshold.gain, gain)
        return local, gain


def _choose(first: Flags, at_end: Incoming, at_call: Incoming, site: Rows) -> Incoming:
    """Per pair: incoming at the module's end for outputs, at its call for inputs."""
    return Incoming(
        np.where(first, at_end.difference[site], at_call.difference[site]),
        np.where(first, at_end.discrete_differs[site], at_call.discrete_differs[site]),
        np.where(first, at_end.nonfinite_differs[site], at_call.nonfinite_differs[site]),
    )
