"""Run one recorded operator call again, on any device, and print how far it is from float64 and from what was recorded.

    python reproduce.py [FOLDER] [--device cuda] [--import torch_npu] [--trust-ops NAMESPACE]

Needs torch and safetensors, and nothing else; this file is the same for every call. It reads call.json, operands.safetensors and
recorded.safetensors in FOLDER (by default its own), which came out of a trace: names and numbers. None of them becomes code, and
an operator is looked up in torch.ops only where its name is one, and its namespace is aten or one that you trust.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

NAME = re.compile(r"[A-Za-z0-9_.]+")
MOST_SPREAD = 64
"""A tensor whose elements lie further apart than this many times their number is not laid out as it was."""
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class UnusableError(Exception):
    """The folder, or this machine, cannot run the call; says why."""


def main(arguments: list[str] | None = None) -> int:
    """Run the call; 0 where it ran, 2 where it could not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent, help="with call.json; default: where this file is")
    parser.add_argument("--device", default="cpu", help="as torch names it: cpu, cuda, npu:1")
    parser.add_argument("--import", dest="imports", action="append", default=[], metavar="MODULE", help="what brings the device")
    parser.add_argument("--trust-ops", action="append", default=[], metavar="NAMESPACE", help="run operators of this namespace too")
    parser.add_argument("--repeat", type=int, default=2, metavar="N", help="runs that are held against each other (default 2)")
    asked = parser.parse_args(arguments)
    try:
        for module in asked.imports:
            importlib.import_module(module)
        with torch.no_grad():
            for line in reproduce(asked.folder, asked.device, frozenset(asked.trust_ops), asked.repeat):
                print(line)
    except (UnusableError, ImportError, OSError) as error:
        print(f"reproduce: {printable(str(error))}", file=sys.stderr)
        return 2
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        print(f"reproduce: call.json is not as it must be ({type(error).__name__}: {printable(str(error))})", file=sys.stderr)
        return 2
    return 0


def reproduce(folder: Path, device: str, trusted: frozenset[str], repeat: int) -> Iterator[str]:
    """The report, line by line."""
    call = read_call(folder)
    operator = operator_named(call["operator"], trusted)
    operands = read_tensors(folder / "operands.safetensors", call["operands"])
    recorded = read_tensors(folder / "recorded.safetensors", call["results"])
    yield f"{call['operator']} on {device}, torch {torch.__version__}, for {printable(str(call.get('site')))}"
    for position, tensor in operands.items():
        yield f"  {printable(position):<12} {dtype_text(tensor)} {list(tensor.shape)}, strides {call['operands'][position].get('strides')}"
    for scalar in scalars(call["arguments"]):
        yield f"  {printable(scalar)}"
    made = run(operator, call, operands, device)
    for again in range(1, max(1, repeat)):
        other = run(operator, call, operands, device)
        same = all(same_bits(tensor, other[position]) for position, tensor in made.items())
        yield f"run {again + 1} makes {'the same bits as' if same else 'OTHER bits than'} run 1"
    if call.get("random"):
        yield "it draws random numbers: these runs drew others than the recorded one"
    try:
        exact: dict[str, Tensor] = run64(operator, call, {p: widened(t) for p, t in operands.items()})
    except UnusableError as error:
        exact = {}
        yield f"no float64 to hold it against: {printable(str(error))}"
    for position, tensor in made.items():
        yield ""
        yield f"{position}: {dtype_text(tensor)} {list(tensor.shape)}"
        yield f"  {'':<23} {'max abs':>12} {'rel L2':>12} {'ulps there':>12}  worst element"
        written = recorded.get(position)
        here, noted, wide = tensor.cpu(), "this run", exact.get(position)
        if wide is not None:
            yield difference(f"{noted} - float64", here, wide, tensor.dtype)
        if written is None:
            yield "  its recorded bits were not kept"
            continue
        if wide is not None:
            yield difference("recorded - float64", written, wide, written.dtype)
        yield difference(f"{noted} - recorded", here, written, written.dtype)


