"""Ways to run one model that users have: each says no more than it should, and hides no fault. From the recording to what is said."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from layerdiff import Comparison, Recorder, compare_traces
from layerdiff.verdicts import judge_again
from tests.programs import IDS, Decoder, decoder, kinds, origins, random, seeded


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x)).relu())


def convolved(path: Path, dtype: torch.dtype, memory_format: torch.memory_format, eps: float = 1e-5) -> Path:
    model, x = seeded(Convolutions()).to(dtype, memory_format=memory_format), random(2, 3, 8, 8).to(dtype, memory_format=memory_format)
    model.norm.eps = eps
    with torch.no_grad(), Recorder(path, model, operators=True):
        model(x)
    return path


def test_weights_that_lie_channels_last_and_are_rounded_are_no_others(tmp_path: Path) -> None:
    def compared(eps: float) -> Comparison:
        target = convolved(tmp_path / f"{eps}.h5", torch.bfloat16, torch.channels_last, eps)
        return compare_traces(reference, target)

    reference = convolved(tmp_path / "r.h5", torch.float32, torch.contiguous_format)
    assert [] == origins(compared(1e-5))
    assert ["norm/aten.native_group_norm.default#0"] == [origin.site for origin in compared(1e-3).origins]


def compiled(model: Decoder) -> Callable[[], object]:
    for layer in model.layers:
        layer.compile(backend="eager")
    return lambda: model(IDS)


def in_a_thread(model: Decoder) -> Callable[[], object]:
    def run() -> None:
        with torch.no_grad():
            model(IDS)

    def start() -> None:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    return start


@pytest.mark.parametrize(("way", "place"), [(compiled, "layers.1"), (in_a_thread, "layers.1.input_layernorm")])
def test_a_run_whose_operators_are_not_seen_is_judged_by_thresholds(
    way: Callable[[Decoder], Callable[[], object]], place: str, tmp_path: Path
) -> None:
    def recorded(name: str, eps: float, way: Callable[[Decoder], Callable[[], object]]) -> Path:
        model = decoder()
        model.layers[1].input_layernorm.variance_epsilon = eps
        run = way(model)
        with torch.no_grad(), Recorder(tmp_path / name, model, operators=True):
            run()
        return tmp_path / name

    seen, unseen = recorded("r.h5", 1e-6, lambda model: lambda: model(IDS)), recorded("t.h5", 1e-6, way)
    clean = compare_traces(seen, unseen)
    assert ([], {"recording-skipped"}) == (origins(clean), kinds(clean))
    inside = [call.reason for call in clean.alignment.reference_only if call.site == "layers.0.mlp"]
    assert ["it runs compiled in the target, inside layers.0"] * (way is compiled) == inside
    faulty = recorded("f.h5", 1e-2, way)
    for reference in (seen, unseen):
        assert [place] == [origin.site for origin in compare_traces(reference, faulty).origins]


def trained(path: Path, eps: float = 1e-6, *, again: bool = False, autocast: bool = False, operators: bool = True) -> Path:
    """Two steps of an optimizer. `again`: the layers keep nothing for the backward pass, and run anew in it."""
    model = decoder()
    model.layers[1].input_layernorm.variance_epsilon = eps
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for layer in model.layers if again else ():
        forward = layer.forward
        layer.forward = lambda x, mask=None, forward=forward: checkpoint(forward, x, mask, use_reentrant=False)
    with Recorder(path, model, operators=operators):
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = model(IDS).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return path


@pytest.mark.parametrize("operators", [False, True])
def test_what_runs_again_in_the_backward_pass_is_no_step(operators: bool, tmp_path: Path) -> None:
    plain = trained(tmp_path / "r.h5", operators=operators)
    same = compare_traces(plain, trained(tmp_path / "t.h5", again=True, operators=operators))
    assert ([], set()) == (origins(same), kinds(same))
    faulty = compare_traces(plain, trained(tmp_path / "f.h5", 1e-2, again=True, operators=operators))
    assert ["layers.1.input_layernorm"] == [origin.site.partition("/")[0] for origin in faulty.origins]
    assert "steps-differ" not in kinds(faulty)


def test_casts_of_weights_that_an_optimizer_writes_to_are_left_out(tmp_path: Path) -> None:
    plain = trained(tmp_path / "r.h5")
    assert [] == origins(compare_traces(plain, trained(tmp_path / "t.h5", autocast=True)))
    faulty = compare_traces(plain, trained(tmp_path / "f.h5", 1e-2, autocast=True))
    assert ["layers.1.input_layernorm/aten.add.Tensor#0"] == [origin.site for origin in faulty.origins]


def offloaded(model: Decoder) -> Decoder:
    """Every module has its weights only while its forward runs, as accelerate's hooks have it."""

    def wrap(module: nn.Module) -> None:
        kept, forward = dict(module._parameters), module.forward

        def run(*args: Tensor) -> Tensor:
            module._parameters.update(kept)
            result: Tensor = forward(*args)
            module._parameters.update(away)
            return result

        away = {name: nn.Parameter(weight.to("meta"), requires_grad=False) for name, weight in kept.items() if weight is not None}
        module._parameters.update(away)
        module.forward = run

    for module in list(model.modules()):
        if module._parameters:
            wrap(module)
    return model


