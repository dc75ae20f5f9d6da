"""`Options`: what a recording includes, checked before the first forward.

A step selection is `0,3:5`: numbers and Python slices, end exclusive, either end open. Globs match
module paths; `*` also matches dots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, Literal, TypedDict, get_args

from layerdiff.errors import RecorderError
from layerdiff.record.keep import Keep

if TYPE_CHECKING:
    from typing_extensions import Unpack

Weights = Literal["none", "used", "all", "checkpoint"]
DEFAULT_QUEUE_BYTES: Final = 512 * 1024 * 1024


class Selection(TypedDict, total=False):
    """What a caller says of a recording; `Recorder` says what each means, and what it is where nothing is said."""

    modules: str | Iterable[str] | None
    types: str | Iterable[str] | None
    steps: str | int | Iterable[int] | None
    ranks: int | Iterable[int] | None
    keep: str | Mapping[str, str] | Keep | None
    weights: str | None
    operators: bool | str | Iterable[str]
    fingerprints: bool
    queue_bytes: int


@dataclass(frozen=True)
class Steps:
    """A selection of steps: ranges `(start, end)`, end exclusive, None for open."""

    ranges: tuple[tuple[int, int | None], ...]

    def __contains__(self, step: int) -> bool:
        return any(start <= step and (end is None or step < end) for start, end in self.ranges)


def parse_steps(steps: str | int | Iterable[int]) -> Steps:
    """A step selection from `0,3:5`, a number, or numbers. Raises RecorderError."""
    if isinstance(steps, int):
        steps = [steps]
    parts = [part.strip() for part in steps.split(",")] if isinstance(steps, str) else [str(step) for step in steps]
    ranges: list[tuple[int, int | None]] = []
    for part in parts:
        start, colon, end = part.partition(":")
        try:
            first = int(start) if start or not colon else 0
            last = (int(end) if end else None) if colon else first + 1
        except ValueError:
            example = "Write 0,3:5 for steps 0, 3 and 4, or 2: for all from 2 on."
            raise RecorderError(f"{part!r} in steps={steps!r} is no step. {example}") from None
        if first < 0 or (last is not None and last <= first):
            raise RecorderError(f"{part!r} in steps={steps!r} selects nothing: steps count from 0, and the end is not included.")
        ranges.append((first, last))
    if not ranges:
        raise RecorderError("steps selects nothing. Write 0,3:5 for steps 0, 3 and 4.")
    return Steps(tuple(ranges))


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is recorded. None selects everything."""

    modules: tuple[str, ...] | None
    """Globs of module paths."""
    types: tuple[str, ...] | None
    """Globs of class names."""
    steps: Steps | None
    ranks: frozenset[int] | None
    keep: Keep
    weights: Weights
    operators: tuple[str, ...] | None
    """Globs of the module paths whose operators are recorded; None for none."""
    fingerprints: bool
    queue_bytes: int
    """Copies of values that wait for the disk never hold more than this."""

    @classmethod
    def checked(cls, **selection: Unpack[Selection]) -> Options:
        """Options as a caller writes them. Raises RecorderError where one is wrong, and TypeError where there is none of that name."""
        unknown = selection.keys() - Selection.__annotations__.keys()
        if unknown:
            raise TypeError(f"a recording has no option {', '.join(sorted(unknown))}")
        steps, ranks, keep = selection.get("steps"), selection.get("ranks"), selection.get("keep")
        operators, weights = selection.get("operators", False), selection.get("weights")
        queue_bytes = selection.get("queue_bytes", DEFAULT_QUEUE_BYTES)
        if weights is None:
            weights = "none" if operators is False else "used"
        if weights not in get_args(Weights):
            raise RecorderError(f"weights={weights!r} is not one of {', '.join(get_args(Weights))}.")
        if not isinstance(queue_bytes, int) or queue_bytes <= 0:
            raise RecorderError(f"queue_bytes={queue_bytes!r} is no positive number of bytes.")
        return cls(
            modules=_globs("modules", selection.get("modules")),
            types=_globs("types", selection.get("types")),
            steps=None if steps is None else parse_steps(steps),
            ranks=None if ranks is None else frozenset([ranks] if isinstance(ranks, int) else ranks),
            keep=keep if isinstance(keep, Keep) else Keep(keep),
            weights=weights,  # type: ignore[arg-type]  # checked above
            operators=None if operators is False else ("*",) if operators is True else _globs("operators", operators),
            fingerprints=bool(selection.get("fingerprints", True)),
            queue_bytes=queue_bytes,
        )

    def wants(self, path: str, type_name: str) -> bool:
        """Whether calls of the module at `path`, of class `type_name`, are recorded."""
        if self.modules is not None and not any(fnmatchcase(path, glob) for glob in self.modules):
            return False
        return self.types is None or any(fnmatchcase(type_name, glob) for glob in self.types)

    def wants_operators(self, path: str) -> bool:
        """Whether the operators inside the module at `path` are recorded."""
        return self.operators is not None and any(fnmatchcase(path, glob) for glob in self.operators)

    def described(self) -> dict[str, object]:
        """The selection, for the description of the trace."""
        return {
            "modules": None if self.modules is None else list(self.modules),
            "types": None if self.types is None else list(self.types),
            "steps": None if self.steps is None else [list(pair) for pair in self.steps.ranges],
            "ranks": None if self.ranks is None else sorted(self.ranks),
            "weights": self.weights,
            "operators": None if self.operators is None else list(self.operators),
            "fingerprints": self.fingerprints,
        }


def _globs(name: str, globs: str | Iterable[str] | None) -> tuple[str, ...] | None:
    if globs is None:
        return None
    parts = globs.split(",") if isinstance(globs, str) else list(globs)
    if not all(isinstance(part, str) for part in parts):
        raise RecorderError(f"{name}={globs!r} must be globs of module paths or class names, such as '*.self_attn'.")
    stripped = tuple(part.strip() for part in parts if part.strip())
    if not stripped:
        raise RecorderError(f"{name}={globs!r} names nothing. Leave it out to record every module.")
    return stripped
