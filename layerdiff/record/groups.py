"""`Groups`: the process groups that collectives ran on: name, global ranks, backend."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from typing import Any

import torch

from layerdiff.record.environment import rank_of_process


class Group:
    """One process group, as far as a trace says it."""

    __slots__ = ("known", "name", "picture", "ranks", "said", "thing")

    def __init__(self, name: str, ranks: list[int], backend: str, description: str | None, known: Any) -> None:
        self.name = name
        self.ranks = ranks
        """Global ranks, in the order of their numbers inside the group; empty where torch does not know it."""
        self.picture = json.dumps({"name": name, "ranks": ranks, "backend": backend})
        """JSON."""
        self.said = {"ranks": ranks, "backend": backend, "description": description}
        self.thing: Callable[[], Any] = lambda: None
        """Torch's object, while it lives."""
        self.known = known
        """Torch's own table of its ranks: another one under the same name is another group."""

    def global_rank(self, number: int) -> int:
        """The global rank of a number inside the group."""
        return self.ranks[number] if 0 <= number < len(self.ranks) else number


class Groups:
    """The groups seen so far. `tell` is called with a key of the description and its new value."""

    def __init__(self, tell: Callable[[str, Any], None]) -> None:
        self._tell = tell
        self._known: dict[tuple[str, str], Group] = {}
        self._said: dict[str, Any] = {}

    def of(self, thing: Any, device: str) -> Group:
        """The group that an operator was given: torch's object, boxed or not, or its name."""
        c10d = torch.distributed.distributed_c10d
        if isinstance(thing, torch.ScriptObject):
            thing = torch.distributed.ProcessGroup.unbox(thing)
        elif isinstance(thing, str):
            thing = torch._C._distributed_c10d._resolve_process_group(thing)  # type: ignore[arg-type]  # a name of its own type
        name = str(thing.group_name)
        ranks = c10d._world.pg_group_ranks.get(thing)
        known = self._known.get((name, device))
        if known is None or known.known is not ranks:
            numbers = [] if ranks is None else [rank for rank, _ in sorted(ranks.items(), key=lambda item: item[1])]
            known = self._known[name, device] = Group(
                name, numbers, _backend(thing, device), str(getattr(thing, "group_desc", "") or "") or None, ranks
            )
            known.thing = weakref.ref(thing)
            if not self._said:
                rank, world = rank_of_process()
                self._tell("rank", rank)
                self._tell("world_size", world)
            self._said = {**self._said, name: known.said}
            self._tell("groups", self._said)
        return known

    def coalesces(self, group: Group) -> bool:
        """Whether what is issued on a group now is gathered, to run at once later."""
        state = getattr(torch.distributed.distributed_c10d._world, "pg_coalesce_state", None)
        return state is not None and group.thing() in state


def _backend(group: Any, device: str) -> str:
    try:
        return str(group._get_backend(torch.device(device)).name())
    except (RuntimeError, AttributeError):
        pass
    try:
        return str(torch.distributed.get_backend(group))
    except (RuntimeError, ValueError, AttributeError):
        return "unknown"
