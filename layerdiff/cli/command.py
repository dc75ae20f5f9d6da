"""A command of `layerdiff`: click's, whose help describes its arguments too. `command_of` makes it from a module of `cli`.

click reads no annotations, so that parsing a command line loads little: the way to the first painted row goes through here.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import click

from layerdiff.cli.exits import guarded


class Argument(click.Argument):
    """An argument with a description."""

    def __init__(self, name: str, metavar: str, described: str, **settings: Any) -> None:
        super().__init__([name], metavar=metavar, **settings)
        self.described = described

    @property
    def row(self) -> tuple[str, str]:
        """Its line of the help."""
        asked = "  [required]" if self.required else f"  [default: {self.default}]" if isinstance(self.default, str) else ""
        return self.metavar or "", self.described + asked


class Command(click.Command):
    """A command that lists its arguments before its options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click does it, after the arguments."""
        rows = [parameter.row for parameter in self.params if isinstance(parameter, Argument)]
        if rows:
            with formatter.section("Arguments"):
                formatter.write_dl(rows)
        super().format_options(ctx, formatter)


def command_of(name: str, module: ModuleType) -> Command:
    """The command of a module: its `run`, whose docstring is the help and whose result is the exit code, with its `PARAMETERS`.

    Without arguments it shows its help where it cannot do without any. A module may have CONTEXT_SETTINGS.
    """
    return Command(
        name,
        params=list(module.PARAMETERS),
        callback=guarded(module.run),
        help=inspect.getdoc(module.run),
        no_args_is_help=any(parameter.required for parameter in module.PARAMETERS),
        context_settings=getattr(module, "CONTEXT_SETTINGS", None),
    )
