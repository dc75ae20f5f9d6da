"""Every way to issue a collective, as modules of one model; run as a script, it records the model on two processes.

    python -m tests.record.collective_cases FOLDER

Rank r holds x = [1, 2, 3, 4] + 10 r. Each case takes x and returns tensors. One group of two processes runs everything:
the model plain, then recorded in each way, and the results are compared bit by bit.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from layerdiff import Recorder
from layerdiff.record.collectives import Collectives

CASES: dict[str, Callable[[Tensor, Any], Any]] = {}


def case(run: Callable[[Tensor, Any], Any]) -> Callable[[Tensor, Any], Any]:
    CASES[run.__name__] = run
    return run


@case
def all_reduce(x: Tensor, run: Any) -> Any:
    y = x.clone()
    dist.all_reduce(y)
    return y


@case
def all_reduce_async(x: Tensor, run: Any) -> Any:
    y = x.clone()
    work = dist.all_reduce(y, op=dist.ReduceOp.MAX, async_op=True)
    work.wait()
    y.add_(1)  # at once: what came out of the collective must have been recorded by then
    return y


@case
def all_reduce_coalesced(x: Tensor, run: Any) -> Any:
    a, b = x.clone(), x[:2].clone()
    with dist._coalescing_manager(run.world):
        dist.all_reduce(a)
        dist.all_reduce(b)
    return a, b


@case
def all_reduce_of_a_part(x: Tensor, run: Any) -> Any:
    y = x.clone()
    dist.all_reduce(y[1:3])
    return y


@case
def named_group(x: Tensor, run: Any) -> Any:
    y = x.clone()
    dist.all_reduce(y, group=run.other)
    return y


@case
def broadcast(x: Tensor, run: Any) -> Any:
    y = x.clone()
    dist.broadcast(y, 1)
    return y


@case
def reduce(x: Tensor, run: Any) -> Any:
    y = x.clone()
    dist.reduce(y, 1)
    return y if run.rank == 1 else x


@case
def gather(x: Tensor, run: Any) -> Any:
    parts = [torch.zeros_like(x) for _ in range(2)] if run.rank == 0 else None
    dist.gather(x, parts, 0)
    return parts or x


@case
def scatter(x: Tensor, run: Any) -> Any:
    y = torch.zeros_like(x)
    dist.scatter(y, [x, x + 100] if run.rank == 0 else None, 0)
    return y


@case
def all_gather(x: Tensor, run: Any) -> Any:
    parts = [torch.zeros_like(x) for _ in range(2)]
    dist.all_gather(parts, x)
    return parts


@case
def all_gather_into_tensor(x: Tensor, run: Any) -> Any:
    y = x.new_zeros(8)
    dist.all_gather_into_tensor(y, x, async_op=True).wait()
    return y


@case
def reduce_scatter(x: Tensor, run: Any) -> Any:
    y = torch.zeros_like(x)
    dist.reduce_scatter(y, [x, x + 100])
    return y


@case
def reduce_scatter_tensor(x: Tensor, run: Any) -> Any:
    y = x.new_zeros(2)
    dist.reduce_scatter_tensor(y, x)
    return y


@case
def all_to_all_single(x: Tensor, run: Any) -> Any:
    y = x.new_zeros(4)
    dist.all_to_all_single(y, x)
    return y


@case
def all_to_all_uneven(x: Tensor, run: Any) -> Any:
    """Rank 0 keeps 1 and gives 3; rank 1 gives 2 and keeps 2."""
    given, got = ([1, 3], [1, 2]) if run.rank == 0 else ([2, 2], [3, 2])
    y = x.new_zeros(sum(got))
    dist.all_to_all_single(y, x, got, given)
    return y


@case
def send_and_recv(x: Tensor, run: Any) -> Any:
    y = x.clone()
    if run.rank == 0:
        dist.send(y, 1, tag=3)
    else:
        dist.recv(y, 0, tag=3)
    return y


@case
def recv_from_anybody(x: Tensor, run: Any) -> Any:
    y = x.clone()
    if run.rank == 1:
        dist.send(y, 0)
    else:
        dist.recv(y)
    return y


@case
def isend_and_irecv(x: Tensor, run: Any) -> Any:
    y = torch.zeros_like(x)
    works = [dist.isend(x, 1 - run.rank), dist.irecv(y, 1 - run.rank)]
    for work in works:
        assert work is not None
        work.wait()
    return y


@case
def batch_isend_irecv(x: Tensor, run: Any) -> Any:
    y = torch.zeros_like(x)
    ops = [dist.P2POp(dist.isend, x, 1 - run.rank), dist.P2POp(dist.irecv, y, 1 - run.rank)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return y


@case
def barrier(x: Tensor, run: Any) -> Any:
    dist.barrier()
    return x


@case
def functional_all_reduce(x: Tensor, run: Any) -> Any:
    return functional.all_reduce(x, "sum", run.world) + 1


@case
def functional_results_passed_on(x: Tensor, run: Any) -> Any:
    """Returned before anybody waited."""
    return functional.all_reduce(x, "sum", run.world)


@case
def functional_all_gather(x: Tensor, run: Any) -> Any:
    return functional.all_gather_tensor(x, 0, run.world) + 1


@case
def functional_reduce_scatter(x: Tensor, run: Any) -> Any:
    return functional.reduce_scatter_tensor(x, "sum", 0, run.world) + 1


@case
def functional_all_to_all(x: Tensor, run: Any) -> Any:
    return functional.all_to_all_single(x, None, None, run.world) + 1


@case
def functional_broadcast(x: Tensor, run: Any) -> Any:
    return functional.broadcast(x, 1, run.world) + 1


@case
def functional_coalesced(x: Tensor, run: Any) -> Any:
    a, b = functional.all_reduce_coalesced([x, x[:2].clone()], "sum", run.world)
    return a + 0, b + 0


@case
def functional_in_place(x: Tensor, run: Any) -> Any:
    """As a compiler issues it."""
    y = x.clone()
    torch.ops._c10d_functional.all_reduce_(y, "sum", run.world.group_name)
    torch.ops._c10d_functional.wait_tensor(y)
    y.add_(1)
    return y


@case
def dtensor_partial_to_replicate(x: Tensor, run: Any) -> Any:
    return DTensor.from_local(x, run.mesh, [Partial()]).redistribute(run.mesh, [Replicate()]).to_local()


@case
def dtensor_partial_to_shard(x: Tensor, run: Any) -> Any:
    return DTensor.from_local(x, run.mesh, [Partial()]).redistribute(run.mesh, [Shard(0)]).to_local()


@case
def dtensor_shard_to_replicate(x: Tensor, run: Any) -> Any:
    return DTensor.from_local(x, run.mesh, [Shard(0)]).redistribute(run.mesh, [Replicate()])


@case
def object_collectives(x: Tensor, run: Any) -> Any:
    things: list[Any] = [None, None]
    dist.all_gather_object(things, {"rank": run.rank})
    return x


@case
def used_before_it_was_complete(x: Tensor, run: Any) -> Any:
    y = x.clone()
    work = dist.all_reduce(y, async_op=True)
    early = y * 0
    run.inner(y)
    work.wait()
    return y + early


@case
def raises(x: Tensor, run: Any) -> Any:
    try:
        dist.all_reduce(x.to(torch.complex64), op=dist.ReduceOp.BAND)
    except ValueError as error:
        assert "complex" in str(error)
    try:
        dist.all_gather_into_tensor(x.new_zeros(5), x)
    except Exception as error:  # what torch raises, whichever it is, must be what it raises without a recorder
        run.raised = repr(error)
    return x


@case
def in_another_thread(x: Tensor, run: Any) -> Any:
    y = x.clone()
    thread = threading.Thread(target=lambda: dist.all_reduce(y))
    thread.start()
    thread.join()
    return y


class Case(nn.Module):
    def __init__(self, name: str, run: Any) -> None:
        super().__init__()
        self.name = name
        self.run = [run]  # no submodule, no parameter

    def forward(self, x: Tensor) -> Any:
        return CASES[self.name](x, self.run[0])


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Any:
        return self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    """All cases, and a perceptron that is split over the ranks."""

    def __init__(self, run: Any) -> None:
        super().__init__()
        self.inner = run.inner = nn.Identity()
        self.cases = nn.ModuleDict({name: Case(name, run) for name in CASES})
        torch.manual_seed(0)
        self.mlp = parallelize_module(Mlp(), run.mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

    def forward(self, x: Tensor) -> list[Any]:
        found: list[Any] = [each(x) for each in self.cases.values()]
        return [*found, self.mlp((x / 64).reshape(1, 4)) + 1]


class Run:
    """What the cases share."""

    inner: nn.Module
    raised: str | None = None

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.world = dist.group.WORLD
        self.other = dist.new_group([0, 1], group_desc="other")
        self.mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))


def tensors(thing: Any) -> list[Tensor]:
    if isinstance(thing, DTensor):
        return tensors(thing.to_local())
    if isinstance(thing, Tensor):
        return [thing.clone()]
    return [tensor for item in thing for tensor in tensors(item)]


def compare(plain: list[Tensor], again: list[Tensor], what: str) -> None:
    assert len(plain) == len(again), what
    for one, other in zip(plain, again, strict=True):
        assert one.dtype is other.dtype and torch.equal(one.view(torch.uint8), other.view(torch.uint8)), what


def compiled(x: Tensor, run: Run, folder: Path) -> None:
    """A collective inside compiled code, which stays compiled."""

    class Doubled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return functional.all_reduce(x * 2, "sum", run.world) + 1

    def backend(graph: Any, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    graphs = 0
    model = torch.compile(Doubled(), backend=backend)
    plain = model(x)
    with Recorder(folder / f"compiled-{run.rank}.h5", model):
        compare([plain], [model(x)], "compiled")
    compare([plain], [model(x)], "compiled, afterwards")
    assert 1 == graphs, graphs


def broken(x: Tensor, folder: Path, rank: int) -> None:
    """An error of the recorder's own."""
    begin, end = Collectives._begin, Collectives._end
    for name in ("_begin", "_end"):
        with Recorder(folder / f"broken{name}-{rank}.h5"):
            setattr(Collectives, name, lambda *arguments, **named: 1 / 0)
            y = x.clone()
            with contextlib.redirect_stderr(io.StringIO()):
                dist.all_reduce(y)
            assert [12, 14, 16, 18] == y.tolist()
            Collectives._begin, Collectives._end = begin, end  # type: ignore[method-assign]


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    rank, child = 0, os.fork()  # one import for both
    if not child:
        rank = 1
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    work_methods = {name: thing for name, thing in vars(dist.Work).items()}
    run = Run(rank)
    model = Model(run).eval()
    said: dict[str, Any] = {"cases": list(CASES)}
    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.tensor([1, 2, 3, 4], dtype=dtype) + 10 * rank
            model.to(dtype)
            plain, raised = tensors(model(x)), run.raised
            for mode, options in {
                "modules": {},
                "statistics": {"keep": "statistics"},
                "operators": {"operators": True},
                "prints": {"fingerprints": False},
            }.items():
                if dtype is torch.bfloat16 and mode in ("statistics", "prints"):
                    continue
                name = f"{mode}-{str(dtype)[6:]}"
                run.raised = None
                with Recorder(folder / f"{name}-{rank}.h5", model, **options) as recorder:
                    again = tensors(model(x))
                compare(plain, again, name)
                assert raised == run.raised, (raised, run.raised)
                assert recorder.calls
        left: dict[str, Any] = {}
        with Recorder(folder / f"unfinished-{rank}.h5", operators=True):
            y = x.clone()
            left["work"] = dist.irecv(y, 1 - rank, tag=77)  # nobody sends before the block ends
            model.inner(y)
        dist.send(x, 1 - rank, tag=77) if rank == 0 else left["work"].wait()
        left["work"].wait() if rank == 0 else dist.send(x, 1 - rank, tag=77)
        with Recorder(folder / f"polled-{rank}.h5"):
            y = x.clone()
            left["work"] = dist.all_reduce(y, async_op=True)
            dist.barrier()
            while not PLAIN_IS_COMPLETED(left["work"]):
                pass
            model.inner(y)  # complete, and nobody waited
        left["work"].wait()
        with Recorder(folder / f"steps-{rank}.h5", model := Case("all_reduce", run), steps="1:"):
            for _ in range(3):
                model(x)
            dist.all_reduce(x.clone())
        compiled(x, run, folder)
        broken(x, folder, rank)
    assert work_methods == dict(vars(dist.Work))
    for operator in ("c10d::allreduce_", "_c10d_functional::all_reduce", "_c10d_functional::wait_tensor"):
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(operator, "BackendSelect")
    if rank == 0:
        said["raised"] = run.raised
        (folder / "said.json").write_text(json.dumps(said))
    dist.destroy_process_group()
    if rank == 0:
        assert 0 == os.waitpid(child, 0)[1]
    sys.stdout.flush()
    os._exit(0)


PLAIN_IS_COMPLETED = dist.Work.is_completed

if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
