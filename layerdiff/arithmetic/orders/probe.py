"""`Probe`: what was found of a running kernel's order, and its JSON. Needs no torch: a probe is read on another machine than it was made.

A file is a stranger's: every number of it is checked before it is used, and nothing in it is ever run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from layerdiff.arithmetic.orders.probing import ProbeError
from layerdiff.arithmetic.orders.tree import Tree, TreeError, from_json

SCHEMA: Final = "layerdiff.probe/1"
_MOST_BYTES: Final = 256 << 20
_LONGEST: Final = 400
_MOST: Final = 64
_DEEPEST: Final = 32

Products = Literal["fused", "rounded", "exact", "mixed", "truncated", "unknown"]
"""How a product enters a sum: in one rounding with the addition, rounded first, exact in the accumulator anyway, now so and now so, of
operands that lost digits (TF32, bfloat16), or not known: the sum has no products, or none that could be tested."""
_PRODUCTS: Final = ("fused", "rounded", "exact", "mixed", "truncated", "unknown")


@dataclass(frozen=True)
class FoundTree:
    """The tree of some outputs.

    Attributes:
        tree: the order in which the terms are added. Terms are numbered along the dimension that is summed; a bias is the last one.
        element: index of the output that was probed.
        outputs: how many outputs answered alike.
    """

    tree: Tree
    element: tuple[int, ...]
    outputs: int


@dataclass(frozen=True)
class Probe:
    """The order of additions of one operator at given shapes, on one machine.

    Attributes:
        operator: its name; `module:function` for a callable of the user's.
        shapes, dtypes: of its operands.
        result_dtype: of its result.
        shape: of its result.
        trees: the tree of most outputs first. Outputs that answered otherwise and were not looked at are in `outputs_elsewhere`.
        outputs_elsewhere: how many outputs belong to none of `trees`.
        products: how a product enters the sum.
        device, device_name, torch, threads: where it ran.
        calls, probes, seconds: what it took.
        notes: further sentences.
    """

    operator: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    result_dtype: str
    shape: tuple[int, ...]
    trees: tuple[FoundTree, ...]
    outputs_elsewhere: int
    products: Products
    device: str
    device_name: str
    torch: str
    threads: int
    calls: int
    probes: int
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def tree(self) -> Tree:
        """The tree of most outputs."""
        return self.trees[0].tree

    def to_json(self) -> dict[str, Any]:
        """JSON values (`layerdiff.probe/1`); `probe_from_json` reads them."""
        return {
            "schema": SCHEMA,
            "operator": self.operator,
            "shapes": [list(shape) for shape in self.shapes],
            "dtypes": list(self.dtypes),
            "result_dtype": self.result_dtype,
            "shape": list(self.shape),
            "trees": [{"element": list(found.element), "outputs": found.outputs, **found.tree.to_json()} for found in self.trees],
            "outputs_elsewhere": self.outputs_elsewhere,
            "products": self.products,
            "device": self.device,
            "device_name": self.device_name,
            "torch": self.torch,
            "threads": self.threads,
            "calls": self.calls,
            "probes": self.probes,
            "seconds": self.seconds,
            "notes": list(self.notes),
        }


def save_probe(probe: Probe, path: str | Path) -> None:
    """Write the probe as a JSON file."""
    Path(path).write_text(as_text(probe), encoding="ascii")


def as_text(probe: Probe) -> str:
    """The probe as one line of JSON with its end, ASCII only."""
    return json.dumps(probe.to_json(), allow_nan=False, ensure_ascii=True) + "\n"


def open_probe(path: str | Path) -> Probe:
    """Read a file that `save_probe` wrote. Raises ProbeError where it is none, OSError where it cannot be read."""
    path = Path(path)
    if path.stat().st_size > _MOST_BYTES:
        raise ProbeError(f"{path} is no probe: it has more than {_MOST_BYTES >> 20} MB.")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise ProbeError(f"{path} is no probe: it is not JSON. `layerdiff probe OPERATOR --shape ... -o {path.name}` makes one.") from None
    try:
        return probe_from_json(data)
    except ProbeError as error:
        raise ProbeError(f"{path}: {error}") from None


def probe_from_json(data: Any) -> Probe:
    """A probe from what `to_json` made. Raises ProbeError, naming what is wrong."""
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
        said = f" of the schema {str(data.get('schema'))[:40]!r}" if isinstance(data, Mapping) else ""
        raise ProbeError(
            f"This JSON{said} is no probe: its schema must be {SCHEMA!r}. `layerdiff probe OPERATOR --shape ... -o FILE` makes one."
        )
    trees = tuple(_tree(one) for one in _list(data, "trees"))
    products = data.get("products")
    if not trees or products not in _PRODUCTS:
        raise ProbeError(f"A probe has trees, and `products` that are one of {', '.join(_PRODUCTS)}.")
    seconds = data.get("seconds")
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 <= seconds < 1e9:
        raise ProbeError("`seconds` of a probe is a number of seconds.")
    return Probe(
        _text(data.get("operator"), "operator"),
        tuple(_shape(shape, "shapes") for shape in _list(data, "shapes")),
        tuple(_dtype(text) for text in _list(data, "dtypes")),
        _dtype(data.get("result_dtype")),
        _shape(data.get("shape"), "shape"),
        trees,
        _whole(data.get("outputs_elsewhere"), "outputs_elsewhere"),
        products,
        _text(data.get("device"), "device"),
        _text(data.get("device_name"), "device_name"),
        _text(data.get("torch"), "torch"),
        _whole(data.get("threads"), "threads"),
        _whole(data.get("calls"), "calls"),
        _whole(data.get("probes"), "probes"),
        float(seconds),
        tuple(_text(note, "notes") for note in _list(data, "notes")),
    )


def _tree(data: Any) -> FoundTree:
    if not isinstance(data, Mapping):
        raise ProbeError("Each of `trees` is an object.")
    try:
        tree = from_json(data)
    except TreeError as error:
        raise ProbeError(str(error)) from None
    return FoundTree(tree, _shape(data.get("element"), "element"), _whole(data.get("outputs"), "outputs"))


def _list(data: Mapping[Any, Any], name: str) -> list[Any]:
    found = data.get(name)
    if not isinstance(found, list) or len(found) > _MOST:
        raise ProbeError(f"`{name}` of a probe is a list of at most {_MOST}.")
    return found


def _shape(data: Any, name: str) -> tuple[int, ...]:
    if not isinstance(data, list) or len(data) > _DEEPEST:
        raise ProbeError(f"`{name}` of a probe has shapes: lists of at most {_DEEPEST} whole numbers.")
    return tuple(_whole(size, name) for size in data)


def _whole(data: Any, name: str) -> int:
    if type(data) is not int or not 0 <= data < 1 << 62:
        raise ProbeError(f"`{name}` of a probe has {str(data)[:40]!r}, and no whole number.")
    return data


def _text(data: Any, name: str) -> str:
    if not isinstance(data, str) or len(data) > _LONGEST:
        raise ProbeError(f"`{name}` of a probe is a text of at most {_LONGEST} characters.")
    return data


def _dtype(data: Any) -> str:
    if not isinstance(data, str) or not re.fullmatch(r"[a-z][a-z0-9_]{0,31}", data):
        raise ProbeError(f"A dtype of a probe is a name such as float32, not {str(data)[:40]!r}.")
    return data
