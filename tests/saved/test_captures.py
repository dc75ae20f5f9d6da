"""Every capture's comparison: valid JSON, the same after saving, reported by every reporter."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest

import layerdiff
from layerdiff.report.formats import FORMATS

CAPTURES = sorted({path.parent for path in (Path(layerdiff.__file__).parent.parent / "captures").glob("*/target*")})


def test_there_are_captures() -> None:
    assert {"clean_bf16", "clean_tp4_bf16", "epsilon", "masked_row", "rope_base"} <= {folder.name for folder in CAPTURES}


@pytest.mark.parametrize("folder", CAPTURES, ids=lambda folder: folder.name)
def test_capture(folder: Path, tmp_path: Path) -> None:
    made = layerdiff.compare_traces(folder / "reference.h5", next(folder.glob("target*")))
    value = made.to_json(sites=None)
    schema = json.loads(files("layerdiff.saved").joinpath("comparison.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(json.loads(json.dumps(value, allow_nan=False)))
    read = layerdiff.open_comparison(made.save(tmp_path / "x.ldiff"))
    assert read.to_json(sites=None) == value
    for reporter in FORMATS.values():
        assert reporter(read) == reporter(made)
