"""Four processes of a gloo group, started once for all tests here; groups of two are made anew in them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from captures.processes import Processes


@pytest.fixture(scope="session")
def processes() -> Iterator[Processes]:
    with Processes(4) as started:
        yield started