def other_values(model: Decoder) -> None:
    model.layers[1].self_attn.v_proj.weight.mul_(1.05)


def test_weights_that_are_there_only_while_a_module_runs_have_their_names(tmp_path: Path) -> None:
    def recorded(name: str, model: Decoder) -> Path:
        with torch.no_grad(), Recorder(tmp_path / name, model, operators=True):
            model(IDS)
        return tmp_path / name

    plain = recorded("r.h5", decoder())
    assert [] == origins(compare_traces(plain, recorded("t.h5", offloaded(decoder(dtype=torch.bfloat16)))))
    faulty = compare_traces(plain, recorded("f.h5", offloaded(decoder(other_values, torch.bfloat16))))
    assert [("layers.1.self_attn.v_proj/aten.mm.default#0", "weight-differs")] == [(one.site, one.cause) for one in faulty.origins]


class Coded(nn.Module):
    """A projection whose weight is kept as codes of another dtype, with a scale a row."""

    def __init__(self, linear: nn.Linear, dtype: torch.dtype, largest: float, factor: float) -> None:
        super().__init__()
        scale = linear.weight.abs().amax(1, keepdim=True) / largest
        codes = linear.weight / scale
        self.register_buffer("weight", (codes if dtype.is_floating_point else codes.round()).to(dtype))
        self.register_buffer("scale", scale * factor)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype) * self.scale)


@pytest.mark.parametrize(("dtype", "largest"), [(torch.int8, 127.0), (torch.float8_e4m3fn, 448.0)])
def test_codes_are_no_other_weight_and_a_wrong_scale_shows(dtype: torch.dtype, largest: float, tmp_path: Path) -> None:
    def recorded(name: str, factor: float | None) -> Path:
        model = decoder()
        for i, layer in enumerate(model.layers if factor is not None else ()):
            layer.mlp.up_proj = Coded(layer.mlp.up_proj, dtype, largest, factor if i else 1.0)
        with torch.no_grad(), Recorder(tmp_path / name, model):
            model(IDS)
        return tmp_path / name

    plain, coded = recorded("r.h5", None), recorded("t.h5", 1.0)
    relaxed = compare_traces(plain, coded, profile="relaxed")
    assert ([], {"weight-coded"}, False) == (origins(relaxed), kinds(relaxed), relaxed.defect)
    strict = judge_again(relaxed, profile="strict")
    assert ([], [("weight-coded", True)]) == (origins(strict), [(notice.kind, notice.defect) for notice in strict.notices])
    faulty = compare_traces(plain, recorded("f.h5", 1.5), profile="relaxed")
    assert ["layers.1.mlp.up_proj"] == [origin.site for origin in faulty.origins]
    assert "and weight is kept in codes" in faulty.origins[0].statement


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_kernel_of_eight_bits_is_precision_as_long_as_eight_bits_explain_it(tmp_path: Path) -> None:
    def recorded(name: str, change: Callable[[Decoder], object] | None, *, quantise: bool = True) -> Path:
        model: nn.Module = decoder(change)
        if quantise:
            model = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
        with torch.no_grad(), Recorder(tmp_path / name, model, operators=True):
            model(IDS)
        return tmp_path / name

    def greater(model: Decoder) -> None:
        model.layers[1].mlp.up_proj.weight.mul_(1.2)

    plain = recorded("r.h5", None, quantise=False)
    relaxed = compare_traces(plain, recorded("t.h5", None), profile="relaxed")
    assert ({("precision", "quantised-kernel")}, False) == ({each[1:] for each in origins(relaxed)}, relaxed.defect)
    assert judge_again(relaxed, profile="strict").defect
    faulty = compare_traces(plain, recorded("f.h5", greater), profile="relaxed")
    wrong = [site for site, verdict, _ in origins(faulty) if verdict == "unexplained"]
    assert ["layers.1.mlp.up_proj/quantized.linear_dynamic.default#0"] == wrong
