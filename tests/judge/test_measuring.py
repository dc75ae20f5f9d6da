"""Views are measured as the values that they are, however they lie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from layerdiff.judge.pairs.measuring import measure_values
from layerdiff.judge.tables import Source
from layerdiff.sides import Both
from layerdiff.trace.reader import TraceFile, open_trace
from layerdiff.trace.schema import Storage
from tests.programs import record


class Of(nn.Module):
    """A view of its input, read by a sum."""

    def __init__(self, view: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.view = view

    def forward(self, x: Tensor) -> Tensor:
        return self.view(x).sum()


def views(path: Path, x: Tensor, view: Callable[[Tensor], Tensor] = Tensor.t) -> tuple[TraceFile, int]:
    file = open_trace(record(path, Of(view), x)).files[0]
    found = np.flatnonzero(file.values.storage == Storage.VIEW)
    assert len(found)
    return file, int(found[-1])


def test_equal_views_of_equal_values_are_equal(tmp_path: Path) -> None:
    x = torch.arange(12.0).reshape(3, 4)
    (ours, r), (theirs, t) = views(tmp_path / "r.h5", x), views(tmp_path / "t.h5", x.clone())
    columns = measure_values(Both(ours, theirs), Both(r, t)).columns
    assert (1, 12, int(Source.BYTES)) == (columns["equal"], columns["count"], columns["source"])


def test_one_other_element_of_a_view_is_found_at_its_place_in_the_view(tmp_path: Path) -> None:
    x = torch.arange(12.0).reshape(3, 4)
    changed = x.clone()
    changed[2, 1] += 0.5
    (ours, r), (theirs, t) = views(tmp_path / "r.h5", x), views(tmp_path / "t.h5", changed)
    columns = measure_values(Both(ours, theirs), Both(r, t)).columns
    assert (0, 0.5) == (columns["equal"], columns["max_abs"])
    assert 1 * 3 + 2 == columns["worst"]  # [1, 2] of 4 rows of 3


def test_other_views_of_one_value_are_not_taken_for_equal(tmp_path: Path) -> None:
    x = torch.arange(9.0).reshape(3, 3)
    (ours, r), (theirs, t) = views(tmp_path / "r.h5", x, lambda x: x[:2, :2]), views(tmp_path / "t.h5", x, lambda x: x[1:, 1:])
    columns = measure_values(Both(ours, theirs), Both(r, t)).columns
    assert (0, 4.0) == (columns["equal"], columns["max_abs"])
