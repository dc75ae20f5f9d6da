"""One trial: a reference and a target are recorded with operators and compared, and what was found is held against what is known."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from captures.kernels import Kernel
from layerdiff import Recorder
from layerdiff.compare import compare_traces
from layerdiff.saved.comparison import Comparison
from tests.evaluate.models import Size
from tests.evaluate.operators.families import FAMILIES, SIZES, Place, build
from tests.evaluate.operators.fault import Expected, Fault
from tests.evaluate.operators.harmless import Harmless
from tests.evaluate.operators.scenarios import SCENARIOS

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Setting:
    """A model with weights of a seed."""

    family: str
    size: str = "tiny"
    seed: int = 0

    @property
    def shape(self) -> Size:
        """The numbers of this size; a pretrained model has its own number of layers."""
        size = SIZES[self.size]
        return replace(size, layers=6) if FAMILIES[self.family].pretrained else size


@dataclass(frozen=True)
class Outcome:
    """What one trial showed. For harmless variations `expected` is empty, and everything convicted is `elsewhere`."""

    row: str
    command: str
    expected: tuple[Expected, ...]
    places: tuple[bool, ...]
    """Of each fault, whether its module is among the origins."""
    operators: tuple[bool, ...]
    """Of each fault, whether its operator or weight is named too."""
    elsewhere: tuple[str, ...]
    """Origins at other modules."""
    said: tuple[str, ...]
    """All origins and notices."""
    defect: bool
    trap: bool = False
    seconds: float = 0.0
    failed: str = ""
    """An exception, where the comparison did not end."""

    @property
    def right(self) -> bool:
        """Found where it is, nothing elsewhere, and convicted only where there is a fault."""
        convicted = self.defect if self.expected and not self.trap else not self.defect
        return not self.failed and all(self.places) and not self.elsewhere and convicted


def record(
    path: Path, model: torch.nn.Module, setting: Setting, scenario: str, *contexts: Any, warm_up: bool = False, **options: Any
) -> None:
    """Run a scenario inside `contexts`, which lie below the recorder."""
    family = FAMILIES[setting.family]
    before = SCENARIOS["prefill"](family, replace(setting.shape, length=5), 9)
    run = SCENARIOS[scenario](family, setting.shape, setting.seed, **options)
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        stack.enter_context(Recorder(path, model, operators=True))
        stack.enter_context(torch.no_grad())
        if warm_up:
            before(model)
        run(model)


class References:
    """Recordings of the references, each made once and kept while its setting is in use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._setting: Setting | None = None

    def path(self, setting: Setting, scenario: str, attention: str) -> Path:
        if setting != self._setting:
            for old in self.folder.glob("reference-*"):
                old.unlink()
            self._setting = setting
        path = self.folder / f"reference-{scenario}-{attention}.h5"
        if not path.exists():
            record(path, build(setting.family, setting.shape, setting.seed, attention), setting, scenario)
        return path


def try_faults(references: References, setting: Setting, faults: list[tuple[Fault, int]], dtype: str, row: str) -> Outcome | None:
    """Put every fault into its layer; None where the model has no such place, and where a kernel's fault changes no bit in this dtype."""
    first = faults[0][0]
    if any(fault.families and setting.family not in fault.families for fault, _ in faults):
        return None
    model = build(setting.family, setting.shape, setting.seed, first.attention)
    expected, contexts = [], []
    with torch.no_grad():
        for fault, k in faults:
            place = Place(model, FAMILIES[setting.family], k, setting.seed)
            known = fault.put(place)
            if known is None or fault.scenario != first.scenario:
                return None
            expected.append(known)
            contexts += [run() for run in place.runs]
    command = _command(setting, dtype, f"--kinds '{row}' --layers {','.join(str(k) for _, k in faults[:1])}")
    outcome = _compared(
        row,
        command,
        lambda target: record(target, model.to(DTYPES[dtype]), setting, first.scenario, *contexts),
        references.path(setting, first.scenario, first.attention),
        tuple(expected),
        trap=first.trap,
    )
    idle = any(isinstance(context, Kernel) and not context.effect for context in contexts)
    return None if idle else outcome


