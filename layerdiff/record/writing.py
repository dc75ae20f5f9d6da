"""`Writing`: the collectives under way, by the memory that they write to. Such memory is not read before they are complete.

A collective that is known to be complete stays here until somebody waits for it: whoever reads its result before has only been lucky.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from layerdiff.record.identity import version_of
from layerdiff.record.keep import Policy
from layerdiff.record.tensors import Plain
from layerdiff.trace.schema import ABSENT, Role

Deferred = tuple[int, Role, str, Plain, Policy]
"""A call, and a tensor at a position of it that was under way."""


class Collective:
    """A collective that was issued, and not waited for."""

    __slots__ = (
        "alike",
        "call",
        "coalescing",
        "deferred",
        "described",
        "failure",
        "gets",
        "group",
        "kind",
        "number",
        "outputs",
        "read",
        "sequence",
        "storages",
        "trusted",
        "used",
        "versions",
        "works",
    )

    def __init__(self, kind: Any, group: Any, call: Any) -> None:
        self.kind = kind
        self.group = group
        self.sequence: int | None = None
        self.call = call
        """The module call that it was issued in, None outside."""
        self.number = ABSENT
        """Its row, where it is recorded."""
        self.described: dict[str, Any] = {}
        """Its detail, but for what its end tells."""
        self.alike: tuple[dict[str, Any], str] | None = None
        """The same of all like it, and as JSON, but for the number."""
        self.gets: Any = None
        """The tensors that are written to; None where the operator returns them."""
        self.works: list[Any] = []
        self.coalescing = False
        """Whether it is complete only with those that it was coalesced with: its own work does not know."""
        self.outputs: list[tuple[str | None, Tensor]] = []
        """Where each stands among the results; None for memory that is written to without a meaning."""
        self.versions: list[tuple[Tensor, int | None]] = []
        """The outputs as torch had counted their writes when it was issued; a backend may count its own."""
        self.storages: dict[int, StorageWeakRef] = {}
        self.deferred: list[Deferred] = []
        self.used: list[dict[str, Any]] = []
        self.read = False
        """Whether its results are in the trace."""
        self.failure: BaseException | None = None
        """What it failed with, once that is known."""
        self.trusted = False
        """Whether somebody waits for it in a way that is not seen."""

    def reason(self) -> str:
        """Why memory that it writes to has no bytes in the trace."""
        return f"under way: {self.kind.name} {self.sequence} of group {self.group.name} had not been waited for"


class Writing:
    """The collectives of one recording that were not waited for."""

    def __init__(self) -> None:
        self.active: dict[int, list[Collective]] = {}
        """By storage; empty nearly always, so ask that first."""
        self.poll: Callable[[], None] = lambda: None
        """Looks which of them are complete."""

    def add(self, collective: Collective) -> None:
        """Its outputs are being written from now on."""
        for _, tensor in collective.outputs:
            storage = tensor.untyped_storage()
            if storage._cdata not in collective.storages:
                collective.storages[storage._cdata] = StorageWeakRef(storage)
                self.active.setdefault(storage._cdata, []).append(collective)
        collective.versions = [(tensor, version_of(tensor)) for _, tensor in collective.outputs]

    def remove(self, collective: Collective) -> None:
        """It was waited for."""
        for address in collective.storages:
            there = [other for other in self.active.get(address, ()) if other is not collective]
            if there:
                self.active[address] = there
            else:
                self.active.pop(address, None)
        collective.storages = {}

    def of(self, tensor: Tensor) -> Collective | None:
        """The last collective that writes to this memory and was not waited for."""
        try:
            there = self.active.get(tensor.untyped_storage()._cdata)
        except (RuntimeError, NotImplementedError):  # no storage: not one that a collective writes to
            return None
        return there[-1] if there else None


def use_of(collective: Collective) -> dict[str, Any]:
    """A use of memory that a collective writes to, before anybody waited for it, as a detail says it."""
    return {
        "call": collective.number,
        "group": collective.group.name,
        "sequence": collective.sequence,
        "completed": collective.read,
    }


def used_pending(uses: list[dict[str, Any]]) -> str:
    """`, "used_pending": [...]` of a detail; nothing where there are none."""
    return f', "used_pending": {json.dumps(uses)}' if uses else ""
