"""Traces of modules alone, judged by thresholds: fault-free pairs, and faults put into a Llama."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from layerdiff import Recorder
from layerdiff.compare import compare_traces
from layerdiff.saved.comparison import Comparison
from tests.evaluate.clean_pairs import clean_pairs
from tests.evaluate.faults import faults
from tests.evaluate.models import MEDIUM, SMALL, build, inputs

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


def clean(folder: Path, seeds: int) -> list[str]:
    """No fault-free pair has an origin, nor a notice that is a defect. Returns what went wrong."""
    wrong: list[str] = []
    pairs = 0
    nearest: dict[str, float] = {}
    for pair in clean_pairs(seeds=range(seeds)):
        for path in folder.glob("*.h5*"):
            path.unlink()
        try:
            pair.make(folder / "r.h5", folder / "t.h5")
        except RuntimeError as error:  # an architecture that lacks a kernel for a dtype
            print(f"  not run: {pair.name}: {error}", flush=True)
            continue
        comparison = compare_traces(folder / "r.h5", folder / "t.h5")
        pairs += 1
        _note_nearest(nearest, comparison)
        if comparison.defect or comparison.origins:
            said = [f"{o.site} {o.verdict.label}" for o in comparison.origins] + [n.statement for n in comparison.notices if n.defect]
            wrong.append(f"{pair.name}: {'; '.join(said)}")
    print(f"\n| fault-free pairs | with an origin or a defect |\n| ---: | ---: |\n| {pairs} | {len(wrong)} |\n")
    print("| rule | nearest to its limit |\n| --- | ---: |")
    for rule, ratio in sorted(nearest.items(), key=lambda item: -item[1]):
        print(f"| {rule} | {ratio:.2f} |")
    return wrong


def _note_nearest(nearest: dict[str, float], comparison: Comparison) -> None:
    sites = comparison.sites
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = sites["measured"] / sites["allowed"]
    for rule, ratio in zip(sites["rule"].tolist(), ratios.tolist(), strict=True):
        name = comparison.texts[rule]
        if name and np.isfinite(ratio):
            nearest[name] = max(ratio, nearest.get(name, 0.0))


def faulty(folder: Path) -> list[str]:
    """Where each fault is found. Float32 targets must show all of them, in their own place alone."""
    wrong: list[str] = []
    table: dict[tuple[str, str], list[int]] = {}
    for size in (SMALL, MEDIUM):
        given = inputs(size, 0)
        _record(folder / "r.h5", build("llama", size, 0), given)
        for layer in (0, 2):
            for dtype, dtype_name in _DTYPES.items():
                for fault in faults():
                    model: Any = build("llama", size, 0)
                    with torch.no_grad():
                        sites = fault.put(model, layer)
                    _record(folder / "t.h5", model.to(dtype), given)
                    comparison = compare_traces(folder / "r.h5", folder / "t.h5")
                    origins = [origin.site for origin in comparison.origins]
                    hit = any(site in origins for site in sites) or any(n.kind == fault.notice for n in comparison.notices)
                    extra = [site for site in origins if site not in sites]
                    counts = table.setdefault((fault.name, dtype_name), [0, 0, 0])
                    counts[0] += 1
                    counts[1] += hit
                    counts[2] += len(extra)
                    if extra or (not hit and dtype == torch.float32):
                        wrong.append(f"{fault.name}, layer {layer}, {size}, {dtype_name}: found {origins}, expected {sites}")
    print("\n| fault | target | trials | found | origins elsewhere |\n| --- | --- | ---: | ---: | ---: |")
    for (name, dtype_name), (trials, hits, extra_count) in table.items():
        print(f"| {name} | {dtype_name} | {trials} | {hits} | {extra_count} |")
    return wrong


def _record(path: Path, model: torch.nn.Module, given: dict[str, Any]) -> None:
    with Recorder(path, model), torch.no_grad():
        model(**given)
