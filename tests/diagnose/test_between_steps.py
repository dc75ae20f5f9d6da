"""State that a loop changes between two steps: none but the loop is to blame, and it is said. And searches with beams, which reorder it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from layerdiff.compare import compare_traces
from layerdiff.diagnose.beams import counts_of_beams, search
from layerdiff.sides import Both
from layerdiff.trace.schema import CallKind, CallRow, CallStatus, Role
from layerdiff.trace.writer import TraceWriter
from tests.trace.writing import raw, value_row

Array = NDArray[Any]
Change = Callable[[dict[str, Array]], dict[str, Array]]
VOCABULARY = 16
NAMES = ("layers[0].keys", "layers[1].keys")
_STATE = {
    "object": "Cache",
    "fields": {"layers": [{"object": "Layer", "fields": {"keys": {"tensor": f"in.cache.{name}"}}} for name in NAMES]},
}
DETAIL = json.dumps({"arguments": {"kwargs": {"input_ids": {"tensor": "in.input_ids"}, "cache": _STATE}}})


def best(scores: Array, logits: Array, beams: int) -> tuple[Array, Array, Array]:
    """Of one request (parents, tokens, sums) of the best, as a search would have them."""
    sums = scores[:, None] + logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    order = np.argsort(-sums, axis=None)[:beams]
    return order // VOCABULARY, order % VOCABULARY, sums.reshape(-1)[order]


def generated(
    path: Path, *, beams: int = 1, off: float = 0.0, change: Change | None = None, at: int = 2, reorder: bool = True, seed: int = 0
) -> Path:
    """A loop over logits that depend on the step, the token and what the cache holds; `off`: how far the run's logits are off.

    `change`: of the cache before step `at`. `reorder`: whether the cache follows the beams.
    """
    random = np.random.default_rng(seed)
    table = random.standard_normal((VOCABULARY, VOCABULARY)).astype(np.float32)
    wobble = np.random.default_rng(1).standard_normal((8, 2 * beams, VOCABULARY)).astype(np.float32) * np.float32(off)
    ids = np.repeat(np.array([[1, 2, 3], [4, 5, 6]]), beams, 0)
    scores = np.tile(np.where(np.arange(beams) == 0, 0.0, -np.inf), (2, 1))
    cache = {name: np.zeros((2 * beams, 1, 0), np.float32) for name in NAMES}
    writer = TraceWriter(path, meta={})
    root = writer.add_root("model", "Model")
    for step in range(5):
        call = writer.begin_call(CallRow(CallKind.MODULE, "", type="Model", root=root, step=step, detail=DETAIL))
        edges = {"in.input_ids": ids} | ({f"in.cache.{name}": x for name, x in cache.items()} if step else {})
        for position, x in edges.items():
            writer.add_edge(call, Role.INPUT, position, writer.add_value(value_row(x), raw(x)))
        made = ids[:, None].astype(np.float32)
        cache = {name: np.concatenate([x, made * (number + 1) / 7], -1) for number, (name, x) in enumerate(cache.items())}
        past = sum(x.sum((1, 2)) for x in cache.values())
        logits = np.asarray(table[ids[:, -1]] + np.sin(past)[:, None] * table[step] + wobble[step], np.float32)
        for position, x in {"out.logits": logits, **{f"out.cache.{name}": x for name, x in cache.items()}}.items():
            writer.add_edge(call, Role.OUTPUT, position, writer.add_value(value_row(x), raw(x)))
        writer.end_call(call, CallStatus.RETURNED)
        writer.end_step()
        gone = [best(scores[request], logits[request * beams : (request + 1) * beams].astype(np.float64), beams) for request in range(2)]
        parents = np.concatenate([one[0] + request * beams for request, one in enumerate(gone)])
        ids, scores = np.concatenate([one[1] for one in gone])[:, None], np.array([one[2] for one in gone])
        cache = {name: x[parents] if reorder else x for name, x in cache.items()}
        if change is not None and step + 1 == at:
            cache = change(cache)
    return writer.close()


def said(reference: Path, target: Path) -> dict[str, str]:
    notices = compare_traces(reference, target).notices
    assert all(notice.defect == (notice.kind == "input-differs") for notice in notices)
    return {notice.kind: notice.statement for notice in notices}


CHANGES: dict[str, tuple[Change, str]] = {
    "lines": (
        lambda c: {name: x[::-1].copy() for name, x in c.items()},
        "layers[0].keys has the lines 1, 0 of it, and should have 0, 1 (and 1 more)",
    ),
    "scaled": (lambda c: {name: x * np.float32(0.5) for name, x in c.items()}, "layers[0].keys is 0.5 times that (and 1 more)"),
    "zeroed": (lambda c: c | {NAMES[1]: np.zeros_like(c[NAMES[1]])}, "layers[1].keys is zero"),
    "another layer's": (lambda c: c | {NAMES[1]: c[NAMES[0]]}, "layers[1].keys is what it left in out.cache.layers[0].keys"),
    "rounded": (
        lambda c: {name: x.astype(np.float16).astype(np.float32) for name, x in c.items()},
        "layers[0].keys is that rounded to float16",
    ),
    "kept in half": (lambda c: {name: x.astype(np.float16) for name, x in c.items()}, "layers[0].keys is that rounded to float16"),
    "cut": (
        lambda c: {name: x[..., 1:] for name, x in c.items()},
        "has shape [2, 1, 3], and [2, 1, 4] was left in out.cache.layers[0].keys",
    ),
    "off": (
        lambda c: {name: np.float32(x + np.arange(x.size).reshape(x.shape)) for name, x in c.items()},
        "layers[0].keys differs from that by ",
    ),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_what_a_loop_does_to_a_cache_is_said(tmp_path: Path, kind: str) -> None:
    change, words = CHANGES[kind]
    found = said(generated(tmp_path / "r.h5"), generated(tmp_path / "t.h5", change=change))["input-differs"]
    assert found.startswith("the state that step 2 is handed is not what the step before left: in.cache.layers[")
    assert words in found


def test_a_copy_of_a_cache_is_the_same_cache(tmp_path: Path) -> None:
    target = generated(tmp_path / "t.h5", change=lambda c: {name: x.copy() for name, x in c.items()}, off=1e-6)
    assert {} == said(generated(tmp_path / "r.h5"), target)


@pytest.mark.parametrize("seed", range(4))
def test_beams_that_part_are_each_runs_own(tmp_path: Path, seed: int) -> None:
    runs = [generated(tmp_path / f"{off}.h5", beams=3, off=off, seed=seed) for off in (0.0, 0.3)]
    found = said(*runs)
    assert ["generations-part"] == list(found)
    assert "each with the best 3 beams of each request by its own logits" in found["generations-part"]


@pytest.mark.parametrize("off", [0.0, 0.3], ids=["alike", "parting"])
def test_a_cache_that_does_not_follow_the_beams_is_said(tmp_path: Path, off: float) -> None:
    reference, target = generated(tmp_path / "r.h5", beams=3), generated(tmp_path / "t.h5", beams=3, off=off, reorder=False)
    assert "has the lines 0, 1, 2, 3, 4, 5 of it, and should have " in said(reference, target)["input-differs"]


def test_a_search_is_followed_past_what_ends_a_sequence() -> None:
    """A token that ends a sequence is never gone on from; any other that is passed over is no search."""
    random = np.random.default_rng(0)
    x = random.standard_normal((2, VOCABULARY))
    x[0, 7] = x[0].max() + 1  # the best by far
    order = [token for token in np.argsort(-x[0]).tolist() if token != 7][:2]
    prompt = np.array([[1, 2], [1, 2]])

    def gone(tokens: list[int]) -> list[Sequence[int]]:
        both = Both(np.array(tokens)[:, None], np.array(tokens)[:, None])
        return [parents.target for parents in search(2, Both(prompt, prompt), [(Both(x, x), both)]).parents]

    assert [2] == list(counts_of_beams(prompt))
    assert [[0, 0]] == gone(order)
    assert [] == gone([order[1], order[1] + 1])


def test_what_is_not_finite_or_no_token_ends_a_search() -> None:
    prompt = Both(np.array([[1], [1]]), np.array([[1], [1]]))
    for x, token in ((np.full((2, VOCABULARY), np.nan), 3), (np.zeros((2, VOCABULARY)), VOCABULARY)):
        tokens = np.full((2, 1), token)
        assert not search(2, prompt, [(Both(x, x), Both(tokens, tokens))]).parents
