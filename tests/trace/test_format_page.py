"""docs/format.md: the reader that it shows reads a trace, and the columns that it lists are those of the schema."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerdiff.trace.schema import CALLS, EDGES, VALUES
from tests.trace.writing import write_derived, write_model

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page_reader() -> Any:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    namespace: dict[str, Any] = {}
    exec(compile(code, "docs/format.md", "exec"), namespace)
    return namespace["Trace"]


def test_the_reader_of_the_page_reads_small_and_large_values(tmp_path: Path, page_reader: Any) -> None:
    small, large = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(40_000, dtype=np.float32)
    path = write_model(tmp_path / "t.h5", {"a": ("Linear", small), "b": ("Linear", large)}, inputs=np.ones(3, np.float32))
    found = list(page_reader(path).outputs())
    assert [("a", None), ("b", None), ("", None)] == [(module, operator) for module, operator, _ in found]
    for (_, _, array), expected in zip(found, (small, large, large), strict=True):
        assert np.array_equal(array, expected)


def test_the_reader_of_the_page_reads_views_and_versions(tmp_path: Path, page_reader: Any) -> None:
    path, expected = write_derived(tmp_path / "t.h5")
    trace = page_reader(path)
    for value, array in expected.items():
        np.testing.assert_array_equal(array, trace.numpy(value))


def test_every_column_is_on_the_page() -> None:
    for table, columns in (("calls", CALLS), ("values", VALUES), ("edges", EDGES)):
        section = PAGE.split(f"### {table}:")[1].split("\n## ")[0].split("\n### ")[0]
        named = {name.strip() for row in re.findall(r"^\| ([a-z_, ]+) \|", section, flags=re.M) for name in row.split(",")}
        assert named - {"column"} == set(columns)
