"""Synthetic comparisons with operator calls: those of tests.comparisons, with calls put inside chosen modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from layerdiff.diagnose.findings import Origin
from layerdiff.judge.tables import Source, Verdict
from layerdiff.saved.comparison import Comparison
from layerdiff.trace.schema import CallKind, Role


@dataclass(frozen=True)
class Call:
    """One operator call: one output, one input."""

    operator: str
    verdict: Verdict = Verdict.INHERITED
    ratio: float = 0.05
    difference: float = 2.6e-2
    incoming: float = 2.6e-2
    side: Literal["both", "reference", "target"] = "both"
    statement: str | None = None
    cause: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)


NORM_CALLS = (
    Call("aten.pow.Tensor_Scalar", Verdict.IDENTICAL, 0.0, 0.0, 0.0),
    Call("aten.mean.dim", Verdict.ORDER_CONSISTENT, 0.4, 6e-8, 0.0),
    Call(
        "aten.add.Tensor", Verdict.DEFECT, 2.2, 8.9e-6, 6e-8, statement="add 1e-05 against add 1e-06: another epsilon", cause="rmsnorm-eps",
        evidence={
            "static difference": {"reference": "add 1e-06", "target": "add 1e-05"},
            "ladder": [
                {"name": "own replay", "measured": 0.8, "allowed": 1.5, "informative": 14},
                {"name": "meaning", "measured": 8.9e-6, "allowed": 2.0**-20, "decided": True},
            ],
            "fitted epsilon": 1.0009e-5,
        },
    ),
    Call("aten.rsqrt.default"),
    Call("npu.rms_norm.default", Verdict.NOT_COMPARABLE, side="target", statement="no call of the reference corresponds"),
    Call("aten.mul.Tensor"),
    Call("aten.mul.Tensor"),
)  # fmt: skip


def with_operators(base: Comparison, calls: Mapping[str, Sequence[Call]]) -> Comparison:
    """`base` with operator calls as the first children of some of its modules (in step 0)."""
    texts, names = base.texts, [base.texts[int(text)] for text in base.sites["site"]]
    wanted = {names.index(site): list(inner) for site, inner in calls.items()}
    old = len(names)
    new_of, rows = np.zeros(old, np.int64), 0
    for row in range(old):
        new_of[row] = rows
        rows += 1 + len(wanted.get(row, ()))
    sites = {
        name: np.full(rows, np.nan if column.dtype.kind == "f" else -1 if column.dtype.kind == "i" else 0, column.dtype)
        for name, column in base.sites.items()
    }
    for name, column in base.sites.items():
        sites[name][new_of] = column
    parent = base.sites["parent"]
    sites["parent"][new_of] = np.where(parent >= 0, new_of[parent], -1)
    pairs: dict[str, list[Any]] = {name: base.pairs[name].tolist() for name in base.pairs}
    pairs["site"] = new_of[base.pairs["site"]].tolist()
    origins = [replace(origin, row=int(new_of[origin.row])) for origin in base.origins]
    for module, inner in wanted.items():
        seen: dict[str, int] = {}
        for i, call in enumerate(inner):
            row = int(new_of[module]) + 1 + i
            number = seen[call.operator] = seen.get(call.operator, -1) + 1
            site = f"{names[module]}/{call.operator}#{number}"
            values: dict[str, Any] = {
                "site": texts.intern(site), "kind": CallKind.OPERATOR, "operator": texts.intern(call.operator), "step": 0, "occurrence": 0,
                "parent": new_of[module], "reference_file": 0, "target_file": 0, "verdict": call.verdict, "measured": call.ratio * 4e-6,
                "allowed": 4e-6, "rule": texts.intern("meaning: R64 against T64, per row"), "statement": texts.intern(call.statement),
                "reference_call": -1 if call.side == "target" else row, "target_call": -1 if call.side == "reference" else row,
            }  # fmt: skip
            for name, value in values.items():
                sites[name][row] = value
            if call.side != "both":
                sites["measured"][row] = sites["allowed"][row] = np.nan
                continue
            sites["pair"][row] = len(pairs["site"])
            for position, role, difference in (("out", Role.OUTPUT, call.difference), ("in[0]", Role.INPUT, call.incoming)):
                its: dict[str, Any] = {
                    "site": row, "role": role, "position": texts.intern(position), "reference_value": row, "target_value": row,
                    "reference_dtype": texts.intern("float32"), "target_dtype": texts.intern("bfloat16"), "count": 65536,
                    "reference_shape": texts.intern("[1, 128, 512]"), "target_shape": texts.intern("[1, 128, 512]"), "source": Source.BYTES,
                    "equal": difference == 0, "rel_l2": difference, "max_abs": difference * 3.7, "mismatched": -1,
                    "worst": 7 if difference else -1, "statistic": np.nan,
                }  # fmt: skip
                for name, column in pairs.items():
                    column.append(its.get(name, 0))
            if call.verdict in (Verdict.DEFECT, Verdict.UNEXPLAINED, Verdict.BROKEN):
                origins.append(
                    Origin(
                        row, site, call.verdict, "out", call.statement or "differs", call.ratio * 4e-6, 4e-6,
                        "meaning: R64 against T64, per row", True, call.operator, cause=call.cause, evidence=call.evidence,
                    )
                )  # fmt: skip
    columns = {name: np.array(column, base.pairs[name].dtype) for name, column in pairs.items()}
    return replace(base, sites=sites, pairs=columns, origins=tuple(sorted(origins, key=lambda origin: origin.row)))
