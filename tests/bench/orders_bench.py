"""How long, and with how much memory, the order of a large bf16 product is looked for: 4096 x 4096 x 4096, as recorded."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

from layerdiff import Recorder

Row = tuple[str, float, str, str]
SIZE = 4096
_ANALYSE = """
import sys, time
begin = time.perf_counter()
from layerdiff.judge.order.analysis import order_of_trace
from layerdiff.trace.reader import open_trace
report = order_of_trace(open_trace(sys.argv[1]), "0")
one = report.analyses[0]
seconds = time.perf_counter() - begin
# not ru_maxrss, which begins with what the process that started this one held
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(seconds, int(peak) / 1024, one.verdict, one.informative, one.compared)
"""


def rows() -> list[Row]:
    """Seconds and megabytes of one analysis, start of Python left out of the seconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.h5"
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(SIZE, SIZE, bias=False)).bfloat16().eval()
        x = torch.randn(SIZE, SIZE).bfloat16()
        with torch.no_grad(), Recorder(path, model, operators=True):
            model(x)
        done = subprocess.run([sys.executable, "-c", _ANALYSE, str(path)], capture_output=True, text=True, check=True)
    seconds, megabytes, verdict, informative, compared = done.stdout.split()
    note = f"{verdict}; {informative} of {compared} results tell orders apart; on {torch.get_num_threads()} cores"
    return [
        ("order of a 4096^3 bf16 product, s", float(seconds), "15", note),
        ("the same, peak MB", float(megabytes), "700", "the whole process"),
    ]
