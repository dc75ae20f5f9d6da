"""Writers killed at any moment: what was journaled must be back, bit for bit."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.trace.test_killed import WRITER, check_recovered


def kill_once(folder: Path, delay_s: float) -> int:
    """Kill a writer after `delay_s` seconds of writing; returns how many values came back. AssertionError where one is wrong."""
    from layerdiff.trace.reader import open_trace
    from layerdiff.trace.recover import recover

    path = folder / "t.h5"
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path), "1000000"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(delay_s)
    process.send_signal(signal.SIGKILL)
    promised = [int(line) for line in process.stdout.read().split()] or [0]
    process.stdout.close()
    process.wait()
    check_recovered(recover(path.with_name("t.h5.part")), promised[-1])
    trace = open_trace(path)
    count = len(trace.files[0].values)
    trace.close()
    path.unlink()
    return count


def kills(folder: Path, count: int) -> tuple[int, int]:
    """(kills after which everything journaled was back, values recovered in all)."""
    rng = random.Random(0)
    good = values = 0
    for _ in range(count):
        values += kill_once(folder, rng.uniform(0.0, 0.3))
        good += 1
    return good, values
