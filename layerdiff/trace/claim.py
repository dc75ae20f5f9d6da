"""Who may write to a path: the names of an unfinished trace, and the lock on its journal.

Whoever holds the lock writes. A part without a lock is a recording whose process died, and is never overwritten.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

from layerdiff.errors import RecorderError


def part_path(path: Path) -> Path:
    """Where a trace is while it is being written."""
    return path.with_name(path.name + ".part")


def journal_path(path: Path) -> Path:
    """The journal of a trace that is being written."""
    return path.with_name(path.name + ".journal")


def is_locked(journal: Path) -> bool:
    """Whether a living process writes the trace that this journal belongs to."""
    try:
        fd = os.open(journal, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(fd)


def claim(path: Path, part: Path, journal: Path) -> int:
    """Create and lock the journal: whoever holds the lock may write to the path."""
    if path.is_dir():
        raise RecorderError(f"Cannot record to {path}: it is a folder. Name a file, such as {path / 'trace.h5'}.")
    if not path.parent.is_dir():
        raise RecorderError(f"Cannot record to {path}: the folder {path.parent} does not exist. Make it first.")
    if journal.exists():
        if is_locked(journal):
            raise RecorderError(
                f"Cannot record to {path}: another process is recording to it now. "
                f"Choose another path; ranks of one run record into a folder, such as {path.with_suffix('')}/."
            )
        if part.exists():
            raise RecorderError(
                f"Cannot record to {path}: {part} holds a recording that never ended. "
                f"Save it with `layerdiff recover {part}`, or delete {part.name} and {journal.name}."
            )
        with contextlib.suppress(OSError):
            journal.unlink()  # its trace was renamed, so all of it is in there
    elif part.exists():
        raise RecorderError(f"Cannot record to {path}: {part} is in the way, and it has no journal to recover it from. Delete it.")
    try:
        fd = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
    except FileExistsError:
        raise RecorderError(f"Cannot record to {path}: another process began to record to it just now. Choose another path.") from None
    except OSError as error:
        raise RecorderError(f"Cannot record to {path}: {error.strerror}. Choose a folder that you can write to.") from None
    with contextlib.suppress(OSError):  # a file system without locks: O_EXCL has to do
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd
