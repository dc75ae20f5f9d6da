"""Recording a script without touching it, and the processes that it starts."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from layerdiff.errors import RecorderError
from layerdiff.record.script import run_script

ROOT = Path(__file__).parents[2]
MODEL = """
import os, sys, torch
from torch import nn
torch.set_num_threads(1)
def forward(n=1):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with torch.no_grad():
        for _ in range(n):
            model(input=torch.ones(1, 4))
"""


def record(folder: Path, script: str, *arguments: str, module: str | None = None, out: str = "out.h5", **variables: str) -> Any:
    """Run `script` as the command line would, in a fresh interpreter."""
    (folder / f"{module or 'run'}.py").write_text(MODEL + textwrap.dedent(script))
    argv = [module or "run.py", *arguments]
    code = "import sys; from pathlib import Path; from layerdiff.record.script import run_script as run; "
    code += f"sys.exit(run(Path({out!r}), {argv!r}, module={bool(module)}))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def traces(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.h5*"))


def test_a_script_sees_what_it_would_see_by_itself(tmp_path: Path, recorded: Any) -> None:
    (tmp_path / "beside.py").write_text("here = 1")
    script = """
    import beside
    forward()
    print(__name__, sys.argv, os.path.basename(__file__), os.path.samefile(sys.path[0], os.path.dirname(os.path.abspath(__file__))))
    sys.exit(4)
    """
    done = record(tmp_path, script, "--batch", "1")
    assert (4, "__main__ ['run.py', '--batch', '1'] run.py True\n") == (done.returncode, done.stdout), done.stderr
    assert ["out.h5"] == traces(tmp_path)
    trace = recorded(tmp_path / "out.h5")
    assert ["", "0", "1"] == trace.sites
    assert {"in.input": 0} == {position: value for position, value in trace.edges(0).items() if position != "out"}
    assert "run.py" == trace.meta["environment"]["script"]


def test_a_module(tmp_path: Path, recorded: Any) -> None:
    done = record(tmp_path, "forward()\nprint(__name__, sys.argv[1:], __spec__.name)", "x", module="inference")
    assert (0, "__main__ ['x'] inference\n") == (done.returncode, done.stdout), done.stderr
    assert ["", "0", "1"] == recorded(tmp_path / "out.h5").sites


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [("sys.exit('bye')", 1, "bye"), ("1 / 0", 1, "ZeroDivisionError"), ("raise KeyboardInterrupt", 130, "")],
)
def test_exit_codes_are_the_scripts(ending: str, code: int, said: str, tmp_path: Path, recorded: Any) -> None:
    done = record(tmp_path, f"forward()\n{ending}")
    assert code == done.returncode, done.stderr
    assert said in done.stderr
    assert "runpy" not in done.stderr and "layerdiff" not in done.stderr
    assert recorded(tmp_path / "out.h5").file.complete


def test_a_failed_recording_does_not_change_the_exit_code(tmp_path: Path) -> None:
    done = record(tmp_path, "import layerdiff.trace.writer as w\nw.TraceWriter.begin_call = None\nforward()\nsys.exit(6)")
    assert 6 == done.returncode
    assert 1 == done.stderr.count("the trace is incomplete")


def test_what_can_be_known_before_is_raised(tmp_path: Path) -> None:
    with pytest.raises(RecorderError, match="no script missing"):
        run_script(tmp_path / "out.h5", ["missing.py"])
    script = tmp_path / "run.py"
    script.write_text("raise AssertionError('it ran')")
    with pytest.raises(RecorderError, match="does not exist"):
        run_script(tmp_path / "no" / "out.h5", [str(script)])
    with pytest.raises(RecorderError, match="no keep policy"):
        run_script(tmp_path / "out.h5", [str(script)], options={"keep": "much"})
    assert ["run.py"] == [path.name for path in tmp_path.iterdir()]


CHILDREN = {
    "fork": """
        import multiprocessing
        if __name__ == "__main__":
            forward(2)
            child = multiprocessing.get_context("fork").Process(target=forward, args=(3,))
            child.start(); child.join(); sys.exit(child.exitcode)
        """,
    "spawn": """
        import multiprocessing
        if __name__ == "__main__":
            forward(2)
            child = multiprocessing.get_context("spawn").Process(target=forward, args=(3,))
            child.start(); child.join(); sys.exit(child.exitcode)
        """,
    "subprocess": """
        import subprocess
        if "child" in sys.argv:
            forward(3)
        else:
            forward(2)
            sys.exit(subprocess.run([sys.executable, __file__, "child"]).returncode)
        """,
}


@pytest.mark.parametrize("kind", CHILDREN)
def test_children_record_into_a_folder(kind: str, tmp_path: Path, recorded: Any) -> None:
    done = record(tmp_path, CHILDREN[kind])
    assert 0 == done.returncode, done.stderr
    names = traces(tmp_path)
    assert 2 == len(names), (names, done.stderr)
    assert "out/rank00000-pid" == names[0][:17]
    assert "out/rank00000.h5" == names[1]
    assert 1 == done.stderr.count("more than one process was recorded")
    assert 9 == len(recorded(tmp_path / names[0]))
    assert 6 == len(recorded(tmp_path / names[1]))
    assert {"in.input", "out"} == set(recorded(tmp_path / names[0]).edges(0))


def test_a_child_that_forks_before_it_runs_a_model(tmp_path: Path, recorded: Any) -> None:
    script = """
    import multiprocessing, subprocess
    if "child" in sys.argv:
        children = [multiprocessing.get_context("fork").Process(target=forward, args=(n,)) for n in (1, 2)]
        [child.start() for child in children]
        [child.join() for child in children]
        forward(3)
    else:
        sys.exit(subprocess.run([sys.executable, __file__, "child"]).returncode)
    """
    done = record(tmp_path, script)
    assert 0 == done.returncode, done.stderr
    assert [3, 6, 9] == sorted(len(recorded(tmp_path / name)) for name in traces(tmp_path)), done.stderr
    assert "not recorded" not in done.stderr


def test_a_launcher_that_runs_no_model_leaves_no_trace_of_its_own(tmp_path: Path, recorded: Any) -> None:
    script = """
    import subprocess
    if "child" in sys.argv:
        forward(1)
    else:
        both = [{**os.environ, "RANK": str(r), "WORLD_SIZE": "2"} for r in (0, 1)]
        ranks = [subprocess.Popen([sys.executable, __file__, "child"], env=one) for one in both]
        sys.exit(sum(rank.wait() for rank in ranks))
    """
    done = record(tmp_path, script)
    assert 0 == done.returncode, done.stderr
    assert ["out/rank00000.h5", "out/rank00001.h5"] == traces(tmp_path), done.stderr
    assert [0, 1] == [recorded(tmp_path / name).file.rank for name in traces(tmp_path)]
    assert "without calls" not in done.stderr


def test_a_rank_of_many_records_into_the_folder(tmp_path: Path, recorded: Any) -> None:
    done = record(tmp_path, "forward()", RANK="3", WORLD_SIZE="4")
    assert 0 == done.returncode, done.stderr
    assert ["out/rank00003.h5"] == traces(tmp_path)
    assert 3 == recorded(tmp_path / "out/rank00003.h5").file.rank


def test_children_without_torch_are_left_alone_and_keep_their_sitecustomize(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys; sys.theirs = True")
    script = """
    import subprocess
    code = "import sys; print(sys.theirs, 'torch' in sys.modules, 'h5py' in sys.modules, 'sitecustomize' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.environ["PYTHONPATH"] + os.pathsep + os.path.abspath("site")}
    subprocess.run([sys.executable, "-c", code], env=environment)
    forward()
    """
    done = record(tmp_path, script)
    assert "True False False True\n" == done.stdout, done.stderr
    assert ["out.h5"] == traces(tmp_path)


def test_a_second_recording_to_the_same_place_replaces_the_first(tmp_path: Path, recorded: Any) -> None:
    record(tmp_path, CHILDREN["fork"])
    done = record(tmp_path, "forward(4)")
    assert 0 == done.returncode, done.stderr
    assert ["out.h5"] == traces(tmp_path)
    assert 12 == len(recorded(tmp_path / "out.h5"))
    assert not (tmp_path / "out").exists()
