"""The command table. A command's module is imported when it is run, or when its help is asked for.

`layerdiff REFERENCE TARGET` and `layerdiff RUN.ldiff` are `layerdiff show`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Final

import click

from layerdiff.cli.command import Command, command_of
from layerdiff.cli.streams import out

COMMANDS: Final = {
    "record": "layerdiff.cli.record",
    "diff": "layerdiff.cli.diff",
    "order": "layerdiff.cli.order",
    "show": "layerdiff.cli.show",
    "report": "layerdiff.cli.report",
    "judge": "layerdiff.cli.judge",
    "probe": "layerdiff.cli.probe",
    "inspect": "layerdiff.cli.inspect_trace",  # a module named inspect would hide the standard library's
    "recover": "layerdiff.cli.recover",
    "demo": "layerdiff.cli.demo",
}
DEFAULT: Final = "show"


class Commands(click.Group):
    """Commands by name, loaded late."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, in the order of a first session."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> Command | None:
        """The command, with its module imported; None for an unknown name."""
        home = COMMANDS.get(cmd_name)
        return None if home is None else command_of(cmd_name, import_module(home))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, where a first word that is no command is a file to show."""
        word = args[0]
        if word not in COMMANDS:
            from difflib import get_close_matches

            close = get_close_matches(word, COMMANDS, n=1)
            if close and not Path(word).exists():
                ctx.fail(f"There is no command {word!r}. Did you mean {close[0]!r}?")
            args = [DEFAULT, *args]
        return super().resolve_command(ctx, args)


def _version(ctx: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted:
        from layerdiff import __version__

        out(f"layerdiff {__version__}\n")
        ctx.exit()


app = Commands(
    "layerdiff",
    params=[click.Option(["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version.")],
    no_args_is_help=True,
    help="""Find where two runs of a model part, at which operator, and whether that is a defect.

`layerdiff REFERENCE TARGET` opens the terminal.

Exit status: 0 no defect, 1 a defect, 2 usage or unreadable input, 130 interrupted (in the terminal: left before all was compared).
""",
)
