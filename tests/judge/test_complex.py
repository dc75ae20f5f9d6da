"""Complex numbers, and what torch conjugates or negates only once it is read."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from layerdiff.compare import compare_traces
from tests.programs import Record, origins, random

X = random(2, 6, 16)
Way = Callable[[Tensor], Tensor]


class Of(nn.Module):
    def __init__(self, way: Way) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(torch.view_as_complex(x.unflatten(-1, (-1, 2))))


def parts(z: Tensor) -> Tensor:
    return torch.complex(z.real, -z.imag)


CONJUGATES: dict[str, Way] = {"lazy": torch.conj, "physical": torch.conj_physical, "by parts": parts}
USES: dict[str, Callable[[Way], Way]] = {
    "product": lambda conj: lambda z: torch.view_as_real(conj(z) * z[:1]),
    "matrix product": lambda conj: lambda z: torch.view_as_real(conj(z.mT) @ z),
    "transposed": lambda conj: lambda z: torch.view_as_real((conj(z).mT[:, 1:] @ z).contiguous()),
    "imaginary part": lambda conj: lambda z: conj(z).imag * 2,
    "twice": lambda conj: lambda z: torch.view_as_real(conj(conj(z)[..., 1:] + 1) * 3),
}


@pytest.fixture(scope="module")
def paths(write: Record) -> dict[tuple[str, str], Path]:
    return {(use, way): write(Of(of(conj)), X) for use, of in USES.items() for way, conj in CONJUGATES.items()}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(("one", "other"), list(permutations(CONJUGATES, 2)))
def test_conjugated_lazily_or_at_once_is_the_same(paths: dict[tuple[str, str], Path], use: str, one: str, other: str) -> None:
    assert [] == origins(compare_traces(paths[use, one], paths[use, other]))


@pytest.mark.parametrize("use", ["product", "matrix product", "transposed", "imaginary part"])
@pytest.mark.parametrize("way", CONJUGATES)
def test_not_conjugated_is_not(write: Record, paths: dict[tuple[str, str], Path], use: str, way: str) -> None:
    plain = write(Of(USES[use](lambda z: z)), X)
    assert origins(compare_traces(plain, paths[use, way]))
    assert origins(compare_traces(paths[use, way], plain))


def rotated(x: Tensor, *, back: bool, written: bool) -> Tensor:
    """Positions turned one way or the other, by complex numbers or by plain ones."""
    angles = torch.outer(torch.arange(6.0), 100.0 ** (-torch.arange(0, 4.0) / 4))
    if written:
        cos, sin = angles.cos(), -angles.sin() if back else angles.sin()
        even, odd = x.unflatten(-1, (2, 4, 2)).transpose(1, 2).unbind(-1)
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
    turn = torch.polar(torch.ones_like(angles), angles)
    z = torch.view_as_complex(x.unflatten(-1, (2, 4, 2)).transpose(1, 2).contiguous())
    return torch.view_as_real(z * (turn.conj() if back else turn)).flatten(-2)


class Turned(nn.Module):
    def __init__(self, *, back: bool, written: bool) -> None:
        super().__init__()
        self.options = {"back": back, "written": written}

    def forward(self, x: Tensor) -> Tensor:
        return rotated(x * 2, **self.options) + 1


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("ways", [(False, True), (True, False), (False, False), (True, True)])
def test_positions_turned_the_other_way_are_a_fault_in_either_writing(write: Record, back: bool, ways: tuple[bool, bool]) -> None:
    reference = write(Turned(back=back, written=ways[0]), X)
    assert [] == origins(compare_traces(reference, write(Turned(back=back, written=ways[1]), X)))
    assert origins(compare_traces(reference, write(Turned(back=not back, written=ways[1]), X)))


def test_what_was_conjugated_too_much_is_named(write: Record) -> None:
    reference, target = write(Turned(back=False, written=False), X), write(Turned(back=True, written=False), X)
    assert [("/aten._conj.default#0", "defect", "operator-added")] == origins(compare_traces(reference, target))
