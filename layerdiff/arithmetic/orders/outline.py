"""`outline`: a summation tree as a person would say it, with repeats folded; and `describe`, one phrase for it.

A tree of thousands of nodes is a few words: chains, blocks, lanes, pairs. Nothing is guessed: an outline holds the whole tree, and
what follows no pattern is said node by node.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Final

from layerdiff.arithmetic.orders.parts import How, Part, Run, stride, unfolded
from layerdiff.arithmetic.orders.tree import Tree, pairs

_PARTS_SAID: Final = 3
_LONGEST_PHRASE: Final = 110
_IRREGULAR: Final = "in no regular order"


@lru_cache(maxsize=4)
def outline(tree: Tree) -> Part:
    """The tree, folded. The last ones are remembered: a large tree takes seconds, and a screen draws it at every width."""
    return _Folder(tree.canonical).folded


class _Folder:
    """Cuts a tree into chains, sees which of them are pairs of many, and folds bottom up.

    Parts that are equal but for where they lie get one number (`Part.shape`).
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._shapes: dict[object, int] = {}
        self._parts: dict[int, Part] = {}
        self._heights = [0] * tree.leaves
        for children in tree.nodes:
            self._heights.append(1 + max(self._heights[child] for child in children))
        self._chains: dict[int, list[tuple[int, ...]]] = {}
        """By node: what is added in order. One number an item, several where they come in together."""
        self._sides: dict[int, tuple[int, int]] = {}
        """By node: the two sides of sums that may be part of a sum in pairs."""
        self._cut()
        self._pairs: dict[int, tuple[How, list[int]]] = {}
        hidden = self._find_pairs()
        for number in sorted(self._chains):
            if number not in hidden:
                self._parts[number] = self._folded(number)
        self.folded = self._of(tree.leaves + len(tree.nodes) - 1)

    def _of(self, number: int) -> Part:
        return self._parts[number] if number >= self._tree.leaves else Part(How.TERM, 1, number)

    def _spine(self, number: int) -> tuple[list[tuple[int, tuple[int, ...]]], int]:
        """The chain that ends in a node: its additions, the first one first, with what each takes in, and the number where it begins."""
        tree = self._tree
        added: list[tuple[int, tuple[int, ...]]] = []
        while number >= tree.leaves:
            children = tree.nodes[number - tree.leaves]
            running = max(children, key=lambda child: (tree.sizes[child], -tree.first[child]))
            if len(children) > 2 and tree.sizes[running] == 1:
                break
            added.append((number, tuple(child for child in children if child != running)))
            number = running
        return added[::-1], number

    def _cut(self) -> None:
        """Chains, from the whole sum down. One that goes on with larger items than before is a chain of chains."""
        tree = self._tree
        waiting = [tree.leaves + len(tree.nodes) - 1]
        while waiting:
            number = waiting.pop()
            if number < tree.leaves or number in self._chains:
                continue
            added, bottom = self._spine(number)
            if not added:
                self._chains[number] = [(child,) for child in tree.nodes[number - tree.leaves]]
                waiting += tree.nodes[number - tree.leaves]
                continue
            waiting += [child for _, children in added for child in children]
            waiting.append(bottom)
            chain: list[tuple[int, ...]] = [(bottom,)]
            steps, largest = [bottom], 0
            for node, children in added:
                terms = sum(tree.sizes[child] for child in children)
                if len(chain) > 1 and terms > largest:
                    self._keep(chain, steps)
                    chain, steps = [(steps[-1],)], [steps[-1]]
                largest = max(largest, terms)
                chain.append(children)
                steps.append(node)
            self._keep(chain, steps)

    def _keep(self, chain: list[tuple[int, ...]], steps: list[int]) -> None:
        self._chains[steps[-1]] = chain
        if len(chain) <= 3 and all(len(item) == 1 for item in chain):  # three where an odd one comes in later
            for before, node, item in zip(steps, steps[1:], chain[1:], strict=False):
                self._sides[node] = before, item[0]

    def _find_pairs(self) -> set[int]:
        """Sums in pairs: as large as can be, then those of what was found. Returns the nodes inside them, which need no part."""
        hidden: set[int] = set()
        for number in sorted(self._sides, reverse=True):
            if number in self._chains and number not in hidden:
                hidden |= self._recognised(number, set())
        for number in sorted(self._sides):
            if number in self._chains and number not in hidden and number not in self._pairs:
                hidden |= self._recognised(number, set(self._pairs))
        return hidden

    def _recognised(self, number: int, known: set[int]) -> set[int]:
        for how in (How.PAIRS, How.HALVES):
            items, inside = self._below(number, how, known)
            if len(items) >= 4 and self._is_paired(items, inside, how):
                self._pairs[number] = how, items
                return set(inside) - {number}
        return set()

    def _below(self, number: int, how: How, known: set[int]) -> tuple[list[int], list[int]]:
        """What a sum of two adds when sums of two inside it are opened (of `known` pairs only those of this kind), and the nodes opened."""
        items: list[int] = []
        inside: list[int] = []
        waiting = [number]
        while waiting:
            one = waiting.pop()
            if one in self._sides and (one not in known or self._pairs[one][0] is how):
                inside.append(one)
                waiting += self._sides[one]
            else:
                items.append(one)
        return sorted(items, key=self._tree.first.__getitem__), sorted(inside)

    def _is_paired(self, items: list[int], inside: list[int], how: How) -> bool:
        place = {one: i for i, one in enumerate([*items, *inside])}
        mine = Tree(len(items), tuple((place[a], place[b]) for a, b in (self._sides[one] for one in inside)))
        nodes: list[tuple[int, ...]] = []
        pairs(range(len(items)), nodes, len(items), apart=how is How.HALVES)
        return mine.canonical == Tree(len(items), tuple(nodes)).canonical

    def _folded(self, number: int) -> Part:
        if number in self._pairs:
            how, paired = self._pairs[number]
            return self._made(how, [self._of(item) for item in paired], number)
        chain = self._chains[number]
        children = self._tree.nodes[number - self._tree.leaves]
        if len(children) == len(chain) > 2 and all(len(item) == 1 for item in chain):
            how = How.FUSED
            return self._made(how, [self._of(child) for (child,) in chain], number)
        items = [self._of(item[0]) if len(item) == 1 else self._made(How.JOINED, [self._of(one) for one in item], -1) for item in chain]
        first, second = items[:2]
        if second.how is How.JOINED and first.how is How.FUSED:
            first = self._made(How.JOINED, unfolded(first), -1)
        made = self._made(How.CHAIN, [first, second, *items[2:]], number)
        if first.shape == second.shape:  # which of them comes first is nobody's to know: the one that the others go on from
            other = self._made(How.CHAIN, [second, first, *items[2:]], number)
            return min(made, other, key=_disorder)
        return made

    def _made(self, how: How, items: list[Part], number: int) -> Part:
        runs = _again(_runs(items))
        first = min(item.first for item in items)
        key = (how, tuple((run.part.shape, run.count, run.step, run.times, run.shift, run.part.first - first) for run in runs))
        height = self._heights[number] if number >= 0 else max(item.height for item in items)
        return Part(how, sum(item.terms for item in items), first, tuple(runs), height, self._shapes.setdefault(key, len(self._shapes) + 1))


