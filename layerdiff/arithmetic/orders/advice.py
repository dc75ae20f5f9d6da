"""What would make two runs agree, tied to what was found; or that nothing needs doing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

NOTHING_TO_DO: Final = "Nothing needs doing: the same numbers were added in another order, and no order is more right than another."
_EQUAL_BITS: Final = (
    "For equal bits on both sides the order has to be the same: batch-invariant kernels with a fixed split, the same library, shapes "
    "and number of threads (torch.use_deterministic_algorithms alone fixes the order on one machine, not between two)."
)
_BY_CAUSE: Final[Mapping[str, tuple[str, ...]]] = {
    "tf32": (
        "Operands are cut to tf32. For fp32 products: torch.set_float32_matmul_precision('highest') "
        "(torch.backends.cuda.matmul.allow_tf32 = False; for convolutions torch.backends.cudnn.allow_tf32 = False).",
    ),
    "bf16-partials": (
        "Partial sums are rounded to bf16 before they are added: "
        "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False, or a "
        "kernel whose split-K workspace is fp32; between ranks, reduce in fp32.",
    ),
    "fp16-partials": (
        "Partial sums are rounded to fp16 before they are added: "
        "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False, or a "
        "kernel whose split-K workspace is fp32; between ranks, reduce in fp32.",
    ),
    "bf16-accumulator": (
        "The running sum is held in bf16: ask the kernel for an fp32 accumulator (its compute type or accumulate dtype).",
    ),
    "fp16-accumulator": (
        "The running sum is held in fp16: ask the kernel for an fp32 accumulator (compute type fp32; "
        "torch.backends.cuda.matmul.allow_fp16_accumulation = False).",
    ),
    "narrow-accumulator": (
        "The unit keeps 13 fractional bits: add its results up in fp32 every 128 terms (two-level accumulation), "
        "or turn fast accumulation off (use_fast_accum=False).",
    ),
    "int8-weights": ("The right operand was quantised to int8: if that is meant, name it in the profile's `allow`.",),
    "fp8-weights": ("The right operand was quantised to fp8: if that is meant, name it in the profile's `allow`.",),
    "k-range-missing": ("Terms never reach the result: look at the reduction of the split-K workspace, or at the rank whose part it is.",),
    "k-range-doubled": (
        "Terms are counted twice: look for a workspace that is not cleared, an atomic addition beside a store, or a part reduced twice.",
    ),
    "scale": ("One factor explains all results: look for a scale applied twice or left out, not for an order.",),
    "weight-side": (
        "The error follows the right operand: compare the weights that the kernel used with those recorded (quantised? stale?).",
    ),
    "input-side": ("The error follows the left operand: compare the inputs that the kernel used with those recorded.",),
}


def advice_for(verdict: str, cause: str | None, evidence: Mapping[str, Any]) -> tuple[str, ...]:
    """Sentences for one call."""
    if cause is not None and cause in _BY_CAUSE:
        return _BY_CAUSE[cause]
    if verdict in ("order-exact", "order-consistent"):
        return (NOTHING_TO_DO, _EQUAL_BITS)
    if verdict == "identical":
        return ("Nothing needs doing: every result is the exact one, correctly rounded.",)
    if verdict in ("defect", "unexplained", "broken"):
        return (
            "No order explains this: run the call's reproduction bundle (layerdiff report -f bundle --site ...) on the device, "
            "or find its order there with layerdiff probe.",
        )
    if verdict == "not-comparable" and "statistics" in str(evidence.get("rung", "")):
        return ("Only an exact order can decide here: layerdiff probe on the device finds it, --tree takes it.",)
    return ()


def advice_for_pair(reference: str, target: str, orders: tuple[str | None, str | None], given: Sequence[str] = ()) -> tuple[str, ...]:
    """Sentences for the same call of both runs, from their verdicts, the orders that were found, and the operands that differ."""
    harmless = ("identical", "order-exact", "order-consistent")
    if reference in harmless and target in harmless:
        if given:
            return (f"No order is at fault here: look at what made {' and '.join(given)} (in the terminal, c on the call shows who).",)
        if None not in orders and orders[0] != orders[1]:
            return (NOTHING_TO_DO, f"For equal bits one side has to add as the other does: {orders[0]}, against {orders[1]}.")
        return (NOTHING_TO_DO, _EQUAL_BITS)
    return ()
