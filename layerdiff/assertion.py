"""`assert_same`: a comparison as a test's assertion. A thin raiser: everything it says is in the Comparison."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from layerdiff.compare import compare_traces
from layerdiff.saved.comparison import Comparison
from layerdiff.text.summary import summary

if TYPE_CHECKING:
    from layerdiff.judge.profiles import Profile


def assert_same(reference: str | Path, target: str | Path, *, profile: str | Path | Profile = "strict") -> Comparison:
    """Compare two traces, and return the comparison where it is no defect.

    Raises:
        AssertionError: `defect` is true; the message is the summary, and `comparison` is attached to it.
        LayerdiffError: they cannot be compared.
    """
    comparison = compare_traces(reference, target, profile=profile)
    if comparison.defect:
        raise DifferentError(comparison)
    return comparison


class DifferentError(AssertionError):
    """Two runs differ by more than the profile allows."""

    def __init__(self, comparison: Comparison) -> None:
        super().__init__("\n" + "\n".join(line.plain for line in summary(comparison)))
        self.comparison = comparison
