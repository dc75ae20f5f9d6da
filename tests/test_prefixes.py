"""A prompt whose beginning lay in a cache before anything was recorded: the tokens that both runs have are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from layerdiff import Recorder
from layerdiff.cli.exits import DEFECT, OK, code_of
from layerdiff.compare import compare_traces
from layerdiff.saved.comparison import Comparison
from tests.chunked import Cache, Chunked, prompt

BEFORE, COUNT = 7, 12
OPERATORS = pytest.mark.parametrize("operators", [True, False], ids=["operators", "modules"])


class Returning(Chunked):
    """Hands its cache on beside the logits."""

    def forward(self, input_ids: Tensor, cache: Cache) -> dict[str, Any]:  # type: ignore[override]
        return {"logits": super().forward(input_ids, cache), "cache": cache}


def model(dtype: torch.dtype = torch.float32) -> Returning:
    torch.manual_seed(0)
    return Returning().to(dtype)


def record(path: Path, own: Returning, ids: Tensor, pieces: Sequence[int], cache: Cache, *, operators: bool) -> None:
    """Record what comes after the tokens that are in the cache, in pieces."""
    begin = cache.length
    with torch.no_grad(), Recorder(path, own, operators=operators):
        for count in pieces:
            own(ids[:, begin : begin + count], cache)
            begin += count


def filled(own: Returning, ids: Tensor, size: int) -> Cache:
    """A cache that has the first tokens of a prompt."""
    cache = Cache(size)
    with torch.no_grad():
        own(ids[:, :BEFORE], cache)
    return cache


def compared(
    folder: Path,
    pieces: Sequence[int] = (COUNT - BEFORE,),
    change: Callable[[Returning], object] = lambda own: None,
    *,
    operators: bool,
    dtype: torch.dtype = torch.float32,
    batch: int = 1,
    held: Tensor | None = None,
    turned: bool = False,
    size: int = 0,
    counts: bool = True,
) -> Comparison:
    """A whole prompt in the reference, or, `turned`, in the target; of the other run the beginning is in a cache.

    `held`: another's; `size`: that of the cache; `counts`: whether it counts what it holds in numbers that are recorded.
    """
    ids = prompt(COUNT, batch)
    for name in ("r.h5", "t.h5"):
        own = model(dtype)
        cache = filled(own, ids if held is None else held, size)
        if not counts:
            cache.counts = SimpleNamespace(setdefault=cache.counts.setdefault)  # type: ignore[assignment]
        if name == "t.h5":
            change(own)
        whole = (name == "t.h5") is turned
        record(folder / name, own, ids, (COUNT,) if whole else pieces, Cache() if whole else cache, operators=operators)
    return compare_traces(folder / "r.h5", folder / "t.h5")


def kinds(comparison: Comparison) -> set[str]:
    return {notice.kind for notice in comparison.notices}


@pytest.mark.parametrize(
    ("pieces", "options"),
    [
        ((5,), {}),
        ((5,), {"dtype": torch.bfloat16, "batch": 2}),
        ((2, 3), {"dtype": torch.bfloat16, "batch": 2}),
        ((5,), {"turned": True}),
        ((5,), {"size": 16}),
        ((2, 3), {"size": 16, "turned": True, "counts": False}),
    ],
    ids=["fp32", "batch", "chunks", "turned", "static", "static-turned"],
)
@OPERATORS
def test_tokens_in_a_cache_are_no_fault(tmp_path: Path, pieces: tuple[int, ...], options: dict[str, Any], operators: bool) -> None:
    comparison = compared(tmp_path, pieces, operators=operators, **options)
    assert not comparison.origins and not comparison.defect, (comparison.origins, comparison.notices)
    assert OK == code_of(comparison)
    assert not kinds(comparison) & {"shape-differs", "input-differs", "results-not-compared", "below-rounding"}
    (said,) = [notice.statement for notice in comparison.notices if notice.kind == "steps-joined"]
    alone, begun = ("target", "reference") if options.get("turned") else ("reference", "target")
    assert f"compared with nothing: {BEFORE * options.get('batch', 1)} tokens of the {alone}" in said
    assert f"first tokens lay in a cache of the {begun} before anything was recorded" in said


def epsilon(own: Returning) -> None:
    own.layers[1].post_attention_layernorm.variance_epsilon = 1e-2


def activation(own: Returning) -> None:
    own.layers[1].mlp.act_fn = nn.GELU()


@pytest.mark.parametrize(
    ("change", "module", "call"),
    [(epsilon, "layers.1.post_attention_layernorm", "aten.add.Tensor#0"), (activation, "layers.1.mlp.act_fn", "aten.gelu.default#0")],
    ids=["norm", "mlp"],
)
@pytest.mark.parametrize("turned", [False, True])
@OPERATORS
def test_a_fault_beside_what_reads_the_cache_is_found(
    tmp_path: Path, change: Callable[[Returning], object], module: str, call: str, turned: bool, operators: bool
) -> None:
    comparison = compared(tmp_path, (2, 3), change, operators=operators, batch=2, turned=turned)
    assert [f"{module}/{call}" if operators else module] == [origin.site for origin in comparison.origins]


@OPERATORS
def test_a_cache_of_other_tokens_is_said_and_blames_no_layer(tmp_path: Path, operators: bool) -> None:
    comparison = compared(tmp_path, operators=operators, held=prompt(COUNT).flip(1))
    (said,) = [notice for notice in comparison.notices if notice.kind == "input-differs"]
    assert said.defect and "other numbers than the reference makes: in[1].entries" in said.statement
    assert not comparison.origins
    assert DEFECT == code_of(comparison)


def test_a_prompt_that_lacks_its_first_tokens_is_another_one(tmp_path: Path) -> None:
    """No cache holds them."""
    ids, own = prompt(COUNT), model()
    record(tmp_path / "r.h5", own, ids, (COUNT,), Cache(), operators=False)
    record(tmp_path / "t.h5", own, ids[:, BEFORE:], (COUNT - BEFORE,), Cache(), operators=False)
    comparison = compare_traces(tmp_path / "r.h5", tmp_path / "t.h5")
    assert "shape-differs" in kinds(comparison) and "steps-joined" not in kinds(comparison)
    assert comparison.defect
