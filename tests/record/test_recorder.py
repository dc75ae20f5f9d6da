from __future__ import annotations

import inspect
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from captures.minilm.make import encoder
from layerdiff import Recorder
from layerdiff.errors import RecorderError
from layerdiff.trace.fingerprint import fingerprint
from layerdiff.trace.reader import open_trace
from layerdiff.trace.schema import CallStatus, Role, ValueKind
from tests.models import InPlace, MiniLlama, SmallResNet, hf_bert, hf_llama, hf_qwen_moe, tokens

MODELS = {
    "mini llama": (MiniLlama, lambda: {"input_ids": tokens()}),
    "resnet in training": (
        lambda: SmallResNet().train(),
        lambda: {"x": torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))},
    ),
    "in place": (InPlace, lambda: {"x": torch.randn(4, 16, generator=torch.Generator().manual_seed(0))}),
    "hf llama": (hf_llama, lambda: {"input_ids": tokens()}),
    "hf qwen moe": (hf_qwen_moe, lambda: {"input_ids": tokens()}),
    "minilm weights": (encoder, lambda: {"input_ids": tokens()}),
    "hf bert": (hf_bert, lambda: {"input_ids": tokens(), "attention_mask": torch.ones(2, 7, dtype=torch.long)}),
}


def tensors_in(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, dict):
        return [t for item in result.values() for t in tensors_in(item)]
    if isinstance(result, (tuple, list)):
        return [t for item in result for t in tensors_in(item)]
    return []


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", MODELS)
def test_the_run_is_bit_identical(name: str, context: Any, tmp_path: Path) -> None:
    make, inputs = MODELS[name]

    def run(recorder: Recorder | None) -> tuple[list[bytes], list[bytes], bytes]:
        torch.manual_seed(3)
        model = make()
        if recorder is not None:
            recorder._model = model
        with context():
            torch.manual_seed(4)
            if recorder is None:
                results = [model(**inputs()), model(**inputs())]
            else:
                with recorder:
                    results = [model(**inputs()), model(**inputs())]
        state = [bits(t) for t in model.state_dict().values()]
        return [bits(t) for t in tensors_in(results)], state, bits(torch.get_rng_state())

    expected = run(None)
    actual = run(Recorder(tmp_path / "trace.h5"))
    assert expected == actual
    assert len(expected[0]) >= 2


def test_gradients_are_bit_identical(tmp_path: Path) -> None:
    def gradients(record: bool) -> list[bytes]:
        model = MiniLlama()
        if record:
            with Recorder(tmp_path / "trace.h5", model, weights="used"):
                model(tokens()).square().mean().backward()
        else:
            model(tokens()).square().mean().backward()
        return [bits(p.grad) for p in model.parameters() if p.grad is not None]

    assert gradients(False) == gradients(True)


