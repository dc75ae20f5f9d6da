"""Collectives and replicated values held against each other, without a reference: what is right passes, and what is wrong is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from layerdiff.checking import check_ranks
from layerdiff.judge.alone import ranks_together
from layerdiff.judge.collectives.agreement import Told, check_collectives
from layerdiff.judge.collectives.sums import Outcome, reduced
from layerdiff.judge.tables import Verdict
from layerdiff.trace.reader import open_trace
from tests.ranks import Array, Rank, bf16

RNG = np.random.default_rng(5)


def parts_of(world: int, size: int = 256, dtype: str = "float32") -> list[Array]:
    drawn = [np.random.default_rng(10 + rank).standard_normal(size).astype(np.float32) for rank in range(world)]
    return [bf16(part) for part in drawn] if dtype == "bfloat16" else drawn


def ring(parts: list[Array], round: Callable[[Array], Array] = lambda x: x) -> Array:
    """A ring's sum: chunk i is begun by rank i + 1 and goes round, every partial sum rounded."""
    world = len(parts)
    chunks = [np.array_split(part, world) for part in parts]
    made = []
    for chunk in range(world):
        order = [(chunk + 1 + step) % world for step in range(world)]
        total = chunks[order[0]][chunk]
        for rank in order[1:]:
            total = round((total + chunks[rank][chunk]).astype(np.float32))
        made.append(total)
    return np.concatenate(made)


def record(folder: Path, world: int, write: Callable[[Rank], None], **meta: object) -> Path:
    for number in range(world):
        rank = Rank(folder, number, world, **meta)
        write(rank)
        rank.close()
    return folder


def told(folder: Path) -> list[Told]:
    return ranks_together(open_trace(folder).files)


def only(folder: Path) -> Told:
    (found,) = told(folder)
    return found


# reductions


@pytest.mark.parametrize("world", [2, 4])
def test_a_ring_in_fp32_is_explained_bit_by_bit(tmp_path: Path, world: int) -> None:
    parts = parts_of(world, 512)
    folder = record(tmp_path / "t", world, lambda rank: rank.issue("all_reduce", [parts[rank.rank]], [ring(parts)], op="sum") and None)
    checked = check_collectives(open_trace(folder).files)
    assert () == checked.told
    assert {Verdict.ORDER_EXACT} == {outcome.verdict for outcome in checked.outcomes.values()}


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tree_in_fp32_rounded_once_is_exact_in_either_dtype(tmp_path: Path, world: int, dtype: str) -> None:
    parts = parts_of(world, dtype=dtype)
    pairs = [(parts[i] + parts[i + 1]).astype(np.float32) for i in range(0, world, 2)]
    total = pairs[0] if world == 2 else (pairs[0] + pairs[1]).astype(np.float32)
    result = bf16(total) if dtype == "bfloat16" else total
    folder = record(
        tmp_path / "t", world, lambda rank: rank.issue("all_reduce", [parts[rank.rank]], [result], op="sum", dtype=dtype) and None
    )
    checked = check_collectives(open_trace(folder).files)
    assert () == checked.told
    assert {Verdict.ORDER_EXACT} == {outcome.verdict for outcome in checked.outcomes.values()}


def test_a_backend_that_adds_in_bf16_is_said_once_and_is_no_defect(tmp_path: Path) -> None:
    parts = parts_of(4, 512, "bfloat16")

    def write(rank: Rank) -> None:
        for _ in range(2):
            rank.issue("all_reduce", [parts[rank.rank]], [ring(parts, bf16)], op="sum", dtype="bfloat16")

    checked = check_ranks(record(tmp_path / "t", 4, write))
    (notice,) = checked.notices
    assert ("collective-precision", False, ()) == (notice.kind, checked.defect, checked.origins)
    assert (
        "every sum over ranks in bfloat16 that tells (2) rounds each partial sum to bfloat16: added in a ring of 4 chunks"
        in notice.statement
    )
    assert Verdict.ORDER_EXACT == checked.verdict


def test_one_sum_with_partial_sums_in_bf16_among_others_is_a_precision_that_relaxed_allows(tmp_path: Path) -> None:
    parts = parts_of(4, 512, "bfloat16")

    def write(rank: Rank) -> None:
        for module in ("layers.0", "layers.1", "layers.2"):
            total = ring(parts, bf16) if module == "layers.1" else bf16(ring(parts))
            rank.issue("all_reduce", [parts[rank.rank]], [total], op="sum", dtype="bfloat16", module=module)

    folder = record(tmp_path / "t", 4, write)
    strict, relaxed = check_ranks(folder), check_ranks(folder, profile="relaxed")
    (origin,) = strict.origins
    assert (Verdict.PRECISION, "layers.1/c10d.all_reduce#0", None, True) == (origin.verdict, origin.site, origin.rank, strict.defect)
    assert ("bfloat16", "in a ring of 4 chunks in bf16") == (origin.evidence["partial_sums"], origin.evidence["order"])
    assert not relaxed.defect


