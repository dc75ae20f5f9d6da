"""What a stranger's trace may not ask for: refused before anything runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from layerdiff.replay.operators import CannotReplay, run64
from layerdiff.trace.arguments import Arguments, Token

ONES = torch.ones(3, dtype=torch.float64)


def reason(name: str, *args: Any, trust: frozenset[str] = frozenset(), **kwargs: Any) -> str:
    with pytest.raises(CannotReplay) as caught:
        run64(name, Arguments(args, kwargs), trust=trust)
    assert "\n" not in caught.value.reason
    return caught.value.reason


@pytest.mark.parametrize(
    ("name", "args", "says"),
    [
        ("aten.from_file.default", ("/etc/passwd", False, 8), "it opens a file"),
        ("aten.system.default", ("true",), "not on the list of pure functions"),
        ("aten.set_.source_Tensor", (ONES, ONES), "not on the list"),
        ("aten.resize_.default", (ONES, [2**40]), "not on the list"),
        ("aten.record_stream.default", (ONES, None), "not on the list"),
        ("aten.rand.default", ([3],), "draws random numbers"),
        ("aten.bernoulli_.float", (ONES, 0.5), "draws random numbers"),
        ("aten.native_dropout.default", (ONES, 0.5, True), "draws random numbers"),
        ("aten.multinomial.default", (ONES, 1), "draws random numbers"),
        ("prims.add.default", (ONES, ONES), "--trust-ops prims"),
        ("os.system.default", ("true",), "--trust-ops os"),
        ("npu.rms_norm.default", (ONES,), "--trust-ops npu"),
        ("aten.add", (ONES, ONES), "no name of an operator"),
        ("aten.__class__.x.y", (), "no name of an operator"),
        ("aten.add.__init__", (ONES, ONES), "this machine lacks the operator aten.add.__init__"),
        ("aten.add.Nope", (ONES, ONES), "this machine lacks the operator aten.add.Nope"),
        ("aten._weight_int4pack_mm_for_cpu.default", (ONES,), "depends on the processor"),
    ],
)
def test_names_that_are_not_looked_up(name: str, args: tuple[Any, ...], says: str) -> None:
    assert says in reason(name, *args)


def test_a_trusted_namespace_that_is_not_here() -> None:
    assert "this machine lacks the operator npu.rms_norm.default" in reason("npu.rms_norm.default", ONES, trust=frozenset({"npu"}))


def test_trust_does_not_widen_the_list_of_aten() -> None:
    assert "it opens a file" in reason("aten.from_file.default", "x", trust=frozenset({"aten"}))


def test_a_refused_file_is_not_made(tmp_path: Any) -> None:
    reason("aten.from_file.default", str(tmp_path / "made"), True, 8)
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "says"),
    [
        ("aten.add.Tensor", (ONES, "x"), {}, "failed"),
        ("aten.add.Tensor", (ONES,), {}, "failed"),
        ("aten.add.Tensor", (ONES, ONES, 1, 2, 3), {}, "recorded with 5"),
        ("aten.add.Tensor", (ONES, ONES), {"nope": 1}, "no argument 'nope'"),
        ("aten.add.Tensor", (ONES, object()), {}, "is a object"),
        ("aten.add.Tensor", (ONES, 2**70), {}, "failed"),
        ("aten.add.Tensor", (ONES, torch.ones(3)), {}, "floats are handed over as float64"),
        ("aten.add.Tensor", (ONES, torch.ones(3, device="meta")), {}, "no plain tensor"),
        ("aten.mm.default", (torch.eye(3, dtype=torch.float64), torch.eye(2, dtype=torch.float64)), {}, "failed"),
        ("aten._to_copy.default", (ONES,), {"dtype": 6}, "and no ScalarType"),
        ("aten._to_copy.default", (ONES,), {"dtype": Token("dtype", "save")}, "not replayed"),
        ("aten._to_copy.default", (ONES,), {"dtype": Token("dtype", "qint8")}, "not replayed"),
        ("aten._to_copy.default", (ONES,), {"layout": Token("layout", "sparse_coo")}, "not replayed"),
        ("aten.view.dtype", (ONES, Token("dtype", "int16")), {}, "reads the bits"),
        ("aten.embedding.default", (torch.eye(3, dtype=torch.float64), torch.tensor([3])), {}, "failed"),
        ("aten.index_select.default", (ONES, 0, torch.tensor([-4])), {}, "failed"),
        ("aten.nextafter.default", (ONES, ONES), {}, "depends on the dtype"),
        ("aten.rms_norm.default", (ONES, [3]), {}, "its epsilon is that of the recorded dtype"),
    ],
)
def test_arguments_that_no_recorded_call_has(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], says: str) -> None:
    assert says in reason(name, *args, **kwargs)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("aten.full.default", ([2**20, 2**20], 1.0)),
        ("aten.zeros.default", ([2**31, 2],)),
        ("aten.empty.memory_format", ([2**40],)),
        ("aten.empty_strided.default", ([2], [2**40])),
        ("aten.new_empty_strided.default", (ONES, [2], [2**40])),
        ("aten.zeros.default", ([2**40, 0],)),
        ("aten.adaptive_max_pool2d.default", (torch.ones(1, 4, 4, dtype=torch.float64), [2**40, 0])),
        ("aten.replication_pad2d.default", (torch.ones(1, 1, 4, 4, dtype=torch.float64), [-4, 0, 2**40, 0])),
        ("aten.arange.default", (2**40,)),
        ("aten.eye.default", (2**20,)),
        ("aten.tril_indices.default", (2**20, 2**20)),
        ("aten.repeat.default", (ONES, [2**40])),
        ("aten.expand.default", (ONES, [2**40, 3])),
        ("aten.constant_pad_nd.default", (ONES, [0, 2**40])),
        ("aten.upsample_nearest1d.default", (ONES.reshape(1, 1, 3), [2**40])),
        ("aten.one_hot.default", (torch.tensor([2**40]),)),
        ("aten.bincount.default", (torch.tensor([2**40]),)),
        ("aten.repeat_interleave.Tensor", (torch.tensor([2**40]),)),
        ("aten.repeat_interleave.self_Tensor", (ONES, torch.tensor([2**40, 1, 1]))),
        ("aten.outer.default", (torch.ones(1, dtype=torch.float64).expand(2**20), torch.ones(1, dtype=torch.float64).expand(2**20))),
        (
            "aten.mm.default",
            (torch.ones(1, 1, dtype=torch.float64).expand(2**17, 1), torch.ones(1, 1, dtype=torch.float64).expand(1, 2**17)),
        ),
        ("aten.sum.default", (torch.ones(1, dtype=torch.float64).expand(2**40),)),
        (
            "aten.add.Tensor",
            (torch.ones(1, 1, dtype=torch.float64).expand(2**17, 1), torch.ones(1, 1, dtype=torch.float64).expand(1, 2**17)),
        ),
        (
            "aten.scaled_dot_product_attention.default",
            tuple(torch.ones(1, 1, 1, dtype=torch.float64).expand(1, 2**32, 1) for _ in range(3)),
        ),
    ],
)
def test_sizes_beyond_the_limit(name: str, args: tuple[Any, ...]) -> None:
    assert "the limit is 2,147,483,648" in reason(name, *args)


def test_the_limit_is_a_parameter() -> None:
    args = Arguments(([3, 4], 1.0), {})
    assert (3, 4) == tuple(run64("aten.full.default", args, limit=12)[0].shape)
    with pytest.raises(CannotReplay, match="12 elements; the limit is 11"):
        run64("aten.full.default", args, limit=11)


@pytest.mark.parametrize(
    ("name", "args", "says"),
    [
        ("aten.as_strided.default", (ONES, [4], [1]), "reaches element 3 of a memory of 3"),
        ("aten.as_strided.default", (ONES, [2], [2**62]), "reaches element"),
        ("aten.as_strided.default", (ONES, [1], [1], 2**62), "reaches element"),
        ("aten.as_strided_copy.default", (ONES, [4], [1]), "reaches element"),
        ("aten._reshape_alias.default", (ONES, [64], [1]), "reaches element 63"),
        ("aten._reshape_alias.default", (ONES, [2], [-1]), "no natural numbers"),
        ("aten.unbind.int", (torch.ones(1, dtype=torch.float64).expand(2**20),), "would make up to 1,048,576 tensors"),
        ("aten.split.Tensor", (torch.ones(1, dtype=torch.float64).expand(2**20), 1), "would make up to 1,048,576 tensors"),
    ],
)
def test_views_outside_their_memory(name: str, args: tuple[Any, ...], says: str) -> None:
    assert says in reason(name, *args)


@pytest.mark.parametrize(
    ("name", "args", "says"),
    [
        (
            "aten.native_batch_norm.default",
            (torch.ones(2, 4000, dtype=torch.float64), ONES, ONES, ONES, ONES, True, 0.1, 1e-5),
            "4000 channels",
        ),
        ("aten._fft_c2r.default", (ONES.to(torch.complex128), [0], 0, 4000000), "half the spectrum"),
        (
            "aten._weight_norm_interface.default",
            (torch.ones(4000, 4, dtype=torch.float64), ONES.reshape(3, 1), 0),
            "each slice of its weights",
        ),
        (
            "aten.upsample_bilinear2d.default",
            (torch.ones(1, 1, 4, 4, dtype=torch.float64), [8, 8], False, 1e-30, 2.0),
            "'scales_h' is not the scale",
        ),
        ("aten.upsample_nearest1d.default", (torch.ones(1, 1, 4, dtype=torch.float64), [8], float("nan")), "'scales' is not the scale"),
        (
            "aten._grouped_mm.default",
            (torch.ones(7, 4, dtype=torch.float64), torch.ones(1, 4, 2, dtype=torch.float64), torch.tensor([600])),
            "do not rise within",
        ),
    ],
)
def test_kernels_that_would_leave_their_operands(name: str, args: tuple[Any, ...], says: str) -> None:
    assert says in reason(name, *args)


def test_a_scale_that_is_one_is_taken() -> None:
    (made,) = run64("aten.upsample_nearest1d.default", Arguments((ONES.reshape(1, 1, 3), [7], 2.5), {}))
    assert [[[1.0] * 7]] == made.tolist()
