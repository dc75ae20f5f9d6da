"""How a recorded process ends: by signal, by sys.exit, by os._exit, and what a forked child leaves alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from layerdiff.trace.recover import recover

ROOT = Path(__file__).parents[2]


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    script = folder / "run.py"
    script.write_text(
        "import os, signal, sys, torch\nfrom torch import nn\nfrom layerdiff import Recorder\n"
        "torch.set_num_threads(1)\nmodel = nn.Sequential(nn.Linear(4, 4), nn.ReLU())\nx = torch.ones(1, 4)\n" + textwrap.dedent(code)
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, str(script)], cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("sys.exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("raise ValueError('on purpose')", 1),
        ("recorder.__enter__ = None", 0),
    ],
)
def test_the_trace_is_closed(ending: str, code: int, tmp_path: Path, recorded: Any) -> None:
    done = run(
        tmp_path,
        f"""
        recorder = Recorder("trace.h5", model)
        recorder.start()  # no block, so that nothing but the process's end closes it
        model(x)
        {ending}
        """,
    )
    assert code == done.returncode, done.stderr
    trace = recorded(tmp_path / "trace.h5")
    assert trace.file.complete
    assert ["", "0", "1"] == trace.sites


def test_a_handler_of_the_users_own_is_kept(tmp_path: Path, recorded: Any) -> None:
    done = run(
        tmp_path,
        """
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        with Recorder("trace.h5", model):
            model(x)
            os.kill(os.getpid(), signal.SIGTERM)
        """,
    )
    assert 7 == done.returncode, done.stderr
    assert recorded(tmp_path / "trace.h5").file.complete


def test_a_killed_process_leaves_what_recover_brings_back(tmp_path: Path, recorded: Any) -> None:
    done = run(
        tmp_path,
        """
        import time
        with Recorder("trace.h5", model):
            for _ in range(5):
                model(x)
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    assert -signal.SIGKILL == done.returncode
    assert not (tmp_path / "trace.h5").exists()
    recover(tmp_path / "trace.h5.part")
    assert ["", "0", "1"] * 5 == recorded(tmp_path / "trace.h5").sites


def test_a_signal_in_the_middle_of_a_hook(tmp_path: Path, recorded: Any) -> None:
    done = run(
        tmp_path,
        """
        import threading, time
        recorder = Recorder("trace.h5", model)
        recorder.start()
        def interrupt():
            while recorder.calls < 200:
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGTERM)
        threading.Thread(target=interrupt).start()
        while True:
            model(x)
        """,
    )
    assert -signal.SIGTERM == done.returncode, done.stderr
    trace = recorded(tmp_path / "trace.h5")
    assert trace.file.complete
    assert len(trace) > 100


def test_a_forked_child_leaves_the_parents_trace_alone(tmp_path: Path, recorded: Any) -> None:
    done = run(
        tmp_path,
        """
        with Recorder("trace.h5", model):
            model(x)
            child = os.fork()
            if child == 0:
                model(x)
                sys.exit(5)  # leaves the block in the child, too
            _, status = os.waitpid(child, 0)
            model(x)
        print(os.waitstatus_to_exitcode(status))
        """,
    )
    assert (0, "5\n") == (done.returncode, done.stdout), done.stderr
    trace = recorded(tmp_path / "trace.h5")
    assert trace.file.complete
    assert ["", "0", "1"] * 2 == trace.sites
    assert ["run.py", "trace.h5"] == sorted(path.name for path in tmp_path.iterdir())


def test_a_signal_while_the_trace_is_being_closed_waits_for_it(tmp_path: Path, recorded: Any) -> None:
    done = run(
        tmp_path,
        """
        from layerdiff.record.delivery import Delivery
        close = Delivery.close
        def slow(delivery):
            os.kill(os.getpid(), signal.SIGTERM)  # as a launcher does when another of its processes has died
            close(delivery)
        Delivery.close = slow
        with Recorder("trace.h5", model):
            model(x)
        print("not reached")
        """,
    )
    assert (-signal.SIGTERM, "") == (done.returncode, done.stdout), done.stderr
    assert recorded(tmp_path / "trace.h5").file.complete