def test_two_ranks_in_bf16_have_one_addition_and_no_partial_sum(tmp_path: Path) -> None:
    parts = parts_of(2, dtype="bfloat16")
    result = bf16(parts[0] + parts[1])
    folder = record(
        tmp_path / "t", 2, lambda rank: rank.issue("all_reduce", [parts[rank.rank]], [result], op="sum", dtype="bfloat16") and None
    )
    assert not check_ranks(folder).defect


WRONG: dict[str, tuple[Callable[[list[Array], int], Array], str, list[float]]] = {
    "missing": (lambda parts, rank: parts[0] + parts[1] + parts[3], "without rank 2's part", [1, 1, 0, 1]),
    "doubled": (lambda parts, rank: sum(parts[1:], parts[0]) + parts[2], "rank 2's part counted twice", [1, 1, 2, 1]),
    "average": (lambda parts, rank: sum(parts[1:], parts[0]) / 4, "the average", [0.25] * 4),
    "another's": (lambda parts, rank: parts[3], "what rank 3 put in, alone", [0, 0, 0, 1]),
    "again": (lambda parts, rank: 4 * sum(parts[1:], parts[0]), "the sum 4 times", [4, 4, 4, 4]),
    "two of them": (lambda parts, rank: 2 * parts[0] + parts[2] + parts[3], "2 times rank 0's, 0 times rank 1's", [2, 0, 1, 1]),
}


@pytest.mark.parametrize("kind", list(WRONG))
def test_a_result_that_is_no_sum_says_what_it_is(tmp_path: Path, kind: str) -> None:
    parts, (make, words, weights) = parts_of(4), WRONG[kind]
    folder = record(
        tmp_path / "t", 4, lambda rank: rank.issue("all_reduce", [parts[rank.rank]], [make(parts, rank.rank)], op="sum") and None
    )
    found = only(folder).local
    assert ("collective-mismatch", Verdict.DEFECT) == (found.cause, found.verdict)
    assert words in found.statement
    assert weights == found.evidence["weights"]
    assert [0, 1, 2, 3] == found.evidence["ranks"]


def test_a_wrong_result_in_bf16_says_what_it_is(tmp_path: Path) -> None:
    parts = parts_of(4, dtype="bfloat16")
    result = bf16(parts[0] + parts[1] + parts[2])
    folder = record(
        tmp_path / "t", 4, lambda rank: rank.issue("all_reduce", [parts[rank.rank]], [result], op="sum", dtype="bfloat16") and None
    )
    assert "without rank 3's part" in only(folder).local.statement


def test_one_rank_that_kept_its_own_part_is_named(tmp_path: Path) -> None:
    parts = parts_of(4)
    total = ring(parts)

    def write(rank: Rank) -> None:
        rank.issue("all_reduce", [parts[rank.rank]], [parts[2] if rank.rank == 2 else total], op="sum")

    (origin,) = check_ranks(record(tmp_path / "t", 4, write)).origins
    assert ("collective-mismatch", 2) == (origin.cause, origin.rank)
    assert "what rank 2 put in itself: nothing was added to it" in origin.statement


def test_a_chunk_that_lacks_a_part_is_bounded() -> None:
    parts = parts_of(4)
    result = ring(parts)
    result[64:128] -= parts[1][64:128]
    found = reduced(parts, result, "float32", "sum", [0, 1, 2, 3], 0)
    assert Verdict.DEFECT == found.verdict
    assert (64, 64, 127) == (found.evidence["elements"], found.evidence["first"], found.evidence["last"])
    assert found.statement is not None and "without rank 1's part" in found.statement


def test_ranks_with_other_bits_of_a_right_sum_are_a_finding(tmp_path: Path) -> None:
    parts = parts_of(4)
    one = ((parts[0] + parts[1]) + (parts[2] + parts[3])).astype(np.float32)
    other = (((parts[0] + parts[1]) + parts[2]) + parts[3]).astype(np.float32)
    assert not np.array_equal(one, other)
    folder = record(
        tmp_path / "t",
        4,
        lambda rank: rank.issue("all_reduce", [parts[rank.rank]], [other if rank.rank == 3 else one], op="sum") and None,
    )
    found = only(folder).local
    assert "did not get the same bits" in found.statement
    assert [3] == found.evidence["ranks"]


