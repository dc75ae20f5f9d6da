"""Collectives in traces: what went in, what came out, on which group, in which order, and nothing changed in the run.

One group of two processes runs all cases once (collective_cases.py); these tests read what it recorded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import layerdiff
from layerdiff.trace.reader import open_trace
from layerdiff.trace.recover import recover
from layerdiff.trace.schema import CallKind, CallStatus, Role

X = [1.0, 2.0, 3.0, 4.0], [11.0, 12.0, 13.0, 14.0]
SUM = [12.0, 14.0, 16.0, 18.0]
EVERY = X[0] + X[1]
MODES = [("modules", "float32"), ("modules", "bfloat16"), ("operators", "float32"), ("operators", "bfloat16"), ("prints", "float32")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("collectives")
    run([sys.executable, "-m", "tests.record.collective_cases", str(path)], path)
    return path


def run(command: list[str], folder: Path, *, code: int | None = 0) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(layerdiff.__file__).parent.parent)}
    cwd = folder if "torch.distributed.run" in command else Path(layerdiff.__file__).parent.parent
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)
    assert code is None or code == done.returncode, done.stdout + done.stderr
    return done.stdout + done.stderr


class Collectives:
    """The collectives of one trace, by site."""

    def __init__(self, recorded: Any, path: Path) -> None:
        self.trace = recorded(path)
        self.calls = [call for call, kind in enumerate(self.trace.column("kind")) if kind == CallKind.COLLECTIVE]
        self.sites = {self.trace.sites[call]: call for call in self.calls}

    def of(self, case: str) -> list[int]:
        return [call for site, call in self.sites.items() if site.startswith(f"cases.{case}/")]

    def arrays(self, call: int, role: Role) -> list[list[float]]:
        edges = self.trace.edges(call, role)
        prefix = "in" if role is Role.INPUT else "out"
        assert [f"{prefix}[{i}]" for i in range(len(edges))] == list(edges)
        return [self.trace.file.read(value).astype(np.float64).ravel().tolist() for value in edges.values()]


@pytest.fixture
def opened(folder: Path, recorded: Any) -> Any:
    return lambda mode, dtype, rank: Collectives(recorded, folder / f"{mode}-{dtype}-{rank}.h5")


# what went in and came out: by case, the name, and (in, out) on each of the two ranks

PLUS = [value + 100 for value in X[0]], [value + 100 for value in X[1]]
EXPECTED: dict[str, tuple[str, list[tuple[list[list[float]], list[list[float]]]]]] = {
    "all_reduce": ("all_reduce", [([X[0]], [SUM]), ([X[1]], [SUM])]),
    "all_reduce_async": ("all_reduce", [([X[0]], [X[1]]), ([X[1]], [X[1]])]),
    "all_reduce_coalesced": ("all_reduce", [([X[0], [1, 2]], [SUM, [12, 14]]), ([X[1], [11, 12]], [SUM, [12, 14]])]),
    "all_reduce_of_a_part": ("all_reduce", [([[2, 3]], [[14, 16]]), ([[12, 13]], [[14, 16]])]),
    "named_group": ("all_reduce", [([X[0]], [SUM]), ([X[1]], [SUM])]),
    "broadcast": ("broadcast", [([], [X[1]]), ([X[1]], [X[1]])]),
    "reduce": ("reduce", [([X[0]], []), ([X[1]], [SUM])]),
    "gather": ("gather", [([X[0]], [X[0], X[1]]), ([X[1]], [])]),
    "scatter": ("scatter", [([X[0], PLUS[0]], [X[0]]), ([], [PLUS[0]])]),
    "all_gather": ("all_gather", [([X[0]], [X[0], X[1]]), ([X[1]], [X[0], X[1]])]),
    "all_gather_into_tensor": ("all_gather", [([X[0]], [EVERY]), ([X[1]], [EVERY])]),
    "reduce_scatter": ("reduce_scatter", [([X[0], PLUS[0]], [SUM]), ([X[1], PLUS[1]], [[212, 214, 216, 218]])]),
    "reduce_scatter_tensor": ("reduce_scatter", [([X[0]], [[12, 14]]), ([X[1]], [[16, 18]])]),
    "all_to_all_single": ("all_to_all", [([X[0]], [[1, 2, 11, 12]]), ([X[1]], [[3, 4, 13, 14]])]),
    "all_to_all_uneven": ("all_to_all", [([X[0]], [[1, 11, 12]]), ([X[1]], [[2, 3, 4, 13, 14]])]),
    "functional_all_reduce": ("all_reduce", [([X[0]], [SUM]), ([X[1]], [SUM])]),
    "functional_results_passed_on": ("all_reduce", [([X[0]], [SUM]), ([X[1]], [SUM])]),
    "functional_all_gather": ("all_gather", [([X[0]], [EVERY]), ([X[1]], [EVERY])]),
    "functional_reduce_scatter": ("reduce_scatter", [([X[0]], [[12, 14]]), ([X[1]], [[16, 18]])]),
    "functional_all_to_all": ("all_to_all", [([X[0]], [[1, 2, 11, 12]]), ([X[1]], [[3, 4, 13, 14]])]),
    "functional_broadcast": ("broadcast", [([], [X[1]]), ([X[1]], [X[1]])]),
    "functional_coalesced": ("all_reduce", [([X[0], [1, 2]], [SUM, [12, 14]]), ([X[1], [11, 12]], [SUM, [12, 14]])]),
    "functional_in_place": ("all_reduce", [([X[0]], [SUM]), ([X[1]], [SUM])]),
    "dtensor_partial_to_replicate": ("all_reduce", [([X[0]], [SUM]), ([X[1]], [SUM])]),
    "dtensor_partial_to_shard": ("reduce_scatter", [([X[0]], [[12, 14]]), ([X[1]], [[16, 18]])]),
    "dtensor_shard_to_replicate": ("all_gather", [([X[0]], [EVERY]), ([X[1]], [EVERY])]),
    "used_before_it_was_complete": ("all_reduce", [([X[0]], [SUM]), ([X[1]], [SUM])]),
}


@pytest.mark.parametrize(("mode", "dtype"), MODES)
def test_what_goes_in_is_as_it_was_before_and_what_comes_out_as_it_was_after(opened: Any, mode: str, dtype: str) -> None:
    for rank in (0, 1):
        found = opened(mode, dtype, rank)
        for case, (name, expected) in EXPECTED.items():
            calls = found.of(case)
            assert [f"cases.{case}/c10d.{name}#0"] == [found.trace.sites[call] for call in calls], case
            assert expected[rank] == (found.arrays(calls[0], Role.INPUT), found.arrays(calls[0], Role.OUTPUT)), (case, rank)
            values = found.trace.edges(calls[0]).values()
            assert {dtype} == {found.trace.file.dtype_name(value) for value in values}, case
            assert CallStatus.RETURNED == found.trace.status(calls[0])


def test_statistics_alone_of_a_collective(opened: Any) -> None:
    found = opened("statistics", "float32", 0)
    call = found.of("all_reduce")[0]
    (value,) = found.trace.edges(call, Role.OUTPUT).values()
    assert "not kept: statistics only by the keep policy" == found.trace.reason(value)
    assert (12.0, 18.0, 15.0) == found.trace.file.statistics(value)[:3]


def test_messages_are_counted_between_their_two_ranks(opened: Any) -> None:
    """Rank 0 sends with tag 3, gets one from anybody, then both send and get twice."""
    for rank in (0, 1):
        found = opened("modules", "float32", rank)
        details = {found.trace.sites[call]: found.trace.detail(call) for call in found.calls}
        said = {
            site.removeprefix("cases."): (it["source"], it["destination"], it["tag"], it["sequence"], it["async"])
            for site, it in details.items()
            if "tag" in it
        }
        other = 1 - rank
        first = "c10d.send" if rank == 0 else "c10d.recv"
        second = "c10d.recv" if rank == 0 else "c10d.send"
        sent, got = (0, 1) if rank == 0 else (1, 0)  # rank 1 had answered anybody before
        assert {
            f"send_and_recv/{first}#0": (0, 1, 3, 0, False),
            f"recv_from_anybody/{second}#0": (1, 0, 0, 0, False),
            "isend_and_irecv/c10d.send#0": (rank, other, 0, sent, True),
            "isend_and_irecv/c10d.recv#0": (other, rank, 0, got, True),
            "batch_isend_irecv/c10d.send#0": (rank, other, 0, sent + 1, True),
            "batch_isend_irecv/c10d.recv#0": (other, rank, 0, got + 1, True),
        } == said
        for case in ("isend_and_irecv", "batch_isend_irecv"):
            send, recv = found.of(case)
            assert ([X[rank]], [], [], [X[other]]) == (
                found.arrays(send, Role.INPUT),
                found.arrays(send, Role.OUTPUT),
                found.arrays(recv, Role.INPUT),
                found.arrays(recv, Role.OUTPUT),
            )


def test_the_detail_of_a_collective(opened: Any) -> None:
    found = opened("modules", "bfloat16", 1)
    group = {"name": "0", "ranks": [0, 1], "backend": "gloo"}
    detail = found.trace.detail
    assert {
        "group": group,
        "op": "sum",
        "sequence": 0,
        "async": False,
        "schema": "c10d.allreduce_",
        "finished": True,
    } == detail(found.of("all_reduce")[0])
    assert ("max", True) == tuple(detail(found.of("all_reduce_async")[0])[key] for key in ("op", "async"))
    assert {"input": [2, 2], "output": [3, 2]} == detail(found.of("all_to_all_uneven")[0])["sizes"]
    assert 1 == detail(found.of("broadcast")[0])["source"]
    assert 1 == detail(found.of("reduce")[0])["destination"]
    assert True is detail(found.of("all_reduce_coalesced")[0])["coalesced"]
    assert ("list", "tensor") == tuple(detail(found.of(case)[0])["layout"] for case in ("all_gather", "all_gather_into_tensor"))
    assert {**group, "name": "1"} == detail(found.of("named_group")[0])["group"]
    assert {"0": "default_pg", "1": "other"} == {name: said["description"] for name, said in found.trace.meta["groups"].items()}
    assert {(0, 1)} == {tuple(said["ranks"]) for said in found.trace.meta["groups"].values()}
    assert (1, 2) == (found.trace.meta["rank"], found.trace.meta["world_size"])


@pytest.mark.parametrize(("mode", "dtype"), [*MODES, ("statistics", "float32")])
def test_ranks_agree_on_the_order_in_a_group(opened: Any, mode: str, dtype: str) -> None:
    orders = []
    for rank in (0, 1):
        found = opened(mode, dtype, rank)
        details = [(found.trace.detail(call), found.trace.sites[call].partition("/")[2]) for call in found.calls]
        orders.append([(it["group"]["name"], it["sequence"], name) for it, name in details if "tag" not in it])
        sequences = [sequence for name, sequence, _ in orders[-1] if name == "0"]
        assert list(range(len(sequences))) == sequences
    assert orders[0] == orders[1]
    assert not any("object" in site for site in opened(mode, dtype, 0).sites)


def test_no_collective_is_an_operator_too(opened: Any) -> None:
    found = opened("operators", "float32", 0)
    operators = [site for site, kind in zip(found.trace.sites, found.trace.column("kind"), strict=True) if kind == CallKind.OPERATOR]
    assert not [site for site in operators if "c10d" in site]
    assert opened("modules", "float32", 0).sites.keys() == found.sites.keys()


def test_an_operator_of_a_split_layer_is_what_ran_on_the_rank(opened: Any) -> None:
    found = opened("operators", "float32", 0)
    inside = [site for site in found.trace.sites if site.startswith("mlp.")]
    assert [
        "mlp.up",
        "mlp.up/aten.t.default#0",
        "mlp.up/aten.addmm.default#0",
        "mlp.down",
        "mlp.down/aten.t.default#0",
        "mlp.down/aten.div.Tensor#0",
        "mlp.down/aten.addmm.default#0",
        "mlp.down/c10d.all_reduce#0",
    ] == inside
    product, reduced = found.trace.find("mlp.down/aten.addmm.default#0"), found.sites["mlp.down/c10d.all_reduce#0"]
    assert found.trace.edges(product)["out"] == found.trace.edges(reduced)["in[0]"]
    assert found.trace.edges(found.trace.find("mlp.down"))["out"] == found.trace.edges(reduced)["out[0]"]


@pytest.mark.parametrize("mode", ["modules", "operators"])
def test_placements_and_global_shapes(opened: Any, mode: str) -> None:
    found = opened(mode, "float32", 1)
    edges = found.trace.edges(found.trace.find("mlp.down"))
    text = found.trace.file.text(int(found.trace.file.values.placement[edges["weight"]]))
    assert {
        "placements": ["Shard(1)"],
        "mesh": [2],
        "names": ["tp"],
        "ranks": [0, 1],
        "coordinate": [1],
        "shape": [4, 8],
    } == json.loads(text)
    assert [4, 8] == found.trace.value_detail(edges["weight"])["global_shape"]
    assert (4, 4) == found.trace.file.shape(edges["weight"])
    whole = found.trace.edges(found.trace.find("cases.dtensor_shard_to_replicate"))["out"]
    assert "Replicate()" in found.trace.file.text(int(found.trace.file.values.placement[whole]))
    assert EVERY == found.trace.file.read(whole).tolist()


@pytest.mark.parametrize(("mode", "dtype"), MODES)
def test_a_result_that_is_passed_on_before_anybody_waited_is_read_when_it_is_complete(opened: Any, mode: str, dtype: str) -> None:
    found = opened(mode, dtype, 0)
    module = found.trace.find("cases.functional_results_passed_on")
    assert SUM == found.trace.array(module, "out").astype(np.float64).tolist()
    assert SUM == found.trace.array(found.trace.find(""), "out[21]").astype(np.float64).tolist()
    assert "used_pending" not in found.trace.detail(module)


def test_a_use_before_it_was_complete_is_noted(opened: Any) -> None:
    found = opened("operators", "float32", 1)
    call = found.of("used_before_it_was_complete")[0]
    use = {"call": call, "group": "0", "sequence": found.trace.detail(call)["sequence"]}
    early = found.trace.find("cases.used_before_it_was_complete/aten.mul.Tensor#0")
    assert [use] == [{key: it[key] for key in use} for it in found.trace.detail(early)["used_pending"]]
    module = found.trace.find("inner")
    assert [use] == [{key: it[key] for key in use} for it in found.trace.detail(module)["used_pending"]]
    noted = [call for call in range(len(found.trace)) if "used_pending" in found.trace.detail(call)]
    assert sorted([early, module]) == noted
    alone = opened("modules", "float32", 1)
    assert [alone.trace.find("inner")] == [call for call in range(len(alone.trace)) if "used_pending" in alone.trace.detail(call)]


def test_a_collective_that_raises(opened: Any, folder: Path) -> None:
    found = opened("modules", "float32", 0)
    (call,) = found.of("raises")
    assert CallStatus.RAISED == found.trace.status(call)
    detail = found.trace.detail(call)
    assert (False, True) == (detail["finished"], "invalid tensor size" in detail["raised"])
    assert ([X[0]], "the c10d.all_gather that writes it failed") == (
        found.arrays(call, Role.INPUT),
        found.trace.reason(found.trace.edges(call)["out[0]"]),
    )


def test_another_thread_is_outside(opened: Any) -> None:
    found = opened("modules", "float32", 0)
    call = found.sites["(outside)/c10d.all_reduce#0"]
    assert ([X[0]], [SUM]) == (found.arrays(call, Role.INPUT), found.arrays(call, Role.OUTPUT))


def test_what_was_not_complete_at_the_end_says_so(folder: Path, recorded: Any) -> None:
    found = Collectives(recorded, folder / "unfinished-0.h5")
    (call,) = found.calls
    assert (CallStatus.UNFINISHED, False) == (found.trace.status(call), found.trace.detail(call)["finished"])
    module = found.trace.find("")
    for position in ("in[0]", "out"):
        reason = found.trace.reason(found.trace.edges(module)[position])
        assert "under way: c10d.recv 0 of group 0 had not been waited for" == reason
    assert [False] == [use["completed"] for use in found.trace.detail(module)["used_pending"]]


def test_what_nobody_waited_for_is_read_once_it_is_complete(folder: Path, recorded: Any) -> None:
    found = Collectives(recorded, folder / "polled-1.h5")
    call = found.calls[0]
    assert (True, False) == (found.trace.detail(call)["finished"], found.trace.detail(call)["waited"])
    assert [SUM] == found.arrays(call, Role.OUTPUT)
    assert [True] == [use["completed"] for use in found.trace.detail(found.trace.find(""))["used_pending"]]


def test_a_trace_with_collectives_is_identical_to_itself(folder: Path) -> None:
    same = folder / "modules-float32-0.h5"
    assert "IDENTICAL" == layerdiff.compare_traces(same, same).verdict.name
    same = folder / "operators-bfloat16-1.h5"
    assert not layerdiff.compare_traces(same, same).defect


def test_a_step_that_is_left_out_is_counted(folder: Path, recorded: Any) -> None:
    found = Collectives(recorded, folder / "steps-0.h5")
    calls = found.trace.column("step")
    assert [(1, 1), (2, 2)] == [(calls[call], found.trace.detail(call)["sequence"]) for call in found.calls]


def test_inside_compiled_code(folder: Path, recorded: Any) -> None:
    found = Collectives(recorded, folder / "compiled-1.h5")
    (call,) = found.calls
    doubled = [2 * value for value in X[1]]
    assert ([doubled], [[2 * value for value in SUM]]) == (found.arrays(call, Role.INPUT), found.arrays(call, Role.OUTPUT))
    assert "all_reduce" in found.trace.detail(call)["schema"]


@pytest.mark.parametrize("name", ["_begin", "_end"])
def test_an_error_of_the_recorder_stays_its_own(folder: Path, recorded: Any, name: str) -> None:
    trace = recorded(folder / f"broken{name}-0.h5")
    assert (False, "ZeroDivisionError: division by zero") == (trace.file.complete, trace.meta["incomplete"])


# a process that is killed while it waits

WAITS = """
import os, signal, sys, time
import torch, torch.distributed as dist
from torch import nn
from layerdiff import Recorder
folder = sys.argv[1]
child = os.fork()
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0 if child else 1, world_size=2)
class Waits(nn.Module):
    def forward(self, x):
        y = x.clone()
        dist.all_reduce(y)  # the other one never does
        return y
