"""What may have made a sum: orders and arithmetics, those at the declared accumulator before those of less precision.

A hypothesis of less precision says where it is certain: where a partial sum that is rounded early lies so near the middle between
two numbers that the order inside it decides, it says nothing, and that element is not counted for or against it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from layerdiff.arithmetic.formats import BFLOAT16, FLOAT16, FLOAT32, TF32, Format, round_to, truncate_to
from layerdiff.arithmetic.orders.cascade import cascades
from layerdiff.arithmetic.orders.narrow import Partials, running_sum, sum_of_partials
from layerdiff.arithmetic.orders.order import Order, blocks, orders, sequential, split
from layerdiff.arithmetic.orders.replaying import Arithmetic, Begin, Replayed, Unit, replay
from layerdiff.arithmetic.orders.summing import Array, Taken
from layerdiff.arithmetic.orders.tree import Tree

Kind = Literal["declared", "unit", "lower"]
Added = Literal["none", "last", "after"]
SHORT: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}


@dataclass(frozen=True)
class Candidate:
    """One hypothesis.

    Attributes:
        name: the order, `split-K 4`.
        arithmetic: the rest, `fp32, fused multiply-add`.
        kind: "declared": the declared accumulator, one addition at a time; "unit": a fused unit that cuts what it aligns;
            "lower": less precision than declared.
        run: the sums of chosen results; None for what is found in stretches of the whole result (a ring).
        order: what is added to what; None where the hypothesis leaves it open.
        added: when what is added to the whole is: not here, to the finished sum, or after that is rounded to the result's dtype.
        cause: what less precision is called.
    """

    name: str
    arithmetic: str
    kind: Kind
    run: Callable[[Taken], Replayed] | None
    order: Order | Tree | None = None
    added: Added = "none"
    cause: str | None = None

    @property
    def text(self) -> str:
        """Both names."""
        return f"{self.name}, {self.arithmetic}" if self.arithmetic else self.name


@dataclass(frozen=True)
class Situation:
    """What is known of a sum before the race.

    Attributes:
        terms: K.
        accumulator: the declared one.
        format: the result's dtype.
        exact_products: whether every product of two operands is a number of the accumulator's format.
        products: whether there are products at all.
        has_start: whether something is added to the whole.
        arrangements: other sequences of the terms, by name.
    """

    terms: int
    accumulator: Format
    format: Format
    exact_products: bool
    products: bool
    has_start: bool
    arrangements: tuple[tuple[str, NDArray[np.intp]], ...] = ()


SWAPPED: Final = "the second of each pair of terms first"
"""As dot product instructions of 16-bit numbers add (VDPBF16PS; measured)."""
UNITS: Final = (Unit(4, 23), Unit(4, 24), Unit(8, 24), Unit(16, 24), Unit(16, 25), Unit(32, 25))
"""Width and fractional bits of tensor cores: Volta, Turing, Ampere and Ada, Hopper and Blackwell (MMA-Sim; not measured here)."""
NARROW_UNITS: Final = (Unit(16, 13), Unit(32, 13))
"""FP8 on Ada and Hopper: 13 fractional bits."""


def declared(known: Situation, trees: tuple[tuple[str, Tree], ...] = ()) -> Iterator[Candidate]:
    """Orders at the declared accumulator; `trees` are those of a probe, by name."""
    plain = orders(known.terms)
    tried: list[tuple[str, Order | Tree]] = [*trees, *((order.name, order) for order in plain)]
    if not known.products:
        tried += cascades(known.terms)
    arrangements = known.arrangements
    if known.products and known.exact_products and known.terms % 2 == 0:
        arrangements = (*arrangements, (SWAPPED, np.arange(known.terms, dtype=np.intp).reshape(-1, 2)[:, ::-1].reshape(-1)))
    for named, sequence in arrangements:
        tried += [(f"{order.name}, {named}", order.rearranged(sequence)) for order in plain]
    for said, arithmetic, added in _arithmetics(known):
        for name, order in tried:
            yield _of(name, said, "declared", order, arithmetic, added)


def units(known: Situation) -> Iterator[Candidate]:
    """Fused units with a wide sum, in one chain, in blocks that are added in fp32, and split."""
    if known.accumulator is not FLOAT32 or not known.exact_products or not known.products:
        return
    yield from _units(known, UNITS, "unit", None)


def lower(known: Situation) -> Iterator[Candidate]:
    """Less precision than declared: cut operands, narrow units, rounded partial sums, narrow running sums."""
    if known.accumulator not in (FLOAT32,):
        return
    last = _last(known)
    narrow = narrow_formats(known)
    if known.products and known.exact_products:
        yield from _units(known, NARROW_UNITS, "lower", "narrow-accumulator")
    for format in narrow:
        short = SHORT[format.name]
        for parts in (2, 3, 4, 6, 8, 16, 32, 64):
            if 2 * parts > known.terms:
                continue
            for across in ("wide", "chain", "reversed", "pairs", "halves"):
                how = Partials(parts, format, across)
                yield Candidate(how.name, "", "lower", _partials(how, known), added=last, cause=f"{short}-partials")
        for size in (1, 4, 8, 16, 32, 64, 128, 256):
            if size >= known.terms:
                continue
            for through in (None, FLOAT32):
                for products in (False, True) if size == 1 and known.products else (False,):
                    name = f"a running sum in {short}" + (f", {size} terms at a time" if size > 1 else "")
                    said = ", ".join(
                        text for text in ("products rounded" if products else "", "through fp32" if through is not None else "") if text
                    )
                    run = _running(size, format, through, products, known)
                    yield Candidate(name, said, "lower", run, added=last, cause=f"{short}-accumulator")
    if known.products and not known.exact_products:
        for said, cut in (("operands cut to tf32", _once(_cut_tf32)), ("operands rounded to tf32", _once(_round_tf32))):
            arithmetic = Arithmetic(known.accumulator, operands=cut)
            for order in orders(known.terms):
                yield _of(order.name, said, "lower", order, arithmetic, last, "tf32")
            for unit in UNITS[:3]:
                arithmetic = Arithmetic(known.accumulator, operands=cut, unit=unit)
                yield _of(f"units of {unit.width}, {unit.bits} bits", said, "lower", sequential(known.terms), arithmetic, last, "tf32")


def narrow_formats(known: Situation) -> list[Format]:
    """The formats of 16 bits that partial sums may have been rounded to: the result's own where it has one."""
    return [known.format] if known.format in (BFLOAT16, FLOAT16) else [BFLOAT16, FLOAT16]


