from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib.resources import files
from typing import Any

import jsonschema
import numpy as np
import pytest

from layerdiff.diagnose.findings import Notice, Origin
from layerdiff.judge.tables import Source, Verdict
from layerdiff.saved.as_json import number, strict, to_json
from layerdiff.saved.comparison import AlignmentSummary, Unpaired
from tests.comparisons import comparison
from tests.ranked import ATTENTION, four_ranks

NORM = "model.layers.3.input_layernorm"


def schema() -> Any:
    return json.loads(files("layerdiff.saved").joinpath("comparison.schema.json").read_text())


def assert_valid(value: Any) -> None:
    text = json.dumps(value, allow_nan=False)  # raises where it is not strict
    jsonschema.Draft202012Validator(schema()).validate(json.loads(text))


def test_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize("verdict", [Verdict.DEFECT, Verdict.UNEXPLAINED, Verdict.BROKEN, Verdict.PRECISION])
def test_every_kind_of_origin_is_valid(verdict: Verdict) -> None:
    value = to_json(comparison(layers=4, faults={NORM: verdict}))
    assert_valid(value)
    assert value["origins"][0]["verdict"] == verdict.label
    assert value["origins"][0]["site"] == NORM


def test_keys_of_the_contract_and_no_others() -> None:
    value = to_json(comparison(layers=4, faults={NORM: Verdict.DEFECT}))
    assert list(value) == [
        "schema",
        "verdict",
        "defect",
        "reference",
        "target",
        "profile",
        "notices",
        "origins",
        "alignment",
        "sites_total",
        "sites",
    ]
    assert value["schema"] == "layerdiff.comparison/1"
    assert list(value["sites"][0]) == [
        "site",
        "step",
        "occurrence",
        "rank",
        "value",
        "operator",
        "kind",
        "rel_l2",
        "max_abs",
        "local_sigma",
        "verdict",
        "measured",
        "allowed",
        "rule",
        "sampled",
    ]
    assert set(value["reference"]) == {"path", "environment"}


def test_schema_refuses_an_unknown_key() -> None:
    value = to_json(comparison(layers=2))
    value["sites"][0]["opinion"] = "fine"
    with pytest.raises(jsonschema.ValidationError, match="opinion"):
        assert_valid(value)


def test_identical_sites_are_not_listed_and_all_are_counted() -> None:
    made = comparison(layers=4, identical_layers=4)
    value = to_json(made)
    identical = int(np.sum(made.sites["verdict"] == Verdict.IDENTICAL))
    assert identical > 0
    assert value["sites_total"] == made.sites["verdict"].size
    assert len(value["sites"]) == made.sites["verdict"].size - identical
    assert "identical" not in {site["verdict"] for site in value["sites"]}


def test_bound_keeps_origins_first_and_then_the_worst() -> None:
    made = comparison(layers=6, faults={"model.layers.1.mlp": Verdict.PRECISION, "model.layers.4.self_attn": Verdict.DEFECT})
    value = to_json(made, sites=3)
    listed = [(site["site"], site["verdict"]) for site in value["sites"]]
    assert ("model.layers.1.mlp", "precision") in listed
    assert ("model.layers.4.self_attn", "defect") in listed
    assert len(listed) == 3
    assert to_json(made, sites=0)["sites"] == []
    assert len(to_json(made, sites=None)["sites"]) > 3


def test_an_origin_that_reads_identical_is_still_listed() -> None:
    made = comparison(layers=4, identical_layers=4)
    row = next(i for i, verdict in enumerate(made.sites["verdict"]) if verdict == Verdict.IDENTICAL)
    origin = Origin(row, "x", Verdict.RECONVERGES, "out", "meets again", None, None, "r", False)
    value = to_json(replace(made, origins=(origin,)), sites=1)
    assert len(value["sites"]) == 1
    assert value["sites"][0]["site"] == made.texts[int(made.sites["site"][row])]