@pytest.mark.parametrize(
    ("op", "right"),
    [
        ("max", lambda parts: np.max(parts, 0)),
        ("min", lambda parts: np.min(parts, 0)),
        ("avg", lambda parts: (np.sum(parts, 0) / np.float32(4)).astype(np.float32)),
        ("product", lambda parts: np.prod(parts, 0, dtype=np.float32)),
    ],
)
def test_other_reductions_are_held_to_what_they_say(op: str, right: Callable[[list[Array]], Array]) -> None:
    parts = parts_of(4)
    fine = reduced(parts, right(parts), "float32", op, [0, 1, 2, 3], 0)
    assert fine.verdict in (Verdict.IDENTICAL, Verdict.ORDER_CONSISTENT)
    wrong = right(parts).copy()
    wrong[7] *= np.float32(1.001)
    assert Verdict.DEFECT == reduced(parts, wrong, "float32", op, [0, 1, 2, 3], 0).verdict


def test_a_maximum_where_a_sum_was_asked_for_and_the_other_way_round() -> None:
    parts = parts_of(4)
    assert "it is the sum" not in (reduced(parts, ring(parts), "float32", "max", [0, 1, 2, 3], 0).statement or "")
    whole = [np.arange(8, dtype=np.int64) + rank for rank in range(3)]
    assert Verdict.IDENTICAL == reduced(whole, np.sum(whole, 0), "int64", "sum", [0, 1, 2], 0).verdict
    found = reduced(whole, np.max(whole, 0), "int64", "sum", [0, 1, 2], 0)
    assert found.statement is not None and "what rank 2 put in, alone" in found.statement


def test_a_sum_of_integers_wraps() -> None:
    parts = [np.array([120], np.int8), np.array([100], np.int8)]
    assert Verdict.IDENTICAL == reduced(parts, np.array([-36], np.int8), "int8", "sum", [0, 1], 0).verdict


def test_what_is_not_finite() -> None:
    parts = [np.array([1.0, np.nan, np.inf, 1.0], np.float32), np.array([2.0, 1.0, 1.0, np.inf], np.float32)]
    fine = np.array([3.0, np.nan, np.inf, np.inf], np.float32)
    assert reduced(parts, fine, "float32", "sum", [0, 1], 0).verdict in (Verdict.IDENTICAL, Verdict.ORDER_EXACT)
    hidden = np.array([3.0, 0.0, np.inf, np.inf], np.float32)
    assert Verdict.DEFECT == reduced(parts, hidden, "float32", "sum", [0, 1], 0).verdict
    broken = np.array([np.nan, np.nan, np.inf, np.inf], np.float32)
    assert Verdict.BROKEN == reduced(parts, broken, "float32", "sum", [0, 1], 0).verdict
    large = [np.array([60000.0], np.float32), np.array([60000.0], np.float32)]
    assert reduced(large, np.array([np.inf], np.float32), "float16", "sum", [0, 1], 0).verdict < Verdict.PRECISION


@pytest.mark.parametrize("layout", ["list", "tensor"])
def test_reduce_scatter_gives_each_rank_its_own_part(tmp_path: Path, layout: str) -> None:
    parts = parts_of(4, 256)
    chunks = np.split(np.sum(np.array(parts, np.float64), 0).astype(np.float32), 4)

    def write(rank: Rank, shift: int = 0) -> None:
        given = list(np.split(parts[rank.rank], 4)) if layout == "list" else [parts[rank.rank]]
        rank.issue("reduce_scatter", given, [chunks[(rank.rank + shift) % 4]], op="sum", layout=layout)

    assert [] == told(record(tmp_path / "right", 4, write))
    found = only(record(tmp_path / "wrong", 4, lambda rank: write(rank, 1))).local
    assert ("collective-mismatch", [0, 1, 2, 3]) == (found.cause, found.evidence["ranks"])


def test_reduce_counts_on_its_destination_alone(tmp_path: Path) -> None:
    parts = parts_of(4)

    def write(rank: Rank, result: Array) -> None:
        rank.issue("reduce", [parts[rank.rank]], [result] if rank.rank == 1 else [], op="sum", destination=1)

    assert [] == told(record(tmp_path / "right", 4, lambda rank: write(rank, ring(parts))))
    assert [1] == only(record(tmp_path / "wrong", 4, lambda rank: write(rank, parts[1]))).local.evidence["ranks"]


# movement


def gathered(order: list[int], layout: str = "list") -> Callable[[Rank], None]:
    parts = parts_of(len(order), 16)

    def write(rank: Rank) -> None:
        results = [parts[i] for i in order]
        rank.issue("all_gather", [parts[rank.rank]], results if layout == "list" else [np.concatenate(results)], layout=layout)

    return write