if not child:
    with Recorder(f"{folder}/waits.h5"):
        Waits()(torch.ones(2))
ends = time.monotonic() + 20
while time.monotonic() < ends:
    try:
        if '"finished' in open(f"{folder}/waits.h5.journal").read().replace(chr(92), ""):
            break
    except FileNotFoundError:
        pass
    time.sleep(0.02)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
os._exit(0)
"""


def test_a_journal_tells_what_a_killed_process_waited_for(tmp_path: Path, recorded: Any) -> None:
    run([sys.executable, "-c", WAITS, str(tmp_path)], tmp_path)
    found = Collectives(recorded, recover(tmp_path / "waits.h5.part"))
    (call,) = found.calls
    detail = found.trace.detail(call)
    assert (CallStatus.UNFINISHED, False, [0, 1]) == (found.trace.status(call), detail["finished"], detail["group"]["ranks"])
    assert ([[1.0, 1.0]], []) == (found.arrays(call, Role.INPUT), found.arrays(call, Role.OUTPUT))


# under a launcher

SCRIPT = """
import os, signal, sys, time
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
class Summed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
    def forward(self, x):
        y = self.inner(x)
        dist.all_reduce(y)
        return y
torch.manual_seed(0)
model, rank = Summed(), dist.get_rank()
with torch.no_grad():
    for step in range(3):
        if sys.argv[1] != "lives" and rank == 1 and step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if sys.argv[1] == "dies unseen" and step == 2:  # nobody asks for the result; the recorder sees at the end that there is none
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            work = dist.all_reduce(torch.ones(4), async_op=True)
            time.sleep(2)
            sys.exit(1)
        model(torch.ones(2, 4) * (rank + 1))
