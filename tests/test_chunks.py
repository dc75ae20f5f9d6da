"""A prompt that one run is given in one piece, the other in chunks: what these make together is compared, and their faults are found."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from layerdiff import Recorder
from layerdiff.cli.exits import OK, UNUSABLE, code_of
from layerdiff.compare import compare_traces, with_further_runs
from layerdiff.errors import ComparisonError, TraceError
from layerdiff.judge.tables import Verdict
from layerdiff.measure.full import full
from layerdiff.rows.tensor.pair import open_tensor
from layerdiff.rows.traces import Traces
from layerdiff.saved.comparison import Comparison
from layerdiff.trace.schema import CallKind, Role
from tests.chunked import HIDDEN, Chunked, assert_mean_is_not_compared, chunked, compared, prompt, record

FP32, BF16 = torch.float32, torch.bfloat16
OPERATORS = pytest.mark.parametrize("operators", [True, False], ids=["operators", "modules"])


def told(comparison: Comparison) -> str:
    (said,) = [notice.statement for notice in comparison.notices if notice.kind == "steps-joined"]
    return said


def is_right(comparison: Comparison) -> bool:
    kinds = {notice.kind for notice in comparison.notices}
    return not (comparison.origins or comparison.defect or kinds & {"results-not-compared", "shape-differs", "judged-by-thresholds"})


@pytest.mark.parametrize(
    ("ours", "theirs", "dtype", "options", "operators"),
    [
        ((12,), (5, 7), FP32, {}, False),
        ((12, 1, 1), (4, 4, 4, 1, 1), BF16, {"batch": 2}, True),
        ((12, 1), (4, 8, 1), BF16, {"size": 16, "both": True}, True),
        ((5, 7), (12,), FP32, {}, True),
        ((3, 9), (6, 6), BF16, {"last": True}, True),
        ((12, 1), (6, 6, 1), BF16, {"last": True, "batch": 2}, False),
    ],
    ids=["uneven", "three", "static", "reference", "both", "last"],
)
def test_chunks_are_no_fault(
    tmp_path: Path, ours: tuple[int, ...], theirs: tuple[int, ...], dtype: torch.dtype, options: dict[str, int], operators: bool
) -> None:
    comparison = compared(tmp_path, ours, theirs, operators=operators, dtype=dtype, **options)  # type: ignore[arg-type]
    assert is_right(comparison), (comparison.origins, comparison.notices)
    assert code_of(comparison) == OK
    for side, pieces in (("reference", ours), ("target", theirs)):
        count = sum(1 for size in pieces if size > 1)
        words = "in one forward" if count == 1 else f"in {count} chunks of {', '.join(map(str, pieces[:count]))}"
        assert f"the {side} ran" in told(comparison) and words in told(comparison)


def in_layer(fault: str) -> Callable[[Chunked], object]:
    return lambda model: setattr(model.layers[1], "fault", fault)


def in_attention(fault: str) -> Callable[[Chunked], object]:
    return lambda model: setattr(model.layers[1].self_attn, "fault", fault)


def in_model(fault: str) -> Callable[[Chunked], object]:
    return lambda model: setattr(model, "fault", fault)


def epsilon(model: Chunked) -> None:
    model.layers[1].post_attention_layernorm.variance_epsilon = 1e-3


def activation(model: Chunked) -> None:
    model.layers[1].mlp.act_fn = nn.GELU()


def head(model: Chunked) -> None:
    model.lm_head.weight.data = model.lm_head.weight.data.roll(1, 0)


FAULTS = {
    "positions": (in_model("positions"), "", "/aten.sub.Tensor#0"),
    "mask": (in_model("mask"), "", "/aten.add.Tensor#0"),
    "forgotten": (in_attention("forgotten"), "layers.1.self_attn", "/aten.bmm.default#*"),
    "dropped": (in_layer("dropped"), "layers.1", "/aten.cat.default#*"),
    "stale": (in_attention("stale"), "layers.1.self_attn", "/aten.roll.default#0"),
    "epsilon": (epsilon, "layers.1.post_attention_layernorm", "/aten.add.Tensor#0"),
    "activation": (activation, "layers.1.mlp.act_fn", "/aten.gelu.default#0"),
}


@pytest.mark.parametrize(("number", "fault"), enumerate(FAULTS), ids=list(FAULTS))
def test_a_fault_of_chunks_is_found_at_its_operator(tmp_path: Path, number: int, fault: str) -> None:
    """Of every other fault the tokens of a chunk are as many as there are heads."""
    change, module, operator = FAULTS[fault]
    theirs, dtype, size = (((5, 7), FP32, 0), ((4, 4, 4), BF16, 16))[number % 2]
    comparison = compared(tmp_path, (12,), theirs, change, operators=True, dtype=dtype, size=size)
    (origin,) = comparison.origins
    assert fnmatchcase(origin.site, f"{module}{operator}"), origin.site
    assert not {"joined.whole", "joined.part"} & set(origin.statement.split()), origin.statement


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_chunks_is_found_at_its_module(tmp_path: Path, fault: str) -> None:
    change, module, _ = FAULTS[fault]
    comparison = compared(tmp_path, (12,), (5, 7), change, operators=False)
    (origin,) = comparison.origins
    assert module == origin.site


def test_a_fault_is_found_where_the_reference_has_chunks_and_where_both_have(tmp_path: Path) -> None:
    for ours, theirs in (((5, 7), (12,)), ((3, 9), (6, 6))):
        (origin,) = compared(tmp_path, ours, theirs, epsilon, operators=True).origins
        assert ("layers.1.post_attention_layernorm/aten.add.Tensor#0", "rmsnorm-eps") == (origin.site, origin.cause)


def test_a_mask_that_the_reference_cannot_read_in_its_chunks_blames_no_layer(tmp_path: Path) -> None:
    """What its first chunk is to see of the second one was not there: its layers are not run on that mask."""
    comparison = compared(tmp_path, (6, 6), (3, 9), in_model("mask"), operators=True)
    assert ["/aten.add.Tensor#0"] == [origin.site for origin in comparison.origins]


@OPERATORS
def test_a_mask_with_the_rows_of_others_is_wrong_where_it_is_made(tmp_path: Path, operators: bool) -> None:
    """Each token of the second chunk is to see what one of the first sees."""
    comparison = compared(tmp_path, (6, 6), (3, 9), in_model("local"), operators=operators)
    (origin,) = comparison.origins
    assert "" == origin.site.partition("/")[0]


@OPERATORS
def test_a_fault_behind_the_last_token_is_found(tmp_path: Path, operators: bool) -> None:
    """Only the logits of the last chunk are the last token's."""
    comparison = compared(tmp_path, (12,), (5, 7), head, operators=operators, last=True)
    assert "weight-differs" in [notice.kind for notice in comparison.notices if notice.defect]
    assert all(origin.site.startswith("lm_head") for origin in comparison.origins)
    rows = [row for row, site in enumerate(comparison.sites["site"].tolist()) if comparison.texts[site] == "lm_head"]
    assert [Verdict.NOT_COMPARABLE] != [Verdict(int(comparison.sites["verdict"][row])) for row in rows]


