"""The state of the random generators, and whether a graph is being captured: questions that must cost nothing.

The state is read and never touched: a recording draws no random numbers.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from layerdiff.record.quiet import quiet


def random_state() -> str:
    """A hash of the generators' states (hex): the CPU's, and the current accelerator's where it lies on the host."""
    with quiet():  # torch detaches what it returns, which is an operator call
        digest = hashlib.blake2b(_bytes(torch.get_rng_state()), digest_size=16)
        if torch.cuda.is_initialized() and not is_capturing():
            digest.update(_bytes(torch.cuda.get_rng_state()))
        return digest.hexdigest()


def _bytes(state: Tensor) -> bytes:
    return state.numpy().tobytes()


def is_capturing() -> bool:
    """Whether the current stream captures a graph: nothing may be copied to the host then."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())
