"""A small decoder with known operators, recorded with all of them, and what the exact judge says of two of its runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from captures.llama import RMSNorm, rotate
from layerdiff.align.aligning import align
from layerdiff.judge.judging_programs import Judgement, judge_programs
from layerdiff.judge.pairs.pairing import calls_of
from layerdiff.judge.programs.bodies import Body, bodies, both_ways
from layerdiff.judge.programs.calls import align_calls
from layerdiff.judge.programs.constants import Constants
from layerdiff.judge.programs.incoming import Incoming
from layerdiff.judge.programs.reading import Reading
from layerdiff.judge.programs.running import Programs
from layerdiff.judge.programs.wiring import Wiring
from layerdiff.record.recorder import Recorder
from layerdiff.replay.recorded import Recorded
from layerdiff.saved.comparison import Comparison
from layerdiff.sides import Both
from layerdiff.trace.reader import TraceFile, open_trace
from layerdiff.trace.schema import CallKind

M = TypeVar("M", bound=nn.Module)
Record = Callable[..., Path]
"""What the fixture `write` is."""


class Attention(nn.Module):
    """Attention of two heads by plain operators, or by the fused one."""

    def __init__(self, hidden: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.scale, self.fused, self.shift = heads, (hidden // heads) ** -0.5, False, 0
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (projection(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for projection in (self.q_proj, self.k_proj, self.v_proj))
        positions = torch.arange(x.shape[1]) + self.shift
        angles = positions[:, None].float() * 10000.0 ** (-torch.arange(0, q.shape[-1], 2).float() / q.shape[-1])
        angles = torch.cat([angles, angles], -1)
        q, k = (rotate(part, angles.cos().to(x.dtype), angles.sin().to(x.dtype)) for part in (q, k))
        if self.fused:
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scale)
        else:
            scores = (q @ k.transpose(-1, -2)) * self.scale
            y = (scores if mask is None else scores + mask).softmax(-1) @ v
        return self.o_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """silu(gate) * up, then down."""

    def __init__(self, hidden: int = 16, inner: int = 24) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(hidden, inner, bias=False), nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(16, 1e-6), RMSNorm(16, 1e-6)
        self.self_attn, self.mlp = Attention(), MLP()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Two layers. Inputs of a root are ids (batch, length) and an additive mask."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(31, 16)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm = RMSNorm(16, 1e-6)

    def forward(self, input_ids: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


IDS = torch.randint(0, 31, (2, 6), generator=torch.Generator().manual_seed(1))


def seeded(model: M, seed: int = 0) -> M:
    """The model with weights of one seed, in eval mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                size = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 1.0
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * size)
    return model.eval()


def decoder(change: Callable[[Decoder], Any] | None = None, dtype: torch.dtype = torch.float32) -> Decoder:
    """The decoder with its weights, changed."""
    model = seeded(Decoder()).to(dtype)
    if change is not None:
        with torch.no_grad():
            change(model)
    return model


def quantised(model: Decoder) -> None:
    """Weights of one projection rounded to 127 steps a row."""
    weight = model.layers[0].mlp.up_proj.weight
    step = weight.abs().amax(1, keepdim=True) / 127
    weight.copy_((weight / step).round() * step)


class Experts(nn.Module):
    """Each token goes to the two of four experts that its gate scores highest; the first two experts are nearly tied."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 4, bias=False)
        self.experts = nn.ModuleList(nn.Linear(16, 16, bias=False) for _ in range(4))
        self.choose: Callable[[Tensor], tuple[Tensor, Tensor]] = lambda scores: scores.topk(2, -1)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.choose(self.gate(x).softmax(-1))
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            y = y + torch.where(chosen == number, weights, torch.zeros_like(weights)).sum(-1, keepdim=True) * expert(x)
        return y


def experts(change: Callable[[Experts], Any] | None = None, dtype: torch.dtype = torch.float32, apart: float = 3e-4) -> Experts:
    """The experts. `apart`: how far the scores of the first two are, relatively."""
    model = seeded(Experts())
    with torch.no_grad():
        model.gate.weight[1] = model.gate.weight[0] * (1 + apart)
        if change is not None:
            change(model)
    return model.to(dtype)


class Cached(nn.Module):
    """Attention over a static cache of eight places, written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.scale = nn.Linear(16, 48, bias=False), nn.Linear(16, 16, bias=False), 0.25
        self.register_buffer("keys", torch.zeros(2, 8, 16))
        self.register_buffer("values", torch.zeros(2, 8, 16))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        places = self.seen + torch.arange(x.shape[1])
        self.keys.index_copy_(1, places, k)
        self.values.index_copy_(1, places, v)
        self.seen.add_(x.shape[1])
        hidden = torch.arange(8) > places[:, None]
        return self.out((q @ self.keys.mT * self.scale).masked_fill(hidden, -torch.inf).softmax(-1) @ self.values)


