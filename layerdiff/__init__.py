"""layerdiff: where two runs of a model part, at which operator, and whether that is a defect.

The public names, imported when first used (PEP 562): `import layerdiff` loads neither torch nor h5py,
so that a recorded script and the command line start at once. No public name equals a module's, or
the import of that module would silently replace it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerdiff.arithmetic.registry import register_contract
    from layerdiff.assertion import assert_same
    from layerdiff.compare import compare_traces
    from layerdiff.judge.order.analysis import order_of_pair, order_of_trace
    from layerdiff.record.recorder import Recorder
    from layerdiff.replay.probing import probe
    from layerdiff.saved.comparison import Comparison
    from layerdiff.saved.file import open_comparison
    from layerdiff.trace.reader import open_trace

__version__ = "0.1.0"

__all__ = [
    "Comparison",
    "Recorder",
    "__version__",
    "assert_same",
    "compare_traces",
    "open_comparison",
    "open_trace",
    "order_of_pair",
    "order_of_trace",
    "probe",
    "register_contract",
]

_HOMES = {
    "Comparison": "layerdiff.saved.comparison",
    "Recorder": "layerdiff.record.recorder",
    "assert_same": "layerdiff.assertion",
    "compare_traces": "layerdiff.compare",
    "open_comparison": "layerdiff.saved.file",
    "open_trace": "layerdiff.trace.reader",
    "order_of_pair": "layerdiff.judge.order.analysis",
    "order_of_trace": "layerdiff.judge.order.analysis",
    "probe": "layerdiff.replay.probing",
    "register_contract": "layerdiff.arithmetic.registry",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from layerdiff.errors import TorchMissingError

        raise TorchMissingError from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
