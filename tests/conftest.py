"""Fixtures of all folders."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Records a model with operators, into a file of its own."""
    from tests.programs import record  # imports torch, which few folders need

    folder, numbers = tmp_path_factory.mktemp("traces"), count()
    return lambda model, *inputs, **options: record(folder / f"{next(numbers)}.h5", model, *inputs, **options)
