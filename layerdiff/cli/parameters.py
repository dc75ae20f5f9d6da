"""Arguments and options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layerdiff.errors import LayerdiffError

_PROFILES = "strict, relaxed, or a TOML file"

Reference = Annotated[
    str, typer.Argument(metavar="REFERENCE", help="Trace of the run that is right, a file or folder.", show_default=False)
]
Target = Annotated[str, typer.Argument(metavar="TARGET", help="Trace of the run in question.", show_default=False)]
First = Annotated[str, typer.Argument(metavar="REFERENCE|RUN.ldiff", help="A trace, or a saved comparison.", show_default=False)]
MaybeTarget = Annotated[
    str | None,
    typer.Argument(metavar="[TARGET]", help="Trace of the run in question; none with a saved comparison.", show_default=False),
]
Profile = Annotated[str, typer.Option("--profile", metavar="NAME|FILE.toml", help=f"What is allowed: {_PROFILES}.")]
MaybeProfile = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME|FILE.toml", help=f"{_PROFILES}; else strict, or as saved.", show_default=False),
]
Keep = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="RUN.ldiff", help="Keep the comparison, for show, judge and report.", show_default=False),
]
Json = Annotated[
    str | None,
    typer.Option(
        "--json", metavar="FILE|-", help="Write the result as JSON; - is stdout (the summary is then on stderr).", show_default=False
    ),
]
Sites = Annotated[str, typer.Option("--sites", metavar="N|all", help="How many sites the JSON lists.")]
DEFAULT_SITES = "10000"


class UsageError(LayerdiffError):
    """The command line asks for something that does not go together."""


def sites_bound(text: str) -> int | None:
    """`--sites` as a number, None for all of them. Raises UsageError."""
    if text == "all":
        return None
    if not text.isdecimal():
        raise UsageError(f"--sites {text}: give a number of sites, or all.")
    return int(text)
