"""docs/format.md: the reader that it shows reads a trace, and the columns that it lists are those of the schema."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from layerdiff.trace.schema import CALLS, EDGES, VALUES
from tests.trace.writing import write_model

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")


def test_the_reader_of_the_page_reads_small_and_large_values(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    namespace: dict[str, Any] = {}
    exec(compile(code, "docs/format.md", "exec"), namespace)
    small, large = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(40_000, dtype=np.float32)
    path = write_model(tmp_path / "t.h5", {"a": ("Linear", small), "b": ("Linear", large)}, inputs=np.ones(3, np.float32))
    found = list(namespace["outputs"](path))
    assert [name for name, _ in found] == ["a", "b", ""]
    for (_, array), expected in zip(found, (small, large, large), strict=True):
        assert np.array_equal(array, expected)


def test_every_column_is_on_the_page() -> None:
    for table, columns in (("calls", CALLS), ("values", VALUES), ("edges", EDGES)):
        section = PAGE.split(f"### {table}:")[1].split("\n## ")[0].split("\n### ")[0]
        named = {name.strip() for row in re.findall(r"^\| ([a-z_, ]+) \|", section, flags=re.M) for name in row.split(",")}
        assert named - {"column"} == set(columns)
