"""Roundings inside a whole layer that one kernel makes: each step of its formula may be rounded, as each operator of the layer would be."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_LAYERS: Final = frozenset(
    {
        "_native_multi_head_attention",
        "_transformer_encoder_layer_fwd",
        "mkldnn_rnn_layer",
        "_cudnn_rnn",
        "miopen_rnn",
        "_thnn_fused_lstm_cell",
        "_thnn_fused_gru_cell",
    }
)


def is_layer(name: str) -> bool:
    """Whether an operator (`aten.mkldnn_rnn_layer.default`) is a layer of many steps."""
    namespace, _, rest = name.partition(".")
    return namespace == "aten" and rest.partition(".")[0] in _LAYERS


class InnerRounding(TorchDispatchMode):
    """Moves what each step makes by up to one unit roundoff, at random."""

    def __init__(self, unit: float, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._unit, self._generator = unit, generator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a step; views make nothing."""
        made = func(*args, **(kwargs or {}))
        if any(result.alias_info is not None for result in func._schema.returns):
            return made
        if isinstance(made, (list, tuple)):
            return type(made)(self._moved(one) for one in made)
        return self._moved(made)

    def _moved(self, made: Any) -> Any:
        if not isinstance(made, Tensor) or made.dtype != torch.float64:
            return made
        return made * (1.0 + self._unit * (2.0 * torch.rand(made.shape, generator=self._generator, dtype=torch.float64) - 1.0))
