"""`attention-scale`, `rope-interleaved`, `gqa-head-order`, `mask-off-by-one`: attention that makes something else of what it is given.

The reference's form (how positions are turned, what is seen, how heads share keys, the scale) makes the reference's own result. The cause
is named where a form that differs from it in one thing makes the target's result of the target's queries, keys and values.
"""

from __future__ import annotations

from typing import Final

from layerdiff.diagnose.attention_given import told_of_attention
from layerdiff.diagnose.causes.found import Found
from layerdiff.diagnose.evidence import Evidence
from layerdiff.judge.attention_forms import Told
from layerdiff.judge.classes import ATTENTION, module_class
from layerdiff.trace.schema import Role

SAMPLE: Final = 1 << 17
"""Scores that are computed."""
_TURNS: Final = {
    "halves": "positions turn halves of a head's channels",
    "pairs": "positions turn pairs of neighbours",
    "back": "positions turn the other way",
    "queries": "positions turn queries only",
    "keys": "positions turn keys only",
    "none": "positions turn nothing",
}


def explain(evidence: Evidence, row: int) -> Found | None:
    """Name the cause where the module is attention, and what it hands to its last product is what is wrong."""
    if module_class(evidence.texts[int(evidence.sites["type"][row])], has_children=True) is not ATTENTION:
        return None
    made = handed_on(evidence, row)
    if made is None or made != int(evidence.sites["pair"][row]):
        return None
    told = next(iter(told_of_attention(evidence, row, made, evidence.of_one_process, SAMPLE)), None)
    cause, said = (None, "") if told is None else named_by_form(told)
    if told is None or cause is None:
        return None
    return Found(cause, said, {"error": told.error, "roundings_make": told.allowed, "rows": told.beyond, "rows_looked_at": told.rows})


def handed_on(evidence: Evidence, row: int) -> int | None:
    """The pair that attention hands to the last module inside, its output projection."""
    children = evidence.children(row)
    inputs = [pair for pair in (evidence.pairs_of(children[-1]) if children else []) if evidence.pairs["role"][pair] == Role.INPUT]
    return inputs[0] if len(inputs) == 1 else None


def named_by_form(told: Told) -> tuple[str | None, str]:
    """The cause, where one other thing makes the target's result, and in words."""
    ours, theirs = told.form, told.other
    if theirs is None:
        return None, "computes something else of its queries, keys and values"
    if ours.scale != theirs.scale:
        return "attention-scale", f"scores are scaled by {theirs.scale:.3g}, reference {ours.scale:.3g} (fitted)"
    if ours.tiled != theirs.tiled:
        return "gqa-head-order", "heads share keys in another order"
    if ours.turns != theirs.turns:
        cause = "rope-interleaved" if {ours.turns, theirs.turns} == {"halves", "pairs"} else None
        return cause, f"{_TURNS[theirs.turns]}, reference: {_TURNS[ours.turns]}"
    if theirs.later is None:
        return None, "each query sees all keys, also later ones"
    if ours.later is None and theirs.later == 0:
        return None, "no query sees later keys, which it sees in the reference"
    return "mask-off-by-one", "each query sees one key too many" if theirs.later == 1 else "each query sees one key too few: not its own"