def test_unknown_is_null_and_non_finite_is_a_string() -> None:
    made = comparison(layers=2, identical_layers=0)
    pairs = {name: column.copy() for name, column in made.pairs.items()}
    pairs["rel_l2"][0], pairs["max_abs"][0] = np.inf, np.nan
    pairs["source"][1] = Source.STATISTICS
    sites = to_json(replace(made, pairs=pairs))["sites"]
    assert sites[0]["site"] == ""
    assert (sites[0]["rel_l2"], sites[0]["max_abs"]) == ("inf", None)
    assert (sites[1]["rel_l2"], sites[1]["max_abs"]) == (None, None)
    assert sites[0]["local_sigma"] is None


def test_origin_without_numbers_and_with_evidence_of_any_kind() -> None:
    evidence = {"worst": np.float32(np.nan), "index": np.array([1, 2]), "verdict": Verdict.DEFECT, "pair": (1.0, math.inf), 3: {"x": None}}
    made = comparison(layers=2)
    origin = Origin(0, "", Verdict.BROKEN, "out", "nan", math.nan, None, "rule", True, evidence=evidence)
    value = to_json(replace(made, origins=(origin,)))
    assert_valid(value)
    assert value["origins"][0]["measured"] == "nan"
    assert value["origins"][0]["allowed"] is None
    assert value["origins"][0]["evidence"] == {"worst": "nan", "index": [1, 2], "verdict": "defect", "pair": [1.0, "inf"], "3": {"x": None}}


def test_notices_and_unpaired_calls() -> None:
    made = replace(
        comparison(layers=2, notices=[Notice("input-differs", "input ids differ in 3 of 128", None, True)]),
        alignment=AlignmentSummary(7, (Unpaired("a", "no partner"),), (Unpaired("b/aten.mm.default#0", "no partner"),)),
    )
    value = to_json(made)
    assert_valid(value)
    assert value["defect"] is True
    assert value["notices"] == [{"kind": "input-differs", "statement": "input ids differ in 3 of 128", "site": None, "defect": True}]
    assert value["alignment"] == {
        "paired": 7,
        "reference_only": [{"site": "a", "reason": "no partner"}],
        "target_only": [{"site": "b/aten.mm.default#0", "reason": "no partner"}],
    }


def test_source_values_are_of_kind_source() -> None:
    made = comparison(layers=2, identical_layers=0)
    pairs = {name: column.copy() for name, column in made.pairs.items()}
    pairs["position"][0] = made.texts.intern("source.attention_mask")
    assert [site["kind"] for site in to_json(replace(made, pairs=pairs))["sites"][:2]] == ["source", "module"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, None), (1.5, 1.5), (math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf"), (0.0, 0.0)],
)
def test_number(value: float | None, expected: object) -> None:
    assert number(value) == expected


def test_strict_leaves_booleans_alone() -> None:
    assert strict([True, np.bool_(False), 1, "x", None]) == [True, False, 1, "x", None]


def test_placements_of_many_ranks() -> None:
    value = to_json(four_ranks())
    assert_valid(value)
    sites = {site["site"]: site for site in value["sites"]}
    assert [
        {
            "value": "out",
            "placement": "sharded along 2, contiguous",
            "ranks": [{"rank": 0, "error": 1.2e-7}, {"rank": 1, "error": 1.1e-7}, {"rank": 2, "error": 0.3}, {"rank": 3, "error": 1.3e-7}],
            "agree": None,
        }
    ] == sites[f"{ATTENTION}.q_proj"]["placements"]
    assert [None] * 4 == [one["error"] for one in sites[f"{ATTENTION}.o_proj"]["placements"][0]["ranks"]]
    assert False is sites[ATTENTION]["placements"][0]["agree"]
    assert ["contiguous"] == sites[f"{ATTENTION}.v_proj"]["placements"][0]["also"]
    assert "placements" not in sites["model.layers.4.mlp"]
    assert value["origins"][0]["rank"] is None


def test_of_one_process_there_are_no_placements() -> None:
    value = to_json(comparison(layers=4, faults={NORM: Verdict.DEFECT}))
    assert not any("placements" in site for site in value["sites"])
