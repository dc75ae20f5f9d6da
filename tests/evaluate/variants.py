"""Emulated attention, norms and softmax: whether the way each was computed is named, or stands in the class that is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from layerdiff.arithmetic.formats import BFLOAT16, FLOAT16, FLOAT32, Format, round_to
from layerdiff.arithmetic.orders.variants import Variants, variants_of
from layerdiff.trace.arguments import Arguments
from tests.arithmetic.attention_kernels import Case, eager, online, split, whole
from tests.arithmetic.norm_kernels import layer_norm, rms_norm, softmax

ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu.default"
_WHOLE = 1 << 20


class Truth(NamedTuple):
    """A way and the name that it must be given: the hypothesis, and a part of its arithmetic."""

    name: str
    arithmetic: str
    make: Callable[[Any], Any]


def attention_truths() -> Iterator[Truth]:
    """The ways of attention kernels for results of 16 bits."""
    rounded = "probabilities rounded"
    yield Truth("softmax of whole rows, divided before it is rounded", rounded, lambda c: whole(c, weights=c.format))
    yield Truth("softmax of whole rows, divided at the end", rounded, lambda c: whole(c, weights=c.format, before=False))
    yield Truth("probabilities kept in fp32, in any tiles", "", lambda c: whole(c, weights=None))
    yield Truth(
        "softmax without subtracting the maximum, divided at the end",
        rounded,
        lambda c: whole(c, weights=c.format, before=False, shift=False),
    )
    for tile in (16, 32, 64, 128, 256):
        name = f"online softmax, tiles of {tile} keys"
        yield Truth(name, rounded, lambda c, tile=tile: online(c, tile, weights=c.format))
        yield Truth(f"{name}, the last first", rounded, lambda c, tile=tile: online(c, tile, weights=c.format, backwards=True))
    for parts in (2, 4, 8):
        yield Truth(f"{parts} ranges of keys, merged", rounded, lambda c, parts=parts: split(c, parts, _WHOLE, weights=c.format))
    yield Truth("2 ranges of keys in tiles of 64, merged", rounded, lambda c: split(c, 2, 64, weights=c.format))
    for tile in (32, 64):
        name = f"online softmax, tiles of {tile} keys"
        yield Truth(name, "running output", lambda c, tile=tile: online(c, tile, weights=c.format, output=c.format))
    steps = "after the product and the scale"
    yield Truth("softmax in fp32 rounded", steps, lambda c: eager(c, softmax=c.format))
    yield Truth("softmax kept in fp32", steps, lambda c: eager(c, softmax=None))


def outcome(found: Variants, name: str, arithmetic: str) -> str:
    """`named`, `in a class of 3`, `missed` (another is named), `none` (nothing is); `not tried` where the way is none for this call."""
    won = [one for one in found.hypotheses if one.won and not one.name.startswith("variance in")]
    for one in found.hypotheses:
        plain = one.name == name and arithmetic in one.arithmetic and "fast" not in one.arithmetic
        if plain or any(also == name or (also.startswith(f"{name}, ") and arithmetic in also) for also in one.also):
            if one.won:
                return "named" if len(won) == 1 else f"in a class of {len(won)}"
            return "missed" if won else "none"
    return "not tried"


def judged(case: Case, made: np.ndarray) -> Variants:
    """What is said of an emulated attention."""
    arguments = Arguments((case.query, case.key, case.value, 0.0, case.causal), {})
    found = variants_of(ATTENTION, arguments, [made], [case.format.name])
    assert found is not None
    return found


_SIZES = (
    (128, 64, True),
    (300, 32, False),
    (16, 32, False),
    (32, 64, True),
    (64, 64, False),
    (300, 128, False),
    (512, 64, True),
    (512, 32, False),
)
_KINDS = ("gauss", "peaked", "positive", "flat")


def attention(seeds: int, quick: bool) -> Iterator[tuple[str, str, Variants]]:
    """(way, outcome, evidence) over formats, sizes and data; every exponential is off by up to two units."""
    for format in (BFLOAT16, FLOAT16):
        for length, width, causal in _SIZES[: 2 if quick else None]:
            for kind in _KINDS[: 2 if quick else None]:
                for seed in range(seeds):
                    case = Case(format, length, width, causal=causal, kind=kind, seed=seed)
                    for truth in attention_truths():
                        found = judged(case, truth.make(case))
                        yield f"{truth.name} {truth.arithmetic}", outcome(found, truth.name, truth.arithmetic), found


def _operands(format: Format, rows: int, terms: int, mean: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x = round_to(random.standard_normal((rows, terms)) * np.exp(random.standard_normal((rows, 1))) + mean, format)
    return x, round_to(1.0 + 0.2 * random.standard_normal(terms), format), round_to(random.standard_normal(terms), format)


def norms(seeds: int, quick: bool) -> Iterator[tuple[str, str, Variants]]:
    """(way, outcome, evidence) of layer norm, RMS norm and softmax."""
    for format in (BFLOAT16, FLOAT16, FLOAT32):
        short = {BFLOAT16: "bf16", FLOAT16: "fp16"}.get(format, "")
        plain = "statistics and products in fp32, rounded once" if short else "fp32 throughout"
        for terms in (64, 1000) if quick else (64, 1000, 4096):
            for seed in range(seeds):
                for mean in (0.0, 3.0):
                    x, weight, bias = _operands(format, 96, terms, mean, seed)
                    for how in ("two", "welford", "one"):
                        yield plain, *_layer(x, weight, bias, format, plain, how=how)
                    if short:
                        name = f"normalised value rounded to {short} before the weight"
                        yield name, *_layer(x, weight, bias, format, name, cast=True)
                        kept = f"mean and scale rounded to {short}"
                        yield kept, *_layer(x, weight, bias, format, kept, kept=True)
                x, weight, _ = _operands(format, 96, terms, 0.0, seed)
                yield f"rms: {plain}", *_rms(x, weight, format, plain)
                if short:
                    name = f"normalised value rounded to {short} before the weight"
                    yield f"rms: {name}", *_rms(x, weight, format, name, cast=True)
                    name = f"sums one after another in {short}"
                    yield f"rms: {name}", *_rms(x, weight, format, name, narrow_sum=True)
                yield from _softmaxes(format, short, terms, seed)


def _layer(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, format: Format, name: str, **how: Any) -> tuple[str, Variants]:
    y, _, _ = layer_norm(x, weight, bias, 1e-5, format, **how)
    found = variants_of("aten.layer_norm.default", Arguments((x, [x.shape[1]], weight, bias, 1e-5), {}), [y], [format.name])
    assert found is not None
    return outcome(found, name, ""), found


def _rms(x: np.ndarray, weight: np.ndarray, format: Format, name: str, **how: Any) -> tuple[str, Variants]:
    y, _ = rms_norm(x, weight, 1e-6, format, **how)
    found = variants_of("aten.rms_norm.default", Arguments((x, [x.shape[1]], weight, 1e-6), {}), [y], [format.name])
    assert found is not None
    return outcome(found, name, ""), found


def _softmaxes(format: Format, short: str, terms: int, seed: int) -> Iterator[tuple[str, str, Variants]]:
    x = round_to(np.random.default_rng(seed).standard_normal((96, terms)) * 3.0, format)
    first = "fp32, rounded once, the maximum subtracted" if short else "fp32 throughout, the maximum subtracted"
    for log in (False, True):
        operator = "aten._log_softmax.default" if log else "aten._softmax.default"
        narrow = f"logarithm of the sum rounded to {short}" if log else f"denominator rounded to {short}"
        for name, total in ((first, None), *(((narrow, format),) if short else ())):
            found = variants_of(operator, Arguments((x, -1, False), {}), [softmax(x, format, total=total, log=log)], [format.name])
            assert found is not None
            yield f"{'log-softmax' if log else 'softmax'}: {name}", outcome(found, name, ""), found


def sums_of_variance(seeds: int) -> Iterator[tuple[str, float, str]]:
    """(how, mean over deviation, what is said) for layer norms: two passes, Welford's, one pass."""
    for format in (FLOAT32, BFLOAT16, FLOAT16):
        for mean in (0.0, 10.0, 30.0, 100.0, 300.0, 1000.0):
            for seed in range(seeds):
                random = np.random.default_rng(seed)
                x = round_to(random.standard_normal((64, 1024)) + mean, format)
                if float(x.std()) < 0.5 or float(x.std()) > 2.0:
                    continue  # 16 bits hold no such mean with this deviation
                for how in ("two", "welford", "one"):
                    _, found = _layer(x, np.ones(1024), np.zeros(1024), format, "", how=how)
                    said = [one.name for one in found.hypotheses if one.name.startswith("variance") and one.won]
                    open_ = "not told apart" if "not told" in found.statement else "neither"
                    yield f"{format.name} {how}", mean, said[0] if said else open_


