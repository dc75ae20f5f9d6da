"""The two tables of a comparison, as columns: sites (one row per pair of calls) and pairs (one row per pair of values).

Columns and not objects, because a comparison may hold a million sites and the terminal has to paint
the first screen of it in a third of a second. Rows are never reordered: `parent` and `site` are row
numbers. TEXT columns hold indices into `Texts`, -1 for absent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.align.forms import same_form

TEXT: Final = np.dtype("<i4")
_ROW: Final = np.dtype("<i8")
_SMALL: Final = np.dtype("<i4")
_CODE: Final = np.dtype("u1")
_REAL: Final = np.dtype("<f8")

BEYOND: Final = "arithmetic: recorded over predicted spread"
"""The rule of a recorded value that lies further from what its program makes than rounding explains."""
BY_THRESHOLDS: Final = 255
"""In the column `exact`: operators say nothing here."""
LEFT_TO_THRESHOLDS: Final = "judged by thresholds: "
"""What the statement of a site begins with where operators were recorded, and could not say anything; why follows."""

_SAMPLED: Final = " rows sampled"
_FITS: Final = ("ranks: residual of an equality", "own replay, 5: ", "own replay, 6: ")

Columns = Mapping[str, NDArray[Any]]


def is_sampled(rule: str | None) -> bool:
    """Whether a rule says that it was applied to some of the rows (arithmetic/sampled.py), and not to every element."""
    return rule is not None and rule.endswith(_SAMPLED)


def of_another_form(pairs: Columns, texts: Texts) -> NDArray[np.bool_]:
    """Per pair: whether the two shapes are not forms of one thing (align/forms.py)."""
    found: NDArray[np.bool_] = np.asarray(pairs["reference_shape"] != pairs["target_shape"])
    known: dict[tuple[int, int], bool] = {}
    for pair in np.flatnonzero(found).tolist():
        both = int(pairs["reference_shape"][pair]), int(pairs["target_shape"][pair])
        if both not in known:
            one, other = (tuple(json.loads(texts[text] or "[]")) for text in both)
            known[both] = not same_form(one, other)
        found[pair] = known[both]
    return found


def is_fit(rule: str | None) -> bool:
    """Whether a rule's figure says how far an explanation is from what was recorded, and not how large what it explains is."""
    return rule is not None and rule.startswith(_FITS)


class Verdict(IntEnum):
    """What is said of a site, ordered from harmless to worst (the roll-up takes the maximum)."""

    IDENTICAL = 0
    INHERITED = 1
    ORDER_EXACT = 2
    ORDER_CONSISTENT = 3
    RECONVERGES = 4
    FLIP = 5
    NONDETERMINISTIC = 6
    PRECISION = 7
    UNEXPLAINED = 8
    DEFECT = 9
    BROKEN = 10
    NOT_COMPARABLE = 100
    """Counted beside: never rolls up."""
    PENDING = 101
    """Not judged yet; only while a comparison is being made."""

    @property
    def label(self) -> str:
        """The word used in JSON and on every screen."""
        return self.name.lower().replace("_", "-")


class Source(IntEnum):
    """What a pair's numbers were computed from."""

    BYTES = 0
    STATISTICS = 1
    """One side kept no bytes: recorded statistics, and fingerprints, are compared."""
    NOTHING = 2
    """Shapes do not match, or nothing was recorded: the site's statement says which."""
    PENDING = 3


class Again(IntEnum):
    """What a second run of the target says of a call: the column `again` of SITES."""

    UNKNOWN = 0
    SAME = 1
    DIFFERS = 2
    """Its results have other bits; what came in had other bits too, or a call inside it made them."""
    ENTERS = 3
    """The difference enters here."""
    NOISE = 4
    """It enters here, and the second run's local error is within what arithmetic allows."""


class Placing(IntEnum):
    """How the values of many ranks make up a logical tensor: the column `kind` of PLACED."""

    UNKNOWN = 0
    REPLICATED = 1
    SHARDED = 2
    PARTIAL = 3
    """They add up to it."""
    NESTED = 4
    """They form a grid: groups hold parts, and the ranks of each group its part in a way of their own."""