def try_harmless(references: References, setting: Setting, variation: Harmless) -> Outcome | None:
    """The variation in every layer; None where the model has no such place."""
    if variation.families and setting.family not in variation.families:
        return None
    model = build(setting.family, setting.shape, setting.seed, variation.attention, loop=variation.loop)
    contexts: list[Any] = []
    with torch.no_grad():
        for k in range(setting.shape.layers):
            place = Place(model, FAMILIES[setting.family], k)
            if variation.put is not None and not variation.put(place):
                return None
            contexts += [run() for run in place.runs]

    def make(target: Path) -> None:
        with contextlib.nullcontext() if variation.around is None else variation.around():
            run = model.to(variation.dtype)
            record(target, run, setting, variation.scenario, *contexts, warm_up=variation.warm_up, **dict(variation.options))

    reference = references.path(setting, variation.scenario, "eager")
    return _compared(variation.name, _command(setting, "fp32", f"--kinds '{variation.name}'"), make, reference, (), allow=variation.allow)


def _command(setting: Setting, dtype: str, rest: str) -> str:
    chosen = f"--models {setting.family} --sizes {setting.size} --seeds {setting.seed} --dtypes {dtype}"
    return f"python -m tests.evaluate --sections faults,two,everywhere,harmless {chosen} {rest}"


def _compared(
    row: str,
    command: str,
    make: Callable[[Path], None],
    reference: Path,
    expected: tuple[Expected, ...],
    *,
    trap: bool = False,
    allow: tuple[str, ...] = (),
) -> Outcome:
    target = reference.with_name("target.h5")
    for old in target.parent.glob("target.h5*"):
        old.unlink()
    make(target)
    profile: str | Path = "strict"
    if allow:
        profile = target.with_name("profile.toml")
        profile.write_text(f'base = "strict"\nallow = {list(allow)!r}\n'.replace("'", '"'))
    start = time.monotonic()
    try:
        comparison = compare_traces(reference, target, profile=profile)
    except Exception as error:  # a crash of the judge is a result of the trial
        failed = f"{type(error).__name__}: {error}"
        none = (False,) * len(expected)
        return Outcome(row, command, expected, none, none, (), (), False, trap, time.monotonic() - start, failed)
    return _outcome(row, command, comparison, expected, trap, time.monotonic() - start)


@dataclass(frozen=True)
class _Found:
    module: str
    operator: str
    value: str
    verdict: str
    defect: bool
    lost: bool = False
    """A module that the target never runs."""

    def __str__(self) -> str:
        return f"{self.module}/{self.operator} {self.value} {self.verdict}"


def _found(comparison: Comparison) -> Iterator[_Found]:
    """Every origin, and every further site of one that was found repeatedly."""
    for origin in comparison.origins:
        further = [site for site in dict(origin.evidence).get("sites", ()) if isinstance(site, str)]
        for site in dict.fromkeys((origin.site, *further)):
            module, _, call = site.partition("/")
            operator = call.partition("#")[0] or getattr(origin, "operator", None) or ""
            lost = origin.cause == "module-missing"
            yield _Found(module, operator, str(origin.value), origin.verdict.label, origin.defect, lost)


def _inside(module: str, modules: tuple[str, ...]) -> bool:
    """Whether a module is one of `modules`, or a child of one: a child that is never run is where its parent is wrong."""
    return any(module == glob or module.rpartition(".")[0] == glob for glob in modules)


def _outcome(row: str, command: str, comparison: Comparison, expected: tuple[Expected, ...], trap: bool, seconds: float) -> Outcome:
    found = list(_found(comparison))
    notices = [(notice.kind, f"{notice.site or ''} {notice.statement}", notice.defect) for notice in comparison.notices]
    places, operators = [], []
    for known in expected:
        named = any(weight in text for weight in known.weights for kind, text, _ in notices if kind in ("weight-differs", "constant-dtype"))
        named |= any(kind in known.notices for kind, _, _ in notices)
        there = [one for one in found if one.module in known.modules or (one.lost and _inside(one.module, known.modules))]
        places.append(bool(there) or named or (trap and not comparison.defect))
        weights = [weight.rpartition(".")[2] for weight in known.weights]
        right = (
            not known.operators or one.lost or one.operator in known.operators or any(weight in one.value for weight in weights)
            for one in there
        )
        operators.append(named or any(right) or (trap and not comparison.defect))
    found = [one for one in found if not (one.lost and any(_inside(one.module, known.modules) for known in expected))]
    allowed = [glob for known in expected for glob in (*known.modules, *known.also)]
    elsewhere = [str(one) for one in found if one.defect and not any(fnmatchcase(one.module, glob) for glob in allowed)]
    if not expected:
        elsewhere += [f"notice {kind}: {text.strip()}" for kind, text, defect in notices if defect]
    said = (*(str(one) for one in found), *(f"notice {kind}" for kind, _, _ in notices))
    return Outcome(row, command, expected, tuple(places), tuple(operators), tuple(elsewhere), said, comparison.defect, trap, seconds)
