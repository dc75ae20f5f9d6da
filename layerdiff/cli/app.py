"""The command table. A command's module is imported when it is run, or when its help is asked for.

`layerdiff REFERENCE TARGET` and `layerdiff RUN.ldiff` are `layerdiff show`.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from layerdiff.cli.exits import guarded
from layerdiff.cli.streams import out

COMMANDS: Final = {
    "record": "layerdiff.cli.record",
    "diff": "layerdiff.cli.diff",
    "show": "layerdiff.cli.show",
    "report": "layerdiff.cli.report",
    "judge": "layerdiff.cli.judge",
    "inspect": "layerdiff.cli.inspect_trace",  # a module named inspect would hide the standard library's
    "recover": "layerdiff.cli.recover",
    "demo": "layerdiff.cli.demo",
}
DEFAULT: Final = "show"


class Commands(TyperGroup):
    """Commands by name, loaded late."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names, in the order of a first session."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, with its module imported; None for an unknown name."""
        home = COMMANDS.get(cmd_name)
        if home is None:
            return None
        module = import_module(home)
        single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        settings = getattr(module, "CONTEXT_SETTINGS", None)
        single.command(name=cmd_name, context_settings=settings, no_args_is_help=cmd_name != "demo")(guarded(module.run))
        return typer.main.get_command(single)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As typer does, where a first word that is no command is a file to show."""
        word = args[0]
        if word not in COMMANDS:
            close = get_close_matches(word, COMMANDS, n=1)
            if close and not Path(word).exists():
                ctx.fail(f"There is no command {word!r}. Did you mean {close[0]!r}?")
            args = [DEFAULT, *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=Commands, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)


def _version(wanted: bool) -> None:
    if wanted:
        from layerdiff import __version__

        out(f"layerdiff {__version__}\n")
        raise typer.Exit


@app.callback()
def layerdiff(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Find where two runs of a model part, at which operator, and whether that is a defect.

    `layerdiff REFERENCE TARGET` opens the terminal.

    Exit status: 0 no defect, 1 a defect, 2 usage or unreadable input, 130 interrupted.
    """
