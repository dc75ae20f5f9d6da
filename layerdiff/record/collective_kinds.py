"""`KINDS`: what each of torch's communication operators is, whatever way it was issued: a collective, what goes in, what comes out.

Arguments are found by their names in the schema. A coalesced operator does the same to each of several tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Layout = Literal["list", "tensor"]


@dataclass(frozen=True)
class Kind:
    """A communication operator."""

    name: str
    """`c10d.all_reduce`, the same for all ways to issue it."""
    puts: str | None = None
    """The argument that this rank puts in."""
    gets: str | None = None
    """The argument that is written to; None for an operator that returns what came out."""
    layout: Layout | None = None
    """Whether what belongs to several ranks is a list of tensors, or lies in one tensor along dimension 0."""
    source: str | None = None
    """The argument that names the one rank that gives, numbered inside the group."""
    destination: str | None = None
    """The argument that names the one rank that gets."""
    coalesced: bool = False
    functional: bool = False


def _reduced(name: str, tensors: str, *, functional: bool = False, coalesced: bool = False, inplace: bool = True) -> Kind:
    return Kind(name, tensors, tensors if inplace else None, coalesced=coalesced, functional=functional)


KINDS: Final[dict[str, Kind]] = {
    "c10d::allreduce_": _reduced("c10d.all_reduce", "tensors"),
    "c10d::allreduce_coalesced_": _reduced("c10d.all_reduce", "tensors", coalesced=True),
    "c10d::broadcast_": Kind("c10d.broadcast", "tensors", "tensors", source="root_rank"),
    "c10d::reduce_": Kind("c10d.reduce", "tensors", "tensors", destination="root_rank"),
    "c10d::allgather_": Kind("c10d.all_gather", "input_tensors", "output_tensors", "list"),
    "c10d::_allgather_base_": Kind("c10d.all_gather", "input_tensor", "output_tensor", "tensor"),
    "c10d::allgather_coalesced_": Kind("c10d.all_gather", "input_list", "output_lists", "list", coalesced=True),
    "c10d::allgather_into_tensor_coalesced_": Kind("c10d.all_gather", "inputs", "outputs", "tensor", coalesced=True),
    "c10d::reduce_scatter_": Kind("c10d.reduce_scatter", "input_tensors", "output_tensors", "list"),
    "c10d::_reduce_scatter_base_": Kind("c10d.reduce_scatter", "input_tensor", "output_tensor", "tensor"),
    "c10d::reduce_scatter_tensor_coalesced_": Kind("c10d.reduce_scatter", "inputs", "outputs", "tensor", coalesced=True),
    "c10d::gather_": Kind("c10d.gather", "input_tensors", "output_tensors", "list", destination="root_rank"),
    "c10d::scatter_": Kind("c10d.scatter", "input_tensors", "output_tensors", "list", source="root_rank"),
    "c10d::alltoall_": Kind("c10d.all_to_all", "input_tensors", "output_tensors", "list"),
    "c10d::alltoall_base_": Kind("c10d.all_to_all", "input", "output", "tensor"),
    "c10d::send": Kind("c10d.send", "tensors", destination="dst"),
    "c10d::recv_": Kind("c10d.recv", None, "tensors", source="src"),
    "c10d::recv_any_source_": Kind("c10d.recv", None, "tensors"),
    "c10d::barrier": Kind("c10d.barrier"),
    "c10d::monitored_barrier_": Kind("c10d.barrier"),
    "_c10d_functional::all_reduce": _reduced("c10d.all_reduce", "input", functional=True, inplace=False),
    "_c10d_functional::all_reduce_": _reduced("c10d.all_reduce", "input", functional=True),
    "_c10d_functional::all_reduce_coalesced": _reduced("c10d.all_reduce", "inputs", functional=True, coalesced=True, inplace=False),
    "_c10d_functional::all_reduce_coalesced_": _reduced("c10d.all_reduce", "inputs", functional=True, coalesced=True),
    "_c10d_functional::all_gather_into_tensor": Kind("c10d.all_gather", "input", None, "tensor", functional=True),
    "_c10d_functional::all_gather_into_tensor_out": Kind("c10d.all_gather", "input", "out", "tensor", functional=True),
    "_c10d_functional::all_gather_into_tensor_coalesced": Kind(
        "c10d.all_gather", "inputs", None, "tensor", coalesced=True, functional=True
    ),
    "_c10d_functional::reduce_scatter_tensor": Kind("c10d.reduce_scatter", "input", None, "tensor", functional=True),
    "_c10d_functional::reduce_scatter_tensor_out": Kind("c10d.reduce_scatter", "input", "out", "tensor", functional=True),
    "_c10d_functional::reduce_scatter_tensor_coalesced": Kind(
        "c10d.reduce_scatter", "inputs", None, "tensor", coalesced=True, functional=True
    ),
    "_c10d_functional::all_to_all_single": Kind("c10d.all_to_all", "input", None, "tensor", functional=True),
    "_c10d_functional::broadcast": Kind("c10d.broadcast", "input", None, source="src", functional=True),
    "_c10d_functional::broadcast_": Kind("c10d.broadcast", "input", "input", source="src", functional=True),
}
"""By the name of the schema. What is not here (a functional send, DTensor's own all_to_all) issues one that is."""

WAIT: Final = "_c10d_functional::wait_tensor"
NAMESPACES: Final = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
"""Operators of these are communication, and never recorded as operators of the model."""