def random(*shape: int, seed: int = 2) -> Tensor:
    """Standard normal numbers of one seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def origins(comparison: Comparison) -> list[tuple[str, str, str | None]]:
    """Site, verdict and cause of every origin."""
    return [(origin.site, origin.verdict.label, origin.cause) for origin in comparison.origins]


def kinds(comparison: Comparison) -> set[str]:
    """The kinds of its notices."""
    return {notice.kind for notice in comparison.notices}


def record(
    path: Path,
    model: nn.Module,
    *inputs: Any,
    below: Iterable[AbstractContextManager[Any]] = (),
    steps: Iterable[tuple[Any, ...]] | None = None,
    **options: Any,
) -> Path:
    """The trace of a model with operators, of one forward or of several `steps`. `below` are entered before the recorder is."""
    with ExitStack() as stack:
        for context in below:
            stack.enter_context(context)
        stack.enter_context(Recorder(path, model, operators=True, **options))
        stack.enter_context(torch.no_grad())
        for step in [inputs] if steps is None else steps:
            model(*step)
    return path


def rewritten(path: Path, made: Path, change: Callable[[str], str]) -> Path:
    """A copy of a trace in which every text is what `change` makes of it."""
    shutil.copy(path, made)
    with h5py.File(made, "r+") as file:
        content, ends = file["text/bytes"][()].tobytes(), file["text/offset"][()].tolist()
        texts = [change(content[a:b].decode()).encode() for a, b in pairwise(ends)]
        offsets = np.cumsum([ends[0], *map(len, texts)]).astype(np.uint64)
        for name, array in (("bytes", np.frombuffer(b"".join(texts), np.uint8)), ("offset", offsets)):
            del file["text"][name]
            file["text"].create_dataset(name, data=array)
    return made


def opened(reference: Path, target: Path) -> Both[TraceFile]:
    """The files of two traces of one process each."""
    return Both(open_trace(reference).files[0], open_trace(target).files[0])


def module_pairs(files: Both[TraceFile]) -> dict[int, int]:
    """The target's module call of each of the reference's."""
    aligned = align(calls_of(files.reference), calls_of(files.target))
    return {int(r): int(t) for r, t in aligned.pairs if files.reference.calls.kind[r] == CallKind.MODULE}


def judged(reference: Path, target: Path) -> Judgement:
    """What exact arithmetic says of two traces."""
    files = opened(reference, target)
    covered = files.map(lambda file: set(np.flatnonzero(file.calls.kind == CallKind.MODULE).tolist()))
    *_, (_, _, last) = judge_programs(files, module_pairs(files), covered)
    return last


@dataclass(frozen=True)
class Prepared:
    """One body of two traces, and what is needed to judge it."""

    runs: Both[Recorded]
    body: Body
    incoming: Incoming
    wiring: Wiring
    programs: Programs

    def call(self, side: str, name: str, number: int = 0) -> int:
        """The operator call of one side that is the `number`-th of its name in the body."""
        run: Recorded = getattr(self.runs, side)
        calls = [item for item in getattr(self.body.items, side) if not run.is_module(item) and run.operation(item).name == name]
        return calls[number]


def prepared(reference: Path, target: Path, site: str = "") -> Prepared:
    """The body of the module call of the target that is at `site`."""
    files = opened(reference, target)
    pairs, runs = module_pairs(files), files.map(Recorded)
    roots = [(r, t) for r, t in pairs.items() if int(files.target.calls.parent[t]) < 0]
    found = list(bodies(runs, both_ways(pairs), roots))
    calls = {r: t for body in found for r, t in align_calls(runs, body).items()}
    body = next(body for body in found if files.target.site(body.calls[1]) == site)
    reading, aligned = Reading(runs), align_calls(runs, body)
    incoming = Incoming(runs, body, Constants(runs, reading), calls, aligned, reading)
    return Prepared(runs, body, incoming, Wiring(runs, body, incoming), Programs(runs, body, incoming, aligned, reading))
