"""Decoding that tries several tokens at once and takes back those that are wrong: what is kept is compared with decoding token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch

from layerdiff import Recorder
from layerdiff.cli.exits import OK, code_of
from layerdiff.compare import compare_traces
from layerdiff.saved.comparison import Comparison
from tests.chunked import Cache, Chunked, chunked, prompt

FP32, BF16 = torch.float32, torch.bfloat16
Tries = Sequence[tuple[int, int]]
"""Of each step how many tokens are kept, and how many are tried behind them that are wrong."""
PLAIN: Tries = [(6, 0), *[(1, 0)] * 4]
DRAFTS: Tries = [(7, 2), (1, 3), (2, 1)]
OTHERS: Tries = [(6, 1), (3, 0), (1, 2)]


class Cropped(Cache):
    """A cache that forgets what was taken back."""

    def crop(self, count: int) -> None:
        for _ in self.entries if not self.size else ():
            self.entries = {layer: (keys[:, :, :count], values[:, :, :count]) for layer, (keys, values) in self.entries.items()}
        self.length = count
        for seen in self.counts.values():
            seen.fill_(count)


def decode(model: Chunked, tries: Tries, size: int = 0, draft: Chunked | None = None) -> None:
    """Give the model its own tokens, and others that it is to reject; of a `draft` a forward before each step."""
    ids, cache, begin = prompt(sum(kept for kept, _ in tries)), Cropped(size), 0
    for kept, wrong in tries:
        if draft is not None:
            draft(ids[:, : begin + kept], Cache())
        model.last = wrong + 1  # type: ignore[assignment]
        model(torch.cat([ids[:, begin : begin + kept], ids.roll(-begin - kept, 1)[:, 1 : wrong + 1]], 1), cache)
        begin += kept
        cache.crop(begin)


def compared(
    folder: Path,
    ours: Tries,
    theirs: Tries,
    change: Callable[[Chunked], object] = lambda model: None,
    *,
    operators: bool,
    dtype: torch.dtype = FP32,
    size: int = 0,
    drafts: str = "",
) -> Comparison:
    """`drafts`: names of the traces for which a model of drafts is recorded, too."""
    for name, tries in (("r", ours), ("t", theirs)):
        model, other = chunked(), Chunked().to(dtype) if name in drafts else None
        if name == "t":
            change(model.to(dtype))
        with torch.no_grad(), Recorder(folder / f"{name}.h5", None if other else model, operators=operators):
            decode(model, tries, size if name == "t" else 0, other)
    return compare_traces(folder / "r.h5", folder / "t.h5")


@pytest.mark.parametrize(
    ("ours", "theirs", "dtype", "options", "operators"),
    [
        (PLAIN, DRAFTS, FP32, {}, True),
        (PLAIN, DRAFTS, BF16, {"drafts": "t"}, False),
        (DRAFTS, PLAIN, FP32, {}, False),
        (DRAFTS, OTHERS, BF16, {}, True),
        (PLAIN, OTHERS, FP32, {"size": 20}, True),
    ],
    ids=["drafts", "beside a draft", "reference", "both", "static"],
)
def test_tokens_that_are_taken_back_are_no_fault(
    tmp_path: Path, ours: Tries, theirs: Tries, dtype: torch.dtype, options: dict[str, int | str], operators: bool
) -> None:
    comparison = compared(tmp_path, ours, theirs, operators=operators, dtype=dtype, **options)  # type: ignore[arg-type]
    kinds = {notice.kind for notice in comparison.notices}
    assert not comparison.origins and not comparison.defect, (comparison.origins, comparison.notices)
    assert OK == code_of(comparison) and "steps-joined" in kinds and "results-not-compared" not in kinds


def epsilon(model: Chunked) -> None:
    model.layers[1].post_attention_layernorm.variance_epsilon = 1e-3


def in_attention(fault: str) -> Callable[[Chunked], object]:
    return lambda model: setattr(model.layers[1].self_attn, "fault", fault)


FAULTS = {
    "epsilon": (epsilon, "layers.1.post_attention_layernorm", "aten.add.Tensor#0"),
    "stale": (in_attention("stale"), "layers.1.self_attn", "aten.roll.default#*"),
    "mask": (lambda model: setattr(model, "fault", "mask"), "", "aten.add.Tensor#*"),
}


@pytest.mark.parametrize(("fault", "ours"), [*((fault, PLAIN) for fault in FAULTS), ("epsilon", OTHERS)])
def test_a_fault_is_found_at_its_call(tmp_path: Path, fault: str, ours: Tries) -> None:
    change, module, call = FAULTS[fault]
    (origin,) = compared(tmp_path, ours, DRAFTS, change, operators=True).origins
    assert fnmatchcase(origin.site, f"{module}/{call}"), origin.site


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_at_its_module(tmp_path: Path, fault: str) -> None:
    change, module, _ = FAULTS[fault]
    assert [module] == [origin.site for origin in compared(tmp_path, PLAIN, DRAFTS, change, operators=False, drafts="t").origins]


def test_the_weights_of_a_draft_are_not_those_of_the_model(tmp_path: Path) -> None:
    """Both have the same names."""
    (origin,) = compared(tmp_path, PLAIN[:2], PLAIN[:2], epsilon, operators=True, drafts="rt").origins
    assert origin.site.endswith("layers.1.post_attention_layernorm/aten.add.Tensor#0") and origin.cause == "rmsnorm-eps"
