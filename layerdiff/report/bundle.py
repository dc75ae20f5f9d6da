"""The reproduction bundle: for each origin a folder that runs its operator call again, without layerdiff and without the model.

Names and scalars of a trace go into call.json as data, bits into safetensors, and `reproduce.py` is copied as it is. Nothing out of
a trace becomes code, so that a bundle can be handed to somebody else.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.checkpoint.safetensors_file import stored, write
from layerdiff.diagnose.findings import Origin
from layerdiff.errors import ComparisonError, LayerdiffError, TraceError
from layerdiff.judge.tables import Verdict
from layerdiff.replay.recorded import Operation, Recorded
from layerdiff.report.escape import code, fenced, text
from layerdiff.report.markdown import as_markdown
from layerdiff.rows.figures import amount, count
from layerdiff.rows.sites.grouped import grouped
from layerdiff.rows.traces import Traces
from layerdiff.saved.as_json import strict
from layerdiff.saved.comparison import Comparison
from layerdiff.sides import Both
from layerdiff.trace.dtypes import Dtype
from layerdiff.trace.schema import CallKind

FORMAT: Final = "layerdiff.call/1"
LIMIT: Final = 10
_SCRIPT: Final = Path(__file__).with_name("reproduce.py")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.]+")


@dataclass(frozen=True)
class Written:
    """One folder of a bundle."""

    folder: Path
    site: str
    missing: str | None
    """Why the call cannot be run again from it; None where it can."""


def write_bundle(comparison: Comparison, folder: Path, *, sites: Sequence[str] = (), limit: int = LIMIT) -> list[Written]:
    """Write a folder for each origin, or for each of `sites` (any sites of the comparison), at most `limit` of them.

    The traces have to be where the comparison says. An origin without operands gets its markdown, which says what is missing.

    Raises:
        ComparisonError: a site is not in the comparison, there is no origin, or `folder` holds something.
        OSError: it cannot be written.
    """
    if comparison.reference is None:
        raise ComparisonError("A bundle runs operator calls against their reference, and there is none: choose markdown, json or junit.")
    chosen = _chosen(comparison, sites)
    if not chosen:
        raise ComparisonError("There is no origin to bundle. --site SITE bundles any call of the comparison.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ComparisonError(f"{folder} holds something already. Name a new folder for the bundle.")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.md").write_text(as_markdown(comparison), encoding="utf-8")
    traces = Traces()
    try:
        return [
            _written(comparison, traces, origin, folder / f"{number:02d}-{_slug(origin)}")
            for number, origin in enumerate(chosen[:limit], 1)
        ]
    finally:
        traces.close()


def _slug(origin: Origin) -> str:
    return _UNSAFE.sub("-", origin.site).strip("-.")[-80:].lstrip("-.") or "root"


def _chosen(comparison: Comparison, sites: Sequence[str]) -> list[Origin]:
    if not sites:  # one of each kind before repeats
        groups = grouped(comparison.origins)
        return [group.origin for group in groups] + [other for group in groups for other in group.others]
    found = []
    for site in sites:
        origins = [origin for origin in comparison.origins if origin.site == site]
        found += origins or [_as_origin(comparison, site)]
    return found


def _as_origin(comparison: Comparison, site: str) -> Origin:
    """A site that is no origin, as one that is no defect: its first call."""
    columns, texts = comparison.sites, comparison.texts
    number = next((i for i, name in enumerate(texts.all()) if name == site), -2)
    rows = np.flatnonzero(np.asarray(columns["site"]) == number)
    if not rows.size:
        raise ComparisonError(f"The comparison has no site {site!r}. `layerdiff report ... -f json` lists sites.")
    row = int(rows[0])
    rank = int(columns["rank"][row])
    measured, allowed = (None if np.isnan(columns[name][row]) else float(columns[name][row]) for name in ("measured", "allowed"))
    verdict = Verdict(int(columns["verdict"][row]))
    statement = texts[int(columns["statement"][row])] or f"{verdict.label}; chosen by hand"
    return Origin(
        row, site, verdict, "out", statement, measured, allowed, texts[int(columns["rule"][row])] or "", False,
        texts[int(columns["operator"][row])], int(columns["step"][row]), int(columns["occurrence"][row]), None if rank < 0 else rank,
    )  # fmt: skip


def _written(comparison: Comparison, traces: Traces, origin: Origin, folder: Path) -> Written:
    folder.mkdir()
    lines: list[str] = []
    try:
        call = _call(comparison, traces, origin, folder)
        missing = None if not call["missing"] else "; ".join(f"{position}: {reason}" for position, reason in call["missing"].items())
        (folder / "call.json").write_text(json.dumps(strict(call), indent=1, allow_nan=False) + "\n", encoding="ascii")
        shutil.copyfile(_SCRIPT, folder / "reproduce.py")
        lines += _described(call, missing)
    except (LayerdiffError, _NoCallError) as error:
        missing = str(error)
        lines += ["### The call\n", f"It cannot be run again from here: {text(missing)}."]
    one = as_markdown(replace(comparison, origins=(origin,)))
    (folder / "origin.md").write_text(one + "\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return Written(folder, origin.site, missing)


class _NoCallError(Exception):
    """There is no operator call to run; says why, as a part of a sentence."""


def _call(comparison: Comparison, traces: Traces, origin: Origin, folder: Path) -> dict[str, Any]:
    columns, row = comparison.sites, origin.row
    if not 0 <= row < len(columns["site"]):
        raise _NoCallError("the comparison does not say which call it is")
    if int(columns["kind"][row]) != CallKind.OPERATOR:
        inside = bool(np.any((columns["parent"] == row) & (columns["kind"] == CallKind.OPERATOR)))
        raise _NoCallError(
            "what differs is handed from one module to another, and no single operator makes it; the calls inside are bundled with --site"
            if inside
            else "it is a module, of which the operators were not recorded with their operands; record both runs with --operators"
        )
    if int(columns["target_call"][row]) < 0:
        raise _NoCallError("the target never makes this call")
    file, number = traces.file(comparison, "target", row)
    run = Recorded(file)
    operation = run.operation(number)
    if not operation.complete:
        raise _NoCallError("the call was recorded only in part; record the run again")
    call: dict[str, Any] = {
        "format": FORMAT,
        "site": origin.site,
        "operator": operation.name,
        "step": origin.step,
        "occurrence": origin.occurrence,
        "rank": origin.rank,
        "source": file.text(int(file.calls.stack[number])),
        "finding": {name: getattr(origin, name) for name in ("verdict", "value", "statement", "measured", "allowed", "rule", "cause")},
        "arguments": operation.picture,
        "writes": list(operation.writes),
        "random": operation.random,
        "reference": _reference(comparison, traces, row, operation),
        "missing": {},
        "notes": [],
        "environment": {name: side.environment for name, side in comparison.sides},
    }
    call["operands"] = _tensors(run, operation.inputs, folder / "operands.safetensors", call["missing"], call["notes"])
    unkept: dict[str, str] = {}
    call["results"] = _tensors(run, operation.outputs, folder / "recorded.safetensors", unkept, call["notes"])
    call["notes"] += [f"{position} was not kept: {reason}" for position, reason in unkept.items()]
    return call


def _tensors(run: Recorded, values: dict[str, int], path: Path, missing: dict[str, str], notes: list[str]) -> dict[str, Any]:
    """Writes the values, and says of each where it is and how it lay."""
    described: dict[str, Any] = {}
    kept: dict[str, tuple[Dtype, NDArray[Any]]] = {}
    for number, (position, value) in enumerate(values.items()):
        place, dtype = run.place(value), run.file.dtype(value)
        how: dict[str, Any] = {
            "dtype": run.file.dtype_name(value),
            "shape": list(place.shape),
            "strides": list(place.strides),
            "offset": place.offset,
            "memory": place.memory[0],
            "device": run.file.text(int(run.file.values.device[value])),
        }
        described[position] = how
        try:
            raw = run.file.raw(value)
        except TraceError:
            missing[position] = run.file.text(int(run.file.values.reason[value])) or "its bits were not kept"
            continue
        assert dtype is not None  # raw() refuses others
        how |= {"key": f"t{number}", "stored": stored(dtype)}
        if how["stored"] == "bytes":
            notes.append(f"{position} is stored as its bytes, since safetensors has no {dtype.name} everywhere")
        kept[how["key"]] = (dtype, raw)
    write(path, kept)
    return described


def _reference(comparison: Comparison, traces: Traces, row: int, operation: Operation) -> dict[str, Any]:
    """The reference's operator, and its scalars where they are others."""
    try:
        file, number = traces.file(comparison, "reference", row)
    except TraceError as error:
        return {"operator": None, "reason": str(error)}
    run = Recorded(file)
    theirs = run.operation(number)
    differ = [
        {"argument": where, "reference": one, "target": other}
        for where, one, other in _differences("", Both(theirs.picture, operation.picture))
    ]
    dtypes = {position: file.dtype_name(value) for position, value in [*theirs.inputs.items(), *theirs.outputs.items()]}
    return {"operator": theirs.name, "scalars": differ, "dtypes": dtypes, "source": file.text(int(file.calls.stack[number]))}