SITES: Final[dict[str, np.dtype[Any]]] = {
    "site": TEXT,  # contracts: <module path>[/<operator>#<n>], '' is the root
    "kind": _CODE,  # trace.schema.CallKind
    "type": TEXT,  # class of the module, reference's where both are known
    "operator": TEXT,
    "step": _SMALL,
    "occurrence": _SMALL,
    "rank": _SMALL,  # -1: one process, or the logical tensor of many
    "parent": _ROW,  # row of the enclosing call, -1 for roots
    "handed_state": _CODE,  # 1: it was handed an object, such as a cache, whose tensors an enclosing call's inputs already show
    "reference_file": _SMALL,
    "target_file": _SMALL,
    "reference_call": _ROW,  # -1: the target alone ran it
    "target_call": _ROW,  # -1: the reference alone ran it
    "verdict": _CODE,
    "pair": _ROW,  # the pair of values that decided, -1 for none
    "measured": _REAL,
    "allowed": _REAL,
    "rule": TEXT,
    "statement": TEXT,  # one sentence: the finding, or why it is not comparable
    "exact": _CODE,  # the verdict that operators give before findings, BY_THRESHOLDS where they say nothing
    "exact_measured": _REAL,
    "exact_allowed": _REAL,
    "exact_rule": TEXT,
    "local_sigma": _REAL,  # root mean square of the call's own excess over sigma
    "again": _CODE,  # what a second run of the target says: Again
    "again_rel_l2": _REAL,  # where noise enters: the difference of the two runs; nan elsewhere
    "baseline_rel_l2": _REAL,  # the baseline's largest rel_l2 of a result against the reference; nan without one
}

PAIRS: Final[dict[str, np.dtype[Any]]] = {
    "site": _ROW,
    "role": _CODE,  # trace.schema.Role
    "position": TEXT,  # out, out[1], in[0], in.attention_mask, weight, bias
    "reference_value": _ROW,
    "target_value": _ROW,
    "reference_dtype": TEXT,
    "target_dtype": TEXT,
    "reference_shape": TEXT,  # JSON list
    "target_shape": TEXT,
    "source": _CODE,
    "equal": _CODE,  # 1: the same bits
    "count": _ROW,  # elements compared
    "rel_l2": _REAL,  # sqrt(sum (t-r)^2 / sum r^2) over elements finite on both sides; nan if unknown
    "max_abs": _REAL,  # max |t-r|
    "rms_reference": _REAL,
    "max_reference": _REAL,  # max |r|
    "rms_difference": _REAL,
    "mismatched": _ROW,  # integers, booleans: how many elements differ; floats: -1. Of weights with statistics alone: 1 the
    # fingerprints say that they differ, 0 that one is the other rounded, -1 nothing
    "nonfinite_reference": _ROW,
    "nonfinite_target": _ROW,
    "nonfinite_differ": _ROW,  # elements whose class (finite, nan, +inf, -inf) differs
    "worst": _ROW,  # flat row-major index of max |t-r|, -1 for none
    "statistic": _REAL,  # largest relative difference of recorded statistics, where source is STATISTICS
}


PLACED: Final[dict[str, np.dtype[Any]]] = {
    "pair": _ROW,  # row of PAIRS, whose target is a logical tensor of many ranks
    "file": _SMALL,  # of the target
    "rank": _SMALL,
    "placement": TEXT,  # how the ranks' values make up the logical tensor
    "kind": _CODE,  # Placing
    "dim": _SMALL,  # of the logical tensor, along which parts lie; -1 where they do not
    "holds": TEXT,  # the places along it that this rank holds, as align.runs has them; absent where it holds all, or they are too many
    "also": TEXT,  # other readings that fit as well
    "error": _REAL,  # relative L2 of this rank's part against its part of the reference; nan where it has none of its own
    "agree": _CODE,  # 1: all ranks that hold the same places have the same numbers, 0: they differ, 2: none hold the same
}
"""One row a rank's part of a value; empty where each process is compared by itself."""


TEXT_COLUMNS: Final = frozenset(
    {
        *(("sites", name) for name in ("site", "type", "operator", "rule", "statement", "exact_rule")),
        *(("pairs", name) for name in ("position", "reference_dtype", "target_dtype", "reference_shape", "target_shape")),
        *(("placed", name) for name in ("placement", "holds", "also")),
    }
)
"""(table, column) of the columns that hold indices into `Texts`: their type alone is that of other small numbers too."""


class Texts:
    """Interned strings of one comparison. Index -1 reads as None."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._texts: list[str] = list(texts)
        self._index: dict[str, int] = {text: i for i, text in enumerate(self._texts)}

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int) -> str | None:
        return None if index < 0 else self._texts[index]

    def intern(self, text: str | None) -> int:
        """The index of `text`, added if new; -1 for None."""
        if text is None:
            return -1
        found = self._index.get(text)
        if found is None:
            found = self._index[text] = len(self._texts)
            self._texts.append(text)
        return found

    def all(self) -> list[str]:
        """Every text, in the order of its index."""
        return self._texts
