"""`probe_all_reduce`: in which order a running process group adds what its ranks put in, for every element.

Every rank calls it with the same arguments. The number of collectives depends on the number of ranks alone and never on what came
out, so that no rank waits for one that saw another result. The terms are the ranks; a ring adds each chunk from another rank on,
which shows as several trees, each of a range of elements.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from layerdiff.arithmetic.orders.outline import describe
from layerdiff.arithmetic.orders.probe import FoundTree, Probe
from layerdiff.arithmetic.orders.probing import ProbeError, Scale, scale_for, tree_of_sizes
from layerdiff.replay.probing import device_name, device_of, dtype_of
from layerdiff.replay.sizes import first_line

_MOST_RANKS = 64
_MOST_TREES = 64


def probe_all_reduce(shape: Sequence[int], dtype: str = "float32", *, device: str = "cpu") -> Probe:
    """The trees in which `all_reduce` (a sum) adds the ranks of the default group, the tree of most elements first.

    Args:
        shape, dtype: of the tensor that is reduced.
        device: where it lies; each rank's own, such as `cuda:3`.

    Raises ProbeError on every rank alike: no group runs, too many ranks, or no fixed tree.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise ProbeError(
            "No process group runs. Start the ranks with torchrun: torchrun --nproc-per-node 4 -m layerdiff probe all_reduce --shape ..."
        )
    ranks, rank = dist.get_world_size(), dist.get_rank()
    if not 1 < ranks <= _MOST_RANKS:
        raise ProbeError(f"A group of {ranks} ranks cannot be probed: between 2 and {_MOST_RANKS} ranks.")
    scale = scale_for(dtype)
    if scale.most < ranks:
        raise ProbeError(f"{dtype} counts to {scale.most} only, and the group has {ranks} ranks.")
    tensor = torch.empty(tuple(shape), dtype=dtype_of(dtype), device=device_of(device))
    if tensor.numel() == 0:
        raise ProbeError("An operand without elements has no sum.")
    started = time.perf_counter()
    pairs = list(combinations(range(ranks), 2))
    found = np.stack([_reduced(tensor, rank, pair, scale) for pair in pairs])
    again = np.stack([_reduced(tensor, rank, pair, scale) for pair in pairs])
    seconds = time.perf_counter() - started
    if not np.array_equal(found, again, equal_nan=True):
        raise ProbeError(
            f"There is no fixed tree: {int((found != again).any(axis=0).sum())} of {tensor.numel()} elements changed "
            f"when the same numbers were "
            "reduced once more."
        )
    trees, ranges = _trees(found, pairs, ranks, tuple(shape))
    notes = [f"the terms are the {ranks} ranks of a group of {dist.get_backend()}"]
    if len(trees) > 1:
        notes.append("elements are added in several orders, as in a ring, which begins each chunk at another rank")
        notes += ranges[: _MOST_TREES - len(notes)]
    return Probe(
        operator="all_reduce",
        shapes=(tuple(shape),),
        dtypes=(dtype,),
        result_dtype=dtype,
        shape=tuple(shape),
        trees=trees[:_MOST_TREES],
        outputs_elsewhere=sum(one.outputs for one in trees[_MOST_TREES:]),
        products="unknown",
        device=str(tensor.device),
        device_name=device_name(tensor.device),
        torch=str(torch.__version__),
        threads=torch.get_num_threads(),
        calls=2 * len(pairs),
        probes=2 * len(pairs),
        seconds=round(seconds, 3),
        notes=tuple(notes),
    )


def _reduced(tensor: torch.Tensor, rank: int, pair: tuple[int, int], scale: Scale) -> NDArray[np.float64]:
    """One all_reduce, in units: shape (elements,)."""
    value = scale.mask if rank == pair[0] else -scale.mask if rank == pair[1] else scale.unit
    with torch.no_grad():
        tensor.fill_(value)
        dist.all_reduce(tensor)
        return tensor.reshape(-1).cpu().to(torch.float64).numpy() / scale.unit


def _trees(
    found: NDArray[np.float64], pairs: list[tuple[int, int]], ranks: int, shape: tuple[int, ...]
) -> tuple[tuple[FoundTree, ...], list[str]]:
    """The trees, and for each which elements (of the flat tensor) it has, as a sentence."""
    kinds, first, inverse = np.unique(found.T, axis=0, return_index=True, return_inverse=True)
    counts = np.bincount(inverse.reshape(-1))
    inverse = inverse.reshape(-1)
    trees, ranges = [], []
    for kind in np.lexsort((first, -counts)).tolist():
        lost = ranks - kinds[kind]
        if not np.all(np.isfinite(lost)) or np.any(lost != np.rint(lost)):
            raise ProbeError("The reduction does more than add: with a mask on two ranks its result is no count of the others.")
        sizes = np.ones((ranks, ranks), np.int64)
        for (i, j), size in zip(pairs, lost.astype(np.int64).tolist(), strict=True):
            sizes[i, j] = sizes[j, i] = size
        element = tuple(int(i) for i in np.unravel_index(int(first[kind]), shape)) if shape else ()
        trees.append(FoundTree(tree_of_sizes(sizes), element, int(counts[kind])))
        mine = np.flatnonzero(inverse == kind)
        runs = np.split(mine, np.flatnonzero(np.diff(mine) > 1) + 1)
        texts = [f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs[:4]]
        more = ", and more" if len(runs) > 4 else ""
        ranges.append(f"elements {', '.join(texts)}{more}: {describe(trees[-1].tree)}"[:400])
    return tuple(trees), ranges


@contextmanager
def group_of_environment(device: str) -> Iterator[tuple[int, str]]:
    """The group that torchrun's variables describe, running; this process's rank, and its device (`cuda` becomes `cuda:LOCAL_RANK`).

    Raises ProbeError where they are not set, or the group does not come up.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise ProbeError("all_reduce needs its ranks running: torchrun --nproc-per-node 4 -m layerdiff probe all_reduce --shape ...")
    if device != "cpu" and ":" not in device:
        device = f"{device}:{os.environ.get('LOCAL_RANK', '0')}"
    try:
        if device != "cpu":
            getattr(torch, device.partition(":")[0]).set_device(device_of(device))
        dist.init_process_group("gloo" if device == "cpu" else None)
    except ProbeError:
        raise
    except Exception as error:
        raise ProbeError(f"The process group does not start: {first_line(error)}.") from None
    try:
        yield dist.get_rank(), device
    finally:
        dist.destroy_process_group()
