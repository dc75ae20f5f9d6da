"""What judging a pair costs, in float64 passes of the forward (one thread, processor time): of equal runs, and where all values differ."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from layerdiff import Recorder, compare_traces
from tests.bench.record_bench import Row, check_complete

FLOOR = 6.0
LARGE, TINY = (1024, 512), (128, 16)
"""Hidden size and length."""
VOCABULARY = 1000


def rows(repeats: int = 3) -> list[Row]:
    """The table, of a process in which numpy has one thread as torch has: threads that spin count as time. Takes two minutes."""
    code = f"import json; from tests.bench.judging_bench import measured; print(json.dumps(measured({repeats})))"
    alone = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=alone, stdout=subprocess.PIPE, check=True, text=True)
    return [(str(name), float(ratio), floor, str(note)) for name, ratio, floor, note in json.loads(done.stdout.splitlines()[-1])]


def measured(repeats: int) -> list[Row]:
    """The rows, measured here."""
    folder = Path(tempfile.mkdtemp(prefix="layerdiff-bench-"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _judged(folder, TINY, "eager", other_epsilon=True)  # what is imported on the way is no part of it
        return [_row(folder, attention, other_epsilon, repeats) for attention in ("sdpa", "eager") for other_epsilon in (False, True)]
    finally:
        torch.set_num_threads(threads)
        shutil.rmtree(folder)


def _row(folder: Path, attention: str, other_epsilon: bool, repeats: int) -> Row:
    took, nbytes = zip(*(_judged(folder, LARGE, attention, other_epsilon) for _ in range(repeats)), strict=True)
    forward = min(_forward(LARGE, attention) for _ in range(repeats))
    what = "where the first norm has another epsilon, so that every value behind it differs" if other_epsilon else "of equal runs"
    name = f"judging a pair by operators {what}, hidden 1024, seq 512, 2 layers, {attention} attention"
    return name, min(took) / forward, FLOOR, f"float64 passes of {forward:.2f} s; {nbytes[0] / 1e6:.0f} MB a trace"


def _model(size: tuple[int, int], attention: str) -> nn.Module:
    hidden = size[0]
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4,
        num_hidden_layers=2,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        vocab_size=VOCABULARY,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(config).eval()


def _ids(size: tuple[int, int]) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (1, size[1]), generator=torch.Generator().manual_seed(1))


def _forward(size: tuple[int, int], attention: str) -> float:
    """Seconds of a forward in float64."""
    model, ids = _model(size, attention).double(), _ids(size)
    with torch.no_grad():
        return min(_processor(lambda: model(input_ids=ids)) for _ in range(2))


def _judged(folder: Path, size: tuple[int, int], attention: str, other_epsilon: bool) -> tuple[float, int]:
    """Seconds that a comparison takes, and the bytes of a trace."""
    paths = folder / "reference.h5", folder / "target.h5"
    for path, changed in zip(paths, (False, other_epsilon), strict=True):
        path.unlink(missing_ok=True)
        model = _model(size, attention)
        if changed:
            model.model.layers[0].input_layernorm.variance_epsilon *= 10  # type: ignore[union-attr, index, operator]
        with torch.no_grad(), Recorder(path, model, operators=True):
            model(input_ids=_ids(size))
        check_complete(path)
    took = _processor(lambda: compare_traces(*paths))
    return took, paths[0].stat().st_size


def _processor(run: Callable[[], object]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


if __name__ == "__main__":
    for name, ratio, floor, note in rows():
        print(f"{name:150} {ratio:6.2f}  floor {floor}  {note}")
