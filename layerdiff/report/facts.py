"""What every report says, as plain data: origins by site, how many sites of each verdict, environments that differ.

No markup here, and nothing made safe: each format escapes for itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from layerdiff.diagnose.findings import Origin
from layerdiff.judge.tables import Verdict
from layerdiff.rows.figures import against, amount, fits
from layerdiff.saved.as_json import strict
from layerdiff.saved.comparison import Comparison

ROOT = "(root)"
"""Shown for the root module, whose site is empty."""


def site_name(site: str) -> str:
    """A site as reports show it."""
    return site or ROOT


def verdict_counts(comparison: Comparison) -> list[tuple[Verdict, int]]:
    """How many sites have each verdict, worst first, those counted beside last."""
    counts = np.bincount(np.asarray(comparison.sites["verdict"]), minlength=256)
    present = [Verdict(int(code)) for code in np.flatnonzero(counts)]
    present.sort(key=lambda verdict: (verdict >= Verdict.NOT_COMPARABLE, -verdict))
    return [(verdict, int(counts[verdict])) for verdict in present]


def origins_by_site(comparison: Comparison) -> dict[str, list[Origin]]:
    """Origins, one entry a site, in the order in which they are reported."""
    by_site: dict[str, list[Origin]] = {}
    for origin in comparison.origins:
        by_site.setdefault(origin.site, []).append(origin)
    return by_site


def where(origin: Origin) -> str:
    """Step, occurrence and rank of an origin: `step 0, occurrence 2, rank 3`; what is 0 or single is left out after the step."""
    parts = [f"step {origin.step}"]
    if origin.occurrence:
        parts.append(f"occurrence {origin.occurrence}")
    if origin.rank is not None:
        parts.append(f"rank {origin.rank}")
    return ", ".join(parts)


def headline(comparison: Comparison) -> str:
    """The result in a few words, without names: `2 origins`, `no defect, worst verdict order-consistent`."""
    blamed = [origin for origin in comparison.origins if origin.defect]
    if blamed:
        return f"{amount(len(blamed), 'origin')} of a defect"
    notices = [notice for notice in comparison.notices if notice.defect]
    if notices:
        return ("" if comparison.reference is None else "the runs are not comparable as given: ") + ", ".join(
            dict.fromkeys(notice.kind for notice in notices)
        )
    return f"no defect, worst verdict {comparison.verdict.label}"


def measured_against(origin: Origin) -> str:
    """`measured 0.0492 of 0.012 allowed (output rel L2, bfloat16)`."""
    head = "" if fits(origin.measured, origin.allowed, origin.rule) else "measured "
    return f"{head}{against(origin.measured, origin.allowed, origin.rule)} ({origin.rule})"


@dataclass(frozen=True)
class Worst:
    """The pair of values that decided a site, in numbers."""

    value: str
    index: tuple[int, ...] | None
    """Of the largest difference; None where there is none."""
    shape: tuple[int, ...]
    dtypes: tuple[str, str]
    """Reference, target."""
    max_abs: float
    rel_l2: float
    count: int
    nonfinite: tuple[int, int]
    """Elements that are not finite: reference, target."""


def worst_of(comparison: Comparison, row: int) -> Worst | None:
    """The numbers of the pair that decided site `row`; None where no pair did."""
    if not 0 <= row < len(comparison.sites["pair"]):
        return None
    pair = int(comparison.sites["pair"][row])
    if pair < 0:
        return None
    pairs, texts = comparison.pairs, comparison.texts
    shape = tuple(json.loads(texts[int(pairs["reference_shape"][pair])] or "[]"))
    flat = int(pairs["worst"][pair])
    index = None
    if 0 <= flat < _size(shape):
        index = tuple(int(i) for i in np.unravel_index(flat, shape)) if shape else ()
    return Worst(
        value=texts[int(pairs["position"][pair])] or "",
        index=index,
        shape=shape,
        dtypes=(texts[int(pairs["reference_dtype"][pair])] or "", texts[int(pairs["target_dtype"][pair])] or ""),
        max_abs=float(pairs["max_abs"][pair]),
        rel_l2=float(pairs["rel_l2"][pair]),
        count=int(pairs["count"][pair]),
        nonfinite=(int(pairs["nonfinite_reference"][pair]), int(pairs["nonfinite_target"][pair])),
    )


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def flat(described: Mapping[str, Any]) -> dict[str, str]:
    """An environment or evidence as `a.b` -> text; floats with all their digits, lists as JSON."""
    found: dict[str, str] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping) and value:
            for key, item in value.items():
                walk(f"{prefix}.{key}" if prefix else str(key), item)
        else:
            plain = strict(value)
            found[prefix] = plain if isinstance(plain, str) else json.dumps(plain)

    walk("", described)
    found.pop("", None)
    return found


def environments(comparison: Comparison) -> tuple[list[tuple[str, str, str]], list[tuple[str, str]]]:
    """(key, reference, target) where the runs differ, and (key, both) where they do not; all are the latter without a reference."""
    target = flat(comparison.target.environment)
    if comparison.reference is None:
        return [], list(target.items())
    reference = flat(comparison.reference.environment)
    keys = dict.fromkeys((*reference, *target))
    differ = [(key, reference.get(key, "-"), target.get(key, "-")) for key in keys if reference.get(key) != target.get(key)]
    same = [(key, reference[key]) for key in keys if key in reference and reference[key] == target.get(key)]
    return differ, same
