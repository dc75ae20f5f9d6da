"""`layerdiff inspect`: what a trace holds, and whether it is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from layerdiff.cli.command import Argument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layerdiff.trace.reader import Trace, TraceFile

PARAMETERS = (Argument("path", "TRACE", "A trace: a file or a folder."),)
_STEPS: Final = 20
_INPUTS: Final = 4
_LARGEST: Final = 10
_ENVIRONMENT: Final = 60
_LARGEST_WORLD: Final = 1 << 20


def run(path: str) -> int:
    """Describe a trace, and say whether it is whole.

    Calls, values, bytes, steps, dtypes, environment. Exits 2 where the recording is incomplete.
    """
    from layerdiff.cli.exits import OK, UNUSABLE
    from layerdiff.cli.streams import out
    from layerdiff.rows.cells import visible
    from layerdiff.trace.reader import open_trace

    trace = open_trace(path, allow_empty=True)
    out("".join(f"{visible(line)}\n" for line in _described(trace)))
    return OK if trace.complete and any(len(file.calls) for file in trace.files) else UNUSABLE


def _described(trace: Trace) -> Iterator[str]:
    from layerdiff.rows.figures import amount

    yield f"{trace.path}: {amount(len(trace.files), 'file')}, {'complete' if trace.complete else 'INCOMPLETE'}"
    yield from _absent(trace)
    for file in trace.files:
        yield ""
        yield from _file(file)


def _absent(trace: Trace) -> Iterator[str]:
    """The ranks of the run that left no trace here."""
    sizes = [size for file in trace.files if type(size := file.meta.get("world_size")) is int]
    there = {file.rank for file in trace.files if file.rank is not None}
    size = min(max(sizes, default=0), _LARGEST_WORLD)
    absent = [rank for rank in range(size) if rank not in there] if there else []
    if absent:
        named = ", ".join(map(str, absent[:_LARGEST])) + (f" and {len(absent) - _LARGEST} more" if len(absent) > _LARGEST else "")
        yield f"no trace of rank{'s' if len(absent) > 1 else ''} {named}: the run had {size}"
        for path in sorted(trace.path.glob("rank*.part"))[:_LARGEST]:
            yield f"  {path.name} was not closed: layerdiff recover {path}"


def _file(file: TraceFile) -> Iterator[str]:
    from layerdiff.rows.figures import count

    rank = "" if file.rank is None else f", rank {file.rank}"
    yield f"{file.path.name}{rank}"
    if not file.complete:
        yield f"  incomplete: {file.meta.get('incomplete') or 'it was not closed in order'}"
    if not len(file.calls):
        yield f"  no calls: {file.meta.get('empty_reason') or 'no forward of a module ran while it was recorded'}"
    yield f"  calls     {count(len(file.calls))}{_unfinished(file)}"
    yield f"  values    {_values(file)}"
    yield from _collectives(file)
    yield f"  roots     {', '.join(_roots(file)) or 'none'}"
    yield from _steps(file)
    yield from _dtypes(file)
    yield from _largest(file)
    yield from _environment(file)


def _unfinished(file: TraceFile) -> str:
    import numpy as np

    from layerdiff.trace.schema import CallStatus

    status = np.asarray(file.calls.status)
    parts = [(int((status == CallStatus.RAISED).sum()), "raised"), (int((status == CallStatus.UNFINISHED).sum()), "never ended")]
    said = [f"{number} {what}" for number, what in parts if number]
    return f" ({', '.join(said)})" if said else ""


def _values(file: TraceFile) -> str:
    import numpy as np

    from layerdiff.rows.figures import count, size
    from layerdiff.trace.schema import Storage

    storage = np.asarray(file.values.storage)
    kept = (storage == Storage.DATASET) | (storage == Storage.SLAB)
    stored = int(np.asarray(file.values.nbytes)[kept].sum())
    without = int((storage == Storage.NONE).sum())
    return f"{count(storage.size)}, {size(stored)} kept" + (f", {count(without)} without bytes" if without else "")


def _collectives(file: TraceFile) -> Iterator[str]:
    """How many collectives of each kind and group, in order of first issue."""
    import json
    from collections import Counter

    import numpy as np

    from layerdiff.trace.schema import CallKind

    groups = file.meta.get("groups")
    counts: Counter[tuple[str, str]] = Counter()
    unlike: Counter[str] = Counter()
    for call in np.flatnonzero(np.asarray(file.calls.kind) == CallKind.COLLECTIVE).tolist():
        try:
            detail = json.loads(file.text(int(file.calls.detail[call])) or "{}")
            group = str(detail["group"]["name"])
        except (ValueError, KeyError, TypeError):
            detail, group = {}, "?"
        counts[(file.text(int(file.calls.operator[call])) or "?").removeprefix("c10d."), group] += 1
        unlike["never complete"] += detail.get("finished") is False
        unlike["never waited for"] += detail.get("waited") is False
    lines = [f"{count} {name} of group {_group(group, groups)}" for (name, group), count in counts.items()]
    lines += [f"{count} of them {what}" for what, count in unlike.items() if count]
    for number, line in enumerate(lines):
        yield f"  {'collectives' if not number else '':<11} {line}"


def _group(name: str, groups: object) -> str:
    said = groups.get(name) if isinstance(groups, dict) else None
    if not isinstance(said, dict) or not isinstance(said.get("ranks"), list):
        return name
    named = said.get("description")
    return f"{name} ({f'{named}, ' if named and named != 'default_pg' else ''}{said.get('backend')}, {len(said['ranks'])} ranks)"


def _roots(file: TraceFile) -> list[str]:
    types = [root.get("type", "?") if isinstance(root, dict) else "?" for root in file.meta.get("roots") or []]
    return [f"{name} ({kind})" for name, kind in zip(file.root_names, types, strict=False)]


def _steps(file: TraceFile) -> Iterator[str]:
    """Every step, as the shapes of the inputs of its root."""
    import numpy as np

    from layerdiff.trace.schema import Role

    calls = file.calls
    roots = np.flatnonzero((np.asarray(calls.parent) < 0) & (np.asarray(calls.root) >= 0))
    names = file.root_names
    lines = []
    for call in roots.tolist():
        inputs = [
            f"{edge.position} {list(file.shape(edge.value))} {file.dtype_name(edge.value)}"
            for edge in file.edges_of(call)
            if edge.role == Role.INPUT
        ]
        root = f"{names[int(calls.root[call])]} " if len(names) > 1 else ""
        lines.append(f"  step {int(calls.step[call]):<4} {root}{_first(inputs) or 'no tensor inputs'}")
    yield from lines[:_STEPS]
    if len(lines) > _STEPS:
        yield f"  ... and {len(lines) - _STEPS} more steps"


def _first(inputs: list[str]) -> str:
    more = len(inputs) - _INPUTS
    return ", ".join(inputs[:_INPUTS]) + (f", and {more} more" if more > 0 else "")


def _dtypes(file: TraceFile) -> Iterator[str]:
    import numpy as np

    codes, counts = np.unique(np.asarray(file.values.dtype), return_counts=True)
    order = np.argsort(-counts, kind="stable")
    said = ", ".join(f"{file.text(int(codes[i])) or '?'} {counts[i]}" for i in order)
    yield f"  dtypes    {said or 'none'}"


def _largest(file: TraceFile) -> Iterator[str]:
    """The sites whose outputs take most bytes, over all steps."""
    import numpy as np

    from layerdiff.rows.figures import size
    from layerdiff.trace.schema import Role

    edges = file.edges
    outputs = np.flatnonzero(np.asarray(edges.role) == Role.OUTPUT)
    if not outputs.size:
        return
    nbytes = np.asarray(file.values.nbytes)[np.asarray(edges.value)[outputs]]
    per_call = np.bincount(np.asarray(edges.call)[outputs], weights=nbytes, minlength=len(file.calls))
    calls = file.calls
    keys = np.stack([np.asarray(calls.module), np.asarray(calls.operator), np.asarray(calls.root)])
    _, first, inverse = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    per_site = np.bincount(inverse.reshape(-1), weights=per_call)
    yield "  largest"
    for site in np.argsort(-per_site, kind="stable")[:_LARGEST].tolist():
        if per_site[site] > 0:
            yield f"    {size(float(per_site[site])):>8}  {file.site(int(first[site])) or '(root)'}"


def _environment(file: TraceFile) -> Iterator[str]:
    environment = file.meta.get("environment")
    if not isinstance(environment, dict) or not environment:
        return
    from layerdiff.report.facts import flat

    lines = [f"    {key} = {value}" for key, value in flat(environment).items()]
    yield "  environment"
    yield from lines[:_ENVIRONMENT]
    if len(lines) > _ENVIRONMENT:
        yield f"    ... and {len(lines) - _ENVIRONMENT} more"