def read_call(folder: Path) -> dict[str, Any]:
    """call.json, with what is needed in it. Raises UnusableError."""
    try:
        call = json.loads((folder / "call.json").read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UnusableError(f"{folder / 'call.json'} is no JSON: {error}") from None
    if not isinstance(call, dict) or call.get("format") != "layerdiff.call/1":
        raise UnusableError(f"{folder / 'call.json'} is no call (layerdiff.call/1)")
    if call.get("missing"):
        raise UnusableError(f"not all that it was called with was kept: {call['missing']}")
    if not (isinstance(call.get("operator"), str) and all(isinstance(call.get(key), dict) for key in ("arguments", "operands", "results"))):
        raise UnusableError(f"{folder / 'call.json'} lacks the operator, its arguments, its operands or its results")
    return call


def operator_named(name: str, trusted: frozenset[str]) -> Any:
    """The overload of that name. Raises UnusableError where it is no name, not trusted, or not there."""
    parts = name.split(".")
    if not NAME.fullmatch(name) or len(parts) != 3 or not all(parts):
        raise UnusableError(f"{name[:80]!r} is no name of an operator")
    if parts[0] != "aten" and parts[0] not in trusted:
        raise UnusableError(f"operators of {parts[0]} are run only where you trust them: --trust-ops {parts[0]}")
    try:
        found = getattr(getattr(getattr(torch.ops, parts[0]), parts[1]), parts[2])
    except (AttributeError, RuntimeError):
        raise UnusableError(f"this torch lacks {name}; --import the module that brings it") from None
    if not isinstance(found, torch._ops.OpOverload):
        raise UnusableError(f"{name} is no overload of an operator")
    if any(argument.name == "filename" for argument in found._schema.arguments):
        raise UnusableError(f"{name} opens a file")
    return found


def read_tensors(path: Path, described: dict[str, Any]) -> dict[str, Tensor]:
    """Tensors by position, in the recorded dtypes."""
    found: dict[str, Tensor] = {}
    if not described:
        return found
    try:
        with safe_open(path, framework="pt") as file:
            for position, how in described.items():
                if "key" not in how:
                    continue
                tensor, dtype = file.get_tensor(str(how["key"])), token("dtype", how["dtype"])
                found[position] = tensor.view(dtype).reshape(how["shape"]) if tensor.dtype != dtype else tensor
    except OSError:
        raise
    except Exception as error:  # whatever is wrong with a file from somewhere else
        raise UnusableError(f"{path.name} and call.json do not fit together: {error}") from None
    return found


def token(kind: str, text: Any) -> Any:
    """A dtype, layout or memory format by its name."""
    named = str(text).removeprefix("torch.")
    found = getattr(torch, named, None) if NAME.fullmatch(named) else None
    if not isinstance(found, getattr(torch, kind)):
        raise UnusableError(f"this torch has no {kind} {str(text)[:80]!r}")
    return found


def run(operator: Any, call: dict[str, Any], operands: dict[str, Tensor], device: str, *, wide: bool = False) -> dict[str, Tensor]:
    """One run on operands of its own; the results by position. `wide`: float dtypes among the arguments are float64 too."""
    try:
        placed = laid_out(operands, call["operands"], device)
        args, kwargs = call["arguments"].get("args", []), call["arguments"].get("kwargs", {})
        names = [known.name for known in operator._schema.arguments]
        values = [argument(item, placed, device, wide) for item in args]
        named = {str(name): argument(item, placed, device, wide) for name, item in kwargs.items()}
        if wide and "half_to_float" in names[: len(values)]:
            values[names.index("half_to_float")] = False
        results = operator(*values, **named)
    except UnusableError:
        raise
    except Exception as error:  # whatever an operator says about its operands
        raise UnusableError(f"{call['operator']} failed on {device}: {str(error).partition(chr(10))[0]}") from None
    return dict(flat("out", results))


def run64(operator: Any, call: dict[str, Any], operands: dict[str, Tensor]) -> dict[str, Tensor]:
    """The results in float64 on the host. A fused attention or grouped product that has no kernel there is its formula."""
    try:
        return run(operator, call, operands, "cpu", wide=True)
    except UnusableError:
        formula = next((made for name, made in FORMULAS.items() if operator._schema.name.startswith(name)), None)
        if formula is None:
            raise
    pictures = dict(zip((known.name for known in operator._schema.arguments), call["arguments"].get("args", []), strict=False))
    pictures |= call["arguments"].get("kwargs", {})
    return formula({name: argument(picture, operands, "cpu", True) for name, picture in pictures.items()})


def attention(given: dict[str, Any]) -> dict[str, Tensor]:
    """softmax(q k^T scale + mask) v."""
    if given.get("dropout_p"):
        raise UnusableError("it drops out at random")
    query, key, value = given["query"], given["key"], given["value"]
    mask, causal, scale = given.get("attn_bias", given.get("attn_mask")), bool(given.get("is_causal")), given.get("scale")
    attend, grouped = torch.nn.functional.scaled_dot_product_attention, query.shape[-3] != key.shape[-3]
    return {"out[0]": attend(query, key, value, mask, is_causal=causal, scale=scale, enable_gqa=grouped)}


def grouped_product(given: dict[str, Any]) -> dict[str, Tensor]:
    """Rows of the first operand in groups that end where `offs` says, each by a matrix of its own."""
    rows, matrices, ends = given["self"], given["mat2"], given.get("offs")
    if rows.dim() != 2 or matrices.dim() != 3 or ends is None or given.get("bias") is not None:
        raise UnusableError("only groups of rows are known")
    made = torch.zeros(rows.shape[0], matrices.shape[2], dtype=torch.float64)
    start = 0
    for group, end in enumerate(ends.tolist()):
        made[start:end] = rows[start:end] @ matrices[group]
        start = end
    return {"out": made}


FORMULAS = {"aten::_scaled_dot_product": attention, "aten::_grouped_mm": grouped_product}


def laid_out(operands: dict[str, Tensor], described: dict[str, Any], device: str) -> dict[str, Tensor]:
    """The operands on a device, each where it lay: strides, offset, and one memory where they shared one."""
    groups: dict[Any, list[str]] = {}
    for position, tensor in operands.items():
        groups.setdefault((described[position].get("memory", position), tensor.dtype), []).append(position)
    found: dict[str, Tensor] = {}
    for (_, dtype), positions in groups.items():
        places = [(tuple(described[p]["strides"]), int(described[p].get("offset", 0)), operands[p]) for p in positions]
        start = min(offset for _, offset, _ in places) // 64 * 64  # what the address is a multiple of stays
        reach = [offset + sum((n - 1) * s for n, s in zip(t.shape, strides, strict=True)) for strides, offset, t in places if t.numel()]
        extent = max([0, *(end + 1 - start for end in reach)])
        if extent > MOST_SPREAD * sum(tensor.numel() for *_, tensor in places) + (1 << 20):
            found |= {position: operands[position].to(device) for position in positions}
            continue
        bits = BITS.get(dtype.itemsize, dtype)
        memory = torch.zeros(extent, dtype=bits)
        for strides, offset, tensor in places:
            index = torch.arange(extent).as_strided(tensor.shape, strides, offset - start) if tensor.numel() else torch.arange(0)
            memory[index.reshape(-1)] = tensor.contiguous().view(bits).reshape(-1)
        there = memory.view(dtype).to(device)
        found |= {p: there.as_strided(t.shape, s, o - start if t.numel() else 0) for p, (s, o, t) in zip(positions, places, strict=True)}
    return found


def argument(thing: Any, operands: dict[str, Tensor], device: str, wide: bool) -> Any:
    """An argument from its picture. Devices are the one that was asked for."""
    if isinstance(thing, list):
        return [argument(item, operands, device, wide) for item in thing]
    if not isinstance(thing, dict):
        return thing
    content: Any
    kind, content = next(iter(thing.items()), ("nothing", None))
    if kind == "tensor" and content in operands:
        return operands[content]
    if kind == "tuple":
        return tuple(argument(item, operands, device, wide) for item in content)
    if kind == "float":
        return float(content)
    if kind == "complex":
        return complex(*(argument(part, operands, device, wide) for part in content))
    if kind == "device":
        return torch.device(device)
    if kind in ("dtype", "layout", "memory_format"):
        found = token(kind, content)
        return torch.float64 if wide and kind == "dtype" and found.is_floating_point else found
    raise UnusableError(f"an argument of the kind {str(kind)[:80]!r} cannot be handed over")


def flat(position: str, results: Any) -> Iterator[tuple[str, Tensor]]:
    """Tensors among results, named as they are recorded: `out`, `out[1]`."""
    if isinstance(results, Tensor):
        yield position, results
    elif isinstance(results, (list, tuple)):
        for i, item in enumerate(results):
            yield from flat(f"{position}[{i}]", item)
    elif isinstance(results, (bool, int, float)):
        yield position, torch.tensor(results)


def widened(tensor: Tensor) -> Tensor:
    """Exactly the same numbers in float64, or complex128; whole numbers and booleans as they are."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64 if tensor.is_floating_point() else tensor.dtype)


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two results have the same bits."""
    bits = BITS.get(one.dtype.itemsize)
    sides = [side.cpu().contiguous() for side in (one, other)]
    if bits is None:
        sides = [torch.view_as_real(side) for side in sides]
        bits = torch.int64
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(sides[0].view(bits), sides[1].view(bits))


def difference(name: str, one: Tensor, other: Tensor, dtype: torch.dtype) -> str:
    """A row: the largest difference, relative L2, the largest in units of the last place of `dtype`, and where it is."""
    start = f"  {name:<23}"
    if one.shape != other.shape:
        return f"{start} shapes differ: {list(one.shape)}, {list(other.shape)}"
    if one.dtype == other.dtype and same_bits(one, other):
        return f"{start} {'0':>12} {'0':>12} {'0':>12}  the same bits"
    if one.is_complex() or other.is_complex():
        one, other = (torch.view_as_real(side.to(torch.complex128)) for side in (one, other))
        dtype = torch.float32 if dtype == torch.complex64 else torch.float64
    if not one.is_floating_point() and not other.is_floating_point():
        differ = (one != other) if one.dtype == other.dtype else one.long() != other.long()
        first = f", the first at {place(differ, int(differ.reshape(-1).int().argmax()))}" if bool(differ.any()) else ""
        return f"{start} {int(differ.sum())} of {differ.numel()} elements differ{first}"
    a, b = one.to(torch.float64), other.to(torch.float64)
    finite = a.isfinite() & b.isfinite()
    classes = int((~finite & (a != b) & ~(a.isnan() & b.isnan())).sum())
    off = torch.where(finite, (a - b).abs(), torch.zeros(()).double())
    norm = float(torch.where(finite, b, torch.zeros(()).double()).norm())
    relative = float(off.norm()) / norm if norm else float("inf") if float(off.norm()) else 0.0
    at = int(off.reshape(-1).argmax()) if off.numel() else -1
    largest = float(off.reshape(-1)[at]) if at >= 0 else 0.0
    ulps = float((off / unit(b, dtype)).reshape(-1)[at]) if at >= 0 else 0.0
    row = f"{start} {largest:>12.4e} {relative:>12.4e} {ulps:>12.4g}"
    if largest:
        row += f"  {place(off, at)}: {float(a.reshape(-1)[at]):.9g} against {float(b.reshape(-1)[at]):.9g}"
    return row + (f"; {classes} are NaN or infinite on one side only" if classes else "")


def unit(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance of neighbours in `dtype` around each value: a unit in the last place."""
    if not dtype.is_floating_point:
        return torch.ones_like(values)
    kind = torch.finfo(dtype)
    size = torch.where(values.isfinite(), values.abs(), torch.ones(()).double()).clamp(min=float(kind.tiny))
    return torch.ldexp(torch.full_like(size, float(kind.eps)), torch.frexp(size).exponent - 1)


def place(of: Tensor, index: int) -> list[int]:
    """A flat index as one along each dimension."""
    found = []
    for size in reversed(of.shape):
        found.append(index % size)
        index //= size
    return found[::-1]


def scalars(arguments: dict[str, Any]) -> Iterator[str]:
    """Arguments without tensors, to be read by a person."""
    named = [(f"[{i}]", thing) for i, thing in enumerate(arguments.get("args", []))]
    for name, thing in [*named, *(arguments.get("kwargs", {}) or {}).items()]:
        shown = json.dumps(thing)
        if '"tensor"' not in shown:
            yield f"{name} = {shown[:200]}"


def dtype_text(tensor: Tensor) -> str:
    """`bfloat16`."""
    return str(tensor.dtype).removeprefix("torch.")


def printable(text: str) -> str:
    """Without what a terminal obeys."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() if c.isascii() else "?" for c in text)


if __name__ == "__main__":
    sys.exit(main())
