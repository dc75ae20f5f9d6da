"""`make bench`: one table of every `*_bench.py` here. `make bench ARGS="startup record"` runs some.

Each has `rows() -> list[(name, measured, floor, note)]`. Absolute times move threefold with the
machine's mood, so rows are ratios wherever they can be, measured in one run.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def main(wanted: list[str]) -> int:
    """Print the table; 1 where a benchmark could not run."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("*_bench.py"))
    chosen = [name for name in names if not wanted or name.removesuffix("_bench") in wanted]
    if not chosen:
        print(f"no such benchmark; there are: {', '.join(name.removesuffix('_bench') for name in names)}", file=sys.stderr)
        return 1
    print("| what | measured | floor | note |\n| --- | ---: | ---: | --- |")
    failed = 0
    for name in chosen:
        try:
            found = importlib.import_module(f"tests.bench.{name}").rows()
        except Exception as error:
            print(f"| {name} | failed | | {type(error).__name__}: {error} |", flush=True)
            failed += 1
            continue
        for what, measured, floor, note in found:
            print(f"| {what} | {measured:.3g} | {floor} | {note} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
