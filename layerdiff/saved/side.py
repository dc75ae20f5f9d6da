"""`side_of`: a run of a comparison, as its trace describes it."""

from __future__ import annotations

from typing import Any

from layerdiff.saved.comparison import Side
from layerdiff.trace.reader import Trace


def side_of(trace: Trace) -> Side:
    """A run as its trace describes it."""
    environment = trace.files[0].meta.get("environment")
    environment = environment if isinstance(environment, dict) else {}
    files = tuple(file.path.name for file in trace.files)
    return Side(str(trace.path), environment, files, trace.complete, _label(environment, len(files)))


def _label(environment: dict[str, Any], files: int) -> str:
    """A few words for a header: class and dtype of the model, device, number of processes."""

    def first(key: str) -> dict[str, Any]:
        listed = environment.get(key)
        found = listed[0] if isinstance(listed, list) and listed else {}
        return found if isinstance(found, dict) else {}

    model, device = first("models"), first("devices")
    words = [model.get("class"), model.get("dtype"), device.get("type"), f"x{files}" if files > 1 else None]
    return " ".join(word for word in words if isinstance(word, str))