def _differences(where: str, pictures: Both[Any]) -> Iterator[tuple[str, Any, Any]]:
    """Places of two pictures of arguments that differ; tensors are compared by position only."""
    one, other = pictures
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*one, *other]):
            yield from _differences(f"{where}.{key}".lstrip("."), Both(one.get(key), other.get(key)))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from _differences(f"{where}[{i}]", Both(left, right))
    elif one != other:
        yield where, one, other


def _described(call: dict[str, Any], missing: str | None) -> Iterator[str]:
    """The call in markdown, for origin.md."""
    yield "### The call\n"
    yield f"{code(str(call['operator']))}" + (f", called at {code(call['source'])}" if call["source"] else "") + "\n"
    for role, tensors in (("operand", call["operands"]), ("result", call["results"])):
        for position, how in tensors.items():
            yield f"- {role} {code(position)}: {text(how['dtype'])} {text(str(how['shape']))}, strides {text(str(how['strides']))}"
    for difference in call["reference"].get("scalars", []):
        one, other = (json.dumps(difference[side]) for side in ("reference", "target"))
        yield f"- argument {code(difference['argument'])} is {code(other)}, in the reference {code(one)}"
    for note in call["notes"]:
        yield f"- {text(note)}"
    if missing is not None:
        yield f"\nIt cannot be run again from here, not all operands were kept: {text(missing)}. Record with `--keep full`."
        return
    yield "\nRun it again, with torch and safetensors alone, on any machine:\n"
    trust = "" if str(call["operator"]).startswith("aten.") else " --import MODULE --trust-ops NAMESPACE"
    host, device = f"python reproduce.py{trust}", f"python reproduce.py{trust} --device cuda    # or any other"
    yield fenced(f"{host}\n{device}", "sh")


def said(written: Sequence[Written], comparison: Comparison, *, chosen: bool) -> str:
    """What was written, in a few lines for a person."""
    lines = [f"{one.folder}: " + ("python reproduce.py" if one.missing is None else f"not to be run: {one.missing}") for one in written]
    left = 0 if chosen else len(comparison.origins) - len(written)
    if left > 0:
        lines.append(f"{amount(left, 'more origin')} of {count(len(comparison.origins))}: --sites {len(comparison.origins)} writes all")
    return "\n".join(lines)
