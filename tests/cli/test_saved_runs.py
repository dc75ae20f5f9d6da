"""Commands on saved comparisons: exit codes, and what goes to which stream."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from layerdiff.saved.file import open_comparison
from tests.cli.conftest import NORM, Run


def test_show_without_a_terminal_prints_the_summary_and_exits_as_diff(run: Run, defect: Path, fine: Path) -> None:
    done = run("show", defect, code=1)
    assert NORM in done.stdout
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    run("show", fine, code=0)


def test_a_file_alone_is_shown(run: Run, defect: Path) -> None:
    assert run(defect, code=1).stdout == run("show", defect, code=1).stdout


def test_show_with_another_profile(run: Run, defect: Path) -> None:
    assert "relaxed" in run("show", defect, "--profile", "relaxed").stdout


def test_judge_keeps_what_it_was_asked_to(run: Run, defect: Path, tmp_path: Path) -> None:
    run("judge", defect, "--profile", "relaxed", "-o", "again.ldiff")
    assert open_comparison(tmp_path / "again.ldiff").profile["name"] == "relaxed"
    assert open_comparison(defect).profile["name"] == "strict"


def test_json_on_stdout_sends_the_summary_to_stderr(run: Run, defect: Path) -> None:
    done = run("judge", defect, "--json", "-")
    value = json.loads(done.stdout)
    assert value["schema"] == "layerdiff.comparison/1"
    assert done.returncode == int(value["defect"])
    assert done.stderr != ""


def test_json_in_a_file_and_its_bound(run: Run, defect: Path, tmp_path: Path) -> None:
    done = run("judge", defect, "--json", "out.json", "--sites", "2")
    assert len(json.loads((tmp_path / "out.json").read_text())["sites"]) == 2
    assert done.stdout != "" and done.stderr == ""
    run("judge", defect, "--json", "out.json", "--sites", "all")
    assert len(json.loads((tmp_path / "out.json").read_text())["sites"]) > 2


@pytest.mark.parametrize("bound", ["-1", "many", "1.5", ""])
def test_a_bound_that_is_none(run: Run, defect: Path, bound: str) -> None:
    assert "--sites" in run("judge", defect, "--json", "-", "--sites", bound, code=2).stderr


def test_reports(run: Run, defect: Path, tmp_path: Path) -> None:
    assert run("report", defect, code=1).stdout.startswith(f"## layerdiff: defect at `{NORM}`\n")
    assert json.loads(run("report", defect, "-f", "json", code=1).stdout)["defect"] is True
    assert ElementTree.fromstring(run("report", defect, "-f", "junit", code=1).stdout).get("failures") == "1"
    done = run("report", defect, "-f", "markdown", "-o", "issue.md", code=1)
    assert (done.stdout, done.stderr) == ("", "wrote issue.md\n")
    assert (tmp_path / "issue.md").read_text().startswith("## layerdiff: defect")


def test_report_in_an_unknown_format(run: Run, defect: Path) -> None:
    assert "There is no format 'pdf'. Choose one of markdown, json, junit, bundle." in run("report", defect, "-f", "pdf", code=2).stderr


def test_report_into_a_missing_folder(run: Run, defect: Path) -> None:
    done = run("report", defect, "-o", "missing/issue.md", code=2)
    assert done.stderr.startswith("layerdiff: -o missing/issue.md: there is no folder ")
    assert done.stderr.endswith("missing. Make it, or choose another place.\n")


@pytest.mark.parametrize("options", [["--json", "missing/x.json"], ["-o", "missing/x.ldiff"], ["-o", "."], ["--json", "."]])
def test_a_place_that_cannot_be_written_is_said_before_anything_is_read(run: Run, options: list[str]) -> None:
    """There are no such runs: what is said first is the place."""
    for words in (["diff", "no.h5", "none.h5"], ["judge", "no.ldiff"], ["order", "no.h5", "site"]):
        said = run(*words, *options, code=2).stderr
        assert said.startswith(f"layerdiff: {' '.join(options)}: ") and "no.h5" not in said


@pytest.mark.parametrize("command", ["judge", "show", "report"])
def test_streams_that_are_closed(defect: Path, command: str) -> None:
    code = f"import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, '-m', 'layerdiff', {command!r}, {str(defect)!r}])"
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=60)
    assert (1, b"") == (done.returncode, done.stderr)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_stdout_is_named(defect: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "layerdiff", "report", str(defect)], stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert 2 == done.returncode
    assert done.stderr.startswith(b"layerdiff: stdout: No space left on device")


def test_a_reader_that_goes_away_changes_no_exit_code(defect: Path) -> None:
    command = [sys.executable, "-m", "layerdiff", "report", str(defect), "-f", "json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 1


def test_names_cannot_steer_the_terminal(run: Run, tmp_path: Path) -> None:
    done = run("show", "no\x1b[31mthing\u202e.ldiff", code=2)
    assert "no\\x1b[31mthing\\u202e.ldiff does not exist" in done.stderr
    assert "\x1b" not in done.stderr


def test_an_output_that_is_not_utf8(defect: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "layerdiff", "show", str(defect)]
    done = subprocess.run(command, capture_output=True, env=environment, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stderr) == (1, b"")
    assert done.stdout.isascii()


def test_on_a_terminal_it_is_the_terminal(defect: Path) -> None:
    """`q` leaves it, with the code of the verdict."""
    code, screen = on_a_pty([sys.executable, "-m", "layerdiff", str(defect)], keys=b"q")
    assert code == 1
    assert b"\x1b[?1049h" in screen  # the alternate screen


def on_a_pty(command: list[str], keys: bytes) -> tuple[int, bytes]:
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="80", LINES="24")
        os.execv(command[0], command)
    screen = b""
    sent = False
    while True:
        try:
            piece = os.read(fd, 65536)
        except OSError:
            break
        if not piece:
            break
        screen += piece
        if not sent and b"\x1b[?1049h" in screen and b"layernorm" in screen:
            os.write(fd, keys)
            sent = True
    _, status = os.waitpid(pid, 0)
    os.close(fd)
    return os.waitstatus_to_exitcode(status), screen