@pytest.mark.parametrize("layout", ["list", "tensor"])
def test_all_gather_keeps_the_order_of_ranks(tmp_path: Path, layout: str) -> None:
    assert [] == told(record(tmp_path / "right", 4, gathered([0, 1, 2, 3], layout)))
    found = only(record(tmp_path / "wrong", 4, gathered([0, 2, 1, 3], layout))).local
    assert "piece 1 is rank 2's and must be rank 1's, piece 2 is rank 1's and must be rank 2's" in found.statement
    assert ([1, 2], [2, 1]) == (found.evidence["pieces"], found.evidence["holds"])


def test_coalesced_gathers_are_held_one_by_one(tmp_path: Path) -> None:
    one, two = parts_of(2, 8), parts_of(2, 12)

    def write(rank: Rank, swapped: bool = False) -> None:
        second = [two[1], two[0]] if swapped else two
        outputs = [np.concatenate(one), np.concatenate(second)]
        rank.issue("all_gather", [one[rank.rank], two[rank.rank]], outputs, layout="tensor", coalesced=True)

    assert [] == told(record(tmp_path / "right", 2, write))
    assert "piece 2 is rank 1's and must be rank 0's" in only(record(tmp_path / "wrong", 2, lambda rank: write(rank, True))).local.statement


def test_uneven_parts_are_gathered_as_they_are(tmp_path: Path) -> None:
    parts = [np.arange(rank + 1, dtype=np.int64) for rank in range(3)]
    assert [] == told(record(tmp_path / "t", 3, lambda rank: rank.issue("all_gather", [parts[rank.rank]], parts, layout="list") and None))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_nan_that_is_moved_is_the_same_nan(tmp_path: Path, dtype: str) -> None:
    parts = parts_of(2, 8, dtype)
    parts[0][3] = np.nan

    def write(rank: Rank) -> None:
        rank.issue("all_gather", [parts[rank.rank]], parts, layout="list", dtype=dtype)
        rank.issue("send" if rank.rank == 0 else "recv", *([[parts[0]]] if rank.rank == 0 else [[], [parts[0]]]), source=0, destination=1)

    assert [] == told(record(tmp_path / "t", 2, write))


def test_everyone_has_what_was_broadcast(tmp_path: Path) -> None:
    sent, other = parts_of(2, 8)

    def write(rank: Rank, deaf: int = -1) -> None:
        rank.issue("broadcast", [sent] if rank.rank == 1 else [], [other if rank.rank == deaf else sent], source=1)

    assert [] == told(record(tmp_path / "right", 4, write))
    found = only(record(tmp_path / "wrong", 4, lambda rank: write(rank, 3))).local
    assert ([3], "collective-mismatch") == (found.evidence["ranks"], found.cause)


def test_scatter_gives_each_rank_the_part_with_its_number(tmp_path: Path) -> None:
    parts = parts_of(3, 8)

    def write(rank: Rank, shift: int = 0) -> None:
        rank.issue("scatter", parts if rank.rank == 0 else [], [parts[(rank.rank + shift) % 3]], source=0, layout="list")

    assert [] == told(record(tmp_path / "right", 3, write))
    assert [0, 1, 2] == only(record(tmp_path / "wrong", 3, lambda rank: write(rank, 1))).local.evidence["ranks"]


ROWS = np.array([[1, 2], [3, 1]])
"""Tokens that each of two ranks sends to rank 0 and to rank 1."""


def all_to_all(rank: Rank, lose: bool = False, swap: bool = False) -> None:
    counts = ROWS
    tokens = [np.arange(counts[i].sum() * 4, dtype=np.float32).reshape(-1, 4) + 100 * (i + 1) for i in range(2)]
    pieces = [np.split(tokens[i], [counts[i][0]]) for i in range(2)]
    got = [pieces[i][rank.rank] for i in (range(2) if not swap else (1, 0))]
    result = np.concatenate(got)
    if lose:
        result = result.copy()
        result[0] = 0
    sizes = {"input": counts[rank.rank].tolist(), "output": counts[:, rank.rank].tolist()}
    rank.issue("all_to_all", [tokens[rank.rank]], [result], layout="tensor", sizes=sizes)


def test_all_to_all_conserves_tokens(tmp_path: Path) -> None:
    assert [] == told(record(tmp_path / "right", 2, all_to_all))
    found = only(record(tmp_path / "lost", 2, lambda rank: all_to_all(rank, lose=rank.rank == 0))).local
    assert ([0], True) == (found.evidence["ranks"], "piece 0 is zeros and must be rank 0's" in found.statement)
    assert [0, 1] == only(record(tmp_path / "swapped", 2, lambda rank: all_to_all(rank, swap=True))).local.evidence["ranks"]


