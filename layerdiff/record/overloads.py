"""`Overload`: what a recorder has to know of an operator, read from its schema once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor

from layerdiff.record.collective_kinds import NAMESPACES
from layerdiff.record.tensors import is_ordinary, plain
from layerdiff.record.versions import Slices

_UNWRITTEN: Final = frozenset({"empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "empty_permuted"})
_SLICES: Final = frozenset({"aten::index_copy_", "aten::index_add_", "aten::index_fill_"})
_PUT: Final = frozenset({"aten::index_put_", "aten::_index_put_impl_"})
_TRAINED: Final = frozenset({"aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"})
"""Operators that write their running statistics while training, though their schemas do not say so."""
_PLACES: Final = (torch.int64, torch.int32)


class Overload:
    """An overload of an operator."""

    __slots__ = ("_base", "_overload", "_training", "communicates", "name", "only_reads", "random", "unwritten", "views", "written")

    def __init__(self, overload: Any) -> None:
        schema = overload._schema
        self._overload = overload
        self._base: str = schema.name
        namespace, _, base = schema.name.partition("::")
        self.name = f"{namespace}.{base}.{schema.overload_name or 'default'}"
        """`aten.addmm.default`"""
        self.unwritten = namespace == "aten" and base in _UNWRITTEN
        """Whether its results are memory that nobody wrote to."""
        self.communicates = namespace in NAMESPACES
        """Whether it is a collective, or a part of one: recorded by collectives.py."""
        self.views = any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns)
        """Whether a result is a view of an operand, so that nothing is read."""
        self.random = torch.Tag.nondeterministic_seeded in overload.tags
        self.written: list[tuple[int, str]] = [
            (i, argument.name)
            for i, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        """Positions and names of the arguments that it writes to."""
        self._training = -1
        if schema.name in _TRAINED:
            names = [argument.name for argument in schema.arguments]
            self._training = names.index("training")
            self.written += [(names.index(name), name) for name in ("running_mean", "running_var")]
        self.only_reads = not (self.written or self.unwritten or self.random)
        """Whether its results are new values or views, and that is all."""

    def tensors_written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
        """The ordinary tensors that a call wrote to, with their positions."""
        if self._training >= 0 and not (args[self._training] if self._training < len(args) else kwargs.get("training")):
            return
        for i, name in self.written:
            positional = i < len(args)
            thing, position = (args[i], f"in[{i}]") if positional else (kwargs.get(name), f"in.{name}")
            several = isinstance(thing, (list, tuple))
            things: Any = thing if several else (thing,)
            for k, tensor in enumerate(things):
                if not isinstance(tensor, Tensor):
                    continue
                place = f"{position}[{k}]" if several else position
                if is_ordinary(tensor):
                    yield place, tensor
                else:
                    yield from ((place + part.suffix, part.tensor) for part in plain(tensor) if part.reason is None)

    def slices(self, args: tuple[Any, ...]) -> Slices | None:
        """Which slices of its first argument a call wrote, where it is an operator that writes slices."""
        base = self._base
        if base in _SLICES and len(args) >= 4 and type(args[1]) is int:
            target, dim, index, source = args[:4]
            if not isinstance(source, Tensor) or base != "aten::index_copy_":
                source = None
        elif base in _PUT and len(args) >= 3 and isinstance(args[1], (list, tuple)):
            target, source = args[0], None
            named = [(d, index) for d, index in enumerate(args[1]) if index is not None]
            if len(named) != 1:
                return None
            dim, index = named[0]
        else:
            return None
        if not (isinstance(index, Tensor) and is_ordinary(index) and index.dim() == 1 and index.dtype in _PLACES):
            return None
        if not is_ordinary(target) or target.dim() == 0 or index.device != target.device:
            return None
        return dim % target.dim(), index, source
