"""Origins that are one fault at many sites, as one: every norm of a model, every projection. The judge says which are (`repeats`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from layerdiff.diagnose.findings import Origin
from layerdiff.rows.figures import amount, exact
from layerdiff.rows.sites.patterns import tallied

GROUPING: Final = ("repeats", "also_at")
"""Evidence that a group says in its own words."""


@dataclass(frozen=True)
class Group:
    """The first origin of a fault in the order of the run, and its repeats."""

    origin: Origin
    others: tuple[Origin, ...] = ()

    @property
    def evidence(self) -> dict[str, Any]:
        """The first origin's evidence without what the group itself says."""
        return {name: value for name, value in self.origin.evidence.items() if not (self.others and name in GROUPING)}

    def repeats(self) -> str | None:
        """`the same at 12 more sites: layers.*.input_layernorm (5), norm; measured up to 3.02e-4`; None for a single one."""
        if not self.others:
            return None
        end = self.origin.site.partition("/")[2]
        sites = [other.site for other in self.others]
        named = tallied(path if operator == end else site for site in sites for path, _, operator in [site.partition("/")])
        measured = [other.measured for other in (self.origin, *self.others) if other.measured is not None]
        largest = f"; measured up to {exact(max(measured))}" if measured else ""
        return f"the same at {amount(len(self.others), 'more site')}: {named}{largest}"


def grouped(origins: Sequence[Origin]) -> list[Group]:
    """Groups in the order of their first origins; every origin is in one."""
    found: dict[Any, list[Origin]] = {}
    for number, origin in enumerate(origins):
        evidence = origin.evidence
        alike = (origin.verdict, origin.defect, origin.cause, origin.operator, str(evidence.get("static")), str(evidence.get("constant")))
        found.setdefault(alike if "repeats" in evidence else number, []).append(origin)
    return [Group(first, tuple(others)) for first, *others in found.values()]


def explained(origin: Origin) -> str:
    """The statement, led by the cause where it is a bare difference of two programs: `rmsnorm-eps: add(1e-05), reference add(1e-06)`."""
    bare = origin.cause is not None and origin.evidence.get("static") == origin.statement
    return f"{origin.cause}: {origin.statement}" if bare else origin.statement
