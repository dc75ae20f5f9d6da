"""Code of ours that torch's compiler leaves alone: it would compile whatever Python runs inside a region of its own.

torch's own way to say so imports the compiler, which takes seconds, and runs four more Python functions at each call.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

from torch._C._dynamo import eval_frame


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the compiler off, and back as it was when it returns."""

    def run(*args: Any, **kwargs: Any) -> Any:
        before = eval_frame.set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            eval_frame.set_eval_frame(before)

    run._torchdynamo_disable = True  # type: ignore[attr-defined]  # a mark that the compiler looks for
    _skip(run.__code__)
    return run


def compiles() -> bool:
    """Whether the compiler would compile the functions that are called now."""
    asked: Any = getattr(eval_frame, "get_eval_frame_callback", None)
    return asked is not None and callable(asked())


def _skip(code: CodeType) -> None:
    """Let the compiler leave this code alone."""
    skip: Any = getattr(eval_frame, "skip_code", None)
    if skip is not None:
        skip(code)
    elif hasattr(eval_frame, "set_code_exec_strategy"):
        action = eval_frame._FrameAction.SKIP
        eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(action, action))
