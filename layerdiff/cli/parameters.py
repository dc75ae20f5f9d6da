"""Arguments and options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from layerdiff.cli.command import Argument
from layerdiff.errors import LayerdiffError

_PROFILES = "strict, relaxed, or a TOML file"
PATH: Final = click.Path(path_type=Path)

REFERENCE = Argument("reference", "REFERENCE", "Trace of the run that is right, a file or folder.")
TARGET = Argument("target", "TARGET", "Trace of the run in question.")
FIRST = Argument("first", "REFERENCE|RUN.ldiff", "A trace, or a saved comparison.")
MAYBE_TARGET = Argument("target", "[TARGET]", "Trace of the run in question; none with a saved comparison.", required=False)
TARGET_UNLESS_ALONE = Argument("target", "[TARGET]", "Trace of the run in question; with --self the first is it.", required=False)
ALONE = click.Option(["--self", "alone"], is_flag=True, help="Check the ranks of one trace against each other, without a reference.")
SAVED = Argument("path", "RUN.ldiff", "A saved comparison.")
PROFILE = click.Option(["--profile"], metavar="NAME|FILE.toml", default="strict", show_default=True, help=f"What is allowed: {_PROFILES}.")
MAYBE_PROFILE = click.Option(["--profile"], metavar="NAME|FILE.toml", help=f"{_PROFILES}; else strict, or as saved.")
KEEP = click.Option(["-o", "--output"], metavar="RUN.ldiff", type=PATH, help="Keep the comparison, for show, judge and report.")
JSON = click.Option(["--json"], metavar="FILE|-", help="Write the result as JSON; - is stdout (the summary is then on stderr).")
AGAIN = click.Option(["--again"], metavar="TARGET2", help="A second run of the target: where does it differ from itself?")
BASELINE = click.Option(
    ["--baseline"], metavar="TRACE", help="A run that is right, such as bf16: is the target worse than it? Decides no verdict."
)
TRUST = click.Option(["--trust-ops"], metavar="NS", multiple=True, help="Run operators of this namespace again, too, such as npu.")
CHECKPOINT = click.Option(
    ["--checkpoint", "checkpoints"],
    metavar="DIR",
    multiple=True,
    type=PATH,
    help="Safetensors of the weights, where a trace has no bytes of them.",
)
SITES = click.Option(["--sites"], metavar="N|all", default="10000", show_default=True, help="How many sites the JSON lists.")


class UsageError(LayerdiffError):
    """The command line asks for something that does not go together."""


def sites_bound(text: str) -> int | None:
    """`--sites` as a number, None for all of them. Raises UsageError."""
    if text == "all":
        return None
    if not text.isdecimal():
        raise UsageError(f"--sites {text}: give a number of sites, or all.")
    return int(text)
