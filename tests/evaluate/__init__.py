"""Longer trials than the suite: `make evaluate` prints their table of truth."""
