"""`make evaluate`: the table of truth. Exits with 1 where something is not as it must be.

make evaluate                                        # everything, which takes an hour or more
make evaluate ARGS="--quick"                         # one of each, a few minutes
python -m tests.evaluate --sections faults --kinds 'epsilon*' --models llama --dtypes bf16 --layers 0

Sections: `kills` (killed writers), `captures` (made anew), `thresholds` (traces of modules alone), `orders` (how one sum was added),
`variants` (how attention, norms and softmax were computed), `ranks` (many against one process, in every layout), and with operators
`faults` (one at a time), `two` in one model, `everywhere` (one in every layer), `harmless`.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import transformers

from captures.__main__ import make, names
from layerdiff.compare import compare_traces
from tests.evaluate import thresholds
from tests.evaluate.kills import kills
from tests.evaluate.operators import runs
from tests.evaluate.operators.families import SIZES
from tests.evaluate.operators.tables import misses, table, totals
from tests.evaluate.operators.trial import DTYPES, Outcome
from tests.evaluate.orders import orders
from tests.evaluate.ranks import ranks
from tests.evaluate.variants import variants
from tests.test_captures import expected, found, target_of

_TRIALS: dict[str, Callable[[Path, runs.Choice], Iterator[Outcome]]] = {
    "faults": runs.single,
    "two": runs.two,
    "everywhere": runs.everywhere,
    "harmless": runs.harmless,
}
SECTIONS = ("kills", "captures", "thresholds", "orders", "variants", "ranks", *_TRIALS)
_QUICK = {"sizes": ("tiny",), "seeds": (0,), "layers": (-1,)}


def remade(folder: Path) -> list[str]:
    """Every capture, made anew, is what its expected.json says."""
    wrong: list[str] = []
    for name in names():
        made = make(name, folder)
        seen = found(compare_traces(made / "reference.h5", target_of(made)))
        print(f"| capture {name} | {'as expected' if seen == expected(name) else 'DIFFERENT'} |", flush=True)
        if seen != expected(name):
            wrong.append(f"capture {name}: {seen}")
    return wrong


def killed(folder: Path, count: int) -> None:
    """Writers killed at any moment. Raises AssertionError where something is not back."""
    good, values = kills(folder, count)
    print("| kill -9 while writing | everything journaled back | values |\n| ---: | ---: | ---: |")
    print(f"| {count} | {good} | {values} |\n", flush=True)


def trials(folder: Path, sections: list[str], choice: runs.Choice) -> tuple[list[str], bool]:
    """Faults and variations on traces with operators: what is wrong, and whether the goals are met."""
    done: dict[str, list[Outcome]] = {}
    for section in sections:
        done[section] = []
        for outcome in _TRIALS[section](folder, choice):
            done[section].append(outcome)
            if sys.stderr.isatty():
                print(f"\r{section}: {len(done[section])} {outcome.row[:60]:60}", end="", file=sys.stderr, flush=True)
        print(f"\n## {section}\n", *table(done[section]), sep="\n", flush=True)
    faulty = [outcome for section in sections if section != "harmless" for outcome in done[section]]
    lines, good = totals(faulty, done.get("harmless", []))
    print("\n## Goals\n", *lines, sep="\n")
    return [line for section in sections for line in misses(done[section])], good


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _words(known: dict[str, object] | tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def words(text: str) -> tuple[str, ...]:
        chosen = tuple(part.strip() for part in text.split(","))
        unknown = [word for word in chosen if word not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(known)}")
        return chosen

    return words


def main(arguments: list[str]) -> int:
    """Print everything; 1 where something is not as it must be."""
    parser = argparse.ArgumentParser(prog="make evaluate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", type=_words(SECTIONS), default=SECTIONS, help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--kinds", help="globs of faults and variations, separated by commas")
    parser.add_argument("--models", help="globs of models")
    parser.add_argument("--dtypes", type=_words(dict(DTYPES)), help="of the target: fp32, bf16")
    parser.add_argument("--seeds", type=_numbers, help="such as 0,1")
    parser.add_argument("--sizes", type=_words(dict(SIZES)), help=f"of {', '.join(SIZES)}")
    parser.add_argument("--layers", type=_numbers, help="such as 0,-1")
    parser.add_argument("--quick", action="store_true", help="one size, seed and layer")
    parser.add_argument("--kills", type=int, default=100)
    chosen = parser.parse_args(arguments)
    given = {name: getattr(chosen, name) for name in ("kinds", "models", "dtypes", "seeds", "sizes", "layers")}
    choice = runs.Choice(**({**_QUICK} if chosen.quick else {}) | {name: value for name, value in given.items() if value is not None})
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    wrong: list[str] = []
    good = True
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        if "kills" in chosen.sections:
            killed(folder, 10 if chosen.quick else chosen.kills)
        if "captures" in chosen.sections:
            wrong += remade(folder)
        if "thresholds" in chosen.sections:
            wrong += thresholds.faulty(folder) + thresholds.clean(folder, 1 if given["seeds"] is None else len(given["seeds"]))
        if "orders" in chosen.sections:
            wrong += orders(chosen.quick)
        if "variants" in chosen.sections:
            wrong += variants(1 if given["seeds"] is None else len(given["seeds"]), quick=chosen.quick)
        if "ranks" in chosen.sections:
            wrong += ranks(folder, 2 if given["seeds"] is None else len(given["seeds"]), quick=chosen.quick)
        sections = [section for section in _TRIALS if section in chosen.sections]
        if sections:
            more, good = trials(folder, sections, choice)
            wrong += more
    for line in wrong:
        print(line if line.startswith((" ", "WRONG")) else f"WRONG {line}")
    return 0 if good and not any(not line.startswith((" ", "WRONG (operator)")) for line in wrong) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
