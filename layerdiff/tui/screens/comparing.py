"""`ComparingScreen`: the comparison that a screen shows, and the workers that make it and judge it again.

The screen owns the comparison; workers only post messages to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic

from textual import work
from textual.worker import Worker, get_current_worker

from layerdiff.errors import LayerdiffError
from layerdiff.saved.comparison import Comparison
from layerdiff.tui.messages import Failed, Finished, Progress, Progressed, Rejudge, Rejudged
from layerdiff.tui.screens.base import BaseScreen

_BETWEEN_STATES_S = 0.15
"""A running comparison is drawn at most this often."""
_PROFILES = ("strict", "relaxed")


class ComparingScreen(BaseScreen):
    """A screen that owns a comparison. What it does with the messages of messages.py is its own."""

    def __init__(self, source: Comparison | Iterable[Progress], *, rejudge: Rejudge | None) -> None:
        """`source` is a comparison, or states of one that is being made; without `rejudge` there is one profile."""
        super().__init__()
        self.comparison: Comparison | None = source if isinstance(source, Comparison) else None
        self.comparing: Worker[None] | None = None
        """The worker while it compares."""
        self.complete = self.comparison is not None
        """Whether comparing came to its end."""
        self._source = None if isinstance(source, Comparison) else source
        self._rejudge = rejudge
        self._given: str | None = None

    def replace(self, comparison: Comparison) -> None:
        """Show the same numbers with more, or other, verdicts."""
        raise NotImplementedError

    def compare(self) -> None:
        """Start comparing."""
        self.comparing = self._compare()

    @work(thread=True, exclusive=True, group="compare", exit_on_error=False)
    def _compare(self) -> None:
        worker, last, states = get_current_worker(), 0.0, iter(self._source or ())
        held: Progress | None = None
        try:
            for state in states:
                if worker.is_cancelled:
                    break
                held = state
                if monotonic() - last >= _BETWEEN_STATES_S:
                    self.post_message(_progressed(state))
                    held, last = None, monotonic()
        except LayerdiffError as error:
            self.post_message(Failed(str(error), fatal=True))
            return
        except Exception as error:  # a fault of ours must reach the user as a sentence, not as a dead screen
            self.post_message(Failed(f"comparing stopped: {type(error).__name__}: {error}", fatal=True))
            return
        finally:
            close = getattr(states, "close", None)
            if close is not None:
                close()
        if held is not None:
            self.post_message(_progressed(held))
        self.post_message(Finished(worker.is_cancelled))

    def action_profile(self) -> None:
        """See actions."""
        if self.comparison is None:
            return
        if self._rejudge is None or self.comparing is not None:
            self.notify("profiles switch once comparing is done" if self.comparing else "cannot be judged again here", timeout=3)
            return
        now = str(self.comparison.profile.get("name", "strict"))
        self._given = self._given or now
        profiles = list(dict.fromkeys((self._given, *_PROFILES)))
        self._judge(self.comparison, profiles[(profiles.index(now) + 1) % len(profiles)])

    @work(thread=True, exclusive=True, group="judge", exit_on_error=False)
    def _judge(self, comparison: Comparison, profile: str) -> None:
        if self._rejudge is None:
            return
        try:
            judged = self._rejudge(comparison, profile)
        except Exception as error:  # as in _compare
            self.post_message(Failed(f"cannot judge by {profile}: {error}", fatal=False))
            return
        if not get_current_worker().is_cancelled:
            self.post_message(Rejudged(judged))

    def on_rejudged(self, message: Rejudged) -> None:
        """The same numbers under another profile."""
        self.replace(message.comparison)


def _progressed(state: Progress) -> Progressed:
    """Called by the worker: asking a state for its comparison judges it."""
    return Progressed(state.comparison, state.done, state.total)
