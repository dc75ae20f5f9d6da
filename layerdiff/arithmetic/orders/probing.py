"""`find_tree`: the summation tree of a callable, by masked probing.

The idea is FPRev's (Xie, Gao, Wang and Xue, USENIX ATC 2025): all terms are one small unit, term i is +M and term j is -M, and M is
so large that every unit added to a partial sum that holds it is lost. What comes out counts the units that did not meet M; the rest
lie under the lowest common ancestor of i and j. Those sizes, from one term to all others, cut the terms into the subtrees that hang
on its path to the root, and each is probed again by itself; a node of more than two children (a fused addition) shows as a size
that is larger than what it holds.

Units lie only on the terms in question and on one term outside them, never on more than an accumulator counts exactly (`Scale.most`):
so a bfloat16 result, which counts to 256, serves for thousands of terms. Which term is looked from changes when it divides badly:
a chain is found in about as many probes as it has terms, from whichever end it is added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.orders.probing_scale import TOLERANCE, ProbeError, Scale, Sums, counted, scale_for
from layerdiff.arithmetic.orders.tree import Tree, TreeError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MOST_PROBES: Final = 2_000_000
_CHECKS: Final = 64
_BATCH_ELEMENTS: Final = 1 << 22


@dataclass
class _Task:
    """A set of terms whose tree is to be found: all of a subtree, or several children of one fused node."""

    members: Ints
    outside: int
    """A term that shares the node above with them; -1 for all terms."""
    pivot: int
    groups: list[tuple[int, int]]
    """Ascending: the size found under a common ancestor, and the task (or -1 - term) of the terms that gave it."""
    opens: bool = False
    """Whether the uppermost node found is the node above: the members are several of its children."""


class _Prober:
    """Probes in batches, counted."""

    def __init__(self, sums: Sums, terms: int, scale: Scale, rows: int, most_probes: int) -> None:
        self.sums, self.terms, self.scale = sums, terms, scale
        self.rows = max(1, min(rows, _BATCH_ELEMENTS // max(terms, 1)))
        self.most_probes = most_probes
        self.probes = 0

    def under(self, pairs: Ints, units: Sequence[Ints]) -> Ints:
        """How many units lie under the common ancestor of each pair; pairs of shape (p, 2), the units' terms for each pair.

        The two of a pair count as units of their own where they are among them.
        """
        found = np.zeros(len(pairs), np.int64)
        plan: list[tuple[int, Ints]] = []
        for at, held in enumerate(units):
            plan += [(at, held[begin : begin + self.scale.most]) for begin in range(0, len(held), self.scale.most)]
        self.probes += len(plan)
        if self.probes > self.most_probes:
            raise ProbeError(
                f"More than {self.most_probes:,} probes would be needed for this tree of {self.terms:,} terms. Probe fewer terms."
            )
        for begin in range(0, len(plan), self.rows):
            part = plan[begin : begin + self.rows]
            values = np.zeros((len(part), self.terms))
            for row, (at, held) in enumerate(part):
                values[row, held] = self.scale.unit
                values[row, pairs[at, 0]], values[row, pairs[at, 1]] = self.scale.mask, -self.scale.mask
            got = np.asarray(self.sums(values), np.float64) * (self.scale.factor / self.scale.unit)
            for row, (at, held) in enumerate(part):
                found[at] += len(held) - self._whole(float(got[row]), len(held), pairs[at])
        return found

    def _whole(self, got: float, held: int, pair: Ints) -> int:
        whole = round(got) if np.isfinite(got) else -1
        if not 0 <= whole <= held or abs(got - whole) > TOLERANCE:
            raise ProbeError(
                f"With the mask on terms {pair[0]} and {pair[1]} the sum is {got:.6g} units, and no count of {held}: "
                f"the callable does more "
                "than add its terms, it compensates for rounding, or it adds some of them twice."
            )
        return whole


def find_tree(sums: Sums, terms: int, scale: Scale, *, rows: int = 1, most_probes: int = MOST_PROBES) -> Tree:
    """The tree in which `sums` adds `terms` terms.

    Args:
        sums: adds up the rows of a matrix, at most `rows` of them at once, each in the same order.
        terms: how many, at least 1.
        scale: see `scale_for`, and `counted`, which is called here.
        rows: how many probes one call may hold.
        most_probes: where to give up.

    Raises:
        ProbeError: the order changes from call to call, nothing is lost beside M (the accumulator is exact, or wider than the range
            of the dtype), or the counts belong to no tree.
    """
    if terms < 1:
        raise ProbeError("A sum without terms has no order.")
    if terms == 1:
        return Tree(1, ())
    scale = counted(sums, terms, scale)
    prober = _Prober(sums, terms, scale, rows, most_probes)
    try:
        tree = _assembled(_solved(prober), terms)
    except _NoTree as reason:
        raise _explained(prober, str(reason)) from None
    _check(prober, tree)
    return tree


class _NoTree(Exception):
    """Counts that belong to no tree."""


def _solved(prober: _Prober) -> list[_Task]:
    """All tasks, each after the one that it came from; every level of them is probed in one go."""
    tasks = [_Task(np.arange(prober.terms), -1, 0, [])]
    level = [0]
    while level:
        pairs: list[tuple[int, int]] = []
        units: list[Ints] = []
        spans: list[tuple[int, Ints]] = []
        for number in level:
            task = tasks[number]
            others = task.members[task.members != task.pivot]
            held = task.members if task.outside < 0 else np.append(task.members, task.outside)
            spans.append((len(pairs), others))
            pairs += [(task.pivot, int(other)) for other in others]
            units += [held] * len(others)
        sizes = prober.under(np.asarray(pairs, np.int64).reshape(-1, 2), units)
        following: list[int] = []
        for number, (begin, others) in zip(level, spans, strict=True):
            following += _divided(tasks, number, others, sizes[begin : begin + len(others)])
        level = following
    return tasks


def _divided(tasks: list[_Task], number: int, others: Ints, sizes: Ints) -> list[int]:
    """Cut a task's terms by the sizes found; returns the new tasks."""
    task = tasks[number]
    count, reach = len(task.members), 1
    made: list[int] = []
    order = np.argsort(sizes, kind="stable")
    cuts = np.flatnonzero(np.diff(sizes[order])) + 1
    for group in np.split(order, cuts):
        size, members = int(sizes[group[0]]), others[group]
        reach += len(members)
        if reach == count and task.outside >= 0 and size == count + 1:
            task.opens = True
        elif size != reach:
            raise _NoTree(f"{size} terms under the common ancestor of terms {task.pivot} and {members[0]}, where {reach} were found")
        if len(members) == 1:
            task.groups.append((size, -1 - int(members[0])))
            continue
        badly = 2 * len(members) > count
        was_first = task.pivot == task.members[0]
        pivot = int(members[0])
        if badly:
            pivot = int(members[-1]) if was_first else int(members[len(members) // 2])
        tasks.append(_Task(members, task.pivot, pivot, []))
        task.groups.append((size, len(tasks) - 1))
        made.append(len(tasks) - 1)
    return made


def _assembled(tasks: list[_Task], terms: int) -> Tree:
    """The tree from all tasks; those that came from another are built before it."""
    nodes: list[tuple[int, ...]] = []
    built: list[tuple[int, ...]] = [()] * len(tasks)
    """Of each task: its node, or the children that it adds to the node above."""
    for number in reversed(range(len(tasks))):
        task = tasks[number]
        current: tuple[int, ...] = (task.pivot,)
        for i, (_, what) in enumerate(task.groups):
            current = (*current, *(built[what] if what >= 0 else (-1 - what,)))
            if not (task.opens and i == len(task.groups) - 1):
                nodes.append(current)
                current = (terms + len(nodes) - 1,)
        built[number] = current
    return Tree(terms, tuple(nodes)).canonical


def tree_of_sizes(sizes: Ints) -> Tree:
    """The tree from the sizes under the common ancestors of all pairs of terms, shape (terms, terms), symmetric; for few terms.

    Raises ProbeError where they belong to no tree.
    """
    terms = len(sizes)
    nodes: list[tuple[int, ...]] = []
    held = [np.asarray([i]) for i in range(terms)]
    top = list(range(terms))
    """Of each term: the largest node found that holds it."""
    for size in np.unique(sizes[~np.eye(terms, dtype=bool)]).tolist():
        for i in range(terms):
            inside = np.flatnonzero(sizes[i] == size)
            tops = sorted({top[i], *(top[int(j)] for j in inside)})
            if len(tops) == 1:
                continue
            members = np.sort(np.concatenate([held[one] for one in tops]))
            if len(members) != size:
                raise ProbeError(
                    f"The probes belong to no tree: {size} terms under a common ancestor of term {i}, where {len(members)} were found."
                )
            nodes.append(tuple(tops))
            held.append(members)
            for member in members.tolist():
                top[member] = terms + len(nodes) - 1
    try:
        tree = Tree(terms, tuple(nodes)).canonical
    except TreeError as error:
        raise ProbeError(f"The probes belong to no tree: {error}") from None
    pairs = np.argwhere(~np.eye(terms, dtype=bool))
    if np.any(sizes_under(tree, pairs) != sizes[pairs[:, 0], pairs[:, 1]]):
        raise ProbeError("The probes belong to no tree: the sizes under common ancestors contradict each other.")
    return tree


def _sizes_under(tree: Tree, pairs: Ints) -> Iterator[int]:
    """The size of the subtree under the common ancestor of each pair."""
    total = tree.leaves + len(tree.nodes)
    above = np.full(total, -1, np.int64)
    for i, children in enumerate(tree.nodes):
        above[list(children)] = tree.leaves + i
    for a, b in pairs.tolist():
        while a != b:
            if a < b:
                a = int(above[a])
            else:
                b = int(above[b])
        yield tree.sizes[a]


def sizes_under(tree: Tree, pairs: Ints) -> Ints:
    """How many terms lie under the lowest common ancestor of each pair of terms; pairs of shape (p, 2), sizes of shape (p,)."""
    return np.fromiter(_sizes_under(tree, pairs), np.int64, len(pairs))


def random_pairs(terms: int, count: int, seed: int) -> Ints:
    """`count` pairs of two different terms, shape (count, 2): half of them near each other."""
    random = np.random.default_rng(seed)
    first = random.integers(0, terms, count)
    far = random.integers(1, terms, count)
    near = random.integers(1, min(terms, 17), count)
    return np.stack([first, (first + np.where(np.arange(count) % 2, far, near)) % terms], axis=1)


def _measured(prober: _Prober, pairs: Ints) -> Ints:
    everything = np.arange(prober.terms)
    return prober.under(pairs, [everything] * len(pairs))


def _check(prober: _Prober, tree: Tree) -> None:
    """Hold the tree against pairs that were not chosen by it, and each of them against a second call."""
    pairs = random_pairs(prober.terms, _CHECKS, 0)
    found, again = _measured(prober, pairs), _measured(prober, pairs)
    _require_steady(pairs, found, again)
    wrong = np.flatnonzero(found != sizes_under(tree, pairs))
    if wrong.size:
        at = int(wrong[0])
        raise ProbeError(
            f"The probes belong to no one tree: {found[at]} terms lie under the common ancestor of terms {pairs[at, 0]} "
            f"and {pairs[at, 1]}, "
            f"by the tree found {next(_sizes_under(tree, pairs[at : at + 1]))}. The rows that were probed at once may "
            f"be added differently: "
            "probe one at a time (rows=1)."
        )
    if len(tree.nodes) == 1 and tree.leaves > 64:
        raise ProbeError(
            f"All {tree.leaves} terms are added at once, as far as a probe can see: the accumulator is wider than the range of the dtype."
        )


def _require_steady(pairs: Ints, found: Ints, again: Ints) -> None:
    changed = np.flatnonzero(found != again)
    if changed.size:
        at = int(changed[0])
        raise ProbeError(
            f"There is no fixed tree: with the mask on terms {pairs[at, 0]} and {pairs[at, 1]}, {found[at]} terms were "
            f"lost in one call and "
            f"{again[at]} in the next. The order changes from call to call (atomic additions, or a race); ask the backend for its "
            "deterministic kernels and probe those."
        )


def _explained(prober: _Prober, reason: str) -> ProbeError:
    """Why there is no tree: told by probing a few pairs twice."""
    pairs = random_pairs(prober.terms, _CHECKS, 0)
    try:
        found, again = _measured(prober, pairs), _measured(prober, pairs)
        _require_steady(pairs, found, again)
    except ProbeError as error:
        return error
    if np.all(found == 2):
        return ProbeError(
            f"Nothing is lost beside {prober.scale.mask:g}: the accumulator is exact, or wider than the range of the "
            f"dtype lets a probe see "
            "(float64 or more behind a narrow dtype). Its order cannot be seen, and hardly matters."
        )
    return ProbeError(
        f"The probes belong to no tree ({reason}): the callable compensates for rounding, keeps more digits than a probe can lose, or the "
        "rows that were probed at once are added differently. Probe one at a time (rows=1), or in a dtype of wider range."
    )


__all__ = ["MOST_PROBES", "ProbeError", "Scale", "Sums", "find_tree", "random_pairs", "scale_for", "sizes_under", "tree_of_sizes"]
