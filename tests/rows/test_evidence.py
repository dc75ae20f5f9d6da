"""Evidence as facts."""

from __future__ import annotations

from layerdiff.rows.evidence import facts


def test_nested_evidence_is_named_by_its_path() -> None:
    evidence = {
        "mode": "thresholds",
        "gain": 158.7,
        "attributes": {"variance_epsilon": {"reference": 1e-6, "target": 1e-5}},
        "fit": {"epsilon": 1.0009220674789265e-05, "rows": 18},
        "evil": "\x1b[2J",
        "none": None,
        "sites": ["a", "b"],
    }
    assert facts(evidence) == [
        "mode thresholds",
        "gain 158.7",
        "attributes variance_epsilon 1e-6 ⇄ 1e-5",
        "fit epsilon 1.000922e-5",
        "fit rows 18",
        "evil \\x1b[2J",
        "none none",
        "sites ['a', 'b']",
    ]


def test_a_long_list_of_facts_is_bounded() -> None:
    assert len(facts({str(i): i for i in range(1000)})) == 40
    assert len(facts({"text": "x" * 10_000})[0]) == len("text ") + 160


def test_what_was_handed_on_names_the_site_that_got_it() -> None:
    assert facts({"handed_to": {"site": "layers.0.self_attn.o_proj", "value": "in[0]"}}) == [
        "handed to layers.0.self_attn.o_proj, as its in[0]"
    ]