def _disorder(part: Part) -> tuple[int, int]:
    """How far items are from one run: many runs, and short ones."""
    return len(part.runs), -max(run.count * run.times for run in part.runs)


def _runs(items: list[Part]) -> list[Run]:
    """Neighbours of one shape at one distance, together."""
    runs: list[Run] = []
    previous = items[0]
    for item in items:
        last = runs[-1] if runs else None
        step = item.first - previous.first
        if last is None or last.part.shape != item.shape:
            runs.append(Run(item, 1, 0))
        elif last.count == 1 or last.step == step:
            runs[-1] = Run(last.part, last.count + 1, step)
        elif last.count == 2 and abs(step) < abs(last.step):
            runs[-1:] = [Run(last.part, 1, 0), Run(previous, 2, step)]
        else:
            runs.append(Run(item, 1, 0))
        previous = item
    return runs


def _again(runs: list[Run]) -> list[Run]:
    """Runs of one shape, length and distance that follow each other at one distance, together."""
    found: list[Run] = []
    previous = runs[0]
    for run in runs:
        last = found[-1] if found else None
        shift = run.part.first - previous.part.first
        if (
            last is not None
            and run.count > 1
            and (last.part.shape, last.count, last.step) == (run.part.shape, run.count, run.step)
            and (last.times == 1 or last.shift == shift)
        ):
            found[-1] = Run(last.part, last.count, last.step, last.times + 1, shift)
        else:
            found.append(run)
        previous = run
    return found


def ordinal(number: int) -> str:
    """`2nd`, `8th`."""
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def describe(tree: Tree) -> str:
    """One phrase for a tree: `5 chains of 192 and one of 64, added in order`."""
    return said(outline(tree))


