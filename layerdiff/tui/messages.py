"""What workers tell the screen. Workers hold no state and touch no widget; the handlers own both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from textual.message import Message

from layerdiff.saved.comparison import Comparison


class Progress(Protocol):
    """A state of a running comparison, as compare.Progress has it. `done` and `total` are bytes."""

    @property
    def comparison(self) -> Comparison:
        """What is known so far; undecided sites are pending."""

    @property
    def done(self) -> int:
        """Bytes read."""

    @property
    def total(self) -> int:
        """Bytes to read."""


Rejudge = Callable[[Comparison, str], Comparison]


@dataclass
class Progressed(Message):
    """A comparison went on; `done` and `total` are bytes."""

    comparison: Comparison
    done: int
    total: int


@dataclass
class Finished(Message):
    """A comparison ended: complete, or stopped by the user."""

    stopped: bool


@dataclass
class Rejudged(Message):
    """The comparison under another profile."""

    comparison: Comparison


@dataclass
class Failed(Message):
    """A worker gave up; `what` is a sentence for the user."""

    what: str
    fatal: bool
    """Nothing can be shown."""
