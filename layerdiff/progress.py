"""How far a long computation is, told to whoever listens: `listening` around it, `tell` inside.

What computes does not know who listens, and hands nothing through. A listener that raises stops it there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[int, int | None], None]
"""Is told what is done, and of how much; None where nobody knows yet."""
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Let `listener` hear of what this thread computes inside the block."""
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)


def tell(done: int, total: int | None = None) -> None:
    """Say how far it is; a total only where it is known."""
    listener = _listener.get()
    if listener is not None:
        listener(done, total)
