"""Both traces of a comparison, opened again when a screen wants to see values; kept open while the screen lives.

A comparison may have been saved long before: a trace that is gone, or that holds another run now, is said
and never shown in its place.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from threading import Lock

from layerdiff.checkpoint.weights import weights_of
from layerdiff.diagnose.filling import IN_CHUNKS, REORDERED
from layerdiff.errors import CheckpointError, TraceError
from layerdiff.judge.pairs.as_one import as_compared
from layerdiff.judge.pairs.reordering import in_the_targets_order
from layerdiff.saved.comparison import Comparison
from layerdiff.sides import Both
from layerdiff.trace.reader import TraceFile, open_trace

_SIDES = ("reference", "target")


class Traces:
    """Files of traces by path, each opened once, from any thread."""

    def __init__(self) -> None:
        self._files: dict[Path, TraceFile] = {}
        self._in_order: dict[Path, TraceFile] = {}
        self._lock = Lock()

    def file(self, comparison: Comparison, side: str, row: int) -> tuple[TraceFile, int]:
        """The file of one side (`reference`, `target`) of a site, and the site's call in it.

        Raises TraceError where that side did not run it, or its trace is not there or not that of the comparison any more.
        """
        sites, run = comparison.sites, getattr(comparison, side)
        call, number = int(sites[f"{side}_call"][row]), int(sites[f"{side}_file"][row])
        if call < 0:
            raise TraceError(f"the {side} did not run this call")
        if run is None:
            raise TraceError(f"there is no {side}: the ranks were held against each other")
        path = Path(run.path)
        if path.is_dir() and 0 <= number < len(run.files):
            path = path / run.files[number]
        with self._lock:
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = self._open(comparison, path, run.path, side)
        if call >= len(file.calls):
            raise TraceError(f"{path} is not the {side} that was compared: it has no call {call}. Compare the two again.")
        return file, call

    def in_order(self, comparison: Comparison, file: TraceFile) -> TraceFile:
        """A file of the reference with the requests of its batches as the target has them. Raises TraceError as `file` does."""
        if not any(notice.kind == REORDERED for notice in comparison.notices):
            return file
        if file.path not in self._in_order:
            files = Both(*(tuple(self.files(comparison, side)) for side in ("reference", "target")))
            sorted_files, _ = in_the_targets_order(comparison.pairs, comparison.sites, comparison.texts, files)
            self._in_order |= {one.path: one for one in sorted_files.reference}
        return self._in_order.get(file.path, file)

    def target_files(self, comparison: Comparison) -> list[TraceFile]:
        """Every file of the target, as `files`."""
        return self.files(comparison, "target")

    def files(self, comparison: Comparison, side: str) -> list[TraceFile]:
        """Every file of a side, one a process, in the order of its column of the sites. Raises TraceError as `file` does."""
        run = getattr(comparison, side)
        if run is None:
            raise TraceError(f"there is no {side}: the ranks were held against each other")
        folder = Path(run.path)
        with self._lock:
            found = []
            for name in run.files:
                path = folder / name if folder.is_dir() else folder
                file = self._files.get(path)
                if file is None:
                    file = self._files[path] = self._open(comparison, path, str(path), side)
                found.append(file)
        return found

    def _open(self, comparison: Comparison, path: Path, named: str, side: str) -> TraceFile:
        if not path.exists() and not path.with_name(path.name + ".part").exists():
            raise TraceError(f"the {side} trace {named} is not there: put it back, or start layerdiff where it is")
        weights = None
        with suppress(CheckpointError):  # gone since: then those weights have no bytes, as without it
            weights = weights_of(comparison.checkpoints)
        if side not in _SIDES or not any(notice.kind == IN_CHUNKS for notice in comparison.notices):
            return open_trace(path, allow_empty=True, weights=weights).files[0]
        paths = Both(*(Path(getattr(comparison, name).path) for name in _SIDES))
        other = next(name for name in _SIDES if name != side)
        if not getattr(paths, other).exists():
            raise TraceError(f"the {other} trace {getattr(paths, other)} is not there: by it is told which steps are one. Put it back")
        both, _ = as_compared(paths.map(lambda path: open_trace(path, allow_empty=True, weights=weights)))
        self._files |= {file.path: file for trace in both for file in trace.files}
        return self._files[path]

    def close(self) -> None:
        """Close every file."""
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()
            self._in_order.clear()
