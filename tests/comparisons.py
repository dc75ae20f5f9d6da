"""Synthetic comparisons: a Llama-like tree of any size with chosen faults, for tests of rows, text and terminal.

Built as columns, so that a million sites take about a second. Every number is a plain function of the
layer, so that tests can say what they expect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from layerdiff.diagnose.findings import Notice, Origin
from layerdiff.judge.tables import BY_THRESHOLDS, PAIRS, SITES, Source, Texts, Verdict
from layerdiff.saved.comparison import AlignmentSummary, Comparison, Side, Unpaired
from layerdiff.sides import Both
from layerdiff.trace.schema import CallKind, Role

LAYER: tuple[tuple[str, str, int], ...] = (
    # name inside the layer, type, index of the parent in this list (-1: the layer itself)
    ("input_layernorm", "LlamaRMSNorm", -1),
    ("self_attn", "LlamaAttention", -1),
    ("self_attn.q_proj", "Linear", 1),
    ("self_attn.k_proj", "Linear", 1),
    ("self_attn.v_proj", "Linear", 1),
    ("self_attn.o_proj", "Linear", 1),
    ("post_attention_layernorm", "LlamaRMSNorm", -1),
    ("mlp", "LlamaMLP", -1),
    ("mlp.gate_proj", "Linear", 7),
    ("mlp.act_fn", "SiLU", 7),
    ("mlp.up_proj", "Linear", 7),
    ("mlp.down_proj", "Linear", 7),
)
ALLOWED = 1.2e-2


@dataclass(frozen=True)
class Progress:
    """As compare.Progress."""

    comparison: Comparison
    done: int
    total: int


def _outline(layers: int) -> tuple[list[str], list[str], list[int], list[int]]:
    """Sites of one step: names, types, parents, layer (-1 outside the layers)."""
    names, types, parents, layer = ["", "model", "model.embed_tokens", "model.rotary_emb"], [], [-1, 0, 1, 1], [-1] * 4
    types = ["LlamaForCausalLM", "LlamaModel", "Embedding", "LlamaRotaryEmbedding"]
    for i in range(layers):
        base = len(names)
        names.append(f"model.layers.{i}")
        types.append("LlamaDecoderLayer")
        parents.append(1)
        for name, kind, above in LAYER:
            names.append(f"model.layers.{i}.{name}")
            types.append(kind)
            parents.append(base if above < 0 else base + 1 + above)
        layer += [i] * (1 + len(LAYER))
    names += ["model.norm", "lm_head"]
    types += ["LlamaRMSNorm", "Linear"]
    parents += [1, 0]
    layer += [layers, layers]
    return names, types, parents, layer


def layer(number: int) -> list[str]:
    """The sites of one layer."""
    return [f"model.layers.{number}", *(f"model.layers.{number}.{name}" for name, _, _ in LAYER)]


def sites_per_step(layers: int) -> int:
    """How many sites one forward has."""
    return 6 + layers * (1 + len(LAYER))


def comparison(
    *,
    layers: int = 32,
    steps: int = 1,
    faults: Mapping[str, Verdict] | None = None,
    notices: Sequence[Notice] = (),
    pending: bool = False,
    identical_layers: int = 3,
    reference_only: Sequence[str] = (),
    target_only: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    remarks: Sequence[str] = (),
    profile: str = "strict",
) -> Comparison:
    """A Llama of `layers` layers whose `faults` (site -> verdict, in step 0) differ.

    The first `identical_layers` layers are identical; the others are order-consistent at
    3e-4 * 1.1^layer, and inherited at 2.6e-2 after the first fault. Sites named in `reference_only`
    and `target_only` stay in the table, not comparable. `rename` replaces the text of sites.
    """
    faults = dict(faults or {})
    names, types, parents, layer_of = _outline(layers)
    per_step = len(names)
    n = per_step * steps
    texts = Texts()
    site_ids = np.array([texts.intern((rename or {}).get(name, name)) for name in names])
    type_ids = np.array([texts.intern(kind) for kind in types])
    tile = lambda values: np.tile(np.asarray(values), steps)  # noqa: E731  # a word for one expression
    start = np.repeat(np.arange(steps) * per_step, per_step)
    parent = tile(parents)
    layer = tile(layer_of)

    sites = {name: np.full(n, -1, dtype) if dtype.kind == "i" else np.zeros(n, dtype) for name, dtype in SITES.items()}
    sites |= {name: np.full(n, np.nan) for name in ("exact_measured", "exact_allowed", "local_sigma")}
    sites["exact"] = np.full(n, BY_THRESHOLDS, np.uint8)
    sites["site"][:] = tile(site_ids)
    sites["kind"][:] = CallKind.MODULE
    sites["type"][:] = tile(type_ids)
    sites["step"][:] = np.repeat(np.arange(steps), per_step)
    sites["occurrence"][:] = 0
    sites["parent"][:] = np.where(parent >= 0, parent + start, -1)
    sites["reference_file"][:] = sites["target_file"][:] = 0
    sites["reference_call"][:] = sites["target_call"][:] = np.arange(n)
    sites["pair"][:] = np.arange(n)
    sites["rule"][:] = texts.intern("output rel L2, bfloat16")

    where = {name: i for i, name in enumerate(names)}
    fault_rows = sorted(where[site] for site in faults)
    first = fault_rows[0] if fault_rows else n
    row = np.arange(n)
    difference = np.minimum(3e-4 * 1.1 ** np.clip(layer, 0, 30), 8e-3) * (1 + 0.3 * np.sin(row * 1.7))
    verdict = np.full(n, Verdict.ORDER_CONSISTENT, np.uint8)
    same = (layer < identical_layers) & (tile(parents) >= 1)
    verdict[same], difference[same] = Verdict.IDENTICAL, 0.0
    after = row > first
    verdict[after] = Verdict.INHERITED
    difference[after] = 2.6e-2 * (1 + 0.2 * np.sin(row[after] * 0.9))
    enclosing = first
    while fault_rows and enclosing >= 0:
        if enclosing != first:
            verdict[enclosing], difference[enclosing] = Verdict.INHERITED, 2.4e-2
        enclosing = int(parent[enclosing])

    origins = []
    for r in fault_rows:
        name, what = names[r], faults[names[r]]
        verdict[r] = what
        statement = {
            Verdict.BROKEN: "2048 of 65536 elements are nan where the reference is finite, first at [0, 3, 0]",
            Verdict.PRECISION: "explained by tf32: inputs rounded to 10 bits of mantissa",
            Verdict.DEFECT: "epsilon 1e-6, reference 1e-5 (fit within 1%)",
        }.get(what, "inputs agree and outputs do not: 4.1 times what bfloat16 explains")
        difference[r] = 4.92e-2
        sites["statement"][r] = texts.intern(statement)
        origins.append(
            Origin(row=r, site=(rename or {}).get(name, name), verdict=what, value="out", statement=statement,
                   measured=None if what is Verdict.BROKEN else 4.92e-2, allowed=None if what is Verdict.BROKEN else ALLOWED,
                   rule="nan where the reference is finite" if what is Verdict.BROKEN else "output rel L2, bfloat16",
                   defect=what in (Verdict.BROKEN, Verdict.DEFECT, Verdict.UNEXPLAINED), evidence={"input rel L2": 3.1e-4, "gain": 158.7})
        )  # fmt: skip
    sites["measured"][:] = difference
    sites["allowed"][:] = ALLOWED

    pairs = {name: np.full(n, -1, dtype) if dtype.kind == "i" else np.zeros(n, dtype) for name, dtype in PAIRS.items()}
    pairs["site"][:] = row
    pairs["role"][:] = Role.OUTPUT
    pairs["position"][:] = texts.intern("out")
    pairs["reference_value"][:] = pairs["target_value"][:] = row
    pairs["reference_dtype"][:] = texts.intern("float32")
    pairs["target_dtype"][:] = texts.intern("bfloat16")
    pairs["reference_shape"][:] = pairs["target_shape"][:] = texts.intern("[1, 128, 512]")
    pairs["source"][:] = Source.BYTES
    pairs["equal"][:] = difference == 0
    pairs["count"][:] = 65536
    pairs["rel_l2"][:] = difference
    pairs["max_abs"][:] = difference * 3.7
    for name in ("rms_reference", "max_reference", "rms_difference", "statistic"):
        pairs[name][:] = np.nan
    pairs["rms_reference"][:], pairs["max_reference"][:] = 0.98, 4.31
    pairs["rms_difference"][:] = difference * 0.98
    pairs["nonfinite_reference"][:] = pairs["nonfinite_target"][:] = pairs["nonfinite_differ"][:] = 0
    pairs["worst"][:] = np.where(difference > 0, (row * 7919) % 65536, -1)
    for r in fault_rows:
        if faults[names[r]] is Verdict.BROKEN:
            pairs["rel_l2"][r], sites["measured"][r], sites["allowed"][r] = np.nan, np.nan, np.nan
            pairs["nonfinite_target"][r] = pairs["nonfinite_differ"][r] = 2048

    lone = [(name, "reference_call", "no call of the reference has this site") for name in target_only]
    lone += [(name, "target_call", "no call of the target has this site") for name in reference_only]
    for name, column, reason in lone:
        r = where[name]
        verdict[r] = Verdict.NOT_COMPARABLE
        sites[column][r] = -1
        sites["statement"][r] = texts.intern(reason)
        pairs["source"][r], pairs["rel_l2"][r], pairs["equal"][r] = Source.NOTHING, np.nan, 0
        sites["measured"][r] = sites["allowed"][r] = np.nan
    sites["verdict"][:] = verdict
    if pending:
        sites["verdict"][:] = Verdict.PENDING
        pairs["source"][:], pairs["rel_l2"][:], pairs["equal"][:] = Source.PENDING, np.nan, 0
        sites["measured"][:] = sites["allowed"][:] = np.nan
        sites["statement"][:] = -1
        origins = []
    return Comparison(
        reference=Side("reference.h5", {"device": "cpu"}, ("reference.h5",), True, "LlamaForCausalLM fp32 x1 cpu"),
        target=Side("target.h5", {"device": "cuda"}, ("target.h5",), True, "LlamaForCausalLM bf16 x1 cuda"),
        profile={"name": profile},
        texts=texts,
        sites=sites,
        pairs=pairs,
        notices=tuple(notices),
        origins=tuple(origins),
        alignment=AlignmentSummary(
            paired=n - len(lone),
            reference_only=tuple(Unpaired(name, "no call of the target has this site") for name in reference_only),
            target_only=tuple(Unpaired(name, "no call of the reference has this site") for name in target_only),
            steps=tuple((i, i) for i in range(steps)),
            steps_all=Both(("(1, 128)",) * steps, ("(1, 128)",) * steps),
            remarks=tuple(remarks),
        ),
    )


def of_size(sites: int, **options: Any) -> Comparison:
    """At least `sites` sites: 80 layers, as many steps as it takes, an epsilon fault in layer 3."""
    per_step = sites_per_step(80)
    options.setdefault("faults", {"model.layers.3.input_layernorm": Verdict.UNEXPLAINED})
    return comparison(layers=80, steps=-(-sites // per_step), **options)


def filling_in(final: Comparison, *, steps: int = 8, total: int = 2_000_000_000) -> Iterator[Progress]:
    """What compare_in_steps gives: everything pending at first, then verdicts in execution order, `final` at last."""
    n = len(final.sites["verdict"])
    for step in range(steps):
        known = np.arange(n) < n * step // steps
        sites = dict(final.sites)
        sites["verdict"] = np.where(known, final.sites["verdict"], Verdict.PENDING).astype(np.uint8)
        sites["measured"] = np.where(known, final.sites["measured"], np.nan)
        pairs = dict(final.pairs)
        pairs["source"] = np.where(known, final.pairs["source"], Source.PENDING).astype(np.uint8)
        origins = tuple(origin for origin in final.origins if known[origin.row])
        yield Progress(replace(final, sites=sites, pairs=pairs, origins=origins), total * step // steps, total)
    yield Progress(final, total, total)
