"""A small Llama with random weights, for `make demo`: one prefill, then a few decoded tokens.

    layerdiff record -o reference.h5 -- captures/infer.py
    layerdiff record -o target.h5 -- captures/infer.py --layer-3-epsilon 1e-5
    layerdiff reference.h5 target.h5

Nothing in here knows of layerdiff. The second run has a wrong epsilon in one normalisation, a mistake
that a loose tolerance on the outputs does not see.
"""

from __future__ import annotations

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a small Llama.")
    parser.add_argument("--layer-3-epsilon", type=float, default=None, help="epsilon of layer 3's input norm; 1e-6 elsewhere")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--tokens", type=int, default=3, help="tokens to decode after the prompt")
    options = parser.parse_args()

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=344,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        rms_norm_eps=1e-6,
    )
    model = LlamaForCausalLM(config).eval().to(getattr(torch, options.dtype))
    if options.layer_3_epsilon is not None:
        model.model.layers[3].input_layernorm.variance_epsilon = options.layer_3_epsilon

    prompt = torch.arange(48).reshape(1, -1) * 7 % config.vocab_size
    with torch.no_grad():
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=options.tokens, do_sample=False, pad_token_id=0)
    print("decoded", out[0, prompt.shape[1] :].tolist())


if __name__ == "__main__":
    main()