def _last(known: Situation) -> Added:
    return "last" if known.has_start else "none"


def _arithmetics(known: Situation) -> Iterator[tuple[str, Arithmetic, Added]]:
    short = SHORT.get(known.accumulator.name, known.accumulator.name)
    starts: tuple[tuple[str, Begin, Added], ...] = (("", "none", "none"),)
    if known.has_start:
        every: tuple[tuple[str, Begin, Added], ...] = (
            (", what is added comes last", "none", "last"),
            (", what is added comes first", "inside", "none"),
            (", what is added comes before the first part", "outside", "none"),
            (", what is added comes after the result is rounded", "none", "after"),
        )
        starts = every[:3] if known.format is known.accumulator else every
    fused: tuple[tuple[str, bool], ...] = ((f"{short}, fused multiply-add", True), (f"{short}, products rounded", False))
    if known.exact_products or not known.products:
        fused = ((short, True),)
    for said, how in fused:
        for more, begin, added in starts:
            yield f"{said}{more}", Arithmetic(known.accumulator, fused=how, begin=begin), added


def _of(name: str, said: str, kind: Kind, order: Order | Tree, arithmetic: Arithmetic, added: Added, cause: str | None = None) -> Candidate:
    def run(taken: Taken) -> Replayed:
        values = replay(order, arithmetic, taken)
        return Replayed(values, np.ones(values.shape, bool))

    return Candidate(name, said, kind, run, order, added, cause)


def _units(known: Situation, tried: tuple[Unit, ...], kind: Kind, cause: str | None) -> Iterator[Candidate]:
    for unit in tried:
        plans: list[Order] = [sequential(known.terms)]
        plans += [split(known.terms, parts) for parts in (2, 4, 8) if parts * unit.width < known.terms]
        plans += [blocks(known.terms, size) for size in (64, 128, 256) if unit.width < size < known.terms]
        seen: set[int] = set()
        for order in plans:
            if order.key in seen:
                continue
            seen.add(order.key)
            said = f"fused units of {unit.width} products, {unit.bits} fractional bits"
            yield _of(order.name, said, kind, order, Arithmetic(known.accumulator, unit=unit), _last(known), cause)


def _partials(how: Partials, known: Situation) -> Callable[[Taken], Replayed]:
    return lambda taken: sum_of_partials(how, known.accumulator, taken)


def _running(size: int, format: Format, through: Format | None, products: bool, known: Situation) -> Callable[[Taken], Replayed]:
    return lambda taken: running_sum(size, format, through, taken, known.accumulator, products_rounded=products)


def _once(rounding: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A rounding that remembers the last two operands: all orders of a family are tried on the same."""
    known: list[tuple[Array, Array]] = []

    def remembered(x: Array) -> Array:
        for given, made in known:
            if given is x:
                return made
        known[:] = [*known[-1:], (x, rounding(x))]
        return known[-1][1]

    return remembered


def _cut_tf32(x: Array) -> Array:
    return truncate_to(x, TF32)


def _round_tf32(x: Array) -> Array:
    return round_to(x, TF32)
