"""What a fault is: a change of one place of a model, and the origins that it may have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.evaluate.operators.families import Place


@dataclass(frozen=True)
class Expected:
    """Where the origin is. One of `modules` is its module, and one of `operators` what runs there, or one of `weights` is named."""

    modules: tuple[str, ...]
    operators: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    """Further modules that may be origins beside it, since the same fault sits there as well."""
    notices: tuple[str, ...] = ()
    """Kinds of notices that are as good as an origin."""


@dataclass(frozen=True)
class Fault:
    """`put` changes the target's model; None where the model has no such place."""

    name: str
    put: Callable[[Place], Expected | None]
    scenario: str = "prefill"
    attention: str = "eager"
    survives_bf16: bool = True
    trap: bool = False
    """Whether it is to be said and not to be convicted."""
    families: tuple[str, ...] = ()
    """Only these; empty: wherever `put` finds its place."""


# What an operator may be called. In-place and out-of-place forms of one are one.
ADD = ("aten.add.Tensor", "aten.add_.Tensor")
SUB = ("aten.sub.Tensor", "aten.rsub.Scalar")
MUL = ("aten.mul.Tensor", "aten.mul_.Tensor", "aten.mul.Scalar")
DIV = ("aten.div.Tensor", "aten.div_.Tensor")
MATMUL = ("aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.linear.default", "aten.matmul.default")
SOFTMAX = ("aten._softmax.default", "aten.softmax.int")
CAST = ("aten._to_copy.default",)
VIEWS = (
    "aten.view.default",
    "aten._unsafe_view.default",
    "aten.transpose.int",
    "aten.t.default",
    "aten.clone.default",
    "aten.permute.default",
)
INDEX = ("aten.index.Tensor", "aten.index_select.default", "aten.gather.default", "aten.slice.Tensor", "aten.select.int")
FILL = ("aten.masked_fill.Scalar", "aten.where.self", "aten.scalar_tensor.default", "aten.full.default", "aten.fill_.Scalar")
COMPARE = ("aten.ge.Scalar", "aten.ge.Tensor", "aten.gt.Tensor", "aten.bitwise_not.default", "aten.bitwise_and.Tensor")
