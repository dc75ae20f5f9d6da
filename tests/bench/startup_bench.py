"""How long `layerdiff --help`, and a saved comparison of 100 000 sites, take over a bare interpreter."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

Row = tuple[str, float, float, str]
_ROUNDS = 15
_OPENING = """
import time
from layerdiff.saved.file import open_comparison
started = time.perf_counter()
open_comparison({path!r})
print(time.perf_counter() - started)
"""


def rows() -> list[Row]:
    """(name, seconds, at most, note) of each case: the median of several, all in one run."""
    from layerdiff.saved.file import save
    from tests.comparisons import of_size

    with tempfile.TemporaryDirectory() as folder:
        path = save(of_size(100_000), Path(folder) / "large.ldiff")
        opening = _OPENING.format(path=str(path))
        cases = {
            "bare": ["-c", "pass"],
            "help": ["-m", "layerdiff", "--help"],
            "click": ["-c", "import click"],
            "h5py": ["-c", "import h5py"],
            "open": ["-c", opening],
        }
        times: dict[str, list[float]] = {name: [] for name in cases}
        inside: list[float] = []
        for _ in range(_ROUNDS):  # in turn, so that a busy moment hits all of them
            for name, arguments in cases.items():
                start = time.perf_counter()
                done = subprocess.run([sys.executable, *arguments], check=True, capture_output=True, text=True)
                times[name].append(time.perf_counter() - start)
                if name == "open":
                    inside.append(float(done.stdout))
    median = {name: statistics.median(found) for name, found in times.items()}
    over = median["help"] - median["bare"]
    note = f"bare {median['bare']:.3f} s, import click alone {median['click'] - median['bare']:.3f} s"
    imports = f"with imports {median['open'] - median['bare']:.3f} s, of which h5py {median['h5py'] - median['bare']:.3f} s"
    return [
        ("layerdiff --help, s over bare Python", over, 0.2, note),
        ("open a saved comparison of 100 000 sites, s", statistics.median(inside), 0.06, imports),
    ]


if __name__ == "__main__":
    for row in rows():
        print(*row, sep=" | ")