dist.destroy_process_group()
"""


def launch(folder: Path, how: str, *, code: int) -> str:
    (folder / "infer.py").write_text(SCRIPT)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return run([*launcher, "-m", "layerdiff", "record", "-o", "target/", "--", "infer.py", how], folder, code=code)


def test_a_file_a_rank(tmp_path: Path) -> None:
    launch(tmp_path, "lives", code=0)
    trace = open_trace(tmp_path / "target")
    assert ([0, 1], True) == ([file.rank for file in trace.files], trace.complete)
    for file in trace.files:
        assert [CallKind.MODULE, CallKind.MODULE, CallKind.COLLECTIVE] * 3 == file.calls.kind.tolist()
        assert {"0": {"ranks": [0, 1], "backend": "gloo", "description": "default_pg"}} == file.meta["groups"]
    said = run([sys.executable, "-m", "layerdiff", "inspect", str(tmp_path / "target")], tmp_path)
    assert 2 == said.count("collectives 3 all_reduce of group 0 (gloo, 2 ranks)")


@pytest.mark.parametrize("how", ["dies", "dies unseen"])
def test_a_rank_that_dies_leaves_the_other_whole(how: str, tmp_path: Path) -> None:
    launch(tmp_path, how, code=1)
    assert ["rank00000.h5", "rank00001.h5.journal", "rank00001.h5.part"] == sorted(path.name for path in (tmp_path / "target").iterdir())
    (file,) = open_trace(tmp_path / "target").files
    assert file.complete
    calls = [call for call, kind in enumerate(file.calls.kind.tolist()) if kind == CallKind.COLLECTIVE]
    details = [file.json(int(file.calls.detail[call])) for call in calls]
    assert [True, True, False] == [detail["finished"] for detail in details]  # type: ignore[index, call-overload]
    assert [CallStatus.RETURNED, CallStatus.RETURNED, CallStatus.RAISED] == [CallStatus(int(file.calls.status[call])) for call in calls]
    said = run([sys.executable, "-m", "layerdiff", "inspect", str(tmp_path / "target")], tmp_path, code=None)
    assert "no trace of rank 1" in said
