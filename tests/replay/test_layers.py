"""Whole layers that one kernel makes, against torch: its fused kernels where this machine has them, else the layer by its operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from layerdiff.replay.operators import CannotReplay, run64
from layerdiff.trace.arguments import Arguments
from tests.replay.recording import record

BATCH, LENGTH, WIDTH, HEADS = 2, 5, 8, 2


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def hidden(*shape: int, seed: int = 3) -> Tensor:
    """A mask that leaves the first key of each row."""
    made = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.4
    made[..., 0] = False
    return made


def run(name: str, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    return run64(name, Arguments(args, kwargs))


def close(expected: Tensor, actual: Tensor, tolerance: float = 1e-12) -> None:
    assert expected.shape == actual.shape
    torch.testing.assert_close(actual, expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True)


MASKS = {
    "none": (None, None),
    "source": (hidden(LENGTH, LENGTH), 0),
    "numbers": (hidden(LENGTH, LENGTH).double() * -3.0, 0),
    "padding": (hidden(BATCH, LENGTH), 1),
    "both": (hidden(BATCH, HEADS, LENGTH, LENGTH), 2),
    "nothing seen": (torch.tensor([[True] * LENGTH, [False] * LENGTH]), 1),
}
masks = pytest.mark.parametrize(("mask", "kind"), MASKS.values(), ids=MASKS)


def attention_weights() -> list[Tensor]:
    return [numbers(3 * WIDTH, WIDTH, seed=1), numbers(3 * WIDTH, seed=2), numbers(WIDTH, WIDTH, seed=3), numbers(WIDTH, seed=4)]


@masks
@pytest.mark.parametrize("weights", [(True, True), (True, False), (False, False)])
def test_self_attention(mask: Tensor | None, kind: int | None, weights: tuple[bool, bool]) -> None:
    x = numbers(BATCH, LENGTH, WIDTH)
    args = (x, x, x, WIDTH, HEADS, *attention_weights(), mask, *weights, kind)
    expected = torch.ops.aten._native_multi_head_attention.default(*args)
    actual = run("aten._native_multi_head_attention.default", *args)
    close(expected[0], actual[0])
    if weights[0]:
        close(expected[1], actual[1])


@pytest.mark.parametrize("kind", ["keys", "values", "all"])
def test_attention_to_something_else(kind: str) -> None:
    x, y, z = (numbers(BATCH, LENGTH, WIDTH, seed=seed) for seed in (20, 21, 22))
    inputs = {"keys": (x, y, y), "values": (x, x, z), "all": (x, y, z)}[kind]
    args = (*inputs, WIDTH, HEADS, *attention_weights(), None, True, True)
    for expected, actual in zip(
        torch.ops.aten._native_multi_head_attention.default(*args), run("aten._native_multi_head_attention.default", *args), strict=True
    ):
        close(expected, actual)


def test_sizes_that_do_not_fit_are_refused() -> None:
    x = numbers(BATCH, LENGTH, WIDTH)
    with pytest.raises(CannotReplay, match="what its mask says"):
        run(
            "aten._native_multi_head_attention.default",
            x,
            x,
            x,
            WIDTH,
            HEADS,
            *attention_weights(),
            hidden(BATCH, LENGTH, LENGTH),
            mask_type=2,
        )
    with pytest.raises(CannotReplay, match="no heads"):
        run("aten._native_multi_head_attention.default", x, x, x, WIDTH, 3, *attention_weights())
    with pytest.raises(CannotReplay, match="proj_weight has not the size"):
        run("aten._native_multi_head_attention.default", x, x, x, WIDTH, HEADS, *attention_weights()[:2], numbers(9, WIDTH), numbers(9))


@masks
@pytest.mark.parametrize("gelu", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_a_layer_of_an_encoder(mask: Tensor | None, kind: int | None, *, gelu: bool, norm_first: bool) -> None:
    norms = [numbers(WIDTH, seed=seed) for seed in (5, 6, 7, 8)]
    forward = numbers(12, WIDTH, seed=9), numbers(12, seed=10), numbers(WIDTH, 12, seed=11), numbers(WIDTH, seed=12)
    x = numbers(BATCH, LENGTH, WIDTH)
    args = (x, WIDTH, HEADS, *attention_weights(), gelu, norm_first, 1e-2, *norms, *forward, mask, kind)
    close(torch.ops.aten._transformer_encoder_layer_fwd.default(*args), run("aten._transformer_encoder_layer_fwd.default", *args)[0])


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_layer_of_an_encoder_as_torch_records_it(*, norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 12, batch_first=True, norm_first=norm_first, activation="gelu").eval()
    padding = torch.tensor([[False] * 5, [False, False, False, True, True]])
    (call,) = [
        call
        for call in record(lambda: layer(numbers(BATCH, LENGTH, WIDTH).float(), src_key_padding_mask=padding))
        if "_transformer_encoder_layer_fwd" in call.name
    ]
    close(call.results[0], run64(call.name, call.args)[0], 1e-5)


LAYERS = {
    "one": {},
    "two": {"num_layers": 2},
    "both ways": {"bidirectional": True},
    "two both ways, batch first": {"num_layers": 2, "bidirectional": True, "batch_first": True},
    "no biases": {"bias": False},
    "no biases, both ways": {"bias": False, "bidirectional": True},
}
layers = pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS)


def states(module: nn.RNNBase, x: Tensor) -> Any:
    shape = module.num_layers * (2 if module.bidirectional else 1), x.shape[0 if module.batch_first else 1], module.hidden_size
    first = numbers(*shape, seed=21).to(x.dtype)
    return (first, numbers(*shape, seed=22).to(x.dtype)) if isinstance(module, nn.LSTM) else first


@layers
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
def test_the_hosts_kernel_of_lstm(options: dict[str, Any], dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    module = nn.LSTM(4, 6, **options).to(dtype)
    x = numbers(5, 3, 4).to(dtype)
    calls = [call for call in record(lambda: module(x, states(module, x))) if call.name == "aten.mkldnn_rnn_layer.default"]
    assert module.num_layers * (2 if module.bidirectional else 1) == len(calls)
    for call in calls:
        for expected, actual in zip(call.results[:3], run64(call.name, call.args), strict=False):
            close(expected, actual, tolerance)


MODES = {"relu": (nn.RNN, 0, {"nonlinearity": "relu"}), "tanh": (nn.RNN, 1, {}), "lstm": (nn.LSTM, 2, {}), "gru": (nn.GRU, 3, {})}
modes = pytest.mark.parametrize(("kind", "mode", "more"), MODES.values(), ids=MODES)


@layers
@modes
@pytest.mark.parametrize("name", ["_cudnn_rnn", "miopen_rnn"])
def test_kernels_of_all_layers(options: dict[str, Any], kind: type[nn.RNNBase], mode: int, more: dict[str, Any], name: str) -> None:
    """No device is here: the same layer by its operators, in float64."""
    torch.manual_seed(0)
    module = kind(4, 6, **options, **more).double()
    x = numbers(5, 3, 4)
    given = states(module, x)
    made, last = module(x, given)
    hx, cx = given if mode == 2 else (given, None)
    weights, each = list(module.parameters()), 4 if module.bias else 2
    buffer = () if name == "miopen_rnn" else (None,)
    sizes = (6,) if name == "miopen_rnn" else (6, 0)
    rest = (module.num_layers, module.batch_first, 0.0, False, module.bidirectional, [], None)
    actual = run(f"aten.{name}.default", x, weights, each, *buffer, hx, cx, mode, *sizes, *rest)
    for one, other in zip([made, *(last if mode == 2 else [last])], actual, strict=False):
        close(one, other)


def test_what_is_not_known_of_them_is_refused() -> None:
    x, weights = numbers(5, 3, 4), [numbers(18, 4), numbers(18, 6), numbers(18), numbers(18)]
    hx = numbers(1, 3, 6)

    def refused(reason: str, weights: list[Tensor], *, proj: int = 0, dropout: float = 0.0, sizes: list[int] | None = None) -> None:
        with pytest.raises(CannotReplay, match=reason):
            run("aten._cudnn_rnn.default", x, weights, 4, None, hx, None, 3, 6, proj, 1, False, dropout, True, False, sizes or [], None)

    refused("packed sequences, projections and dropout", weights, proj=3)
    refused("packed sequences, projections and dropout", weights, dropout=0.1)
    refused("packed sequences, projections and dropout", weights, sizes=[3, 3, 3, 3, 3])
    refused("not as many as its layers need", weights[:3])
    refused("have not the sizes of a recurrent layer", [numbers(24, 4), numbers(24, 6), numbers(24), numbers(24)])


@pytest.mark.parametrize("bias", [True, False])
def test_single_steps(*, bias: bool) -> None:
    torch.manual_seed(0)
    x, hx, cx = numbers(3, 4), numbers(3, 6, seed=1), numbers(3, 6, seed=2)
    lstm, gru = nn.LSTMCell(4, 6, bias=bias).double(), nn.GRUCell(4, 6, bias=bias).double()
    gates = [x @ lstm.weight_ih.T, hx @ lstm.weight_hh.T], [x @ gru.weight_ih.T, hx @ gru.weight_hh.T]
    biases = [(cell.bias_ih, cell.bias_hh) if bias else (None, None) for cell in (lstm, gru)]
    made, cell, _ = run("aten._thnn_fused_lstm_cell.default", *gates[0], cx, *biases[0])
    close(lstm(x, (hx, cx))[0], made)
    close(lstm(x, (hx, cx))[1], cell)
    close(gru(x, hx), run("aten._thnn_fused_gru_cell.default", *gates[1], hx, *biases[1])[0])
