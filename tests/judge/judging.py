"""Tables of a comparison written by hand, for tests of the judge: numbers in, verdicts out."""

from __future__ import annotations

from typing import Any

import numpy as np

from layerdiff.judge.profiles import Profile
from layerdiff.judge.tables import PAIRS, SITES, Source, Texts, Verdict
from layerdiff.judge.thresholds import Judged, judge_by_thresholds
from layerdiff.trace.schema import Role


class Tables:
    def __init__(self) -> None:
        self.texts = Texts()
        self.sites: dict[str, list[Any]] = {name: [] for name in SITES}
        self.pairs: dict[str, list[Any]] = {name: [] for name in PAIRS}

    def site(self, name: str, type: str, parent: int = -1, **fields: Any) -> int:
        row = {
            "site": self.texts.intern(name),
            "type": self.texts.intern(type),
            "parent": parent,
            "rank": -1,
            "verdict": int(Verdict.PENDING),
            "pair": -1,
            "measured": np.nan,
            "allowed": np.nan,
            "rule": -1,
            "statement": -1,
            "operator": -1,
            **fields,
        }
        for column in SITES:
            self.sites[column].append(row.get(column, 0))
        return len(self.sites["site"]) - 1

    def pair(
        self, site: int, role: Role, rel_l2: float | None, *, dtype: str = "float32", target_dtype: str | None = None, **fields: Any
    ) -> int:
        """A pair of values: `rel_l2` None is bit equality."""
        equal = rel_l2 is None
        row = {
            "site": site,
            "role": int(role),
            "position": self.texts.intern("out" if role == Role.OUTPUT else "in[0]" if role == Role.INPUT else "weight"),
            "reference_dtype": self.texts.intern(dtype),
            "target_dtype": self.texts.intern(target_dtype or dtype),
            "reference_shape": self.texts.intern("[4,8]"),
            "target_shape": self.texts.intern("[4,8]"),
            "source": int(Source.BYTES),
            "equal": int(equal),
            "count": 32,
            "rel_l2": rel_l2 or 0.0,
            "max_abs": rel_l2 or 0.0,
            "max_reference": 1.0,
            "rms_reference": 1.0,
            "mismatched": -1,
            "worst": -1,
            "statistic": np.nan,
            **fields,
        }
        for column in PAIRS:
            self.pairs[column].append(row.get(column, 0))
        return len(self.pairs["site"]) - 1

    def columns(self) -> tuple[dict[str, Any], dict[str, Any]]:
        sites = {name: np.array(self.sites[name], dtype) for name, dtype in SITES.items()}
        return sites, {name: np.array(self.pairs[name], dtype) for name, dtype in PAIRS.items()}

    def judge(self, profile: Profile | None = None) -> Judged:
        return judge_by_thresholds(*self.columns(), self.texts, profile or Profile("strict"))


def one_module(type: str, into: float | None, out: float | None, **fields: Any) -> Tables:
    tables = Tables()
    row = tables.site("m", type)
    tables.pair(row, Role.INPUT, into, **{k: v for k, v in fields.items() if k in ("dtype", "target_dtype")})
    tables.pair(row, Role.OUTPUT, out, **fields)
    return tables
