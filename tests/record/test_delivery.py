from __future__ import annotations

import errno
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from layerdiff import Recorder
from layerdiff.record.delivery import Delivery
from layerdiff.record.keep import Keep, parse_size
from layerdiff.record.options import parse_steps
from layerdiff.trace.writer import TraceWriter
from tests.models import MiniLlama, tokens


class Slow:
    """A writer that lets one job through at a time."""

    def __init__(self) -> None:
        self.path = Path("slow.h5")
        self.gate = threading.Semaphore(0)
        self.seen: list[int] = []
        self.closed: list[str | None] = []

    def write(self, data: np.ndarray) -> None:
        assert self.gate.acquire(timeout=10)
        self.seen.append(int(data[0]))

    def flush_if_due(self) -> None:
        pass

    def close(self, *, reason: str | None = None) -> Path:
        self.closed.append(reason)
        return self.path


def test_the_queue_is_bounded_in_bytes() -> None:
    writer = Slow()
    delivery = Delivery(writer, 1000)
    done = threading.Event()

    def produce() -> None:
        for i in range(10):
            delivery.put_bytes(400, writer.write, np.full(400, i, np.uint8))
        done.set()

    producer = threading.Thread(target=produce)
    producer.start()
    time.sleep(0.3)
    assert not done.is_set()  # two are queued, the third waits
    for _ in range(10):
        writer.gate.release()
    assert done.wait(10)
    delivery.close()
    producer.join()
    assert list(range(10)) == writer.seen
    assert 800 == delivery.largest_bytes
    assert [None] == writer.closed


def test_a_value_larger_than_the_queue_still_passes() -> None:
    writer = Slow()
    delivery = Delivery(writer, 10)
    writer.gate.release()
    delivery.put_bytes(400, writer.write, np.full(400, 7, np.uint8))
    delivery.close()
    assert [7] == writer.seen


def test_a_failure_empties_the_queue_and_lets_the_model_go(capsys: pytest.CaptureFixture[str]) -> None:
    writer = Slow()
    delivery = Delivery(writer, 1000)

    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    delivery.put(full)
    for i in range(50):
        delivery.put_bytes(900, writer.write, np.full(900, i, np.uint8))  # would block for ever
    delivery.close()
    assert "No space left on device" == delivery.failure
    assert ["No space left on device"] == writer.closed
    assert 1 == capsys.readouterr().err.count("layerdiff: recording to slow.h5 stopped")


def test_a_full_disk_does_not_stop_the_model(
    tmp_path: Path, recorded: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = TraceWriter.add_value
    calls = 0

    def fill_up(self: TraceWriter, *arguments: Any) -> int:
        nonlocal calls
        calls += 1
        if calls > 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return written(self, *arguments)

    monkeypatch.setattr(TraceWriter, "add_value", fill_up)
    model = MiniLlama()
    with torch.no_grad():
        expected = model(tokens())
        with Recorder(tmp_path / "trace.h5", model, queue_bytes=2000):
            actual = [model(tokens()) for _ in range(3)]
    assert all(torch.equal(expected, result) for result in actual)
    trace = recorded(tmp_path / "trace.h5")
    assert not trace.file.complete
    assert "No space left on device" == trace.meta["incomplete"]
    assert 20 == len(trace.file.values.kind)
    err = capsys.readouterr().err
    assert 1 == err.count("stopped: No space left on device")


def test_an_error_of_our_own_does_not_reach_the_model(
    tmp_path: Path, recorded: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*arguments: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("layerdiff.record.values.summarise", broken)
    model = MiniLlama()
    with torch.no_grad(), Recorder(tmp_path / "trace.h5", model):
        result = model(tokens())
    assert torch.equal(model(tokens()), result)
    assert "RuntimeError: a bug" == recorded(tmp_path / "trace.h5").meta["incomplete"]
    assert 1 == capsys.readouterr().err.count("a bug")


def test_steps() -> None:
    assert [0, 3, 4] == [step for step in range(8) if step in parse_steps("0,3:5")]
    assert [0, 1, 6, 7] == [step for step in range(8) if step in parse_steps(":2,6:")]
    assert [2] == [step for step in range(8) if step in parse_steps(2)]
    assert [1, 4] == [step for step in range(8) if step in parse_steps([1, 4])]


def test_sizes_and_policies() -> None:
    assert [500, 2_000_000_000, 1_610_612_736, 3000] == [parse_size(text) for text in ("500", "2GB", "1.5GiB", "3 kb")]
    keep = Keep("*.mlp=statistics, full:1KB")
    assert "statistics only" in (keep.policy("layers.0.mlp").refuse(1) or "")
    assert keep.policy("norm").refuse(600) is None
    assert "600 of 1000" in (keep.policy("other").refuse(600) or "")
    assert keep.policy("third").refuse(400) is None
    assert Keep().policy("x").refuse(1 << 60) is None
    assert "statistics only" in (Keep({"*": "statistics"}).policy("").refuse(1) or "")
