"""What is said of the target's constants besides that they differ: rounded once, kept as codes, or kept in another order or shape."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.judge.local import Local
from layerdiff.judge.meaning.reach import TELLING, Elements
from layerdiff.judge.programs.bodies import Body
from layerdiff.judge.programs.constants import ConstantPair, Constants, as_strided
from layerdiff.judge.programs.setting import Setting
from layerdiff.judge.tables import Verdict
from layerdiff.replay.allowed import listed
from layerdiff.replay.recorded import Place, Recorded
from layerdiff.replay.weights import Weight

REARRANGED: Final = "constant-rearranged"
_REALS: Final = {"complex64": "float32", "complex128": "float64"}
_HANDING_ON: Final = TELLING | listed("""
    masked_fill where repeat repeat_interleave flip roll constant_pad_nd im2col native_group_norm native_batch_norm softplus elu mish
    scaled_dot_product_attention _scaled_dot_product_attention_math _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
    _scaled_dot_product_fused_attention_overrideable _native_multi_head_attention mkldnn_rnn_layer _cudnn_rnn miopen_rnn
    _thnn_fused_lstm_cell _thnn_fused_gru_cell
""")
"""Operators whose results are others if rows of a weight that went into an operand are: a mask hides elements, and not all of a row."""


class ConstantsRead:
    """Says each constant once, where it is read first."""

    def __init__(self, constants: Constants) -> None:
        self._constants = constants
        self._told: set[str] = set()
        self._rearranged: dict[str, tuple[int, Local]] = {}
        """By name, with the module call that reads it."""
        self._shown: dict[str, NDArray[np.bool_]] = {}
        """Which elements of these show in what is compared."""

    def of(self, setting: Setting, body: Body, aligned: Mapping[int, int]) -> Iterator[Local]:
        """What the calls of a body read that is the reference's in less precision."""
        back = {t: r for r, t in aligned.items()}
        run = setting.runs.target
        for call in body.items.target:
            if run.is_module(call) or run.is_view(run.operation(call)):
                continue
            for position, value in run.operation(call).inputs.items():
                weight = run.weight(value)
                if weight is None or weight.name in self._told:
                    continue
                self._told.add(weight.name)
                pair = self._constants.pair_of_target(weight.name)
                if pair is not None and (pair.rounded is not None or pair.quantised is not None):
                    yield _coarser(setting, pair, (back.get(call, -1), call), position)
                elif pair is not None and pair.rearranged:
                    self._rearranged[weight.name] = body.calls[1], _rearranged(pair, (back.get(call, -1), call), position)
        if self._rearranged:
            _look(run, body, self._rearranged, self._shown)

    def rearranged(self, judged: Collection[int]) -> list[Local]:
        """The constants in another order or shape, all elements of which show in what was judged.

        Of others nothing tells whether they lie right.
        """
        return [local for name, (call, local) in self._rearranged.items() if call in judged and bool(self._shown[name].all())]


def shown_in(run: Recorded, body: Body, names: Collection[str]) -> set[str]:
    """The weights of the target all elements of which show in what crosses a cut of a body."""
    shown: dict[str, NDArray[np.bool_]] = {}
    _look(run, body, names, shown)
    return {name for name, elements in shown.items() if elements.all()}


def _look(run: Recorded, body: Body, names: Collection[str], shown: dict[str, NDArray[np.bool_]]) -> None:
    """Add the elements of weights that show in what crosses a cut of a body: by operators that hand on all that they are given."""
    crossing = [*body.interface.outputs, *(one for interface in body.children.values() for one in interface.inputs)]
    vouched = Elements()
    for _, (_, value) in crossing:
        vouched.add(_of_reals(run, value))
    for item in reversed(body.items.target):
        if run.is_module(item):
            continue
        operation = run.operation(item)
        weights = {value: weight for value in operation.inputs.values() if (weight := run.weight(value)) is not None}
        for weight in weights.values():
            if weight.name in names and weight.name not in shown:
                shown[weight.name] = _none_of(run, weight)
        made = [_of_reals(run, value) for value in operation.outputs.values()]
        if operation.writes or not (operation.base in _HANDING_ON or run.is_float_cast(operation)):
            continue
        if not made or not vouched.has(made[0]):
            continue
        for value in operation.inputs.values():
            if value not in weights:
                vouched.add(_of_reals(run, value))
            elif weights[value].name in shown:
                _mark(shown[weights[value].name], weights[value].place)


def _of_reals(run: Recorded, value: int) -> Place:
    """Where a value lay, of complex elements in their real numbers: those are read by themselves, too, as rotations are."""
    place = run.place(value)
    real = _REALS.get(run.file.dtype_name(value))
    if real is None:
        return place
    strides = (*(2 * stride for stride in place.strides), 1)
    return replace(place, memory=(place.memory[0], real), offset=2 * place.offset, shape=(*place.shape, 2), strides=strides)


def _none_of(run: Recorded, weight: Weight) -> NDArray[np.bool_]:
    whole = run.place(weight.whole)
    found = np.ones(whole.extent, np.bool_)
    as_strided(found, whole.shape, whole.strides, whole.offset)[...] = False
    return found


def _mark(shown: NDArray[np.bool_], place: Place) -> None:
    if place.extent <= shown.size:
        as_strided(shown, place.shape, place.strides, place.offset)[...] = True


def _coarser(setting: Setting, pair: ConstantPair, calls: tuple[int, int], position: str) -> Local:
    declared = {*setting.expected_dtype.values(), setting.rounding.product_dtype}
    how = f"rounded to {pair.rounded} once" if pair.rounded is not None else f"quantised to {pair.quantised}"
    return Local(
        calls,
        position,
        Verdict.DEFECT if pair.rounded is not None and pair.rounded not in declared else Verdict.PRECISION,
        f"{pair.name} was {how}",
        pair.difference,
        0.0,
        "constants",
        cause="rounded-constant" if pair.rounded is not None else "quantised-weight",
        kind="constant" if pair.rounded is not None else "quantised",
        evidence={"constant": pair.name, "dtype": pair.rounded or pair.quantised},
    )


def _rearranged(pair: ConstantPair, calls: tuple[int, int], position: str) -> Local:
    statement = f"{pair.name} has the reference's elements in another order or shape"
    evidence: dict[str, Any] = {"rearranged": pair.name}
    return Local(calls, position, Verdict.INHERITED, statement, 0.0, 0.0, "constants", kind=REARRANGED, evidence=evidence, notice=True)
