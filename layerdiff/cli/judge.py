"""`layerdiff judge`."""

from __future__ import annotations

from typing import Annotated

import typer

from layerdiff.cli.parameters import DEFAULT_SITES, Json, Keep, Profile, Sites, sites_bound


def run(
    path: Annotated[str, typer.Argument(metavar="RUN.ldiff", help="A saved comparison.", show_default=False)],
    profile: Profile = "strict",
    output: Keep = None,
    json: Json = None,
    sites: Sites = DEFAULT_SITES,
) -> int:
    """Judge a saved comparison by another profile.

    Needs no traces: the numbers are in the file.
    """
    bound = sites_bound(sites)
    from layerdiff.cli.answering import answer
    from layerdiff.cli.comparing import saved

    return answer(saved(path, profile), keep=output, json=json, sites=bound)
