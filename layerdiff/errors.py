"""Every error that layerdiff raises on purpose.

    LayerdiffError
    ├── TraceError              a trace cannot be read
    │   ├── NotATraceError      the file is something else, or cut short
    │   ├── TraceVersionError   written by another version of the format
    │   ├── UnsafeTraceError    it asks the reader for something that a trace never needs
    │   ├── UnfinishedTraceError  still being written, or its writer died
    │   └── EmptyTraceError     a trace without calls: nothing to compare
    ├── RecorderError           a recording cannot start
    │   └── TorchMissingError   torch is not installed; an ImportError too
    ├── ProfileError            a profile or rules file is wrong
    ├── CheckpointError         a checkpoint cannot be read
    └── ComparisonError         two traces, or a saved comparison, cannot be used

A message says what is wrong, where, and the next step. A difference between two runs is a
result and never an exception.
"""

from __future__ import annotations


class LayerdiffError(Exception):
    """Base of all errors that layerdiff raises on purpose."""


class TraceError(LayerdiffError):
    """A trace cannot be read."""


class NotATraceError(TraceError):
    """The file is not a trace, or it is cut short."""


class TraceVersionError(TraceError):
    """The trace was written by a version of the format that this reader does not know."""


class UnsafeTraceError(TraceError):
    """The trace uses a feature of HDF5, or holds an index, that a reader must not follow."""


class UnfinishedTraceError(TraceError):
    """The trace is still being written, or its writer died."""


class EmptyTraceError(TraceError):
    """The trace holds no calls."""


class RecorderError(LayerdiffError):
    """A recording cannot start: found out before the first forward."""


class TorchMissingError(RecorderError, ImportError):
    """Recording needs torch, which is an extra: an install of layerdiff never replaces the torch of a device."""

    def __init__(self) -> None:
        super().__init__("record needs torch: pip install 'layerdiff[torch]', or the torch that your device's vendor gives.")


class ProfileError(LayerdiffError):
    """A profile (TOML) has an unknown key, or a value of the wrong kind."""


class CheckpointError(LayerdiffError):
    """A checkpoint is not there, or is no safetensors file."""


class ComparisonError(LayerdiffError):
    """Two traces have nothing in common, or a saved comparison cannot be read."""
