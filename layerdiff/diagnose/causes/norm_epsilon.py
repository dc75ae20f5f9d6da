"""`rmsnorm-eps`: a normalisation whose epsilon is another one.

With statistic m (mean of squares for an RMSNorm, variance for a LayerNorm) a row of the output is
x * w / sqrt(m + eps), so two epsilons differ by one factor a row, the same in every channel:
t / r = sqrt((m + eps_r) / (m + eps_t)). The target's epsilon is fitted row by row from that factor, as
eps_t = (m + eps_r) (r / t)^2 - m, which needs no knowledge of the weights; the cause is named when the
rows agree on it and the factor explains the difference.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.diagnose.causes.found import Found
from layerdiff.diagnose.evidence import Evidence
from layerdiff.trace.schema import Role

_ROWS: Final = 4096
_REMAINS: Final = 0.25
"""The factor must explain all but this share of the difference."""
_SPREAD: Final = 0.25
"""Half the spread of the middle rows' fits, relative to the change of epsilon."""


def explain(evidence: Evidence, row: int) -> Found | None:
    """Name the cause where the module is a norm and the fit holds; the attribute alone is never enough."""
    kind = (evidence.texts[int(evidence.sites["type"][row])] or "").lower()
    if "norm" not in kind or "batch" in kind:
        return None
    epsilon = evidence.attributes(row).map(epsilon_of)
    inputs, outputs = evidence.values(row, Role.INPUT, "in[0]"), evidence.values(row, Role.OUTPUT, "out")
    if epsilon.reference is None or inputs is None or outputs is None:
        return None
    x, r, t = (_rows(array) for array in (inputs.reference, outputs.reference, outputs.target))
    if x.shape != r.shape or r.shape != t.shape or not (np.isfinite(x).all() and np.isfinite(r).all() and np.isfinite(t).all()):
        return None
    moment = x.var(axis=1) if "layernorm" in kind else np.mean(x * x, axis=1)
    energy = np.sum(r * r, axis=1)
    used = energy > 0
    if not used.any():
        return None
    moment, r, t, energy = moment[used], r[used], t[used], energy[used]
    factor = np.sum(r * t, axis=1) / energy
    if not np.all(factor > 0):
        return None
    remains = float(np.linalg.norm(t - factor[:, None] * r) / max(np.linalg.norm(t - r), 1e-300))
    fits = (moment + epsilon.reference) / factor**2 - moment
    low, fitted, high = (float(q) for q in np.quantile(fits, (0.25, 0.5, 0.75)))
    change = abs(fitted - epsilon.reference)
    uncertainty = (high - low) / 2
    if remains > _REMAINS or not uncertainty <= _SPREAD * change:
        return None
    if epsilon.target is not None and abs(fitted - epsilon.target) > max(3 * uncertainty, 0.05 * change):
        return None
    said = f"epsilon {epsilon.target:g}" if epsilon.target is not None else f"epsilon {fitted:.3g}"
    return Found(
        "rmsnorm-eps" if "layernorm" not in kind else "layernorm-eps",
        f"{said}, reference {epsilon.reference:g} (fitted {fitted:.4g} ± {uncertainty:.1g} from {_amount(len(factor))})",
        {
            "fit": {"epsilon": fitted, "uncertainty": uncertainty, "rows": len(factor), "remains": remains},
            "reference_epsilon": epsilon.reference,
        },
    )


_LARGEST: Final = 1e300


def epsilon_of(attributes: dict[str, Any]) -> float | None:
    """The one attribute that is an epsilon; None of what a trace says that no float can be."""
    found = [
        value
        for name, value in attributes.items()
        if "eps" in name.lower() and isinstance(value, int | float) and not isinstance(value, bool)
    ]
    return float(found[0]) if len(found) == 1 and -_LARGEST < found[0] < _LARGEST else None


def _amount(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows} rows"


def _rows(array: NDArray[Any]) -> NDArray[np.float64]:
    """The first rows along the last axis, in float64."""
    if array.ndim == 0 or array.size == 0:
        return np.zeros((0, 0))
    return array.reshape(-1, array.shape[-1])[:_ROWS].astype(np.float64)
