"""Calls and what they differ in, in words: `add(1e-05)`, `add(1e-05), reference add(1e-06)`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from layerdiff.replay.recorded import Recorded

Named = tuple[tuple[int, int], str, dict[str, Any]]
"""The reference's call and the target's at which two programs part, the position of a result, and the evidence."""
_NEVER: Final = "never makes what"


def shown(run: Recorded, call: int) -> str:
    """An operator with its scalars: `add(1e-05)`."""
    operation = run.operation(call)
    name = operation.name.removeprefix("aten.").rpartition(".")[0]
    picture = operation.picture if isinstance(operation.picture, Mapping) else {}
    plain = [_text(item) for item in picture.get("args", [])] + [f"{k}={_text(v)}" for k, v in picture.get("kwargs", {}).items()]
    scalars = [text for text in plain if text and not text.endswith("=")]
    return f"{name}({', '.join(scalars)})" if scalars else name


def numbered(run: Recorded, call: int) -> str:
    """An operator and which one of its name it is in its module: `mm#2`."""
    name, _, number = run.file.site(call).rpartition("/")[2].partition("#")
    return f"{name.removeprefix('aten.').rpartition('.')[0]}#{number}"


def _text(thing: Any) -> str:
    if isinstance(thing, Mapping):
        return "" if "tensor" in thing else str(next(iter(thing.values()), ""))
    if isinstance(thing, list):
        return "" if any(isinstance(item, Mapping) for item in thing) else json.dumps(thing)
    return "" if thing is None else str(thing)


def never_makes(other: str, run: Recorded, call: int) -> str:
    """That one side, `other`, never makes what a call of the other's does: where they part, and no reason."""
    return f"the {other} {_NEVER} {shown(run, call)} makes"


def is_told(static: str | None) -> bool:
    """Whether what two calls differ in is said, and not only that they part there."""
    return static is not None and _NEVER not in static


def numbers_in(static: str) -> bool:
    """Whether a difference of two calls in words names a number that is no size as its reason: an epsilon, a scale."""
    return is_told(static) and any("." in text or "e" in text for text in re.findall(r"(?<![\w.])-?\d[\d.e+-]*", static))
