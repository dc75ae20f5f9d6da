"""Which calls pair, in which order, and the words for those that do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerdiff.align.aligning import align
from layerdiff.align.alignment import Alignment, Calls
from layerdiff.align.sequence import align_sequences
from tests.align.trees import calls, names, pairs, reasons

MODEL = (
    "- : Model",
    "  layers.0 : Block",
    "    layers.0.attn : Attention",
    "      layers.0.attn/aten.mm.default#0",
    "  layers.1 : Block",
    "  head : Linear",
)


def test_a_run_against_itself() -> None:
    found = align(calls(*MODEL), calls(*MODEL))
    assert [(i, i) for i in range(6)] == pairs(found)
    assert ([], [], (), ()) == (found.reference_only, found.target_only, found.remarks, found.proposed)
    assert (((0, 0),), ("in[0] 1x8",)) == (found.steps, found.steps_all.target)
    assert [-1, 0, 1, 2, 0, 0] == found.parents.reference.tolist()
    assert list(calls(*MODEL).site) == list(found.sites.target)


def test_pairs_follow_the_order_of_the_target() -> None:
    found = align(calls("- : M", "  a : A", "  b : B"), calls("- : M", "  b : B", "  a : A"))
    assert [(0, 0), (2, 1), (1, 2)] == pairs(found)


def test_what_one_side_never_runs_is_named_by_its_outermost_module() -> None:
    found = align(
        calls("- : M", "  layers.0 : L", "  layers.1 : L", "    layers.1.mlp : P"), calls("- : M", "  layers.0 : L", "  extra : E")
    )
    assert {2: "the target never runs layers.1", 3: "the target never runs layers.1"} == reasons(found.reference_only)
    assert {2: "the reference never runs extra"} == reasons(found.target_only)
    found = align(calls("- : M", "  layers.0 : L"), calls("- : M"))
    assert {1: "the target never runs layers"} == reasons(found.reference_only)


def test_the_nth_call_goes_with_the_nth() -> None:
    found = align(calls("- : M", "  a : A", "  a : A", "  a : A"), calls("- : M", "  a : A"))
    assert [(0, 0), (1, 1)] == pairs(found)
    assert {2: "called 3 times in the reference, once in the target", 3: "called 3 times in the reference, once in the target"} == reasons(
        found.reference_only
    )


@pytest.mark.parametrize(
    ("theirs", "found"),
    [
        (["full", "sliding"], [(0, 0), (2, 1), (1, 2), (3, 3)]),
        (["sliding", "full"], [(0, 0), (1, 1), (2, 2), (3, 3)]),
        (["global", "local"], [(0, 0), (1, 1), (2, 2), (3, 3)]),  # other words: the n-th
        (["full", "full"], [(0, 0), (1, 1), (2, 2), (3, 3)]),  # they do not tell
        (["full", ""], [(0, 0), (1, 1), (2, 2), (3, 3)]),
    ],
)
def test_calls_that_are_told_by_a_word_go_with_the_same_word(theirs: list[str], found: list[tuple[int, int]]) -> None:
    run = calls("- : M", "  rotary : R", "  rotary : R", "  head : Linear")
    given = (replace(run, words=["", *words, ""]) for words in (["sliding", "full"], theirs))
    assert found == pairs(align(*given))


def test_a_module_that_runs_in_other_steps_only() -> None:
    found = align(calls("-", "  a", "-", "  a"), calls("-", "  a", "-"))
    assert {3: "the target does not run it in step 1"} == reasons(found.reference_only)


def test_operators_pair_inside_paired_modules_in_order_with_insertions() -> None:
    reference = calls("-", "  a", "    a/aten.mm#0", "    a/aten.add#0", "    a/aten.mm#1", "  b", "    b/aten.mm#0")
    target = calls("-", "  a", "    a/aten.mm#0", "    a/aten.mul#0", "    a/aten.add#0", "    a/aten.mm#1", "  c", "    c/aten.mm#0")
    found = align(reference, target)
    assert [(0, 0), (1, 1), (2, 2), (3, 4), (4, 5), (6, 7)] == pairs(found)  # b's and c's operators belong to the root
    assert {5: "the target never runs b"} == reasons(found.reference_only)
    assert {3: "the reference does not run aten.mul#0 in a", 6: "the reference never runs c"} == reasons(found.target_only)


def test_a_call_added_shifts_none_of_those_that_follow() -> None:
    found = align_sequences(["mm", "add", "mm", "add", "mm"], ["mm", "mul", "add", "mm", "add", "mm"])
    assert [(0, 0), (1, 2), (2, 3), (3, 4), (4, 5)] == found
    assert [(0, 0), (2, 1)] == align_sequences(["a", "b", "c"], ["a", "c"])
    assert [(0, 0), (1, 1)] == align_sequences(["mm 2", "add 3"], ["mm 4", "add 3"], [["mm", "add"], ["mm", "add"]])


def test_operators_of_a_module_called_twice_stay_with_their_call() -> None:
    lines = ("-", "  a", "    a/aten.mm#0", "  a", "    a/aten.mm#0", "      a/aten.inner#0")
    assert [(i, i) for i in range(6)] == pairs(align(calls(*lines), calls(*lines)))


def test_operators_outside_every_root_pair_by_step() -> None:
    lines = ("(outside)/aten.cat#0", "-", "  a", "(outside)/aten.cat#0", "-", "  a", "(outside)/aten.argmax#0")
    found = align(calls(*lines), calls(*lines))
    assert [(i, i) for i in range(7)] == pairs(found)
    warm = align(calls("(outside)/aten.cat#0", "- @ 1x4", "  a", *lines), calls(*lines))
    assert [(i + 3, i) for i in range(7)] == pairs(warm)
    assert ([], []) == (warm.reference_only, warm.target_only)


def test_a_warm_up_is_left_out_and_said() -> None:
    found = align(calls("- @ 1x4", "  a", "- @ 1x8", "  a", "- @ 1x1", "  a"), calls("- @ 1x8", "  a", "- @ 1x1", "  a"))
    assert [(2, 0), (3, 1), (4, 2), (5, 3)] == pairs(found)
    assert ((1, 0), (2, 1)) == found.steps
    assert ("1x4", "1x8", "1x1") == found.steps_all.reference
    assert ("step 0 of the reference (1x4) is outside the compared steps",) == found.remarks
    assert [] == found.reference_only


def test_several_roots_have_their_own_steps() -> None:
    reference = calls("=draft @ 1x1", "  draft.a", "=main @ 1x4", "  main.a", "=main @ 1x8", "  main.a", "  main.b")
    target = calls("=main @ 1x8", "  main.a", "  main.b", "=draft @ 1x1", "  draft.a")
    found = align(reference, target)
    assert [(4, 0), (5, 1), (6, 2), (0, 3), (1, 4)] == pairs(found)
    assert ((1, 0),) == found.steps


def test_a_root_that_one_side_lacks() -> None:
    found = align(calls("=main", "  main.a"), calls("=main", "  main.a", "=judge", "  judge.a"))
    assert [(0, 0), (1, 1)] == pairs(found)
    assert {2: "the reference never runs judge", 3: "the reference never runs judge"} == reasons(found.target_only)


def test_runs_without_calls() -> None:
    found = align(calls(), calls(*MODEL))
    assert ((0, 2), 0, 6) == (found.pairs.shape, len(found.reference_only), len(found.target_only))
    assert (0, 2) == align(calls(), calls()).pairs.shape


def test_few_pairs_are_said_first() -> None:
    found = align(calls("- : M", *(f"  a{i} : A" for i in range(4))), calls("- : M", *(f"  b{i} : B" for i in range(4))))
    assert "only 1 module calls pair, of 5 in the reference and 5 in the target" == found.remarks[0]


def test_operators_that_do_not_pair_are_no_reason_to_rename_modules() -> None:
    few, many = (calls("- : M", "  a : A", *(f"    a/aten.{name}.default#{i}" for i in range(9))) for name in ("mul", "add"))
    found = align(few, many)
    assert ((), ()) == (found.remarks, found.proposed)


@st.composite
def trees(draw: st.DrawFn) -> Calls:
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        lines.append(f"- @ 1x{draw(st.integers(1, 3))}")
        path: list[str] = []
        for _ in range(draw(st.integers(0, 12))):
            del path[draw(st.integers(0, len(path))) :]
            if draw(st.booleans()):
                lines.append(
                    f"{'  ' * (len(path) + 1)}{'.'.join(path)}/aten.{draw(st.sampled_from(['mm', 'add']))}#{draw(st.integers(0, 2))}"
                )
            else:
                path.append(draw(st.sampled_from(["a", "b", "0", "1", "module", "_orig_mod"])))
                lines.append(f"{'  ' * len(path)}{'.'.join(path)} : {draw(st.sampled_from(['A', 'B']))}")
    return calls(*lines)


@settings(max_examples=200, deadline=None)
@given(trees())
def test_any_tree_pairs_with_itself(tree: Calls) -> None:
    found = align(tree, tree)
    kept = sorted(int(r) for r, _ in found.pairs)
    assert all(r == t for r, t in pairs(found))
    assert ([], []) == (found.reference_only, found.target_only)
    dropped = set(range(len(tree.site))) - set(kept)
    assert all("_orig_mod" in "".join(tree.site) or "module" in "".join(tree.site) for _ in dropped)


@settings(max_examples=200, deadline=None)
@given(trees(), trees())
def test_every_call_is_paired_left_over_or_outside(reference: Calls, target: Calls) -> None:
    found: Alignment = align(reference, target)
    used = found.pairs[:, 0].tolist(), found.pairs[:, 1].tolist()
    assert all(len(side) == len(set(side)) for side in used)
    assert sorted(used[1]) == used[1]
    for side, run, alone, at in ((used[0], reference, found.reference_only, 0), (used[1], target, found.target_only, 1)):
        assert not set(side) & {call for call, _ in alone}
        compared = {pair[at] for pair in found.steps}
        assert {int(run.step[call]) for call in side} <= compared
        assert all(reason for _, reason in alone)
    for r, t in pairs(found):
        assert reference.kind[r] == target.kind[t]
        assert (int(reference.step[r]), int(target.step[t])) in found.steps
        if reference.kind[r] == 0:
            assert found.sites.reference[r] == found.sites.target[t]
    parent = np.asarray(found.parents.target)
    assert (parent < np.arange(len(parent))).all()


def test_names_of_pairs() -> None:
    assert ["", "layers.0", "layers.0.attn", "layers.0.attn/aten.mm.default#0", "layers.1", "head"] == names(
        align(calls(*MODEL), calls(*MODEL))
    )