def test_calls_values_and_edges(tmp_path: Path, recorded: Any) -> None:
    model = MiniLlama(layers=1)
    ids = tokens()
    with torch.no_grad(), Recorder(tmp_path / "trace.h5", model) as recorder:
        logits = model(ids)
        mlp_in = model.layers[0].post_attention_layernorm(torch.zeros(1, 1, 32))
    assert recorder.path == tmp_path / "trace.h5"
    trace = recorded(recorder.path)
    paths = [
        "",
        "embed_tokens",
        "rotary_emb",
        "layers.0",
        "layers.0.input_layernorm",
        "layers.0.self_attn",
        "layers.0.self_attn.q_proj",
        "layers.0.self_attn.k_proj",
        "layers.0.self_attn.v_proj",
        "layers.0.self_attn.o_proj",
        "layers.0.post_attention_layernorm",
        "layers.0.mlp",
        "layers.0.mlp.gate_proj",
        "layers.0.mlp.act_fn",
        "layers.0.mlp.up_proj",
        "layers.0.mlp.down_proj",
        "norm",
        "lm_head",
    ]
    assert [*paths, "layers.0.post_attention_layernorm"] == trace.sites
    assert [-1, 0, 0, 0, 3, 3, 5, 5, 5, 5, 3, 3, 11, 11, 11, 11, 0, 0, -1] == trace.column("parent")
    assert [0] * 18 + [1] == trace.column("step")
    assert set(trace.column("status")) == {CallStatus.RETURNED}
    np.testing.assert_array_equal(logits.numpy(), trace.array(0, "out"))
    np.testing.assert_array_equal(ids.numpy(), trace.array(0, "in[0]"))
    np.testing.assert_array_equal(mlp_in.numpy(), trace.array(18, "out"))
    attention = trace.find("layers.0.self_attn")
    assert {"in[0]", "in.cos_sin[0]", "in.cos_sin[1]", "out"} == set(trace.edges(attention))
    picture = trace.detail(attention)["arguments"]
    assert {
        "args": [{"tensor": "in[0]"}],
        "kwargs": {"cos_sin": {"tuple": [{"tensor": "in.cos_sin[0]"}, {"tensor": "in.cos_sin[1]"}]}, "mask": None},
    } == picture
    assert {"tuple": [{"tensor": "out[0]"}, {"tensor": "out[1]"}]} == trace.detail(trace.find("rotary_emb"))["results"]
    assert {"variance_epsilon": 1e-06} == trace.detail(trace.find("norm"))["attributes"]
    # One value: an output and every input that it becomes.
    normed = trace.edges(trace.find("layers.0.input_layernorm"))["out"]
    assert [normed] * 4 == [trace.edges(attention)["in[0]"]] + [
        trace.edges(trace.find(f"layers.0.self_attn.{name}_proj"))["in[0]"] for name in "qkv"
    ]
    assert trace.edges(trace.find("lm_head"))["out"] == trace.edges(0)["out"]


def test_statistics_and_fingerprints_are_those_of_the_bits(tmp_path: Path, recorded: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 5))
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    with Recorder(tmp_path / "trace.h5", model):
        model(x)
    trace = recorded(tmp_path / "trace.h5")
    value = trace.edges(0)["in[0]"]
    array = x.numpy()
    assert fingerprint(array) == trace.file.fingerprint(value)
    statistics = trace.file.statistics(value)
    wide = array.astype(np.float64)
    assert (wide.min(), wide.max()) == statistics[:2]
    assert pytest.approx((wide.mean(), np.sqrt((wide**2).mean())), rel=1e-5) == statistics[2:4]
    assert (0, 0, 0) == statistics[4:]


def test_a_module_called_several_times_and_a_shared_one(tmp_path: Path, recorded: Any) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(4, 4)
            self.other = self.one

        def forward(self, x: Tensor) -> Tensor:
            return self.other(self.one(self.one(x)))

    model = Twice()
    with Recorder(tmp_path / "trace.h5", model):
        model(torch.ones(1, 4))
        model(torch.ones(1, 4))
    trace = recorded(tmp_path / "trace.h5")
    assert ["", "one", "one", "one"] * 2 == trace.sites
    assert [0, 0, 1, 2] * 2 == trace.column("occurrence")
    assert [0] * 4 + [1] * 4 == trace.column("step")


