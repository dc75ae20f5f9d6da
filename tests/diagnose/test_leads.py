"""What a statement says beside the numbers: where NaNs are, and attributes that differ, as a lead and not as a proof."""

from __future__ import annotations

from captures.recording import HOME
from layerdiff.compare import compare_traces


def statement(case: str) -> str:
    (origin,) = compare_traces(HOME / case / "reference.h5", HOME / case / "target.h5").origins
    return origin.statement


def test_nans_are_located_and_the_rest_is_compared() -> None:
    """The first three tokens of 18 are masked: three rows of 64 elements."""
    assert statement("masked_row") == (
        "what it hands to layers.0.self_attn.o_proj (in[0]) is NaN at 192 of 1152 elements where the reference is finite: "
        "rows 0..2 of dim 1 are wholly NaN; the other elements agree exactly; its inputs and weights agree"
    )


def test_an_attribute_that_differs_is_a_lead() -> None:
    lead = "attribute differs: base is 500000, reference 10000 (likely cause, not proven)"
    assert statement("rope_base").startswith(f"{lead}; out[1] differs by ")