@OPERATORS
def test_a_mean_over_the_tokens_of_a_chunk_is_that_of_no_other(tmp_path: Path, operators: bool) -> None:
    ids = prompt(12)
    assert_mean_is_not_compared(tmp_path, [ids], [ids[:, :4], ids[:, 4:]], operators=operators)


def test_other_tokens_are_no_chunks(tmp_path: Path) -> None:
    """A token that is dropped between two chunks, and a prompt of equal tokens: nothing says that they are one."""
    ids = prompt(12)
    record(tmp_path / "r.h5", chunked(), ids, (12,), operators=False)
    record(tmp_path / "t.h5", chunked(), torch.cat([ids[:, :4], ids[:, 5:]], 1), (4, 7), operators=False)
    with pytest.raises(ComparisonError, match="none is compared"):
        compare_traces(tmp_path / "r.h5", tmp_path / "t.h5")
    for name, pieces in (("r.h5", (12,)), ("t.h5", (4, 8))):
        record(tmp_path / name, chunked(), torch.zeros_like(ids), pieces, operators=False)
    with pytest.raises(ComparisonError, match="none is compared"):
        compare_traces(tmp_path / "r.h5", tmp_path / "t.h5")


def test_the_last_chunks_of_a_prompt_are_compared(tmp_path: Path) -> None:
    """A run that warmed up in chunks, too."""
    ids = prompt(12)
    record(tmp_path / "r.h5", chunked(), ids, (12,), operators=False)
    record(tmp_path / "t.h5", chunked(), torch.cat([ids, ids], 1), (5, 7, 5, 7), operators=False)
    assert "(steps 2..3)" in told(compare_traces(tmp_path / "r.h5", tmp_path / "t.h5"))


