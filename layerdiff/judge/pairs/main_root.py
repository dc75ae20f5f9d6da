"""The model among several that one run has: a run that decodes with the help of a draft calls that, too, and a recorder of every model
names both. What the other run calls its only model is the one that has its weights."""

from __future__ import annotations

from layerdiff.judge.pairs.chunks import weights_of_roots
from layerdiff.judge.pairs.known_weights import KnownWeights
from layerdiff.sides import Both
from layerdiff.trace.reader import TraceFile

_MOST = 0.5
"""Share of the weights of a root."""


def named_alike(files: Both[TraceFile]) -> Both[TraceFile]:
    """The files, with the sites of a root of one of them called as those of the only one of the other are, whose weights it has."""
    alone = files.map(lambda file: len(file.root_names) < 2)
    if alone.reference == alone.target:
        return files
    one, many = files if alone.reference else (files.target, files.reference)
    known = KnownWeights()
    known.add(one, lambda name: name)
    weights = weights_of_roots(many)
    shares = {root: known.share(many, values) for root, values in weights.items()}
    best = max(shares, key=lambda root: shares[root] * len(weights[root]), default="")  # a draft may be the first layers of the model
    if shares.get(best, 0.0) <= _MOST or best not in many.root_names:
        return files
    named = many.with_main_root(many.root_names.index(best))
    return Both(files.reference, named) if alone.reference else Both(named, files.target)
