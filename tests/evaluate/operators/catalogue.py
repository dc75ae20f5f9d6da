"""All faults, by name."""

from __future__ import annotations

from collections.abc import Iterator

from tests.evaluate.operators import (
    faults_of_attention,
    faults_of_experts,
    faults_of_layers,
    faults_of_norms,
    faults_of_positions,
    faults_of_weights,
    kernels,
)
from tests.evaluate.operators.fault import Fault

_PARTS = (faults_of_norms, faults_of_attention, faults_of_positions, faults_of_layers, faults_of_weights, faults_of_experts, kernels)


def faults() -> Iterator[Fault]:
    """Every fault, of programs first."""
    for part in _PARTS:
        yield from part.faults()


def fault(name: str) -> Fault:
    """The fault of this name."""
    return next(fault for fault in faults() if fault.name == name)


TWO = (
    ("epsilon x10", "attention scale x1.25"),
    ("attention scale missing", "gelu for the activation"),
    ("norm weight + 1", "kernel: split of K dropped"),
    ("relu for the activation", "weight of another layer"),
    ("residual missing", "epsilon x1.5"),
    ("kernel: one element", "mask sees the next token"),
    ("rotary interleaved", "int8 weights"),
    ("not causal", "kernel: bf16 partial sums"),
    ("weight stale", "softmax in bf16"),
    ("groups tiled", "scaled by 1.01"),
)
"""A fault in the first layer and a second one in the last."""

EVERYWHERE = (
    "epsilon x10",
    "epsilon of the head norm x100",
    "attention scale missing",
    "attention scale x1.25",
    "norm weight + 1",
    "gelu for the activation",
    "int8 weights",
    "kernel: bf16 partial sums",
    "softmax in bf16",
    "not causal",
    "rotary interleaved",
)
"""Faults that sit in every layer alike."""