def test_what_chunks_make_is_shown_as_it_was_compared(tmp_path: Path) -> None:
    comparison = compared(tmp_path, (12, 1), (5, 7, 1), epsilon, operators=False, batch=2)
    pairs, traces = comparison.pairs, Traces()
    chosen = np.flatnonzero((pairs["role"] != Role.WEIGHT) & np.isfinite(pairs["rel_l2"])).tolist()
    for pair in chosen:
        assert full(*open_tensor(traces, comparison, pair).measured).rel_l2 == pytest.approx(float(pairs["rel_l2"][pair]), rel=1e-5)
    roots = (comparison.sites["parent"] < 0) & (comparison.sites["kind"] == CallKind.MODULE)
    shapes = {open_tensor(traces, comparison, pair).shape for pair in chosen if roots[pairs["site"][pair]] and pairs["role"][pair]}
    assert {(2, 12, 97), (2, 1, 97)} == shapes
    (tmp_path / "r.h5").unlink()
    with pytest.raises(TraceError, match="not there"):
        open_tensor(Traces(), comparison, chosen[0])


def test_a_second_run_in_chunks_is_held_against_the_first(tmp_path: Path) -> None:
    comparison = compared(tmp_path, (12,), (5, 7), operators=False)
    with_both = with_further_runs(comparison, again=tmp_path / "t.h5")
    assert with_both.again is not None and not with_both.origins
    assert not {"nondeterministic", "again-differs"} & {notice.kind for notice in with_both.notices}


def test_operators_of_chunks_say_where_they_are_compared(tmp_path: Path) -> None:
    comparison = compared(tmp_path, (12,), (5, 7), operators=True)
    sites, texts = comparison.sites, comparison.texts
    alone = (sites["kind"] == CallKind.OPERATOR) & ((sites["reference_call"] < 0) | (sites["target_call"] < 0)) & (sites["parent"] >= 0)
    said = {texts[int(text)] for text in sites["statement"][alone]}
    assert {"the target runs it in 2 steps: what they make together is compared, in its module"} == said
    assert not [texts[int(site)] for site in sites["site"] if "joined." in (texts[int(site)] or "")]
    assert UNUSABLE != code_of(comparison)


