"""Checkpoints: safetensors files, as the bytes of weights that a trace holds by their fingerprints only."""