def test_all_to_all_of_lists(tmp_path: Path) -> None:
    pieces = [[np.full(3, 10 * giver + taker, np.float32) for taker in range(3)] for giver in range(3)]

    def write(rank: Rank, turned: bool = False) -> None:
        got = [pieces[rank.rank][giver] if turned else pieces[giver][rank.rank] for giver in range(3)]
        rank.issue("all_to_all", pieces[rank.rank], got, layout="list")

    assert [] == told(record(tmp_path / "right", 3, write))
    assert "must be rank 1's" in only(record(tmp_path / "wrong", 3, lambda rank: write(rank, True))).local.statement


def test_what_is_sent_is_received(tmp_path: Path) -> None:
    message = parts_of(1, 8)[0]

    def write(rank: Rank, receives: bool = True, other: bool = False) -> None:
        if rank.rank == 0:
            rank.issue("send", [message], destination=1)
        elif receives:
            rank.issue("recv", [], [message + 1 if other else message], source=0)

    assert [] == told(record(tmp_path / "right", 2, write))
    assert "no receive on rank 1" in only(record(tmp_path / "lost", 2, lambda rank: write(rank, receives=False))).local.statement
    hung = record(tmp_path / "hung", 2, lambda rank: rank.issue("recv", [], [], source=1 - rank.rank, finished=False) and None)
    assert ["collective-not-waited"] == [one.local.kind for one in told(hung)]
    changed = only(record(tmp_path / "changed", 2, lambda rank: write(rank, other=True))).local
    assert ("collective-mismatch", [1]) == (changed.cause, changed.evidence["ranks"])
    assert "in 8 of 8 elements" in changed.statement


# order


def in_order(rank: Rank, names: list[tuple[str, str]]) -> None:
    """All parts are zero, so that only the order can be wrong."""
    for name, module in names:
        zero = np.zeros(4, np.float32)
        world = rank.world
        if name == "all_reduce":
            rank.issue(name, [zero], [zero], op="sum", module=module)
        else:
            rank.issue(name, [zero], [np.zeros(4 * world, np.float32)], module=module, layout="tensor")


USUAL = [("all_reduce", "layers.0.attn"), ("all_reduce", "layers.0.mlp"), ("all_gather", "head")]


@pytest.mark.parametrize("world", [2, 4])
def test_a_collective_that_one_rank_lacks_is_named_with_its_site(tmp_path: Path, world: int) -> None:
    folder = record(tmp_path / "t", world, lambda rank: in_order(rank, [USUAL[0], USUAL[2]] if rank.rank == 1 else USUAL))
    (origin,) = check_ranks(folder).origins
    assert ("collective-order", 1, "layers.0.mlp/c10d.all_reduce#0") == (origin.cause, origin.rank, origin.site)
    assert "at number 1 rank 1 parts from the others, without all_reduce at layers.0.mlp/c10d.all_reduce#0" in origin.statement
    assert 1 == origin.evidence["sequence"]


def test_a_collective_too_many_is_named(tmp_path: Path) -> None:
    more = [*USUAL[:1], ("all_reduce", "layers.0.extra"), *USUAL[1:]]
    found = only(record(tmp_path / "t", 4, lambda rank: in_order(rank, more if rank.rank == 3 else USUAL))).local
    assert [3] == found.evidence["ranks"]
    assert "with all_reduce at layers.0.extra/c10d.all_reduce#0 besides" in found.statement


def test_another_order_of_unlike_collectives(tmp_path: Path) -> None:
    turned = [USUAL[0], USUAL[2], USUAL[1]]
    found = only(record(tmp_path / "t", 4, lambda rank: in_order(rank, turned if rank.rank == 2 else USUAL))).local
    assert ("collective-order", [2]) == (found.cause, found.evidence["ranks"])


def test_another_order_of_collectives_that_look_alike(tmp_path: Path) -> None:
    turned = [USUAL[1], USUAL[0], USUAL[2]]
    found = only(record(tmp_path / "t", 4, lambda rank: in_order(rank, turned if rank.rank == 2 else USUAL))).local
    assert ("collective-order", [2]) == (found.cause, found.evidence["ranks"])
    assert "in another order: at number 0 rank 2 issues all_reduce at layers.0.mlp" in found.statement


def test_a_wrong_rank_at_the_end_is_found_unless_its_recording_was_cut_short(tmp_path: Path) -> None:
    folder = record(tmp_path / "t", 4, lambda rank: in_order(rank, USUAL[:2] if rank.rank == 0 else USUAL))
    assert [0] == only(folder).local.evidence["ranks"]


