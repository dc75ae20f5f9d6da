"""What comes out of a collective in exact arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from layerdiff.judge.issued import Group, Issued
from layerdiff.judge.teams.exchange import results
from layerdiff.replay.refusal import CannotReplay

ONE, TWO = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[10.0, 20.0], [30.0, 40.0]])


def issued(operator: str, counts: tuple[int, ...], **said: Any) -> list[Issued]:
    """A collective of ranks 0 and 1."""
    plain: dict[str, Any] = dict(
        site="", step=0, occurrence=0, group=Group("g", (0, 1)), sequence=0, op=None, layout=None, coalesced=False, source=None,
        destination=None, sizes=((), ()), tag=0, ended="finished", why=None, inputs=(0,), outputs=tuple(range(len(counts))), said=(),
        counts=counts,
    )  # fmt: skip
    return [Issued(file=rank, rank=rank, call=rank, operator=f"c10d.{operator}", **{**plain, **said}) for rank in (0, 1)]


def made(parts: list[Issued], *given: list[NDArray[Any]]) -> list[list[list[float]]]:
    return [[out.tolist() for out in rank] for rank in results(parts, given)]


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("sum", [11, 22, 33, 44]),
        ("avg", [5.5, 11, 16.5, 22]),
        ("product", [10, 40, 90, 160]),
        ("max", [10, 20, 30, 40]),
        ("min", [1, 2, 3, 4]),
    ],
)
def test_all_reduce(op: str, expected: list[float]) -> None:
    assert [[expected], [expected]] == made(issued("all_reduce", (4,), op=op), [ONE], [TWO])


def test_whole_numbers_are_combined_bit_by_bit() -> None:
    one, two = np.array([6, 1]), np.array([3, 1])
    assert [[[2, 1]], [[2, 1]]] == made(issued("all_reduce", (2,), op="band"), [one], [two])


def test_reduce_leaves_what_the_others_put_in() -> None:
    assert [[[1, 2, 3, 4]], [[11, 22, 33, 44]]] == made(issued("reduce", (4,), op="sum", destination=1), [ONE], [TWO])


def test_reduce_scatter() -> None:
    assert [[[11, 22]], [[33, 44]]] == made(issued("reduce_scatter", (2,), op="sum"), [ONE], [TWO])
    lists = issued("reduce_scatter", (2,), op="sum", layout="list", inputs=(0, 1))
    assert [[[11, 22]], [[33, 44]]] == made(lists, list(ONE), list(TWO))


def test_all_gather() -> None:
    assert [[[1, 2, 3, 4, 10, 20, 30, 40]]] * 2 == made(issued("all_gather", (8,)), [ONE], [TWO])
    assert [[[1, 2, 3, 4], [10, 20, 30, 40]]] * 2 == made(issued("all_gather", (4, 4), layout="list"), [ONE], [TWO])


def test_gather_and_broadcast_and_scatter() -> None:
    gathered = issued("gather", (4, 4), destination=0)
    assert [[[1, 2, 3, 4], [10, 20, 30, 40]], []] == made(gathered, [ONE], [TWO])
    assert [[[10, 20, 30, 40]]] * 2 == made(issued("broadcast", (4,), source=1), [], [TWO])
    assert [[[1, 2]], [[3, 4]]] == made(issued("scatter", (2,), source=0, inputs=(0, 1)), list(ONE), [])


def test_all_to_all_by_sizes() -> None:
    parts = issued("all_to_all", (2,))
    assert [[[1, 2, 10, 20]], [[3, 4, 30, 40]]] == made(issued("all_to_all", (4,)), [ONE], [TWO])
    sizes, counts = [((2, 0), (2, 1)), ((1, 1), (0, 1))], [6, 2]
    parts = [Issued(**{**vars(part), "sizes": sizes[i], "counts": (counts[i],)}) for i, part in enumerate(parts)]
    assert [[[1, 2, 3, 4, 10, 20]], [[30, 40]]] == made(parts, [ONE], [TWO])


def test_a_message() -> None:
    send, receive = issued("send", ())[0], issued("recv", (4,))[1]
    assert [[], [[1, 2, 3, 4]]] == [[one.reshape(-1).tolist() for one in rank] for rank in results([send, receive], [[ONE], []])]


@pytest.mark.parametrize(("operator", "op"), [("all_reduce", "premul_sum"), ("all_reduce", None), ("somehow", "sum")])
def test_what_is_not_known_is_refused(operator: str, op: str | None) -> None:
    with pytest.raises(CannotReplay):
        results(issued(operator, (4,), op=op), [[ONE], [TWO]])


def test_pieces_that_do_not_fit_are_refused() -> None:
    with pytest.raises(CannotReplay, match="hands 8 elements to 4 places"):
        results(issued("all_gather", (4,)), [[ONE], [TWO]])
