"""`Impatient`: threads that nobody waits for when the terminal closes.

An event loop waits at its end for every thread that computes; a replay may take a minute between two looks at whether it was cancelled.
What these threads do is read traces and compute, so they may be left where they are, and the process ends under them (cli/streams.py).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor


class Impatient(ThreadPoolExecutor):
    """As its base, but what runs is left alone by `shutdown`; what waits is dropped."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take nothing more; return at once."""
        super().shutdown(wait=False, cancel_futures=True)