class Experts(nn.Module):
    """Each token goes to both of two experts, each of which is given first the tokens that chose it first."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(HIDDEN, 2, bias=False), nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, HIDDEN)
        shares, chosen = self.gate(rows).float().softmax(-1).topk(2, -1)
        made = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            rank, token = torch.where(chosen.T == number)
            made = made.index_add(0, token, expert(rows[token]) * shares[token, rank, None].to(x.dtype))
        return made.reshape(x.shape)


def experts(model: Chunked) -> None:
    torch.manual_seed(1)
    for layer in model.layers:
        layer.mlp = Experts().to(model.lm_head.weight.dtype)


@OPERATORS
def test_experts_have_the_tokens_of_a_chunk_in_an_order_of_their_own(tmp_path: Path, operators: bool) -> None:
    ids = prompt(12)
    for name, pieces in (("r.h5", (12,)), ("t.h5", (6, 6))):
        experts(model := chunked())
        record(tmp_path / name, model, ids, pieces, operators=operators)
    comparison = compare_traces(tmp_path / "r.h5", tmp_path / "t.h5")
    assert is_right(comparison), comparison.origins


class Scanning(nn.Module):
    """Reads what a projection makes token by token, each with what was kept of those before."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.share = 0.5
        self.embed_tokens, self.proj, self.head = nn.Embedding(97, 16), nn.Linear(16, 16, bias=False), nn.Linear(16, 97)

    def forward(self, input_ids: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        x, made = self.proj(self.embed_tokens(input_ids)), []
        for place in range(x.shape[1]):
            kept.copy_(self.share * kept + x[:, place])
            made.append(kept.clone())
        return self.head(torch.stack(made, 1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("ours", [(4, 1, 1), (6,)], ids=["reference", "target"])
def test_what_is_read_token_by_token_is_judged_as_it_is_handed_on(tmp_path: Path, ours: tuple[int, ...]) -> None:
    theirs, ids = (6,) if len(ours) > 1 else (4, 1, 1), prompt(6)
    for share in (0.5, 0.4):
        for name, pieces in (("r.h5", ours), ("t.h5", theirs)):
            model, kept = Scanning(), torch.zeros(1, 16)
            model.share = share if name == "t.h5" else 0.5
            with torch.no_grad(), Recorder(tmp_path / name, model, operators=True):
                for piece in ids.split(pieces, 1):
                    model(piece, kept)
        found = [origin.site for origin in compare_traces(tmp_path / "r.h5", tmp_path / "t.h5").origins]
        assert not found if share == 0.5 else found[0].startswith("/aten.mul.Tensor"), found


class Recurrent(nn.Module):
    """Carries a state of one size, which hardly fades, from token to token; its glue or a layer reads it."""

    def __init__(self, layer: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed_tokens, self.norm, self.proj = nn.Embedding(97, 8), nn.LayerNorm(8), nn.Linear(8, 8)
        self.mixer = nn.Module() if layer else None
        if self.mixer is not None:
            self.mixer.forward = self.mixed  # type: ignore[method-assign]

    def mixed(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = []
        for one in x.unbind(1):
            state = state * 0.999 + one[:, :, None] * one[:, None]
            made.append((one[:, None] @ state)[:, 0])
        return torch.stack(made, 1), state

    def forward(self, input_ids: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, state = (self.mixer or self.mixed)(self.norm(self.embed_tokens(input_ids)), state)
        return self.proj(x), state


def recurring(folder: Path, *, layer: bool, operators: bool, epsilon: float = 1e-5, begin: float = 0.0) -> Comparison:
    """`begin`: what the target's state is filled with at first."""
    ids = prompt(10)
    for name, pieces in (("r", (8, 2)), ("t", (7, 3))):
        model = Recurrent(layer)
        model.norm.eps, at = epsilon if name == "t" else 1e-5, 0
        state = torch.full((1, 8, 8), begin if name == "t" else 0.0)
        with torch.no_grad(), Recorder(folder / f"{name}.h5", model, operators=operators):
            for count in pieces:
                _, state = model(ids[:, at : at + count], state)
                at += count
    return compare_traces(folder / "r.h5", folder / "t.h5")


@pytest.mark.parametrize(("layer", "operators"), [(True, True), (False, True), (True, False)], ids=["layer", "glue", "modules"])
def test_state_of_one_size_is_that_before_the_first_chunk(tmp_path: Path, layer: bool, operators: bool) -> None:
    comparison = recurring(tmp_path, layer=layer, operators=operators)
    assert not comparison.origins and not comparison.defect, (comparison.origins, comparison.notices)
    assert ["norm"] == [o.site.partition("/")[0] for o in recurring(tmp_path, layer=layer, operators=operators, epsilon=1e-1).origins]
    assert "input-differs" in {notice.kind for notice in recurring(tmp_path, layer=layer, operators=operators, begin=1.0).notices}
