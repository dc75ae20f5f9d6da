"""Recurrent layers in float64, whichever kernel ran: LSTM, GRU, and the plain ones with tanh or relu.

    gates of a step = x W_ih^T + b_ih + h W_hh^T + b_hh

in the order of torch's parameters: input, forget, cell, output of an LSTM; reset, update, new of a GRU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from layerdiff.replay.refusal import CannotReplay

_RELU, _TANH, _LSTM, _GRU = range(4)
_GATES: Final = {_RELU: 1, _TANH: 1, _LSTM: 4, _GRU: 3}
State = tuple[Tensor, Tensor | None]
"""Hidden state and, of an LSTM, cell state: (batch, hidden)."""


def lstm_step(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden and cell state after a step."""
    enter, forget, new, out = gates.chunk(4, -1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
    return out.sigmoid() * cell.tanh(), cell


def gru_step(given: Tensor, hidden: Tensor, before: Tensor) -> Tensor:
    """The hidden state after a step: of the gates from the input, those from the hidden state, and the hidden state before."""
    (reset_in, update_in, new_in), (reset, update, new) = given.chunk(3, -1), hidden.chunk(3, -1)
    kept = (update_in + update).sigmoid()
    return (1.0 - kept) * (new_in + (reset_in + reset).sigmoid() * new).tanh() + kept * before


def _layer(x: Tensor, weights: Sequence[Tensor], state: State, mode: int, *, reverse: bool) -> tuple[Tensor, State]:
    """One direction of one layer over x (steps, batch, inputs): what it makes at each step, and its last state."""
    first, second, *biases = weights
    hidden, cell = state
    given = x @ first.t() + (biases[0] if biases else 0.0)
    made = [hidden] * len(x)
    for step in reversed(range(len(x))) if reverse else range(len(x)):
        gates = hidden @ second.t() + (biases[1] if biases else 0.0)
        if mode == _LSTM and cell is not None:
            hidden, cell = lstm_step(given[step] + gates, cell)
        elif mode == _GRU:
            hidden = gru_step(given[step], gates, hidden)
        else:
            hidden = (given[step] + gates).tanh() if mode == _TANH else (given[step] + gates).relu()
        made[step] = hidden
    return (torch.stack(made) if made else x.new_zeros((0, *hidden.shape))), (hidden, cell)


def _require_fits(x: Tensor, weights: Sequence[Tensor], state: State, mode: int, hidden: int) -> None:
    rows = _GATES.get(mode, 0) * hidden
    shapes = [tuple(weight.shape) for weight in weights]
    wanted = [(rows, x.shape[-1]), (rows, hidden), (rows,), (rows,)][: len(weights)]
    states = [part for part in state if part is not None]
    if not rows or shapes != wanted or any(part.shape != (x.shape[1], hidden) for part in states) or (mode == _LSTM) != (len(states) == 2):
        raise CannotReplay("its weights and states have not the sizes of a recurrent layer")


def one_layer(given: dict[str, Any]) -> tuple[Tensor, ...]:
    """`mkldnn_rnn_layer`: one direction of one layer; its states have a leading dimension of 1."""
    x, weights = given["input"], [given[f"weight{i}"] for i in range(4 if given["has_biases"] else 2)]
    state = given["hx_"].reshape(-1, given["hidden_size"]), given["cx_"].reshape(-1, given["hidden_size"])
    if x.dim() != 3 or given["batch_sizes"] or given["mode"] != _LSTM:
        raise CannotReplay("only an LSTM over unpacked sequences is known")
    _require_fits(x, weights, state, _LSTM, given["hidden_size"])
    made, (hidden, cell) = _layer(x, weights, state, _LSTM, reverse=given["reverse"])
    assert cell is not None
    return made, hidden.reshape(given["hx_"].shape), cell.reshape(given["cx_"].shape), _nothing()


def whole(given: dict[str, Any]) -> tuple[Tensor, ...]:
    """`_cudnn_rnn` and `miopen_rnn`: all layers, in one or both directions."""
    x, mode, layers, hidden = given["input"], given["mode"], given["num_layers"], given["hidden_size"]
    directions = 2 if given["bidirectional"] else 1
    if x.dim() != 3 or given["batch_sizes"] or given.get("proj_size") or (given["dropout"] and given["train"]):
        raise CannotReplay("packed sequences, projections and dropout inside a fused kernel are not known")
    weights = given["weight"]
    each, left = divmod(len(weights), max(1, layers * directions))
    if left or each not in (2, 4):
        raise CannotReplay("its weights are not as many as its layers need")
    x = x.transpose(0, 1) if given["batch_first"] else x
    last: list[State] = []
    for layer in range(layers):
        sides = []
        for direction in range(directions):
            at = layer * directions + direction
            state: State = given["hx"][at], None if given["cx"] is None else given["cx"][at]
            own = weights[at * each : (at + 1) * each]
            _require_fits(x, own, state, mode, hidden)
            made, state = _layer(x, own, state, mode, reverse=direction == 1)
            sides.append(made)
            last.append(state)
        x = torch.cat(sides, -1)
    cells = [cell for _, cell in last if cell is not None]
    ended = torch.stack([one for one, _ in last]), torch.stack(cells) if cells else _nothing()
    return x.transpose(0, 1) if given["batch_first"] else x, *ended, _nothing(), _nothing()


def lstm_cell(given: dict[str, Any]) -> tuple[Tensor, ...]:
    """`_thnn_fused_lstm_cell`: both sets of gates without their biases."""
    gates = _sum(given["input_gates"], given["input_bias"]) + _sum(given["hidden_gates"], given["hidden_bias"])
    hidden, cell = lstm_step(gates, given["cx"])
    return hidden, cell, _nothing()


def gru_cell(given: dict[str, Any]) -> tuple[Tensor, ...]:
    """`_thnn_fused_gru_cell`, likewise."""
    gates = _sum(given["input_gates"], given["input_bias"]), _sum(given["hidden_gates"], given["hidden_bias"])
    return gru_step(*gates, given["hx"]), _nothing()


def elements(given: dict[str, Any]) -> int:
    """All gates of all steps."""
    steps: int = math.prod(given["input"].shape[:2])
    return 8 * steps * max(1, int(given["hidden_size"]))


def _sum(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


def _nothing() -> Tensor:
    return torch.empty(0, dtype=torch.uint8)
