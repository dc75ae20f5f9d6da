"""Values: what is shared, what is copied, and what tensors of every kind become."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from layerdiff import Recorder, compare_traces
from layerdiff.record.device_copy import DevicePending
from layerdiff.record.fingerprint import fingerprint_on_device, fingerprint_on_host, pair_of
from layerdiff.record.identity import Identities, place_of
from layerdiff.record.keep import Policy
from layerdiff.record.quiet import quiet
from layerdiff.record.sink import Value
from layerdiff.record.summary import agrees, from_scalars, same_bits, summarise, summarise_on_device
from layerdiff.trace.fingerprint import BLOCK_WORDS, fingerprint
from layerdiff.trace.schema import Statistics, ValueRow


class Behind(nn.Module):
    """Writes to its input as a kernel outside torch does: no version is counted."""

    def forward(self, x: Tensor) -> Tensor:
        x.detach().numpy()[...] *= 3
        return x


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Identity()
        self.behind = Behind()
        self.after = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.behind(self.before(x)))


@pytest.mark.parametrize("fingerprints", [True, False])
@pytest.mark.parametrize("keep", ["full", "statistics"])
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_a_write_that_no_version_counts_is_another_value(
    fingerprints: bool, keep: str, context: Any, tmp_path: Path, recorded: Any
) -> None:
    with context():
        x = torch.arange(1.0, 9.0)
        with Recorder(tmp_path / "trace.h5", model := Chain(), fingerprints=fingerprints, keep=keep):
            model(x)
    trace = recorded(tmp_path / "trace.h5")
    behind = trace.edges(trace.find("behind"))
    assert behind["in[0]"] == trace.edges(trace.find("before"))["out"]
    assert behind["in[0]"] != behind["out"]
    assert behind["out"] == trace.edges(trace.find("after"))["out"] == trace.edges(0)["out"]
    assert (1.0, 8.0) == trace.file.statistics(behind["in[0]"])[:2]
    assert (3.0, 24.0) == trace.file.statistics(behind["out"])[:2]
    if keep == "full":
        np.testing.assert_array_equal(np.arange(1.0, 9.0, dtype=np.float32), trace.file.read(behind["in[0]"]))
        np.testing.assert_array_equal(3 * np.arange(1.0, 9.0, dtype=np.float32), trace.file.read(behind["out"]))


def test_inference_tensors_are_compared_by_their_bytes_without_fingerprints(tmp_path: Path, recorded: Any) -> None:
    """Statistics of this write are equal: two elements far below the rounding of the sum trade places."""

    class Swap(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            array = x.numpy()
            array[[1, 2]] = array[[2, 1]]
            return x

    model = nn.Sequential(nn.Identity(), Swap())
    with torch.inference_mode():
        x = torch.tensor([1.0, 2.0, 3.0, 4.0])
        with Recorder(tmp_path / "trace.h5", model, fingerprints=False):
            model(x)
    trace = recorded(tmp_path / "trace.h5")
    edges = trace.edges(trace.find("1"))
    np.testing.assert_array_equal([1, 2, 3, 4], trace.file.read(edges["in[0]"]))
    np.testing.assert_array_equal([1, 3, 2, 4], trace.file.read(edges["out"]))
    assert edges["in[0]"] == trace.edges(trace.find("0"))["out"]


def test_in_place_writes_are_versions(tmp_path: Path, recorded: Any) -> None:
    model = nn.Sequential(nn.Identity(), nn.ReLU(inplace=True))
    with Recorder(tmp_path / "trace.h5", model):
        model(torch.tensor([-1.0, 2.0]))
    trace = recorded(tmp_path / "trace.h5")
    relu = trace.edges(trace.find("1"))
    np.testing.assert_array_equal([-1, 2], trace.file.read(relu["in[0]"]))
    np.testing.assert_array_equal([0, 2], trace.file.read(relu["out"]))
    assert int(trace.file.values.version[relu["in[0]"]]) < int(trace.file.values.version[relu["out"]])


def test_views_and_strides(tmp_path: Path, recorded: Any) -> None:
    class Turn(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return x.t(), x[1], x[:1].expand(3, 4), x

    x = torch.arange(8.0).view(2, 4)
    with Recorder(tmp_path / "trace.h5", model := Turn()):
        expected = [part.clone() for part in model(x)]
    trace = recorded(tmp_path / "trace.h5")
    edges = trace.edges(0)
    for i, part in enumerate(expected):
        np.testing.assert_array_equal(part.numpy(), trace.file.read(edges[f"out[{i}]"]))
    assert edges["in[0]"] == edges["out[3]"]
    assert "[1,4]" == trace.file.text(int(trace.file.values.strides[edges["out[0]"]]))
    assert fingerprint(np.ascontiguousarray(x.numpy().T)) == trace.file.fingerprint(edges["out[0]"])


DTYPES = [
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int16", "int8",
    "uint8", "uint16", "uint32", "uint64", "bool", "complex64", "complex128",
]  # fmt: skip


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_is_kept_bit_for_bit(name: str, tmp_path: Path, recorded: Any) -> None:
    dtype = getattr(torch, name)
    x = (torch.arange(6) % 5).to(dtype).view(2, 3)
    with Recorder(tmp_path / "trace.h5", model := nn.Identity()):
        model(x)
    trace = recorded(tmp_path / "trace.h5")
    value = trace.edges(0)["in[0]"]
    assert name == trace.file.dtype_name(value)
    assert (2, 3) == trace.file.shape(value)
    assert x.view(torch.uint8).numpy().tobytes() == np.ascontiguousarray(trace.file.raw(value)).tobytes()
    statistics = trace.file.statistics(value)
    if name == "bool":
        assert (0.0, 1.0, 4 / 6) == statistics[:3]
    elif not name.startswith("complex"):
        assert (0.0, 4.0, 10 / 6) == pytest.approx(statistics[:3], rel=1e-6)
        assert math.sqrt(30 / 6) == pytest.approx(statistics.rms, rel=1e-6)


def test_what_has_no_bytes_says_why(tmp_path: Path, recorded: Any) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return x.to_sparse(), torch.empty(3, 5, device="meta"), torch.nested.nested_tensor([x, x[:1]], layout=torch.jagged), x.mT.conj()

    with Recorder(tmp_path / "trace.h5", model := Odd()):
        result = model(torch.eye(2, dtype=torch.complex64) * 1j)
    trace = recorded(tmp_path / "trace.h5")
    edges = trace.edges(0)
    assert "sparse" in trace.reason(edges["out[0]"])
    assert "meta" in trace.reason(edges["out[1]"])
    assert (3, 2) == trace.file.read(edges["out[2]._values"]).shape  # a wrapper is the tensors inside it
    np.testing.assert_array_equal([0, 2, 3], trace.file.read(edges["out[2]._offsets"]))
    assert (3, 5) == trace.file.shape(edges["out[1]"])
    np.testing.assert_array_equal(result[3].resolve_conj().numpy(), trace.file.read(edges["out[3]"]))


def test_vmap_and_subclasses_do_not_stop_the_recording(tmp_path: Path, recorded: Any) -> None:
    class Marked(Tensor):
        pass

    model = nn.Sequential(nn.Linear(4, 4))
    with Recorder(tmp_path / "trace.h5", model):
        torch.vmap(model)(torch.ones(3, 4))
        model(torch.ones(3, 4).as_subclass(Marked))
    trace = recorded(tmp_path / "trace.h5")
    assert trace.file.complete
    np.testing.assert_array_equal(np.ones((3, 4)), trace.array(0, "in[0]"))  # all that is mapped over at once
    second = trace.find("", step=1)
    np.testing.assert_array_equal(np.ones((3, 4)), trace.array(second, "in[0]"))


@pytest.mark.parametrize("operators", [False, True])
def test_inside_transforms_values_are_those_of_all_that_is_mapped_over(tmp_path: Path, recorded: Any, operators: bool) -> None:
    model, x = nn.Linear(4, 2), torch.arange(60.0).reshape(3, 4, 5)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss(weights: dict[str, Tensor], row: Tensor) -> Tensor:
        return torch.func.functional_call(model, weights, (row,)).sum()

    each = torch.func.vmap(torch.func.vmap(torch.func.grad(loss), (None, 0)), (None, 2))
    expected = each(weights, x)
    with Recorder(tmp_path / "trace.h5", model, operators=operators):
        actual = each(weights, x)
    assert all(torch.equal(expected[name], actual[name]) for name in weights)
    trace = recorded(tmp_path / "trace.h5")
    assert trace.file.complete
    call = trace.find("")
    moved = x.permute(2, 0, 1)  # the outer vmap's first
    np.testing.assert_array_equal(moved.numpy(), trace.array(call, "in[0]"))
    np.testing.assert_allclose(model(moved).detach().numpy(), trace.array(call, "out"), rtol=1e-5)


@pytest.mark.parametrize("operators", [False, True])
def test_zeros_that_have_no_memory_are_zeros(tmp_path: Path, recorded: Any, operators: bool) -> None:
    class Zeros(nn.Module):
        def forward(self, x: Tensor) -> Any:
            zeros = torch._efficientzerotensor((2, 3))
            return zeros, zeros + x

    with Recorder(tmp_path / "trace.h5", model := Zeros(), operators=operators):
        model(torch.ones(2, 3))
    trace = recorded(tmp_path / "trace.h5")
    assert trace.file.complete
    root = trace.find("", step=0)
    np.testing.assert_array_equal(np.zeros((2, 3)), trace.array(root, "out[0]"))
    np.testing.assert_array_equal(np.ones((2, 3)), trace.array(root, "out[1]"))
    assert "identical" == compare_traces(tmp_path / "trace.h5", tmp_path / "trace.h5").verdict.label


def test_a_dtensor_is_its_part_and_placement(tmp_path: Path, recorded: Any) -> None:
    import torch.distributed as dist
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        whole = distribute_tensor(torch.arange(6.0).view(2, 3), init_device_mesh("cpu", (1,)), [Shard(0)])
        with Recorder(tmp_path / "trace.h5", model := nn.Identity()):
            model(whole)
    finally:
        dist.destroy_process_group()
    trace = recorded(tmp_path / "trace.h5")
    value = trace.edges(0)["in[0]"]
    np.testing.assert_array_equal(np.arange(6.0).reshape(2, 3), trace.file.read(value))
    assert '"mesh": [1]' in trace.file.text(int(trace.file.values.placement[value]))
    assert '"shape": [2, 3]' in trace.file.text(int(trace.file.values.placement[value]))


def test_empty_and_scalar_tensors(tmp_path: Path, recorded: Any) -> None:
    with Recorder(tmp_path / "trace.h5", model := nn.Identity()):
        model(torch.empty(0, 3))
        model(torch.tensor(2.5))
    trace = recorded(tmp_path / "trace.h5")
    first, second = trace.edges(trace.find("", step=0))["in[0]"], trace.edges(trace.find("", step=1))["in[0]"]
    assert [True] * 4 == [math.isnan(x) for x in trace.file.statistics(first)[:4]]
    assert (0, 3) == trace.file.read(first).shape
    assert Statistics(2.5, 2.5, 2.5, 2.5) == trace.file.statistics(second)


# statistics


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_statistics_leave_out_what_is_not_finite(dtype: torch.dtype) -> None:
    x = torch.tensor([1.0, math.nan, -3.0, math.inf, -math.inf, math.inf], dtype=dtype)
    assert Statistics(-3.0, 1.0, -1.0, math.sqrt(5.0), 1, 2, 1) == summarise(x)
    nothing = summarise(torch.full((3,), math.nan, dtype=dtype))
    assert nothing is not None and all(map(math.isnan, nothing[:4])) and (3, 0, 0) == nothing[4:]


def test_statistics_do_not_overflow_or_vanish() -> None:
    half = torch.full((100_000,), 60_000.0, dtype=torch.float16)
    largest = half[0].item()
    assert (largest, largest) == pytest.approx(summarise(half)[2:4], rel=1e-6)  # type: ignore[index]
    for magnitude in (3e38, 1e-38):
        x = torch.full((1000,), magnitude)
        assert (x[0].item(), x[0].item()) == pytest.approx(summarise(x)[2:4], rel=1e-12)  # type: ignore[index]


@pytest.mark.parametrize("size", [5, 1000, (1 << 22) + 17])
def test_both_ways_to_statistics_agree(size: int) -> None:
    x = torch.randn(size, generator=torch.Generator().manual_seed(0))
    scalars = summarise_on_device(x)
    assert scalars is not None
    exact, fast = from_scalars(scalars.tolist(), size), summarise(x)
    assert fast is not None and exact[:2] == fast[:2]
    assert exact[2:4] == pytest.approx(fast[2:4], rel=1e-5, abs=1e-8)
    assert agrees(x, fast)
    x[size // 2] += 1
    assert not agrees(x, fast)
    assert same_bits(summarise(torch.tensor([math.nan])), summarise(torch.tensor([math.nan])))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("size", [1, 5, 1000, (1 << 22) + 17])
def test_both_ways_to_statistics_of_whole_numbers_are_the_same(dtype: torch.dtype, size: int) -> None:
    x = torch.randint(-(2**62), 2**62, (size,), generator=torch.Generator().manual_seed(size)).to(dtype)
    scalars = summarise_on_device(x)
    assert scalars is not None
    assert from_scalars(scalars.tolist(), size) == summarise(x)


# fingerprints and devices


@pytest.mark.parametrize("count", [1, 3, BLOCK_WORDS, 3 * BLOCK_WORDS + 5, 300 * BLOCK_WORDS + 7])
def test_a_device_computes_numpys_fingerprint(count: int) -> None:
    x = torch.randint(-(2**31), 2**31, (count,), dtype=torch.int32, generator=torch.Generator().manual_seed(count))
    assert fingerprint(x.numpy()) == fingerprint_on_host(x) == pair_of(fingerprint_on_device(x).tolist())
    for odd in (x.view(torch.uint8)[: 4 * count - 1], x.view(torch.uint8)[1:], x.view(torch.bfloat16)[1:]):
        assert fingerprint(odd.view(torch.uint8).numpy()) == pair_of(fingerprint_on_device(odd).tolist())


def test_a_pending_value_is_an_earlier_one_only_with_its_bits() -> None:
    """The path of accelerators, on CPU tensors: what differs there is only that the numbers come later."""
    x = torch.arange(6.0)

    def pending(tensor: Tensor, known: Value | None) -> DevicePending:
        policy.refuse(tensor.numel() * 4)
        return DevicePending(
            tensor, ValueRow("float32", (6,)), known, policy, keep_bytes=True, fingerprints=True, roundings=False, compare_bytes=False
        )

    policy = Policy(budget=1000)
    same, row, data = pending(x, None).settle(lambda value, data: False)
    assert same is None and data is not None
    assert fingerprint(x.numpy()) == row.fingerprint
    assert (0.0, 5.0, 2.5) == row.statistics[:3]  # type: ignore[index]
    np.testing.assert_array_equal(x.numpy(), data.view(np.float32))
    known = Value(True, row.statistics, row.fingerprint)
    assert 24 == policy.spent
    late = pending(x, known)
    x += 1  # after the call: the copy was made before
    same, _, data = late.settle(lambda value, data: False)
    assert same is known and data is None
    assert 24 == policy.spent
    same, row, data = pending(x, known).settle(lambda value, data: False)
    assert same is None
    np.testing.assert_array_equal(np.arange(1.0, 7.0), data.view(np.float32))  # type: ignore[union-attr]


def test_an_address_used_again_is_another_identity() -> None:
    known: Identities[str] = Identities()
    x = torch.ones(1000)

    def found(x: torch.Tensor) -> str | None:
        return known.memory(x.untyped_storage()).places.get(place_of(x, x._version))

    known.memory(x.untyped_storage()).places[place_of(x, x._version)] = "first"
    assert "first" == found(x)
    x.add_(1)
    assert found(x) is None
    addresses, numbers = set(), {known.memory(x.untyped_storage()).number}
    for _ in range(50):
        del x
        x = torch.zeros(1000)
        addresses.add(x.data_ptr())
        assert found(x) is None
        numbers.add(known.memory(x.untyped_storage()).number)
    assert len(addresses) < 50  # memory was used again
    assert 51 == len(numbers)  # and is another memory each time
    del x
    known.prune()
    assert len(known) == 0


def test_storages_that_live_are_looked_through_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    known: Identities[str] = Identities()
    looked_at = 0
    prune = known.prune

    def counted() -> None:
        nonlocal looked_at
        looked_at += len(known)
        prune()

    monkeypatch.setattr(known, "prune", counted)
    living = [torch.empty(1) for _ in range(6000)]
    for x in living:
        known.memory(x.untyped_storage())
    assert 6000 == len(known)
    assert looked_at < 2 * 6000
    for _ in range(6000):
        known.memory(torch.empty(1).untyped_storage())
    assert len(known) < 3 * 6000


def test_nobody_notices_what_the_recorder_computes() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with torch.enable_grad(), torch.device("meta"), torch.autocast("cpu"), FlopCounterMode(display=False) as counter:
        with quiet():
            assert not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
            assert "cpu" == torch.ones(2).device.type
            torch.ones(4, 4) @ torch.ones(4, 4)
        assert torch.is_grad_enabled() and torch.is_autocast_enabled("cpu")
        assert "meta" == torch.ones(2).device.type
    assert counter.get_total_flops() == 0
