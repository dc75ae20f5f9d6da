"""Whole runs with operators recorded: nothing of them changes, and what cannot be seen is said."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from layerdiff import Recorder
from layerdiff.trace.reader import TraceFile, open_trace
from layerdiff.trace.schema import CallKind, CallStatus, Role, ValueKind
from tests.models import InPlace, MiniLlama, SmallResNet, hf_bert, hf_llama, hf_qwen_moe, tokens


def operators(file: TraceFile) -> dict[str, int]:
    return {file.site(c): c for c in range(len(file.calls)) if int(file.calls.kind[c]) == CallKind.OPERATOR}


def edges(file: TraceFile, call: int) -> dict[str, int]:
    return {edge.position: edge.value for edge in file.edges_of(call)}


def whole(path: Path) -> TraceFile:
    file = open_trace(path).files[0]
    assert file.complete, file.meta.get("incomplete")
    return file


def bits(thing: Tensor) -> bytes:
    return thing.detach().clone().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if thing.numel() else b""


RUNS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "mini llama": (MiniLlama, lambda: (tokens(),)),
    "hf llama": (hf_llama, lambda: (tokens(),)),
    "qwen moe": (hf_qwen_moe, lambda: (tokens(),)),
    "bert": (hf_bert, lambda: (tokens(),)),
    "resnet": (lambda: SmallResNet().train(), lambda: (torch.randn(2, 3, 16, 16),)),
    "in place": (InPlace, lambda: (torch.randn(4, 16),)),
}


@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "autocast"])
@pytest.mark.parametrize("name", RUNS)
def test_the_run_is_bit_identical(name: str, autocast: bool, tmp_path: Path) -> None:
    make, inputs = RUNS[name]

    def run(recorder: Any) -> list[bytes]:
        torch.manual_seed(3)
        model = make()
        torch.manual_seed(4)
        things = inputs()
        with recorder(model), torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            for _ in range(2):
                result = model(*things)
            first = next(t for t in (result if isinstance(result, (tuple, list)) else [getattr(result, "logits", result)]) if t is not None)
            first = getattr(first, "last_hidden_state", first)
            if name != "in place":
                first.float().square().sum().backward()
        gradients = [bits(p.grad) for p in model.parameters() if p.grad is not None]
        return [bits(first), bits(torch.get_rng_state()), *gradients, *(bits(t) for t in model.state_dict().values())]

    class Nothing:
        def __init__(self, model: nn.Module) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    plain = run(Nothing)
    assert plain == run(lambda model: Recorder(tmp_path / "t.h5", model, operators=True))
    file = whole(tmp_path / "t.h5")
    sites = operators(file)
    assert any(site.startswith("(outside)/") for site in sites) == (name != "in place"), "the backward pass runs outside"
    for value in range(len(file.values)):
        if file.has_bytes(value):
            file.raw(value)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_static_cache_of_transformers(tmp_path: Path) -> None:
    from transformers import StaticCache

    model: Any = hf_llama()
    cache = StaticCache(config=model.config, max_cache_len=128)
    ids = tokens(1, 8)
    with torch.no_grad():
        model(ids, past_key_values=cache, use_cache=True)  # the cache is allocated
        with Recorder(tmp_path / "t.h5", model, operators=True):
            for _ in range(8):
                model(ids[:, :1], past_key_values=cache, use_cache=True)
    file = whole(tmp_path / "t.h5")
    sizes: dict[int, int] = {}
    for call in operators(file).values():
        name = file.text(int(file.calls.operator[call])) or ""
        if name.startswith(("aten.index_copy_", "aten.copy_")):
            memory = int(file.values.memory[edges(file, call)["in[0]"]])
            held = np.asarray(file.values.memory) == memory
            sizes[memory] = int(file.values.nbytes[held].sum())
    one = 128 * 2 * 8 * 4
    assert 4 <= sum(one <= size <= one + 8 * 2 * 8 * 4 for size in sizes.values()), sizes


def test_attention_has_all_its_operands(tmp_path: Path) -> None:
    class Attention(nn.Module):
        def forward(self, q: Tensor, mask: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(q, q * 2, q * 3, attn_mask=mask, scale=0.25)

    q, mask = torch.randn(1, 2, 8, 16), torch.randn(1, 1, 8, 8)
    with torch.no_grad(), Recorder(tmp_path / "t.h5", Attention(), operators=True) as recorder:
        recorder._model(q, mask)  # type: ignore[misc]
    file = whole(tmp_path / "t.h5")
    (call,) = [c for site, c in operators(file).items() if "scaled_dot_product" in site]
    found = edges(file, call)
    np.testing.assert_array_equal(q.numpy(), file.read(found["in[0]"]))
    (position,) = [p for p in found if "attn_mask" in p]
    np.testing.assert_array_equal(np.broadcast_to(mask.numpy(), file.shape(found[position])), file.read(found[position]))
    assert 0.25 == file.json(int(file.calls.detail[call]))["arguments"]["kwargs"]["scale"]


def record(path: Path, run: Callable[..., Any], *args: Any, **options: Any) -> tuple[TraceFile, Any]:
    class Module(nn.Module):
        def forward(self, *args: Any) -> Any:
            return run(*args)

    model = Module()
    with Recorder(path, model, **{"operators": True, **options}):
        result = model(*args)
    return whole(path), result


def test_numbers_that_the_run_reads_are_recorded(tmp_path: Path) -> None:
    file, _ = record(tmp_path / "t.h5", lambda x: x * x.sum().item(), torch.ones(3))
    sites = operators(file)
    detail = file.json(int(file.calls.detail[sites["/aten._local_scalar_dense.default#0"]]))
    assert 3.0 == detail["results"]
    assert [{"tensor": "in[0]"}, 3.0] == file.json(int(file.calls.detail[sites["/aten.mul.Tensor#0"]]))["arguments"]["args"]


def test_random_calls_are_marked(tmp_path: Path) -> None:
    file, _ = record(tmp_path / "t.h5", lambda x: functional.dropout(x, 0.3) + 1, torch.ones(9))
    marked = {site: file.json(int(file.calls.detail[call])).get("random", False) for site, call in operators(file).items()}
    assert [site for site, random in marked.items() if random] == ["/aten.native_dropout.default#0"] or any(marked.values())
    assert not marked["/aten.add.Tensor#0"]


def test_an_operator_that_raises(tmp_path: Path) -> None:
    def run(x: Tensor) -> Tensor:
        with pytest.raises(RuntimeError):
            torch.mm(x, x)
        return x + 1

    file, _ = record(tmp_path / "t.h5", run, torch.ones(2, 3))
    call = operators(file)["/aten.mm.default#0"]
    assert CallStatus.RAISED == int(file.calls.status[call])
    assert "RuntimeError" in file.json(int(file.calls.detail[call]))["raised"]


def test_custom_operators_and_what_they_write(tmp_path: Path) -> None:
    @torch.library.custom_op("layerdiff_tests::scale_", mutates_args=("x",))
    def scale(x: Tensor, factor: float) -> None:
        x.numpy()[:] *= factor

    file, _ = record(tmp_path / "t.h5", lambda x: (scale(x, 3.0), x + 1)[1], torch.ones(3))
    call = operators(file)["/layerdiff_tests.scale_.default#0"]
    assert ["in[0]"] == file.json(int(file.calls.detail[call]))["writes"]
    (read,) = [edge.value for edge in file.edges_of(call) if edge.role == Role.INPUT]
    (made,) = [edge.value for edge in file.edges_of(call) if edge.role == Role.OUTPUT]
    np.testing.assert_array_equal(np.ones(3, np.float32), file.read(read))
    np.testing.assert_array_equal(np.full(3, 3, np.float32), file.read(made))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_odd_tensors_and_other_modes(tmp_path: Path) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    def run(x: Tensor) -> Any:
        sparse = x.to_sparse() * 2
        meta = torch.empty(3, device="meta") + 1
        mapped = torch.vmap(lambda row: row * 2 + row.sum())(x)
        gradient = torch.func.grad(lambda y: (y * y).sum())(x)
        nested = torch.nested.nested_tensor([x[0], x[1][:2]], layout=torch.jagged)
        quantised = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize()
        with FakeTensorMode():
            fake = torch.ones(3) + 1
        with FlopCounterMode(display=False) as flops:
            product = x @ x.t()
        with torch.inference_mode():
            inference = torch.ones(2).mul_(2) + 1
        return (
            flops.get_total_flops(),
            sparse.to_dense() + mapped + gradient + quantised,
            product,
            inference,
            meta.shape,
            fake.shape,
            nested,
        )

    x = torch.randn(3, 4)
    plain = run(x)
    file, found = record(tmp_path / "t.h5", run, x)
    assert plain[0] == found[0]
    for expected, actual in zip(plain[1:4], found[1:4], strict=True):
        assert bits(expected) == bits(actual)
    assert "/aten.mm.default#0" in operators(file)


def test_nested_recorders_see_the_model_alone(tmp_path: Path) -> None:
    model = MiniLlama()
    with torch.no_grad(), Recorder(tmp_path / "a.h5", model, operators=True):
        with Recorder(tmp_path / "b.h5", model, operators=True):
            model(tokens())
        model(tokens())
    outer, inner = whole(tmp_path / "a.h5"), whole(tmp_path / "b.h5")
    first = [site for site, c in operators(outer).items() if not site.startswith("(outside)")]
    assert first and set(first) == {site for site in operators(inner) if not site.startswith("(outside)")}


def test_another_thread_is_recorded_without_operators_and_said(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    with torch.no_grad(), Recorder(tmp_path / "t.h5", model, operators=True):
        model(torch.ones(1, 3))
        thread = threading.Thread(target=lambda: model(torch.zeros(1, 3)))
        thread.start()
        thread.join()
    file = whole(tmp_path / "t.h5")
    assert {0} == {int(file.calls.step[c]) for site, c in operators(file).items() if "addmm" in site}
    assert any("thread" in reason for reason in file.meta["skipped"].values())


def test_a_compiled_module_stays_compiled(tmp_path: Path) -> None:
    ran: list[int] = []

    def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            ran.append(1)
            return graph(*args)

        return run

    compiled: Any = torch.compile(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), backend=backend)
    model = nn.Sequential(nn.Linear(3, 3), compiled, nn.ReLU())
    x = torch.randn(2, 3)
    with torch.no_grad():
        expected = bits(model(x))
        with Recorder(tmp_path / "t.h5", model, operators=True):
            assert expected == bits(model(x))
        assert expected == bits(model(x))
    assert 3 == len(ran)
    file = whole(tmp_path / "t.h5")
    assert {"0/aten.t.default#0", "0/aten.addmm.default#0", "2/aten.relu.default#0"} == {s for s in operators(file) if "(outside)" not in s}
    assert "compiled" in str(file.meta["skipped"])


def test_weights_without_bytes_have_views_without_bytes(tmp_path: Path) -> None:
    model = nn.Linear(3, 5)
    with torch.no_grad(), Recorder(tmp_path / "t.h5", model, operators=True, weights="none"):
        model(torch.ones(1, 3))
    file = whole(tmp_path / "t.h5")
    found = edges(file, operators(file)["/aten.addmm.default#0"])
    assert [False, True, False] == [file.has_bytes(found[f"in[{i}]"]) for i in range(3)]


def test_memory_that_a_weight_left_is_no_weight(tmp_path: Path) -> None:
    linear = nn.Linear(4, 4, bias=False)

    def run(x: Tensor) -> Tensor:
        y = linear(x)
        linear.weight.data = torch.zeros(4, 4)  # as a model is loaded layer by layer
        for _ in range(40):
            y = (y + 1).view(4, 4).clone()
        return linear(y)

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = linear

        def forward(self, x: Tensor) -> Tensor:
            return run(x)

    with torch.no_grad(), Recorder(tmp_path / "t.h5", Module(), operators=True) as recorder:
        for _ in range(4):
            recorder._model(torch.ones(4, 4))  # type: ignore[misc]
    file = whole(tmp_path / "t.h5")
    made = [
        edges(file, call)["out"]
        for call, name in enumerate(file.calls.operator)
        if file.text(int(name)) in ("aten.add.Tensor", "aten.clone.default")
    ]
    assert 320 == len(made)
    assert {ValueKind.ACTIVATION} == {int(file.values.kind[value]) for value in made}


def test_recording_operators_does_not_import_the_compiler(tmp_path: Path) -> None:
    script = """
import sys, torch
from layerdiff import Recorder
model = torch.nn.Linear(2, 2)
with Recorder("t.h5", model, operators=True):
    model(torch.ones(1, 2))
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)


@pytest.mark.parametrize("operators", [False, True])
def test_a_function_mode_is_asked_nothing_by_the_recorder(operators: bool, tmp_path: Path) -> None:
    from torch.overrides import TorchFunctionMode

    class Listening(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.heard: list[str] = []

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.heard.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    def heard(recorder: Any) -> list[str]:
        torch.manual_seed(0)
        model = SmallResNet().train()
        x = torch.randn(2, 3, 16, 16)
        with recorder(model), Listening() as mode:
            for _ in range(2):
                model(x).square().sum().backward()
            torch.ops.aten.add(x, x)
        return mode.heard

    plain = heard(lambda model: contextlib.nullcontext())
    assert plain == heard(lambda model: Recorder(tmp_path / "t.h5", model, operators=operators))
    whole(tmp_path / "t.h5")
