"""One terminal for all tests here, whatever the machine has."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def truecolor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of all colours."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("textual.app.constants.COLOR_SYSTEM", "truecolor")
