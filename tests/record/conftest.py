from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from layerdiff.trace.reader import TraceFile
from layerdiff.trace.schema import CallStatus, Role, ValueKind


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Recorded:
    """A trace, in the words that the tests use."""

    def __init__(self, path: Path) -> None:
        self.file = TraceFile(path)

    @property
    def meta(self) -> dict[str, Any]:
        return self.file.meta

    def __len__(self) -> int:
        return len(self.file.calls.kind)

    def column(self, name: str) -> list[int]:
        return [int(x) for x in getattr(self.file.calls, name)]

    @property
    def sites(self) -> list[str]:
        return [self.file.site(call) for call in range(len(self))]

    def find(self, site: str, step: int = 0, occurrence: int = 0) -> int:
        calls = self.file.calls
        found = [
            call
            for call, name in enumerate(self.sites)
            if name == site and calls.step[call] == step and calls.occurrence[call] == occurrence
        ]
        assert len(found) == 1, f"{site} step {step} occurrence {occurrence}: calls {found}"
        return found[0]

    def status(self, call: int) -> CallStatus:
        return CallStatus(int(self.file.calls.status[call]))

    def detail(self, call: int) -> dict[str, Any]:
        text = self.file.text(int(self.file.calls.detail[call]))
        assert text is not None
        return json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is not strict JSON"))

    def edges(self, call: int, role: Role | None = None) -> dict[str, int]:
        return {edge.position: edge.value for edge in self.file.edges_of(call) if role is None or edge.role == role}

    def array(self, call: int, position: str) -> np.ndarray:
        return self.file.read(self.edges(call)[position])

    def reason(self, value: int) -> str | None:
        return self.file.text(int(self.file.values.reason[value]))

    def value_detail(self, value: int) -> Any:
        text = self.file.text(int(self.file.values.detail[value]))
        return None if text is None else json.loads(text)

    def values_of_kind(self, kind: ValueKind) -> list[int]:
        return [value for value, k in enumerate(self.file.values.kind) if k == kind]


@pytest.fixture
def recorded() -> type[Recorded]:
    return Recorded
