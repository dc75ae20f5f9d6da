"""`layerdiff demo`: the worked examples that travel with the package."""

from __future__ import annotations

from pathlib import Path

from layerdiff.cli.command import Argument
from layerdiff.cli.parameters import UsageError

PARAMETERS = (Argument("case", "[CASE]", "Which example; `list` names them.", default="epsilon"),)


def run(case: str) -> int:
    """Open a worked example with a known fault.

    Without a terminal it prints the summary. Exits 0 when it was shown: its fault is meant to be found.
    """
    from layerdiff.cli.exits import DEFECT, OK
    from layerdiff.cli.streams import is_terminal, leave, out, talk

    cases = shipped_cases()
    if case == "list":
        out("".join(f"{name}\n" for name in cases))
        if others := unmade_cases():
            talk(f"To be made first, in this checkout, by `python -m captures CASE`: {', '.join(others)}")
        return OK
    folder = cases.get(case)
    if folder is None and case in unmade_cases():
        raise UsageError(f"The example {case} is not made yet: `python -m captures {case}` makes it, in this checkout; then ask again.")
    if folder is None:
        raise UsageError(f"There is no example {case!r}. There are: {', '.join(cases) or 'none in this installation'}.")
    reference, target = str(folder / "reference.h5"), str(_target(folder))
    talk(f"layerdiff {reference} {target}")
    if is_terminal():
        from layerdiff.cli.show import browse

        code = browse(reference, target, None)
        leave(OK if code == DEFECT else code)
    from layerdiff.cli.answering import summarise
    from layerdiff.cli.comparing import compared

    summarise(compared(reference, target, "strict"))
    return OK


def shipped_cases() -> dict[str, Path]:
    """Folder of each example that has both traces, by name. In a checkout they lie beside the package, in a wheel inside it."""
    package = Path(__file__).parent.parent
    found: dict[str, Path] = {}
    for home in (package.parent / "captures", package / "captures"):
        for folder in sorted(path.parent for path in home.glob("*/reference.h5")):
            if _target(folder).exists():
                found[folder.name] = folder
    return found


def _target(folder: Path) -> Path:
    """The target's trace: a folder with a file of each rank, or one file."""
    ranks = folder / "target"
    return ranks if ranks.is_dir() else folder / "target.h5"


def unmade_cases() -> list[str]:
    """Examples of a checkout whose traces are too large to travel with it, or are not made yet."""
    made = shipped_cases()
    home = Path(__file__).parent.parent.parent / "captures"
    return sorted(path.parent.name for path in home.glob("*/make.py") if path.parent.name not in made)