def test_submodules_outside_a_root_forward_count_to_the_next_step(tmp_path: Path, recorded: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with Recorder(tmp_path / "trace.h5", model):
        model[0](torch.ones(1, 4))
        model(torch.ones(1, 4))
        model[0](torch.ones(1, 4))
        model[0](torch.ones(1, 4))
    trace = recorded(tmp_path / "trace.h5")
    assert ["0", "", "0", "1", "0", "0"] == trace.sites
    assert [0, 0, 0, 0, 1, 1] == trace.column("step")
    assert [0, 0, 1, 0, 0, 1] == trace.column("occurrence")
    assert [-1, -1, 1, 1, -1, -1] == trace.column("parent")


def test_roots_are_discovered_where_no_model_is_named(tmp_path: Path, recorded: Any) -> None:
    class Pipeline:
        def __init__(self) -> None:
            self.encoder = nn.Sequential(nn.Linear(4, 4))
            self.decoder = nn.Sequential(nn.Linear(4, 2))

    pipeline = Pipeline()
    with Recorder(tmp_path / "trace.h5"):
        pipeline.decoder(input=pipeline.encoder(torch.ones(1, 4)))
        pipeline.decoder(input=torch.ones(1, 4))
    trace = recorded(tmp_path / "trace.h5")
    assert [{"name": "encoder", "type": "Sequential"}, {"name": "decoder", "type": "Sequential"}] == trace.meta["roots"]
    assert [0, 0, 1, 1, 1, 1] == trace.column("root")
    assert [0, 0, 0, 0, 1, 1] == trace.column("step")
    assert {"in.input", "out"} == set(trace.edges(2))
    assert {"in.input", "out"} == set(trace.edges(4))
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_a_model_called_inside_another_keeps_its_own_root(tmp_path: Path, recorded: Any) -> None:
    inner = nn.Sequential(nn.Linear(4, 4))

    class Outer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return inner(x) + 1

    outer = Outer()
    with Recorder(tmp_path / "trace.h5"):
        inner(torch.ones(1, 4))
        outer(torch.ones(1, 4))
    trace = recorded(tmp_path / "trace.h5")
    assert [0, 0, 1, 0, 0] == trace.column("root")
    assert [-1, 0, -1, 2, 3] == trace.column("parent")
    assert [0, 0, 0, 1, 1] == trace.column("step")


def test_threads_have_stacks_of_their_own(tmp_path: Path, recorded: Any) -> None:
    models = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(4)]
    everyone = nn.ModuleList(models)
    barrier = threading.Barrier(4)

    class Wait(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            barrier.wait(10)
            return x

    for model in models:
        model.insert(0, Wait())  # all four are inside their roots at once
    with torch.no_grad(), Recorder(tmp_path / "trace.h5"):
        threads = [threading.Thread(target=lambda model=model: [model(torch.ones(1, 4)) for _ in range(5)]) for model in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    trace = recorded(tmp_path / "trace.h5")
    assert 4 * 5 * 4 == len(trace)
    parents, roots = trace.column("parent"), trace.column("root")
    for call, parent in enumerate(parents):
        assert (parent == -1) == (trace.file.text(int(trace.file.calls.module[call])) == "")
        if parent >= 0:
            assert (roots[parent], trace.column("step")[parent]) == (roots[call], trace.column("step")[call])
    assert {CallStatus.RETURNED} == set(trace.column("status"))
    assert len(everyone) == len(trace.meta["roots"])


def test_modules_added_between_forwards_are_recorded(tmp_path: Path, recorded: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with Recorder(tmp_path / "trace.h5", model):
        model(torch.ones(1, 4))
        model.append(nn.ReLU())
        model(torch.ones(1, 4))
        del model[0]
        model(torch.ones(1, 4))
    assert ["", "0", "", "0", "1", "", "0"] == recorded(tmp_path / "trace.h5").sites


def test_generate_is_a_step_a_token_after_a_warm_up(tmp_path: Path, recorded: Any) -> None:
    model = hf_llama()
    with torch.no_grad():
        expected = model.generate(tokens(1, 5), max_new_tokens=4, do_sample=False)
        with Recorder(tmp_path / "trace.h5", model):
            model(tokens(2, 3))
            actual = model.generate(tokens(1, 5), max_new_tokens=4, do_sample=False)
    assert torch.equal(expected, actual)
    trace = recorded(tmp_path / "trace.h5")
    roots = [call for call, site in enumerate(trace.sites) if site == ""]
    assert list(range(5)) == [trace.column("step")[call] for call in roots]
    shapes = [
        trace.file.shape(trace.edges(call)[name])
        for call in roots
        for name in trace.edges(call)
        if name.endswith("input_ids") or name == "in[0]"
    ]
    assert [(2, 3), (1, 5), (1, 1), (1, 1), (1, 1)] == shapes


def test_a_cache_is_walked_once_a_step(tmp_path: Path, recorded: Any) -> None:
    model = hf_llama()
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"  # by version of transformers
    with torch.no_grad(), Recorder(tmp_path / "trace.h5", model):
        cache = model(tokens(1, 5))[name]
        model(tokens(1, 1), **{name: cache})
    trace = recorded(tmp_path / "trace.h5")
    root = trace.find("", step=1)
    parts = [f".layers[{i}].{part}" for i in (0, 1) for part in ("keys", "values")]
    assert ["in[0]"] + [f"in.{name}{part}" for part in parts] == list(trace.edges(root, Role.INPUT))
    assert ["out.logits"] + [f"out.{name}{part}" for part in parts] == list(trace.edges(root, Role.OUTPUT))
    inner = trace.find("model.layers.0.self_attn", step=1)
    assert not [position for position in trace.edges(inner) if "layers" in position]
    assert {"seen": "DynamicCache"} == trace.detail(inner)["arguments"]["kwargs"][name]
    assert (1, 2, 5, 8) == trace.file.shape(trace.edges(root)[f"in.{name}.layers[0].keys"])
    assert (1, 2, 6, 8) == trace.file.shape(trace.edges(root)[f"out.{name}.layers[0].keys"])


def test_a_model_that_raises_keeps_the_stack_balanced(tmp_path: Path, recorded: Any) -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.sum() > 0:
                raise ValueError("too much")
            return x

    model = nn.Sequential(nn.Sequential(nn.ReLU(), Fails()), nn.ReLU())
    with pytest.raises(ValueError, match="too much"), Recorder(tmp_path / "trace.h5", model):
        model(-torch.ones(2))
        with pytest.raises(ValueError, match="too much"):
            model(torch.ones(2))
        model(-torch.ones(2))
        model(torch.ones(2))
    trace = recorded(tmp_path / "trace.h5")
    assert trace.file.complete
    full = ["", "0", "0.0", "0.1", "1"]
    assert [*full, *full[:4], *full, *full[:4]] == trace.sites
    R, F = CallStatus.RETURNED, CallStatus.RAISED
    assert [R] * 5 + [F, F, R, F] + [R] * 5 + [F, F, R, F] == trace.column("status")
    assert "ValueError: too much" == trace.detail(5)["raised"]
    assert [0] * 5 + [1] * 4 + [2] * 5 + [3] * 4 == trace.column("step")


def test_an_interrupt_that_no_hook_sees_leaves_no_stale_call(tmp_path: Path, recorded: Any) -> None:
    class Interrupts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.sum() > 0:
                raise KeyboardInterrupt
            return x

    model = nn.Sequential(Interrupts())
    with Recorder(tmp_path / "trace.h5", model):
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(2))
        model(-torch.ones(2))
    trace = recorded(tmp_path / "trace.h5")
    assert [0, 0, 1, 1] == trace.column("step")
    assert [-1, 0, -1, 2] == trace.column("parent")
    assert [CallStatus.UNFINISHED] * 2 + [CallStatus.RETURNED] * 2 == trace.column("status")


def test_autocast_records_what_the_modules_see(tmp_path: Path, recorded: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = model(torch.ones(1, 4))
        with Recorder(tmp_path / "trace.h5", model):
            actual = model(torch.ones(1, 4))
    assert torch.equal(expected, actual)
    trace = recorded(tmp_path / "trace.h5")
    assert "bfloat16" == trace.file.dtype_name(trace.edges(1)["out"])
    assert {"cpu": "bfloat16"} == trace.meta["environment"]["autocast"]


def test_hooks_are_removed(tmp_path: Path) -> None:
    model = MiniLlama()
    with Recorder(tmp_path / "trace.h5", model):
        model(tokens())
        assert model.layers[0]._forward_hooks
    for module in model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks
        assert not module._forward_hooks_with_kwargs and not module._forward_hooks_always_called


def test_random_draws_show(tmp_path: Path, recorded: Any) -> None:
    model = nn.Sequential(nn.Dropout(0.5))
    with Recorder(tmp_path / "trace.h5", model):
        model.train()(torch.ones(8))
        model.eval()(torch.ones(8))
    trace = recorded(tmp_path / "trace.h5")
    drawn, quiet = trace.detail(0)["random"], trace.detail(2)["random"]
    assert drawn["before"] != drawn["after"]
    assert quiet["before"] == quiet["after"] == drawn["after"]
    assert (True, False) == (trace.detail(0)["training"], trace.detail(2)["training"])


def test_filters_leave_out_rows_and_keep_steps_and_parents(tmp_path: Path, recorded: Any) -> None:
    model = MiniLlama()
    with torch.no_grad(), Recorder(tmp_path / "trace.h5", model, modules="*.mlp,*.down_proj", steps="1:"):
        model(tokens())
        model(tokens())
    trace = recorded(tmp_path / "trace.h5")
    assert ["", "layers.0.mlp", "layers.0.mlp.down_proj", "layers.1.mlp", "layers.1.mlp.down_proj"] == trace.sites
    assert [1] * 5 == trace.column("step")
    assert [-1, 0, 1, 0, 3] == trace.column("parent")
    assert not trace.file.has_bytes(trace.edges(0)["in[0]"])
    assert trace.file.has_bytes(trace.edges(1)["in[0]"])


def test_types_and_ranks(tmp_path: Path, recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    model = MiniLlama()
    with torch.no_grad(), Recorder(tmp_path / "none.h5", model, ranks=[0, 1]):
        model(tokens())
    assert not (tmp_path / "none.h5").exists()
    with torch.no_grad(), Recorder(tmp_path / "trace.h5", model, ranks=2, types="RMSNorm"):
        model(tokens())
    trace = recorded(tmp_path / "trace.h5")
    assert 2 == trace.file.rank
    assert {"MiniLlama", "RMSNorm"} == {trace.file.text(t) for t in trace.column("type")}


def test_keep_policies(tmp_path: Path, recorded: Any) -> None:
    model = MiniLlama(layers=1)
    with torch.no_grad(), Recorder(tmp_path / "trace.h5", model, keep="*.q_proj=full,*.mlp*=full:600,statistics"):
        model(tokens(1, 2))
    trace = recorded(tmp_path / "trace.h5")
    query = trace.edges(trace.find("layers.0.self_attn.q_proj"))
    assert trace.file.has_bytes(query["in[0]"]) and trace.file.has_bytes(query["out"])
    attention = trace.edges(trace.find("layers.0.self_attn"))
    assert not trace.file.has_bytes(attention["in[0]"]) and not trace.file.has_bytes(attention["out"])
    assert "statistics only" in trace.reason(attention["out"])
    assert trace.file.fingerprint(query["in[0]"]) == trace.file.fingerprint(attention["in[0]"])
    # mlp: 2 x 32 floats are 256 bytes, 2 x 64 are 512; the first value is there already, and the next does not fit beside it.
    up = trace.edges(trace.find("layers.0.mlp.gate_proj"))["out"]
    assert trace.file.has_bytes(up)
    assert "budget" in trace.reason(trace.edges(trace.find("layers.0.mlp.up_proj"))["out"])


@pytest.mark.parametrize("choice", ["none", "used"])
def test_weights(choice: str, tmp_path: Path, recorded: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    model.append(nn.Linear(4, 4))
    model[2].weight = model[0].weight
    with torch.no_grad(), Recorder(tmp_path / "trace.h5", model, weights=choice):
        model(torch.ones(2, 4))
        model(torch.ones(2, 4))
    trace = recorded(tmp_path / "trace.h5")
    parameters, buffers = trace.values_of_kind(ValueKind.PARAMETER), trace.values_of_kind(ValueKind.BUFFER)
    assert ["0.weight", "0.bias", "1.weight", "1.bias", "2.bias"] == [trace.file.text(int(trace.file.values.name[v])) for v in parameters]
    assert ["1.running_mean", "1.running_var", "1.num_batches_tracked"] == [
        trace.file.text(int(trace.file.values.name[v])) for v in buffers
    ]
    weight = trace.edges(trace.find("0"), Role.WEIGHT)["weight"]
    assert weight == trace.edges(trace.find("2"), Role.WEIGHT)["weight"] == trace.edges(trace.find("0", step=1), Role.WEIGHT)["weight"]
    assert (choice == "used") == trace.file.has_bytes(weight)
    array = model[0].weight.detach()
    assert fingerprint(array.numpy()) == trace.file.fingerprint(weight)
    for name in ("bfloat16", "float16"):
        high, low = fingerprint(array.to(getattr(torch, name)).view(torch.int16).numpy())
        assert f"{high:016x}{low:016x}" == trace.value_detail(weight)["rounded"][name]


def test_all_weights_includes_those_never_used(tmp_path: Path, recorded: Any) -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(4, 4)
            self.unused = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    model = Half()
    with torch.no_grad(), Recorder(tmp_path / "trace.h5", model, weights="all"):
        model(torch.ones(2, 4))
    trace = recorded(tmp_path / "trace.h5")
    names = {trace.file.text(int(trace.file.values.name[v])) for v in trace.values_of_kind(ValueKind.PARAMETER)}
    assert {"used.weight", "used.bias", "unused.weight", "unused.bias"} == names
    assert all(trace.file.has_bytes(v) for v in trace.values_of_kind(ValueKind.PARAMETER))


def test_weights_replaced_behind_the_version_counter(tmp_path: Path, recorded: Any) -> None:
    model = nn.Sequential(nn.Linear(64, 200))
    with torch.no_grad(), Recorder(tmp_path / "trace.h5", model):
        model(torch.ones(1, 64))
        model[0].weight.data.mul_(2)
        model(torch.ones(1, 64))
    trace = recorded(tmp_path / "trace.h5")
    first, second = (trace.edges(trace.find("0", step=step), Role.WEIGHT)["weight"] for step in (0, 1))
    assert fingerprint(model[0].weight.detach().numpy()) == trace.file.fingerprint(second)
    assert trace.file.fingerprint(first) != trace.file.fingerprint(second)


def test_what_can_be_known_before_is_raised(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(RecorderError, match="no torch"):
        Recorder(tmp_path / "t.h5", "model")  # type: ignore[arg-type]
    for wrong in (
        {"steps": "x"},
        {"steps": "3:3"},
        {"keep": "some"},
        {"keep": "full:2 apples"},
        {"weights": "most"},
        {"modules": ""},
        {"queue_bytes": 0},
    ):
        with pytest.raises(RecorderError):
            Recorder(tmp_path / "t.h5", model, **wrong)
    with pytest.raises(RecorderError, match="does not exist"), Recorder(tmp_path / "missing" / "t.h5", model):
        pass
    with (
        Recorder(tmp_path / "t.h5", model),
        pytest.raises(RecorderError, match="recording to it now"),
        Recorder(tmp_path / "t.h5", model),
    ):
        pass
    assert not model._forward_hooks


def test_a_recording_without_calls_says_why(tmp_path: Path, recorded: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with Recorder(tmp_path / "none.h5", nn.Linear(2, 2)):
        pass
    assert "no forward of the Linear ran" in recorded(tmp_path / "none.h5").meta["empty_reason"]
    assert "no forward of the Linear ran" in capsys.readouterr().err
    with Recorder(tmp_path / "steps.h5", model := nn.Linear(2, 2), steps="5"):
        model(torch.ones(2))
    assert "select none" in recorded(tmp_path / "steps.h5").meta["empty_reason"]


def test_the_environment_is_a_fixed_list(tmp_path: Path, recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "hunter2")
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setattr(sys, "argv", ["/home/someone/infer.py", "--key=hunter2"])
    with Recorder(tmp_path / "trace.h5", model := MiniLlama()):
        model(tokens())
    trace = recorded(tmp_path / "trace.h5")
    environment = trace.meta["environment"]
    assert "hunter2" not in str(trace.meta) and "someone" not in str(trace.meta)
    assert "infer.py" == environment["script"]
    assert "Ring" == environment["variables"]["NCCL_ALGO"]
    expected = sum(p.numel() for p in model.parameters())
    assert [{"class": "MiniLlama", "modules": 27, "parameters": expected, "dtype": "float32"}] == [
        {**described, "modules": len(list(model.modules()))} | {"modules": 27} for described in environment["models"]
    ]
    assert len(list(model.modules())) == environment["models"][0]["modules"]
    assert torch.__version__ == environment["torch"]


def test_ranks_of_one_run_record_into_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    model = nn.Linear(2, 2)
    for rank in ("0", "3"):
        monkeypatch.setenv("RANK", rank)
        with Recorder(f"{tmp_path / 'target'}/", model) as recorder:
            model(torch.ones(1, 2))
        assert recorder.path == tmp_path / "target" / f"rank0000{rank}.h5"
    assert [0, 3] == [file.rank for file in open_trace(tmp_path / "target").files]
    with Recorder(tmp_path / "named-by-hand.h5", model) as recorder:
        model(torch.ones(1, 2))
    assert recorder.path == tmp_path / "named-by-hand.h5"
