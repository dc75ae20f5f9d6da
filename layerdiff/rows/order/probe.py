"""A probe as lines: what was probed, where, and its trees drawn; two of them side by side, and where they part."""

from __future__ import annotations

from itertools import zip_longest
from typing import Final

from layerdiff.arithmetic.orders.outline import describe
from layerdiff.arithmetic.orders.parting import Parting, partings
from layerdiff.arithmetic.orders.probe import FoundTree, Probe
from layerdiff.rows.cells import cell_width, visible, wrap
from layerdiff.rows.figures import amount, count, exact
from layerdiff.rows.order.summation_tree import tree_lines
from layerdiff.rows.tones import Line, Segment, Tone, line

_PRODUCTS: Final = {
    "fused": "products are added in one rounding (FMA)",
    "rounded": "products are rounded before they are added",
    "exact": "products are added whole: two such numbers multiply without rounding",
    "mixed": "products are rounded before they are added at some places, and not at others",
    "truncated": "operands lose digits before they are multiplied (TF32, or a narrower dtype)",
}
_PARTINGS_SHOWN: Final = 4


def probe_lines(probe: Probe, width: int = 80) -> list[Line]:
    """All that a probe says."""
    lines = [line((title(probe), Tone.TITLE)), *_facts(probe, width)]
    for i, found in enumerate(probe.trees):
        lines.append(line())
        if i or len(probe.trees) > 1 or probe.outputs_elsewhere:
            lines.append(line((_which(found, probe), Tone.ACCENT)))
        lines += tree_lines(found.tree, width) if i == 0 else _briefly(found, width)
    for note in probe.notes:
        lines += [line((text, Tone.DIM)) for text in wrap(visible(note), width, lines=4)]
    return [one.clipped(width) for one in lines]


def _briefly(found: FoundTree, width: int) -> list[Line]:
    return tree_lines(found.tree, width, most=8)


def title(probe: Probe) -> str:
    """`mm [64, 1024] [1024, 64] float32`."""
    shapes = " ".join(str(list(shape)) for shape in probe.shapes)
    dtypes = " and ".join(dict.fromkeys(probe.dtypes))
    result = "" if probe.result_dtype in probe.dtypes else f", result {probe.result_dtype}"
    return visible(f"{probe.operator} {shapes} {dtypes}{result}")


def _facts(probe: Probe, width: int) -> list[Line]:
    where = visible(f"{probe.device_name} ({probe.device}), torch {probe.torch}, {amount(probe.threads, 'thread')}")
    total = sum(found.outputs for found in probe.trees) + probe.outputs_elsewhere
    orders = len(probe.trees)
    if probe.outputs_elsewhere:
        alike = f"{count(probe.outputs_elsewhere)} of {count(total)} outputs are added in orders that are not shown"
    elif orders > 1:
        alike = f"{count(total)} outputs are added in {orders} different orders"
    else:
        alike = "the only output" if total == 1 else f"all {count(total)} outputs are added in the same order"
    effort = f"{amount(probe.calls, 'call')}, {amount(probe.probes, 'probe')}, {exact(probe.seconds)} s"
    said = [where, alike, *([_PRODUCTS[probe.products]] if probe.products in _PRODUCTS else []), effort]
    return [line((text, Tone.DIM)) for one in said for text in wrap(one, width, lines=2)]


def _which(found: FoundTree, probe: Probe) -> str:
    total = sum(one.outputs for one in probe.trees) + probe.outputs_elsewhere
    return f"{count(found.outputs)} of {count(total)} outputs, such as {list(found.element)}"


def side_by_side(reference: Probe, target: Probe, width: int = 80) -> list[Line]:
    """Two probes, the tree of most outputs of each, and where these part."""
    half = (width - 3) // 2
    left, right = _column(reference, half, Tone.REFERENCE), _column(target, half, Tone.TARGET)
    lines = [_joined(a, b, half) for a, b in zip_longest(left, right, fillvalue=line())]
    lines.append(line())
    if reference.tree.leaves != target.tree.leaves:
        lines.append(
            line((f"Sums of {count(reference.tree.leaves)} and of {count(target.tree.leaves)} terms: no order in common.", Tone.NOTICE))
        )
        return lines
    apart = partings(reference.tree, target.tree)
    if apart.same:
        lines.append(line(("= the same order", Tone.SAME)))
        return lines
    lines.append(
        line(("≠ another order", Tone.NOTICE), (f": {_shared(apart.shared, apart.reference_sums, apart.target_sums)}", Tone.PLAIN))
    )
    for one in apart.found[:_PARTINGS_SHOWN]:
        lines += _parting(one, width)
    hidden = len(apart.found) - _PARTINGS_SHOWN
    if hidden > 0:
        lines.append(
            line(
                (
                    f"… {hidden}{' or more' if len(apart.found) >= 16 else ''} further sums of the same terms are cut in different ways",
                    Tone.DIM,
                )
            )
        )
    return [one.clipped(width) for one in lines]


def _column(probe: Probe, width: int, tone: Tone) -> list[Line]:
    head = [line((text, tone)) for text in wrap(title(probe), width, lines=3)]
    where = visible(f"{probe.device_name} ({probe.device}), torch {probe.torch}, {amount(probe.threads, 'thread')}")
    head += [line((text, Tone.DIM)) for text in wrap(where, width, lines=2)]
    return [*head, line(), *tree_lines(probe.tree, width, most=24)]


def _joined(left: Line, right: Line, half: int) -> Line:
    left = left.clipped(half)
    return Line((*left.segments, Segment(" " * (half - left.width)), Segment(" │ ", Tone.FAINT), *right.clipped(half).segments))


def _shared(shared: int, reference: int, target: int) -> str:
    return f"{count(shared)} partial sums in common, of {count(reference)} and {count(target)}"


def _parting(one: Parting, width: int) -> list[Line]:
    first, last = one.terms[0], one.terms[-1]
    terms = f"{first}–{last}" if last - first + 1 == len(one.terms) else f"{count(len(one.terms))} of {first}–{last}"
    lines = [line(("they part at the sum of ", Tone.DIM), f"terms {terms}")]
    for tree, word, tone in ((one.reference, "first ", Tone.REFERENCE), (one.target, "second", Tone.TARGET)):
        texts = wrap(describe(tree), max(width - 9, 8), lines=2)
        for i, text in enumerate(texts):
            lines.append(line((f"  {word if not i else ' ' * cell_width(word)} ", tone), text))
    return lines
