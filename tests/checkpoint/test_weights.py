"""Weights that a trace knows by their fingerprints, out of the checkpoint that was loaded: found by their bits, not by name alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from layerdiff import Recorder
from layerdiff.checkpoint.weights import CheckpointWeights
from layerdiff.compare import compare_traces
from layerdiff.errors import CheckpointError
from layerdiff.judge.tables import Verdict
from layerdiff.saved.comparison import Comparison
from layerdiff.trace.reader import TraceFile, open_trace
from layerdiff.trace.schema import ValueKind


class Model(nn.Module):
    def __init__(self, epsilon: float = 1e-5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 16)
        self.norm = nn.LayerNorm(16, eps=epsilon)
        self.fc = nn.Linear(16, 16)
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.rand(16), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.fc(self.norm(self.embed(ids))) * self.scale)  # type: ignore[no-any-return]


IDS = torch.arange(12).reshape(2, 6)


def record(path: Path, model: nn.Module, weights: str, **more: Any) -> TraceFile:
    with torch.no_grad(), Recorder(path, model, operators=True, weights=weights, **more):
        model(IDS)
    return open_trace(path).files[0]


def checkpoint(folder: Path, model: nn.Module, *, without: str = "head.weight", prefix: str = "") -> Path:
    folder.mkdir()
    kept = {prefix + name: tensor for name, tensor in model.state_dict().items() if name != without}
    save_file(kept, folder / "model-00001-of-00001.safetensors")
    return folder


def bytes_by_name(file: TraceFile) -> dict[str, bytes]:
    named = [row for row in range(len(file.values)) if file.values.kind[row] == ValueKind.PARAMETER and file.has_bytes(row)]
    return {file.text(int(file.values.name[row])) or "": file.raw(row).tobytes() for row in named}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_checkpoint_gives_the_bytes_that_were_not_recorded(tmp_path: Path, dtype: torch.dtype, prefix: str) -> None:
    loaded = checkpoint(tmp_path / "loaded", Model(), prefix=prefix)
    model = Model().to(dtype)
    expected = bytes_by_name(record(tmp_path / "all.h5", model, "used"))
    record(tmp_path / "a.h5", model, "checkpoint")
    assert {} == bytes_by_name(open_trace(tmp_path / "a.h5").files[0])
    file = open_trace(tmp_path / "a.h5", weights=CheckpointWeights([loaded])).files[0]
    assert expected == bytes_by_name(file)  # the head's, tied to the embedding, too
    views = [row for row in range(len(file.values)) if file.values.kind[row] == ValueKind.ACTIVATION and file.values.storage[row] == 0]
    transposed = [row for row in views if file.shape(row) == (16, 20)]
    assert transposed
    for row in transposed:  # what the product is given
        np.testing.assert_array_equal(model.head.weight.detach().float().T.numpy(), file.read(row))


def test_buffers_are_recorded_beside_a_checkpoint(tmp_path: Path) -> None:
    file = record(tmp_path / "a.h5", Model(), "checkpoint")
    assert [True] == [file.has_bytes(row) for row in range(len(file.values)) if file.values.kind[row] == ValueKind.BUFFER]


@pytest.mark.parametrize("fingerprints", [True, False])
def test_another_checkpoint_is_not_taken(tmp_path: Path, fingerprints: bool) -> None:
    record(tmp_path / "a.h5", Model(), "checkpoint", fingerprints=fingerprints)
    other = Model()
    with torch.no_grad():
        other.fc.weight[3, 4] += 1e-3
    weights = CheckpointWeights([checkpoint(tmp_path / "other", other)])
    found = bytes_by_name(open_trace(tmp_path / "a.h5", weights=weights).files[0])
    assert {"embed.weight", "norm.weight", "norm.bias", "fc.bias"} == set(found)


def test_the_part_of_a_rank_is_cut_out(tmp_path: Path) -> None:
    loaded = CheckpointWeights([checkpoint(tmp_path / "loaded", Model())])
    for dim in (0, 1):
        part = nn.Linear(16, 8, bias=False) if dim == 0 else nn.Linear(8, 16, bias=False)
        part.weight = nn.Parameter(Model().fc.weight.detach().chunk(2, dim)[1].clone())
        with torch.no_grad(), Recorder(tmp_path / f"{dim}.h5", part, weights="none"):
            part(torch.ones(1, part.in_features))
        found = bytes_by_name(open_trace(tmp_path / f"{dim}.h5", weights=loaded).files[0])
        assert {"weight": part.weight.detach().numpy().tobytes()} == found


def verdicts(comparison: Comparison) -> list[tuple[str, str]]:
    sites = comparison.sites
    return [(comparison.texts[int(site)] or "", Verdict(int(v)).name) for site, v in zip(sites["site"], sites["verdict"], strict=True)]


@pytest.mark.parametrize("epsilon", [1e-5, 1e-3])
def test_verdicts_are_those_of_recorded_weights(tmp_path: Path, epsilon: float) -> None:
    loaded = checkpoint(tmp_path / "loaded", Model())
    for weights in ("used", "checkpoint"):
        record(tmp_path / f"r-{weights}.h5", Model(), weights)
        record(tmp_path / f"t-{weights}.h5", Model(epsilon).to(torch.bfloat16), weights)
    recorded = compare_traces(tmp_path / "r-used.h5", tmp_path / "t-used.h5")
    found = compare_traces(tmp_path / "r-checkpoint.h5", tmp_path / "t-checkpoint.h5", checkpoints=[loaded])
    assert verdicts(recorded) == verdicts(found)
    assert (epsilon != 1e-5) == found.defect
    without = compare_traces(tmp_path / "r-checkpoint.h5", tmp_path / "t-checkpoint.h5")
    assert verdicts(without) != verdicts(recorded)
    assert any("pass --checkpoint" in (without.texts[int(text)] or "") for text in without.sites["statement"])


def test_what_is_no_checkpoint_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is not there\. --checkpoint takes the folder"):
        CheckpointWeights([tmp_path / "gone"])
    with pytest.raises(CheckpointError, match=r"holds no \*\.safetensors file"):
        CheckpointWeights([tmp_path])