def test_the_dtype_and_the_count_are_part_of_the_order(tmp_path: Path) -> None:
    def write(rank: Rank) -> None:
        part = np.zeros(5 if rank.rank == 3 else 4, np.float32)
        rank.issue("all_reduce", [part], [part], op="sum")

    found = only(record(tmp_path / "t", 4, write)).local
    assert [3] == found.evidence["ranks"]
    assert "issuing all_reduce sum of 5 float32 at layers.0/c10d.all_reduce#0 instead of all_reduce sum of 4 float32" in found.statement


def test_groups_are_judged_by_themselves(tmp_path: Path) -> None:
    def write(rank: Rank) -> None:
        for kind, members in (("tp", [rank.rank // 2 * 2, rank.rank // 2 * 2 + 1]), ("dp", [rank.rank % 2, rank.rank % 2 + 2])):
            parts = parts_of(4)
            result = (parts[members[0]] + parts[members[1]]).astype(np.float32)
            if kind == "dp" and members[0] == 1:
                result = parts[1]
            rank.issue("all_reduce", [parts[rank.rank]], [result], op="sum", group=f"{kind}{members[0]}", ranks=members)

    found = only(record(tmp_path / "t", 4, write)).local
    assert ([1, 3], "dp1 (ranks 1, 3)") == (found.evidence["ranks"], found.evidence["group"])


# waiting


def test_a_value_used_before_its_collective_was_complete(tmp_path: Path) -> None:
    def write(rank: Rank) -> None:
        zero = np.zeros(4, np.float32)
        call = rank.issue("all_reduce", [zero], [zero], op="sum")
        uses = f'{{"used_pending": [{{"call": {call}, "group": "0", "sequence": 0, "completed": false}}]}}'
        rank.module("layers.0.act", "ReLU", zero, zero + rank.rank, detail=uses)  # it read what was there, and that is not recorded

    (origin,) = check_ranks(record(tmp_path / "t", 2, write)).origins
    assert ("collective-not-waited", "layers.0.act", True) == (origin.cause, origin.site, origin.defect)
    assert "uses the result of layers.0/c10d.all_reduce#0 (number 0 of group 0) before anybody waited for it" in origin.statement


def test_an_operator_that_used_it_has_a_row_of_its_own(tmp_path: Path) -> None:
    from layerdiff.trace.schema import CallKind, CallRow, CallStatus

    def write(rank: Rank) -> None:
        zero = np.zeros(4, np.float32)
        call = rank.issue("all_reduce", [zero], [zero], op="sum")
        for name, detail in (("mul", f'{{"used_pending": [{{"call": {call}, "group": "0", "sequence": 0}}]}}'), ("add", "{}")):
            row = CallRow(CallKind.OPERATOR, "layers.0", operator=f"aten.{name}.Tensor", root=rank.root, parent=rank.top, detail=detail)
            rank.writer.end_call(rank.writer.begin_call(row), CallStatus.RETURNED)

    checked = check_ranks(record(tmp_path / "t", 2, write))
    (origin,) = checked.origins
    assert ("layers.0/aten.mul.Tensor#0", None) == (origin.site, origin.rank)
    assert 1 == int(np.count_nonzero(checked.sites["kind"] == CallKind.OPERATOR))


def test_a_use_that_was_only_lucky_is_said_and_is_no_defect(tmp_path: Path) -> None:
    def write(rank: Rank) -> None:
        zero = np.zeros(4, np.float32)
        call = rank.issue("all_reduce", [zero], [zero], op="sum")
        uses = f'{{"used_pending": [{{"call": {call}, "group": "0", "sequence": 0, "completed": true}}]}}'
        rank.module("layers.0.act", "ReLU", zero, zero, detail=uses)

    checked = check_ranks(record(tmp_path / "t", 2, write))
    assert (False, ["collective-not-waited"]) == (checked.defect, [notice.kind for notice in checked.notices])


def test_a_group_that_hung_is_said_with_the_ranks_that_finished(tmp_path: Path) -> None:
    def write(rank: Rank) -> None:
        zero = np.zeros(4, np.float32)
        rank.issue("all_reduce", [zero], [zero] if rank.rank else [], op="sum", finished=rank.rank != 0)

    (notice,) = check_ranks(record(tmp_path / "t", 2, write)).notices
    assert "collective-not-waited" == notice.kind
    assert "was never waited for on rank 0: its result is not known; rank 1 finished it" in notice.statement


def test_a_collective_that_failed_is_said(tmp_path: Path) -> None:
    zero = np.zeros(4, np.float32)
    why = "RuntimeError: Connection closed by peer"
    folder = record(tmp_path / "t", 2, lambda rank: rank.issue("all_reduce", [zero], [], op="sum", finished=False, raised=why) and None)
    (notice,) = check_ranks(folder).notices
    assert ("collective-failed", True) == (notice.kind, why in notice.statement)


# replicas


def given_alike(rank: Rank, made: Array, type: str = "LlamaRMSNorm", *, given: Array | None = None, **more: object) -> None:
    coming = np.ones((2, 8), np.float32) if given is None else given
    rank.module("norm", type, coming, made, {"weight": np.ones(8, np.float32)}, **more)  # type: ignore[arg-type]


def test_a_norm_that_makes_something_else_of_the_same_is_a_finding_on_its_rank(tmp_path: Path) -> None:
    right = np.ones((2, 8), np.float32)
    folder = record(tmp_path / "t", 4, lambda rank: given_alike(rank, right * 1.5 if rank.rank == 2 else right))
    (origin,) = check_ranks(folder).origins
    assert ("replicas-differ", 2, "norm", True) == (origin.cause, origin.rank, origin.site, origin.defect)
    assert pytest.approx(0.5) == origin.measured


def test_a_difference_within_rounding_is_said_and_is_no_defect(tmp_path: Path) -> None:
    right = np.ones((2, 8), np.float32)
    folder = record(tmp_path / "t", 2, lambda rank: given_alike(rank, np.nextafter(right, 2, dtype=np.float32) if rank.rank else right))
    checked = check_ranks(folder)
    assert ([], False, ["replicas-differ", "no-collectives"]) == (
        list(checked.origins),
        checked.defect,
        [notice.kind for notice in checked.notices],
    )


@pytest.mark.parametrize(
    "more",
    [
        {"type": "SequenceSlice"},  # a class that may do its rank's part
        {"inside": True},  # a collective inside
        {"given": None, "sliced": True},  # what came in differs
    ],
)
def test_nothing_is_claimed_of_what_may_be_a_part(tmp_path: Path, more: dict[str, object]) -> None:
    def write(rank: Rank) -> None:
        said = dict(more)
        if said.pop("sliced", False):
            said["given"] = np.full((2, 8), rank.rank, np.float32)
        given_alike(rank, np.full((2, 8), rank.rank, np.float32), **said)  # type: ignore[arg-type]

    assert [] == [one for one in told(record(tmp_path / "t", 2, write)) if one.local.cause or one.local.notice]


def test_a_result_of_another_shape_than_its_class_gives_is_a_part(tmp_path: Path) -> None:
    folder = record(tmp_path / "t", 2, lambda rank: given_alike(rank, np.full((1, 8), rank.rank, np.float32)))
    assert [] == told(folder)


def test_dropout_that_draws_apart_is_a_notice(tmp_path: Path) -> None:
    coming = np.ones((2, 8), np.float32)
    mask = [np.eye(2, 8, dtype=np.float32), np.eye(2, 8, k=1, dtype=np.float32)]
    folder = record(tmp_path / "t", 2, lambda rank: rank.module("drop", "Dropout", coming, mask[rank.rank]) and None)
    (found,) = told(folder)
    assert ("rng-differs-per-rank", True) == (found.local.kind, found.local.notice)


def test_a_norm_given_the_same_with_other_weights_is_said(tmp_path: Path) -> None:
    def write(rank: Rank) -> None:
        coming = np.ones((2, 8), np.float32)
        rank.module("norm", "LayerNorm", coming, coming * (1 + rank.rank), {"weight": np.full(8, 1.0 + rank.rank, np.float32)})

    (found,) = told(record(tmp_path / "t", 2, write))
    assert ("replicas-differ", True, [1]) == (found.local.kind, found.local.notice, found.local.evidence["ranks"])


def layers_of_norms(rank: Rank, given: list[bool]) -> None:
    """For each layer whether its norm is given the same on every rank."""
    for layer, same in enumerate(given):
        coming = np.full((2, 8), 1.0 if same else 1.0 + rank.rank, np.float32)
        rank.module(f"layers.{layer}.norm", "RMSNorm", coming, coming * layer, {"weight": np.ones(8, np.float32)})


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ([True, True, False, False], "layers.2.norm"),
        ([True, True, True], None),
        ([False, False, False], None),
        ([True, False, True], None),
        ([False, True, True], None),
    ],
)
def test_where_ranks_part_for_good_is_said(tmp_path: Path, given: list[bool], where: str | None) -> None:
    checked = check_ranks(record(tmp_path / "t", 2, lambda rank: layers_of_norms(rank, given)))
    found = [(notice.site, notice.defect) for notice in checked.notices if notice.kind == "replicas-part"]
    assert ([] if where is None else [(where, False)]) == found


# ranks as a whole


def kinds(folder: Path) -> list[str]:
    return [notice.kind for notice in check_ranks(folder).notices]


def test_a_missing_rank_is_said_and_what_needs_it_is_not_judged(tmp_path: Path) -> None:
    parts = parts_of(4)
    folder = record(tmp_path / "t", 4, lambda rank: rank.issue("all_reduce", [parts[rank.rank]], [ring(parts)], op="sum") and None)
    (folder / "rank00002.h5").unlink()
    checked = check_ranks(folder)
    (notice,) = checked.notices
    assert ("ranks-missing", "rank 2 of 4 left no file here") == (notice.kind, notice.statement.partition(":")[0])
    rows = checked.sites["kind"] == 2
    assert {int(Verdict.NOT_COMPARABLE)} == set(checked.sites["verdict"][rows].tolist())


def test_files_of_different_runs_are_said(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    for number, world in enumerate((2, 4)):
        Rank(folder, number, world).close()
    assert "ranks-mixed" in kinds(folder) and check_ranks(folder).defect


def test_ranks_of_other_software_time_or_seed_are_said(tmp_path: Path) -> None:
    for number in range(2):
        Rank(tmp_path / "torch", number, 2, environment={"torch": f"2.{number}"}).close()
        Rank(tmp_path / "time", number, 2, created=f"2026-01-01T0{number * 3}:00:00+0000").close()
        Rank(tmp_path / "seed", number, 2, environment={"seed": number}, random=("a", "b")).close()
        Rank(tmp_path / "calm", number, 2, environment={"seed": number}, random=("a", "a")).close()
    assert ["ranks-mixed", "no-collectives"] == kinds(tmp_path / "torch") == kinds(tmp_path / "time")
    assert ["rank-seeds-differ", "no-collectives"] == kinds(tmp_path / "seed")
    assert ["no-collectives"] == kinds(tmp_path / "calm")


def test_other_numbers_of_forwards_are_said(tmp_path: Path) -> None:
    from layerdiff.trace.schema import CallKind, CallRow, CallStatus

    for number in range(2):
        rank = Rank(tmp_path / "t", number, 2)
        if number:
            again = rank.writer.begin_call(CallRow(CallKind.MODULE, "", type="Root", root=rank.root, step=1))
            rank.writer.end_call(again, CallStatus.RETURNED)
        rank.close()
    assert ["rank-steps-differ", "no-collectives"] == kinds(tmp_path / "t")


def test_without_bytes_nothing_is_judged(tmp_path: Path) -> None:
    parts = parts_of(2)
    folder = record(
        tmp_path / "t", 2, lambda rank: rank.issue("all_reduce", [parts[rank.rank]], [ring(parts)], op="sum", kept=False) and None
    )
    checked = check_collectives(open_trace(folder).files)
    assert ({Verdict.NOT_COMPARABLE}, ()) == ({outcome.verdict for outcome in checked.outcomes.values()}, checked.told)


def test_details_of_a_strangers_trace_are_left_out(tmp_path: Path) -> None:
    zero = np.zeros(4, np.float32)

    def write(rank: Rank) -> None:
        rank.issue("all_reduce", [zero], [zero], op="sum", sequence=-1)
        rank.issue("all_reduce", [zero], [zero], op="sum", sequence="x")
        rank.issue("all_to_all", [zero], [zero], layout="tensor", sizes={"input": [9, 9], "output": "no"})
        rank.issue("all_gather", [], [], layout=3)

    outcomes = check_collectives(open_trace(record(tmp_path / "t", 2, write)).files).outcomes
    assert 4 == len(outcomes) and {Verdict.NOT_COMPARABLE} == {outcome.verdict for outcome in outcomes.values()}


def test_a_long_result_is_sampled_for_its_order_and_bounded_whole() -> None:
    parts = [np.random.default_rng(rank).standard_normal(1 << 18).astype(np.float32) for rank in range(4)]
    total = (((parts[0] + parts[1]).astype(np.float32) + parts[2]).astype(np.float32) + parts[3]).astype(np.float32)
    fine = reduced(parts, total, "float32", "sum", [0, 1, 2, 3], 0)
    assert (Verdict.ORDER_EXACT, True) == (fine.verdict, fine.rule.endswith(" rows sampled"))
    total[77777] += np.float32(0.01)
    wrong: Outcome = reduced(parts, total, "float32", "sum", [0, 1, 2, 3], 0)
    assert (Verdict.DEFECT, 77777) == (wrong.verdict, wrong.evidence["first"])


def test_an_incomplete_recording_is_said_and_its_silence_is_none(tmp_path: Path) -> None:
    for number in range(2):
        rank = Rank(tmp_path / "t", number, 2)
        in_order(rank, USUAL[: 3 - number])
        rank.close("the disk is full" if number else None)
    checked = check_ranks(tmp_path / "t")
    assert (["recording-incomplete"], ()) == ([notice.kind for notice in checked.notices], checked.origins)