def said(part: Part) -> str:
    """One phrase for a part. One that follows no pattern is only measured."""
    if part.how is How.TERM:
        return "one term"
    if all(run.part.how is How.TERM for run in part.runs):
        return _plain(part)
    text = _listed(part)
    if text is None or len(text) > _LONGEST_PHRASE:
        return f"{part.terms} terms {_IRREGULAR}, at most {part.height} additions each"
    return f"{text}, {_ADDED[part.how]}"


_ADDED: Final = {
    How.CHAIN: "added in order",
    How.PAIRS: "added in pairs of neighbours",
    How.HALVES: "added in pairs of halves",
    How.FUSED: "added at once",
    How.JOINED: "added at once",
}
_PLAIN: Final = {
    How.CHAIN: "one chain of {}",
    How.PAIRS: "{} terms added in pairs of neighbours",
    How.HALVES: "{} terms added in pairs of halves",
    How.FUSED: "{} terms added at once",
    How.JOINED: "{} terms added at once",
}


def _plain(part: Part) -> str:
    """A part of single terms."""
    text = _PLAIN[part.how].format(part.terms)
    run, others = part.runs[0], part.runs[1:]
    if not others and run.times == 1:
        return text + _stepping(run)
    if part.how is not How.CHAIN:
        return text
    ring = _ring([item.first for item in unfolded(part)])
    if ring:
        return f"{text}, {ring}"
    if not others:
        return f"{text}, {_turns(run)}"
    if len(others) == 1 and run.count == 1:
        return f"{text}, term {run.part.first} first" + (f", then {_turns(others[0])}" if others[0].times > 1 else _stepping(others[0]))
    if len(others) == 1 and others[0].count == 1:
        return f"{text}, term {others[0].part.first} last" + (f", before it {_turns(run)}" if run.times > 1 else _stepping(run))
    return f"{text}, its terms {_IRREGULAR}"


def _ring(terms: list[int]) -> str:
    """A chain that goes around all terms from one of them; empty for another. The first two may be either way round."""
    count = len(terms)
    if sorted(terms) != list(range(count)) or count < 3:
        return ""
    for order in (terms, [terms[1], terms[0], *terms[2:]]):
        steps = {(after - before) % count for before, after in pairwise(order)}
        if steps == {1} and order[0] == count - 1:
            return ""  # as a bias is added: the last term before all others
        if steps in ({1}, {count - 1}):
            return f"around from term {order[0]} {'up' if steps == {1} else 'down'}"
    return ""


def _stepping(run: Run) -> str:
    if run.step == 1 or run.count < 3:
        return ""
    if run.step == -1:
        return ", last term first"
    return f", every {ordinal(abs(run.step))} term" + (", last first" if run.step < 0 else "")


def _turns(run: Run) -> str:
    """How a run of single terms that comes several times goes."""
    if (run.count, run.step, run.shift) == (2, -1, 2):
        return f"each two of {run.times * 2} the other way round"
    each = "" if abs(run.step) == 1 else f" {ordinal(abs(run.step))}"
    return f"{run.times} times {run.count} terms" + (f", every{each}" if each else "")


def _listed(part: Part) -> str | None:
    """What a part adds: `5 chains of 192 and one of 64`; None where that would be a long list."""
    counted: list[tuple[str, str, int]] = []
    for run in part.runs:
        if run.count == 1 and run.part.terms > 1 and _IRREGULAR in said(run.part):
            return None
        kind, size = _named(run.part) if run.part.how is not How.TERM or run.count > 1 else (f"term {run.part.first}", "")
        if counted and counted[-1][:2] == (kind, size):
            counted[-1] = kind, size, counted[-1][2] + run.count * run.times
        else:
            counted.append((kind, size, run.count * run.times))
    if len(counted) > _PARTS_SAID:
        return None
    texts: list[str] = []
    for i, (kind, size, count) in enumerate(counted):
        if i and size and kind == counted[0][0]:
            texts.append(f"{'one' if count == 1 else count}{size}")
        elif count == 1:
            texts.append(f"one {kind}{size}" if size else kind)
        else:
            texts.append(f"{count} {kind}s{size}")
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _named(part: Part) -> tuple[str, str]:
    """The name of a part among others, and its size: `chain`, ` of 192`."""
    size = f" of {part.terms}"
    if part.how is How.TERM:
        return "term", ""
    if all(run.part.how is How.TERM for run in part.runs):
        if part.how is How.CHAIN:
            return ("chain" if part.terms == 2 or stride(part) in (None, 1) else "lane"), size
        return ("fused addition" if part.how in (How.FUSED, How.JOINED) else "pairwise sum"), size
    inner = said(part)
    return "sum", size if _IRREGULAR in inner else f"{size} ({inner})"
