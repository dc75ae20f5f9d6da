"""Usage errors, help, and errors that become messages."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from layerdiff.cli import app, exits
from layerdiff.cli.app import COMMANDS
from layerdiff.errors import ComparisonError
from tests.cli.conftest import Run


def test_every_command_has_help(run: Run) -> None:
    top = run("--help", code=0).stdout
    for command in COMMANDS:
        assert f"\n  {command} " in top
        assert run(command, "--help", code=0).stdout.startswith("Usage: layerdiff ")


@pytest.mark.parametrize(
    ("command", "rows"),
    [
        (
            "diff",
            [
                "  REFERENCE  Trace of the run that is right, a file or folder.  [required]",
                "  [TARGET]   Trace of the run in question; with --self the first is it.",
            ],
        ),
        ("demo", ["  [CASE]  Which example; `list` names them.  [default: epsilon]"]),
        ("record", ["  -- SCRIPT [ARGS]  The script and its arguments.  [required]"]),
    ],
)
def test_help_describes_arguments(run: Run, command: str, rows: list[str]) -> None:
    out = run(command, "--help", code=0).stdout
    assert "\nArguments:\n" + "".join(f"{row}\n" for row in rows) in out
    assert out.index("Arguments:") < out.index("Options:")


def test_help_has_no_line_cut_short(run: Run) -> None:
    assert "..." not in run("--help", code=0).stdout.split("Commands:")[1]


def test_nothing_at_all_is_usage(run: Run) -> None:
    done = run(code=2)
    assert "Usage: layerdiff" in done.stdout + done.stderr


def test_version(run: Run) -> None:
    assert run("--version", code=0).stdout == "layerdiff 0.1.0\n"


def test_a_misspelt_command(run: Run) -> None:
    done = run("dif", "a.h5", "b.h5", code=2)
    assert "There is no command 'dif'. Did you mean 'diff'?" in done.stderr
    assert done.stdout == ""


def test_a_file_named_almost_like_a_command_is_a_file(run: Run, fine: Path) -> None:
    fine.rename(fine.with_name("dif"))
    run("dif", code=0)


WRONG = [
    ("diff", "one.h5"),
    ("diff", "a", "b", "c"),
    ("report", "--wrong"),
    ("judge",),
    ("record", "-o", "x.h5"),
    ("record", "-o", "x.h5", "--", "-m"),
]


@pytest.mark.parametrize("arguments", WRONG)
def test_wrong_arguments_are_usage(run: Run, arguments: tuple[str, ...]) -> None:
    done = run(*arguments, code=2)
    assert "Traceback" not in done.stderr


def test_missing_files(run: Run) -> None:
    assert "gone.h5 does not exist" in run("diff", "gone.h5", "gone2.h5", code=2).stderr
    assert "gone.ldiff does not exist" in run("show", "gone.ldiff", code=2).stderr
    assert "gone.h5 does not exist" in run("inspect", "gone.h5", code=2).stderr
    assert "gone.h5.part does not exist" in run("recover", "gone.h5.part", code=2).stderr


def test_an_unknown_profile(run: Run, fine: Path) -> None:
    assert "The profile lenient cannot be read" in run("judge", fine, "--profile", "lenient", code=2).stderr


def test_an_unknown_example(run: Run) -> None:
    assert "There is no example 'nothing'" in run("demo", "nothing", code=2).stderr


def code_of(function: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stopped:
        exits.guarded(function)()  # type: ignore[arg-type]
    code = stopped.value.code
    assert isinstance(code, int)
    return code, capsys.readouterr().err


def raising(error: BaseException) -> object:
    def run_command() -> int:
        raise error

    return run_command


def test_errors_become_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(raising(ComparisonError("no \x1b[1mcalls")), capsys) == (2, "layerdiff: no \\x1b[1mcalls\n")
    assert code_of(raising(PermissionError(13, "Permission denied", "x.h5")), capsys) == (2, "layerdiff: x.h5: Permission denied.\n")
    assert code_of(raising(KeyboardInterrupt()), capsys) == (130, "layerdiff: interrupted\n")
    code, said = code_of(raising(ZeroDivisionError("oops")), capsys)
    assert code == 2  # and never 1: a crash is no verdict
    assert "ZeroDivisionError: oops" in said and said.endswith("please report it with the lines above.\n")
    assert code_of(lambda: 1, capsys) == (1, "")


def test_interrupt(tmp_path: Path) -> None:
    """Ctrl-C in a command that takes its time."""
    listens = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # tests may run where it is ignored
    code = f"{listens}; import time; from layerdiff.cli import exits; print('ready', flush=True); exits.guarded(lambda: time.sleep(60))()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, said) == (130, "layerdiff: interrupted\n")


def test_interrupt_before_a_command_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(app.Commands, "resolve_command", interrupted)
    monkeypatch.setattr(sys, "argv", ["layerdiff", "demo"])
    with pytest.raises(SystemExit) as stopped:
        exits.main()
    assert stopped.value.code == 130


def test_every_example_is_listed_with_how_to_make_those_that_are_not_there(run: Run) -> None:
    from captures.__main__ import names

    done = run("demo", "list", code=0)
    listed = set(done.stdout.split())
    said = done.stderr.strip().partition("python -m captures CASE`: ")[2]
    unmade = set(said.split(", ")) if said else set()
    assert (listed | unmade, listed & unmade) == (set(names()), set())
    for case in sorted(unmade)[:1]:
        assert f"`python -m captures {case}` makes it" in run("demo", case, code=2).stderr
