"""What meaning says of two functions: each the root of a model of its own, recorded and judged as one body."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from layerdiff.judge.meaning.judging import judge_body
from layerdiff.judge.programs.noise import Rounding
from layerdiff.judge.programs.setting import BodyVerdict, Setting
from tests.programs import prepared, random, record

X = random(4, 6) + 3
Function = Callable[..., Any]


class Of(nn.Module):
    def __init__(self, function: Function, **buffers: Tensor) -> None:
        super().__init__()
        self.function = function
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    def forward(self, x: Tensor) -> Any:
        return self.function(x, *self._buffers.values())


def say(
    folder: Path,
    reference: nn.Module | Function,
    target: nn.Module | Function,
    x: Tensor = X,
    dtypes: dict[str, str] | None = None,
    ours: Tensor = X,
    **options: Any,
) -> BodyVerdict:
    """What is said of the root's body. The reference is given `ours`, the target `x`."""
    one, other = (one if isinstance(one, nn.Module) else Of(one) for one in (reference, target))
    found = prepared(record(folder / "r.h5", one, ours), record(folder / "t.h5", other, x, **options))
    dtypes = dtypes or {"float32": "float32"}
    setting = Setting(found.runs, found.programs.contents, dtypes, Rounding(found.runs, dtypes))
    return judge_body(setting, found.body, found.incoming, found.wiring, found.programs.aligned)
