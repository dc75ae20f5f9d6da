"""The arguments of a recorded call as the float64 program has them: float casts left out, everything on the host.

A dtype of floats means float64 whatever was recorded, so that a cast between floats changes nothing. Casts between floats and
integers do happen: they decide values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from layerdiff.replay.discrete import is_float
from layerdiff.replay.refusal import CannotReplay
from layerdiff.trace.arguments import Arguments, Token
from layerdiff.trace.dtypes import dtype_named

_WHOLE: Final = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
_FORMATS: Final = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
_DEPTH: Final = 8
_LENGTH: Final = 65536


def prepared(schema: Any, args: Arguments) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments for an overload with this schema.

    Raises CannotReplay for what no recorded ATen call has: objects, generators, operands of another dtype or device.
    """
    declared = list(schema.arguments)
    if len(args.args) > len(declared):
        raise CannotReplay(f"it takes {len(declared)} arguments and was recorded with {len(args.args)}")
    positional = [_argument(argument, given) for argument, given in zip(declared, args.args, strict=False)]
    by_name = {argument.name: argument for argument in declared} if args.kwargs else {}
    named: dict[str, Any] = {}
    for name, given in args.kwargs.items():
        if name not in by_name:
            raise CannotReplay(f"it has no argument {name[:40]!r} in this version of torch")
        named[name] = _argument(by_name[name], given)
    return positional, named


def _argument(argument: Any, given: Any) -> Any:
    # What a number means depends on the declared type: a dtype or a device can be written as one.
    kind = str(getattr(argument, "real_type", argument.type))
    if argument.name == "pin_memory" or given is None:
        return None
    if "Device" in kind:
        return torch.device("cpu")
    for word in ("ScalarType", "Layout", "MemoryFormat"):
        if word in kind and not isinstance(given, Token):
            raise CannotReplay(f"its argument {argument.name!r} is {str(given)[:40]!r}, and no {word}")
    if any(word in kind for word in ("Generator", "Storage", "Stream", "Dimname")):
        raise CannotReplay(f"its argument {argument.name!r} has a type that a trace cannot hold")
    return _value(given, 0)


def _value(given: Any, depth: int) -> Any:
    if isinstance(given, Token):
        return _token(given)
    if isinstance(given, Tensor):
        require_plain(given)
        return given
    if given is None or isinstance(given, (bool, int, float, str)):
        return given
    if isinstance(given, (list, tuple)) and depth < _DEPTH and len(given) <= _LENGTH:
        return type(given)(_value(item, depth + 1) for item in given)
    raise CannotReplay(f"an argument is a {type(given).__name__}, which no operator takes")


def require_plain(tensor: Tensor) -> None:
    """Raises CannotReplay unless the tensor is strided, on the host, and float64 or complex128 where it holds floats."""
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout != torch.strided or tensor.device.type != "cpu":
        raise CannotReplay("an operand is no plain tensor on the host")
    if tensor.dtype not in (torch.float64, torch.complex128) and dtype_text(tensor.dtype) not in _WHOLE:
        raise CannotReplay(f"an operand is {dtype_text(tensor.dtype)}; floats are handed over as float64")


def dtype_text(dtype: torch.dtype) -> str:
    """`float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def _token(token: Token) -> Any:
    if token.kind == "dtype":
        return replay_dtype(token.text)
    if token.kind == "device":
        return torch.device("cpu")
    if token.kind == "layout" and token.text == "strided":
        return torch.strided
    if token.kind == "memory_format" and token.text in _FORMATS:
        return getattr(torch, token.text)
    raise CannotReplay(f"an argument is the {token.kind} {token.text[:40]!r}, which is not replayed")


def replay_dtype(name: str) -> torch.dtype:
    """The dtype that stands for a recorded one: float64 for floats, complex128 for complex numbers, else itself."""
    known = dtype_named(name)
    if known is not None and known.kind == "float":
        return torch.float64
    if name in ("complex32", "complex64", "complex128"):
        return torch.complex128
    if name in _WHOLE:
        found = getattr(torch, name, None)
        if isinstance(found, torch.dtype):
            return found
    raise CannotReplay(f"the dtype {name[:40]!r} is not replayed")


def _floats(name: str) -> bool:
    known = dtype_named(name)
    return known is not None and known.kind in ("float", "complex")


def is_narrower(result: Any) -> bool:
    """Whether a result is a float or complex tensor of less than float64: torch's default dtype came in."""
    if isinstance(result, (list, tuple)):
        return any(is_narrower(item) for item in result)
    return isinstance(result, Tensor) and is_float(result) and result.dtype not in (torch.float64, torch.complex128)


def widened(schema: Any, positional: Sequence[Any], named: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The same call with its integer operands as float64 (or its dtype given), for one whose result took the default dtype.

    `1 / integers` is float32 in torch, by a setting of the process; in exact arithmetic there is no such thing.
    """
    names = [argument.name for argument in schema.arguments]
    if "dtype" in names:
        at = names.index("dtype")
        if at < len(positional):
            return [*positional[:at], torch.float64, *positional[at + 1 :]], named
        return list(positional), {**named, "dtype": torch.float64}
    kept = ("condition", "mask", "index", "indices", "repeats")
    wide = [thing if name in kept else _wide(thing) for name, thing in zip(names, positional, strict=False)]
    return wide, {name: thing if name in kept else _wide(thing) for name, thing in named.items()}


def _wide(thing: Any) -> Any:
    if isinstance(thing, Tensor) and not is_float(thing):
        return thing.to(torch.float64)
    if isinstance(thing, list):
        return [_wide(item) for item in thing]
    return thing


def as_tensor(result: Any) -> Tensor:
    """A result that is a plain number, or nothing, as a tensor: 0 dimensions, or no elements."""
    if isinstance(result, Tensor):
        if result._is_zerotensor():  # it has no memory
            return torch.zeros(result.shape, dtype=result.dtype)
        return result.resolve_conj().resolve_neg()  # numpy has no arrays that are read so
    if isinstance(result, bool):
        return torch.tensor(result)
    if isinstance(result, int):
        return torch.tensor(result if abs(result) < 2**63 else math.inf)
    if isinstance(result, float):
        return torch.tensor(result, dtype=torch.float64)
    if isinstance(result, complex):
        return torch.tensor(result, dtype=torch.complex128)
    return torch.empty(0, dtype=torch.float64)


def of_measures(name: str, args: Arguments) -> tuple[str, Arguments]:
    """A call of which some whole numbers are measures here, in float64: its others are made floats too, and its result is one.

    int64 stays as it is: places are counted in it.
    """
    wide = args.mapped(lambda thing: thing.to(torch.float64) if _is_code(thing) else thing)
    kwargs = {key: _AS_MEASURE if key == "dtype" and thing is not None else thing for key, thing in wide.kwargs.items()}
    return ("aten.mm.default" if name == "aten._int_mm.default" else name), Arguments(wide.args, kwargs)


_AS_MEASURE: Final = Token("dtype", "float64")


def _is_code(thing: Any) -> bool:
    return isinstance(thing, Tensor) and not is_float(thing) and thing.dtype not in (torch.int64, torch.bool)