def epsilons(seeds: int) -> Iterator[tuple[str, float, float, bool]]:
    """(case, declared, fitted, inside) where the kernel used the declared epsilon, and where it used another."""
    for format in (FLOAT32, BFLOAT16):
        for size in (0.01, 0.05, 1.0):
            for used in (1e-5, 1.1e-5, 1e-6):
                for seed in range(seeds):
                    random = np.random.default_rng(seed)
                    x = round_to(random.standard_normal((256, 512)) * size, format)
                    y, _ = rms_norm(x, np.ones(512), used, format)
                    found = variants_of("aten.rms_norm.default", Arguments((x, [512], np.ones(512), 1e-5), {}), [y], [format.name])
                    assert found is not None
                    fitted = found.fits[0]
                    yield f"{format.name} rms {size:g} used {used:g}", fitted.declared, fitted.value, fitted.inside


def variants(seeds: int, *, quick: bool = False) -> list[str]:
    """Print the tables; `quick`: fewer sizes and kinds of data. Returns what went wrong."""
    wrong: list[str] = []
    begun = time.perf_counter()
    for title, trials in (("attention", attention), ("norms and softmax", norms)):
        table: dict[str, list[int]] = {}
        worst: dict[str, float] = {}
        for way, said, found in trials(seeds, quick):
            if said == "not tried":
                continue
            counts = table.setdefault(way, [0, 0, 0])
            counts[0] += 1
            counts[1] += said == "named"
            counts[2] += said.startswith("in a class")
            worst[way] = max(worst.get(way, 0.0), found.zrms[0])
            if said in ("none", "missed"):
                wrong.append(f"{title}: {way}: {said}: {found.statement}")
        print(f"\n| {title} | trials | named | in the class | worst zrms |\n| --- | ---: | ---: | ---: | ---: |")
        for way, (count, named, classed) in table.items():
            print(f"| {way} | {count} | {named} | {classed} | {worst[way]:.2g} |")
    print("\n| variance summed | mean / deviation | said |\n| --- | ---: | --- |")
    seen: dict[tuple[str, float], set[str]] = {}
    for way, mean, verdict in sums_of_variance(seeds):
        seen.setdefault((way, mean), set()).add(verdict)
        other = "one pass" if "one" not in way.split() else "two passes"
        if other in verdict:
            wrong.append(f"variance: {way}, mean {mean}: {verdict}")
    for (way, mean), verdicts in seen.items():
        print(f"| {way} | {mean:g} | {'; '.join(sorted(verdicts))} |")
    print("\n| epsilon | declared inside | fitted, the last |\n| --- | ---: | ---: |")
    fits: dict[str, list[tuple[float, bool]]] = {}
    for way, declared, value, inside in epsilons(seeds):
        fits.setdefault(way, []).append((value, inside))
        if not inside and way.endswith(f"used {declared:g}"):
            wrong.append(f"epsilon: {way}: fitted {value}")
    for way, found_fits in fits.items():
        print(f"| {way} | {sum(inside for _, inside in found_fits)} of {len(found_fits)} | {found_fits[-1][0]:.6g} |")
    print(f"\n{time.perf_counter() - begun:.0f} s\n", flush=True)
    return wrong
