"""The flat views: sites that match a search, origins only, or all sites by how bad they are.

A flat view lists whole sites instead of a tree, because its neighbours have nothing to do with each other.
"""

from __future__ import annotations

import fnmatch
import re
from enum import Enum

import numpy as np

from layerdiff.rows.sites.judged import Judged
from layerdiff.rows.sites.tree import Ints, Tree
from layerdiff.saved.comparison import Comparison


class Sort(Enum):
    """The order of lines."""

    EXECUTION = "execution order"
    DIFFERENCE = "largest difference"
    RATIO = "furthest over what is allowed"


def matching(comparison: Comparison, tree: Tree, query: str) -> Ints:
    """Places whose site contains `query`, or matches it as a glob over the whole site where it has `*`, `?` or `[`.

    Capitals count only where the query has some.
    """
    texts = comparison.texts.all()
    wanted = np.zeros(len(texts) + 1, np.bool_)
    site = np.asarray(comparison.sites["site"])
    used = np.unique(site[site >= 0])
    exact = query != query.lower()
    if any(c in query for c in "*?["):
        pattern = re.compile(fnmatch.translate(query), 0 if exact else re.IGNORECASE)
        wanted[used] = [pattern.match(texts[i]) is not None for i in used.tolist()]
    elif exact:
        wanted[used] = [query in texts[i] for i in used.tolist()]
    else:
        wanted[used] = [query in texts[i].lower() for i in used.tolist()]
    return np.flatnonzero(wanted[tree.by_place(site)])


def listing(comparison: Comparison, tree: Tree, seen: Judged, *, sort: Sort, only_origins: bool, query: str) -> Ints:
    """The places to list, in order. Unknown numbers come last; equals keep the execution order."""
    places = matching(comparison, tree, query) if query else np.arange(len(tree))
    if only_origins:
        origins = np.fromiter(seen.origin_at, np.int64, len(seen.origin_at))
        places = np.intersect1d(places, origins, assume_unique=True)
    if sort is not Sort.EXECUTION:
        key = np.array(seen.difference if sort is Sort.DIFFERENCE else seen.ratio)
        origins = np.fromiter(seen.origin_at, np.int64, len(seen.origin_at))
        key[origins[np.isnan(key[origins])]] = np.inf  # it is convicted by another figure
        key = key[places]
        places = places[np.argsort(-np.where(np.isnan(key), -1.0, key), kind="stable")]
    return places
