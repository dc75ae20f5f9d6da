"""The collectives of a run held against what its ranks put in, without a reference."""
