"""Which files of two traces go with which, and which calls: one process with one, rank with rank, or many that are one together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from layerdiff.align.aligning import align
from layerdiff.align.alignment import Alignment, RenameRule
from layerdiff.errors import ComparisonError
from layerdiff.judge.pairs.numbering import numbered_globally
from layerdiff.judge.pairs.pairing import Tables, add_file_pair, calls_of, in_pieces
from layerdiff.judge.pairs.ranked import RankedTables, add_ranks, as_one_reference, of_one_layer
from layerdiff.sides import Both
from layerdiff.trace.joined import in_row
from layerdiff.trace.reader import Trace, TraceFile

Renames = Sequence[RenameRule]
_OF_ITS_MODULE = "its module "


def is_ranked(traces: Both[Trace]) -> bool:
    """Whether ranks are compared, whose values make up logical tensors: a target of many against one process, or two layouts of many."""

    def many(trace: Trace) -> bool:
        ranks = [file.rank for file in trace.files]
        return len(ranks) > 1 and None not in ranks and len(set(ranks)) == len(ranks)

    one = len(traces.reference.files) == 1
    return many(traces.target) and (one or many(traces.reference))


def align_traces(traces: Both[Trace], renames: Renames) -> tuple[Tables, list[Alignment]]:
    """The calls and values of two traces side by side, nothing measured yet. Raises ComparisonError where nothing pairs."""
    if is_ranked(traces):
        return _align_ranks(traces, renames)
    tables, alignments = Tables(), []
    for numbers, rank in file_pairs(traces):
        files = Both(traces.reference.files[numbers.reference], traces.target.files[numbers.target])
        calls = files.map(calls_of)
        alignment = _with_pieces(files, align(calls.reference, calls.target, renames))
        add_file_pair(tables, files, numbers, calls, alignment, rank=rank)
        alignments.append(alignment)
    return tables, _that_pair(traces, alignments)


def _with_pieces(files: Both[TraceFile], alignment: Alignment) -> Alignment:
    """An alignment that says of operators of steps that are one why they have no partner, and gives them none of other requests."""
    pieces = in_pieces(files, alignment)
    if pieces is None:
        return alignment
    other = np.array([any(map(in_row, files, pair)) for pair in alignment.pairs.tolist()], bool)
    parted = list(zip(*alignment.pairs[other].tolist(), strict=True)) or [(), ()]
    alone = [
        [(call, reason if reason.startswith(_OF_ITS_MODULE) else known.get(call, reason)) for call, reason in calls]
        + [(call, known[call]) for call in more]
        for known, calls, more in zip(pieces, (alignment.reference_only, alignment.target_only), parted, strict=True)
    ]
    return replace(alignment, pairs=alignment.pairs[~other], reference_only=alone[0], target_only=alone[1])


def _align_ranks(traces: Both[Trace], renames: Renames) -> tuple[Tables, list[Alignment]]:
    tables = RankedTables()
    files = traces.map(lambda trace: trace.files)
    calls = numbered_globally(files.reference, files.target, renames)
    each = [[align(ours, theirs, renames) for theirs in calls.target] for ours in calls.reference]
    told = next((one.steps for row in each for one in row if one.steps_told and one.steps), ())
    for ours, row in zip(calls.reference, each, strict=True):
        for number, theirs in enumerate(calls.target):
            if told and not row[number].steps_told:
                row[number] = align(ours, theirs, renames, told)
    each = [[of_one_layer(one) for one in row] for row in each]
    add_ranks(tables, files, calls, each)
    return tables, _that_pair(traces, as_one_reference(calls, each))


def _that_pair(traces: Both[Trace], alignments: list[Alignment]) -> list[Alignment]:
    """The alignments, where anything pairs. Raises ComparisonError where nothing does."""
    if not any(len(alignment.pairs) for alignment in alignments):
        hints = [remark for alignment in alignments for remark in alignment.remarks]
        hints += [
            f"try the rename rule target = '{rule.target}', reference = '{rule.reference}'" for a in alignments for rule in a.proposed
        ]
        said = "".join(f"\n  {hint}" for hint in hints)
        raise ComparisonError(
            f"Nothing of {traces.reference.path} and {traces.target.path} pairs: no site has the same name, step and call.{said}"
        )
    return alignments


def file_pairs(traces: Both[Trace]) -> list[tuple[Both[int], int | None]]:
    """Which file goes with which: one against each of many, else by rank, in order within a rank."""
    reference, target = traces.reference.files, traces.target.files
    if len(reference) == len(target) == 1:
        return [(Both(0, 0), None)]
    if len(reference) == 1:
        return [(Both(0, i), file.rank) for i, file in enumerate(target)]
    left = {i: file.rank for i, file in enumerate(reference)}
    if len(target) == 1:
        raise ComparisonError(
            f"{traces.reference.path} is a run of {len(reference)} processes and {traces.target.path} of one: "
            f"the run of one process is the reference of many. Try: layerdiff diff {traces.target.path} {traces.reference.path}"
        )
    pairs: list[tuple[Both[int], int | None]] = []
    for j, file in enumerate(target):
        i = next((i for i, rank in left.items() if rank == file.rank), None)
        if i is not None:
            del left[i]
            pairs.append((Both(i, j), file.rank))
    if not pairs:
        raise ComparisonError(f"{traces.reference.path} and {traces.target.path} have no rank in common.")
    return pairs
