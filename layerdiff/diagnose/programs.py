"""Origins and notices of the exact judge: its findings, one origin a site, with the cause where the programs themselves show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from layerdiff.diagnose.findings import Notice, Origin
from layerdiff.judge.exact import is_defect
from layerdiff.judge.found import Found
from layerdiff.judge.local import Local
from layerdiff.judge.profiles import Profile
from layerdiff.judge.tables import Columns, Texts, Verdict
from layerdiff.trace.schema import CallKind

_SMALL: Final = 1e-2
"""An epsilon is smaller."""


def origins_of_programs(found: Sequence[Found], sites: Columns, texts: Texts, profile: Profile) -> tuple[Origin, ...]:
    """One origin a site and kind of finding, the worst of its calls first in the order of the run."""
    groups: dict[tuple[Any, ...], list[Found]] = {}
    for one in found:
        if not one.local.notice:
            key = (
                int(sites["site"][one.row]),
                int(sites["rank"][one.row]),
                one.local.rule.partition(",")[0],
                one.local.value.startswith("source"),
            )
            groups.setdefault(key, []).append(one)
    made = [_origin(group, sites, texts, profile) for group in groups.values()]
    return _with_repeats(sorted(made, key=lambda origin: origin.row))


def _origin(group: list[Found], sites: Columns, texts: Texts, profile: Profile) -> Origin:
    worst = max(group, key=lambda one: (int(one.local.verdict), one.local.measured))
    local, row = worst.local, worst.row
    cause, verdict = _named(local, sites, texts, row)
    shown = dict(local.evidence)
    if len(group) > 1:
        shown["calls"] = len(group)
        shown["steps"] = sorted({int(sites["step"][one.row]) for one in group})[:100]
    rank = int(sites["rank"][row])
    concerned = local.evidence.get("ranks")
    if isinstance(concerned, list):  # of a collective: those that are wrong, which the row does not say
        rank = int(concerned[0]) if len(concerned) == 1 else -1
    return Origin(
        row=row,
        site=texts[int(sites["site"][row])] or "",
        verdict=verdict,
        value=local.value,
        statement=local.statement,
        measured=local.measured,
        allowed=local.allowed,
        rule=local.rule,
        defect=is_defect(replace(local, verdict=verdict), profile),
        operator=texts[int(sites["operator"][row])],
        step=int(sites["step"][row]),
        occurrence=int(sites["occurrence"][row]),
        rank=None if rank < 0 else rank,
        cause=cause,
        evidence=shown,
    )


def _named(local: Local, sites: Columns, texts: Texts, row: int) -> tuple[str | None, Verdict]:
    """The cause that a static difference is, and the verdict with it."""
    if local.cause is not None or local.verdict != Verdict.UNEXPLAINED:
        return local.cause, local.verdict
    evidence = local.evidence
    if "constant" in evidence:
        return "weight-differs", Verdict.DEFECT
    if "static" not in evidence:
        return None, local.verdict
    static = str(evidence["static"])
    if evidence.get("missing") == "module":
        return "module-missing", Verdict.DEFECT
    if static.startswith("the target lacks"):
        return "operator-missing", Verdict.DEFECT
    if static.startswith("the target adds"):
        return "operator-added", Verdict.DEFECT
    if ", reference " not in static:
        return None, local.verdict
    parent = int(sites["parent"][row])
    owner = "" if parent < 0 else f"{texts[int(sites['type'][parent])]} {texts[int(sites['site'][parent])]}"
    names = [part.partition("(")[0].rstrip("_") for part in static.split(", reference ")]
    known = evidence.get("number")
    numbers = list(known.values()) if isinstance(known, Mapping) else _only_numbers(static)
    if "norm" in owner.lower() and _is_epsilon(names[0], numbers):
        return "rmsnorm-eps" if "rms" in owner.lower() else "norm-eps", Verdict.DEFECT
    if known is not None or len(set(names)) == 1:
        return "scalar-differs", Verdict.DEFECT
    return "operator-differs", Verdict.DEFECT


def _is_epsilon(name: str, numbers: Sequence[float]) -> bool:
    """Whether what differs between two calls in a norm is an epsilon: a small number that is added, or given to a fused norm."""
    return bool(numbers) and (name == "add" or name.endswith("norm")) and all(abs(number) < _SMALL for number in numbers)


def _only_numbers(static: str) -> list[float]:
    """The numbers of two calls that are given one each; none of others."""
    try:
        return [float(part.partition("(")[2].partition(")")[0]) for part in static.split(", reference ")]
    except ValueError:
        return []


def _with_repeats(origins: list[Origin]) -> tuple[Origin, ...]:
    """Origins with the same evidence at other sites say so: one fault often shows at every norm, or every projection."""
    groups: dict[tuple[Any, ...], list[Origin]] = {}
    for origin in origins:
        groups.setdefault(
            (origin.verdict, origin.cause, origin.operator, origin.evidence.get("static"), origin.evidence.get("constant")), []
        ).append(origin)
    shared = {id(origin): group for group in groups.values() if len(group) > 1 for origin in group}
    found = []
    for origin in origins:
        group = shared.get(id(origin))
        if group is None:
            found.append(origin)
            continue
        others = [other.site for other in group if other is not origin]
        found.append(replace(origin, evidence={**origin.evidence, "repeats": len(group), "also_at": others[:20]}))
    return tuple(found)


def notices_of_programs(found: Sequence[Found], sites: Columns, texts: Texts) -> tuple[Notice, ...]:
    """Decisions that hung by a rounding, ties, and differences below rounding."""
    kinds: dict[tuple[str, str], int] = {}
    made: list[Notice] = []
    for one in found:
        if not one.local.notice or "rearranged" in one.local.evidence:
            continue
        site = texts[int(sites["site"][one.row])] or ""
        key = (one.local.kind, site)
        kinds[key] = kinds.get(key, 0) + 1
        if kinds[key] == 1:
            made.append(Notice(one.local.kind, f"{site or 'the root'}: {one.local.statement}", site))
    return (*made, *_rearranged(found), *_not_judged(sites, texts))


def _rearranged(found: Sequence[Found]) -> Iterator[Notice]:
    """Weights that one run keeps transposed, or in another order, and that nothing is blamed for."""
    names = sorted(_rearranged_weights(found))
    if names:
        word = f"{len(names)} weights have" if len(names) > 1 else f"{names[0]} has"
        first = f", {names[0]} the first" if len(names) > 1 else ""
        statement = f"{word} the reference's elements in another order or shape{first}; what reads them computes the same"
        yield Notice("constant-rearranged", statement)


def _rearranged_weights(found: Sequence[Found]) -> set[str]:
    return {str(one.local.evidence["rearranged"]) for one in found if "rearranged" in one.local.evidence} - _blamed_weights(found)


def _blamed_weights(found: Sequence[Found]) -> set[str]:
    """Weights that a finding names, in the place of another or of their own."""
    blamed = [str(one.local.evidence.get("constant")) for one in found if not one.local.notice and "folded" not in one.local.evidence]
    return {name for text in blamed for name in text.split(" in place of ")}


def _not_judged(sites: Columns, texts: Texts) -> Iterator[Notice]:
    """Modules of which the programs could not be held against each other: what is wrong there is not told."""
    paired = (sites["reference_call"] >= 0) & (sites["target_call"] >= 0) & (sites["kind"] == CallKind.MODULE)
    rows = np.flatnonzero(paired & (sites["exact"] == Verdict.NOT_COMPARABLE)).tolist()
    named = list(dict.fromkeys(texts[int(sites["site"][row])] or "the root" for row in rows))
    if named:
        reason = texts[int(sites["statement"][rows[0]])] or "not recorded"
        more = f", and {len(named) - 1} more" if len(named) > 1 else ""
        yield Notice("not-judged", f"{named[0]}{more} could not be judged by its program: {reason}", named[0])


def explained_weights(found: Sequence[Found]) -> set[str]:
    """Weights of which a finding says something more exact than that they differ: in less precision, in another order, or folded."""
    rules = [one.local for one in found if one.local.rule == "constants"]
    exact = {str(local.evidence["constant"]) for local in rules if "constant" in local.evidence}
    folded = {str(name) for one in found for name in one.local.evidence.get("folded", ())}
    return exact | (folded - _blamed_weights(found)) | _rearranged_weights(found)
