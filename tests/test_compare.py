"""The whole flow on traces written without torch: alignment to origins, notices first."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerdiff.compare import compare_in_steps, compare_traces
from layerdiff.errors import ComparisonError, EmptyTraceError
from layerdiff.judge.tables import Verdict
from layerdiff.saved.file import open_comparison
from layerdiff.trace.schema import CallKind, CallRow, CallStatus, Role, ValueKind
from layerdiff.trace.writer import TraceWriter
from layerdiff.verdicts import judge_again
from tests.trace.writing import raw, value_row, write_model

RNG = np.random.default_rng(0)
X, A, B = (RNG.standard_normal((6, 16)).astype(np.float32) for _ in range(3))


def model(path: Path, **outputs: Any) -> Path:
    return write_model(
        path,
        {"a": ("Linear", outputs.get("a", A)), "b": ("Linear", outputs.get("b", B))},
        inputs=outputs.get("x", X),
        meta=outputs.get("meta"),
    )


def by_site(comparison: Any) -> dict[str, str]:
    sites = comparison.sites
    return {comparison.texts[int(s)]: Verdict(int(v)).label for s, v in zip(sites["site"], sites["verdict"], strict=True)}


def kinds(comparison: Any) -> dict[str, bool]:
    return {notice.kind: notice.defect for notice in comparison.notices}


def test_a_trace_against_itself(tmp_path: Path) -> None:
    path = model(tmp_path / "r.h5")
    comparison = compare_traces(path, path)
    assert by_site(comparison) == {"": "identical", "a": "identical", "b": "identical"}
    assert (comparison.verdict, comparison.defect, comparison.origins, comparison.notices) == (Verdict.IDENTICAL, False, (), ())
    assert comparison.alignment.paired == 3


def test_one_fault_is_one_origin_with_its_numbers(tmp_path: Path) -> None:
    wrong = A.copy()
    wrong[2] *= 1.5
    comparison = compare_traces(model(tmp_path / "r.h5"), model(tmp_path / "t.h5", a=wrong, b=(B * np.float32(1.0001)).astype(np.float32)))
    assert by_site(comparison) == {"": "inherited", "a": "unexplained", "b": "inherited"}
    (origin,) = comparison.origins
    assert (origin.site, origin.value, origin.defect) == ("a", "out", True)
    assert origin.measured == pytest.approx(np.linalg.norm(wrong - A) / np.linalg.norm(A), rel=1e-6)
    assert "its inputs and weights agree" in origin.statement
    assert comparison.defect


def test_repeats_of_one_site_are_one_origin(tmp_path: Path) -> None:
    paths = []
    for name, a in (("r", A), ("t", -A)):
        paths.append(write_model(tmp_path / f"{name}.h5", {"a": ("Linear", a)}, inputs=X, steps=3))
    (origin,) = compare_traces(*paths).origins
    assert (origin.site, origin.step, origin.evidence["calls"], origin.evidence["steps"]) == ("a", 0, 3, [0, 1, 2])


def test_inputs_are_said_before_any_layer(tmp_path: Path) -> None:
    comparison = compare_traces(model(tmp_path / "r.h5"), model(tmp_path / "t.h5", x=X + 1, a=A + 1))
    assert kinds(comparison) == {"input-differs": True}
    assert "in[0] of step 0" in comparison.notices[0].statement
    assert comparison.origins == ()
    assert comparison.defect


@pytest.mark.parametrize(("shape", "said"), [((2, 1), True), ((2, 5), False), ((1, 30, 4), False), ((2, 1, 4), False)])
def test_one_token_shows_no_position(shape: tuple[int, ...], said: bool, tmp_path: Path) -> None:
    x = RNG.standard_normal(shape).astype(np.float32)
    comparison = compare_traces(model(tmp_path / "r.h5", x=x), model(tmp_path / "t.h5", x=x))
    assert ({"input-too-short": False} if said else {}) == kinds(comparison)


def test_one_rank_of_two_says_which_is_missing(tmp_path: Path) -> None:
    alone = shutil.copytree(Path(__file__).parents[1] / "captures" / "missing_all_reduce", tmp_path / "alone")
    (alone / "target" / "rank00001.h5").unlink()
    comparison = compare_traces(alone / "reference.h5", alone / "target")
    assert ["rank 1 of 2 left no file here"] == [
        notice.statement.partition(":")[0] for notice in comparison.notices if notice.kind == "ranks-missing"
    ]


def test_inputs_that_are_roundings_of_each_other_agree(tmp_path: Path) -> None:
    comparison = compare_traces(model(tmp_path / "r.h5"), model(tmp_path / "t.h5", x=X.astype(np.float16)))
    assert "input-differs" not in kinds(comparison)
    nudged = X.astype(np.float16)
    nudged[0, 0] *= np.float16(1.01)
    assert kinds(compare_traces(tmp_path / "r.h5", model(tmp_path / "u.h5", x=nudged)))["input-differs"] is True


def test_another_shape_and_another_dtype(tmp_path: Path) -> None:
    reference = model(tmp_path / "r.h5")
    short = compare_traces(reference, model(tmp_path / "s.h5", x=X[:3], a=A[:3], b=B[:3]))
    assert kinds(short) == {"shape-differs": True, "results-not-compared": False}
    assert by_site(short) == dict.fromkeys(("", "a", "b"), "not-comparable")
    half = model(tmp_path / "h.h5", x=X.astype(np.float16), a=A.astype(np.float16), b=B.astype(np.float16))
    assert kinds(compare_traces(reference, half)) == {"dtype-mismatch": False}
    profile = tmp_path / "same.toml"
    profile.write_text("same_dtype = true\n")
    assert kinds(compare_traces(reference, half, profile=profile)) == {"dtype-mismatch": True}


def test_random_draws_from_other_states(tmp_path: Path) -> None:
    def drawing(path: Path, before: str, after: str) -> Path:
        writer = TraceWriter(path, meta={"environment": {"seed": before}})
        writer.add_root("model", "Root")
        call = writer.begin_call(CallRow(CallKind.MODULE, ""))
        writer.add_edge(call, Role.OUTPUT, "out", writer.add_value(value_row(A), raw(A)))
        writer.end_call(call, CallStatus.RETURNED, json.dumps({"random": {"before": before, "after": after}}))
        return writer.close()

    drew = drawing(tmp_path / "r.h5", "1", "2")
    assert kinds(compare_traces(drew, drawing(tmp_path / "t.h5", "3", "4"))) == {"seed-differs": True}
    idle = drawing(tmp_path / "u.h5", "3", "3")
    assert kinds(compare_traces(drawing(tmp_path / "v.h5", "1", "1"), idle)) == {"seed-differs": False}
    assert kinds(compare_traces(drew, drawing(tmp_path / "w.h5", "1", "2"))) == {}


def test_nothing_pairs(tmp_path: Path) -> None:
    with pytest.raises(ComparisonError, match=r"Nothing of .*r\.h5 and .*n\.h5 pairs"):
        compare_traces(model(tmp_path / "r.h5"), write_nameless(tmp_path / "n.h5"))


def test_a_fault_that_is_gone_again_at_the_end_reconverges(tmp_path: Path) -> None:
    comparison = compare_traces(model(tmp_path / "r.h5"), model(tmp_path / "t.h5", a=A + 1))
    (origin,) = comparison.origins
    assert (origin.site, origin.verdict.label, comparison.defect) == ("a", "reconverges", False)


def write_nameless(path: Path) -> Path:
    writer = TraceWriter(path, meta={})
    writer.begin_call(CallRow(CallKind.MODULE, "quite.another", root=-1))
    return writer.close()


def test_an_empty_trace(tmp_path: Path) -> None:
    empty = TraceWriter(tmp_path / "e.h5", meta={"empty_reason": "no forward ran."}).close()
    with pytest.raises(EmptyTraceError, match="no forward ran"):
        compare_traces(model(tmp_path / "r.h5"), empty)


def test_an_incomplete_trace_is_said(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t.h5", meta={})
    call = writer.begin_call(CallRow(CallKind.MODULE, "", type="Root", root=writer.add_root("model", "Root")))
    writer.add_edge(call, Role.INPUT, "in[0]", writer.add_value(value_row(X), raw(X)))
    path = writer.close(reason="the disk was full")
    comparison = compare_traces(model(tmp_path / "r.h5"), path)
    assert "the disk was full" in comparison.notices[0].statement
    assert kinds(comparison)["recording-incomplete"] is False


def test_ranks_pair_by_rank(tmp_path: Path) -> None:
    for side, a in (("r", A), ("t", -A)):
        (tmp_path / side).mkdir()
        for rank in (0, 1):
            model(tmp_path / side / f"rank{rank:05}.h5", meta={"rank": rank}, a=a if rank == 1 else A)
    comparison = compare_traces(tmp_path / "r", tmp_path / "t")
    assert [(origin.site, origin.rank) for origin in comparison.origins] == [("a", 1)]


def test_steps_are_handed_out_while_it_runs(tmp_path: Path) -> None:
    reference, target = model(tmp_path / "r.h5"), model(tmp_path / "t.h5", a=-A)
    steps = compare_in_steps(reference, target, snapshot_seconds=0.0)
    progress = [next(steps)]
    assert by_site(progress[0].comparison) == {"": "pending", "a": "pending", "b": "pending"}
    progress += steps
    assert progress[0].done == 0
    assert progress[-1].done == progress[-1].total == 2 * (X.nbytes + A.nbytes + B.nbytes)
    assert progress[-1].comparison.to_json() == compare_traces(reference, target).to_json()


def test_judging_again_needs_no_traces(tmp_path: Path) -> None:
    reference, target = model(tmp_path / "r.h5"), model(tmp_path / "t.h5", b=(B * np.float32(1.001)).astype(np.float32))
    strict = compare_traces(reference, target)
    saved = open_comparison(strict.save(tmp_path / "run.ldiff"))
    for path in (reference, target):
        path.unlink()
    relaxed = judge_again(saved, profile="relaxed")
    assert (strict.defect, relaxed.defect) == (True, False)
    assert judge_again(relaxed, profile="strict").to_json() == strict.to_json()


@pytest.mark.parametrize("wanted", [0, 1, None])
def test_json_is_bounded_and_strict(tmp_path: Path, wanted: int | None) -> None:
    nan = A.copy()
    nan[0, 0] = np.nan
    comparison = compare_traces(model(tmp_path / "r.h5"), model(tmp_path / "t.h5", a=nan, b=B + 1))
    found = json.loads(json.dumps(comparison.to_json(sites=wanted), allow_nan=False))
    assert found["verdict"] == "broken"
    assert found["sites_total"] == 3
    assert len(found["origins"]) >= 1


def test_state_that_an_object_carries_is_no_input_also_when_judged_again(tmp_path: Path) -> None:
    def stepping(path: Path, cache: Any) -> Path:
        writer = TraceWriter(path, meta={})
        call = writer.begin_call(CallRow(CallKind.MODULE, "", root=writer.add_root("model", "Root")))
        for position, array in (("in[0]", X), ("in.cache.keys", cache)):
            writer.add_edge(call, Role.INPUT, position, writer.add_value(value_row(array), raw(array)))
        writer.add_edge(call, Role.OUTPUT, "out", writer.add_value(value_row(A), raw(A)))
        held = {"object": "Cache", "fields": {"keys": {"tensor": "in.cache.keys"}}}
        arguments = {"args": [{"tensor": "in[0]"}], "kwargs": {"cache": held}}
        writer.end_call(call, CallStatus.RETURNED, json.dumps({"arguments": arguments}))
        return writer.close()

    comparison = compare_traces(stepping(tmp_path / "r.h5", B), stepping(tmp_path / "t.h5", B + 1))
    assert kinds(comparison) == {}
    assert kinds(judge_again(open_comparison(comparison.save(tmp_path / "run.ldiff")), profile="relaxed")) == {}


def test_steps_of_one_run_alone_are_all_named(tmp_path: Path) -> None:
    """A prompt of six and one decoded token against the same with six decoded tokens: steps 2 to 6 are the target's alone."""

    def decoding(path: Path, tokens: int) -> Path:
        writer = TraceWriter(path, meta={})
        root = writer.add_root("model", "Root")
        for step, given in enumerate([X, *[X[:1]] * tokens]):
            call = writer.begin_call(CallRow(CallKind.MODULE, "", root=root, step=step))
            for role, position in ((Role.INPUT, "in[0]"), (Role.OUTPUT, "out")):
                writer.add_edge(call, role, position, writer.add_value(value_row(given), raw(given)))
            writer.end_call(call, CallStatus.RETURNED)
            writer.end_step()
        return writer.close()

    comparison = compare_traces(decoding(tmp_path / "r.h5", 1), decoding(tmp_path / "t.h5", 6))
    (told,) = [notice.statement for notice in comparison.notices if notice.kind == "steps-differ"]
    assert told == "the target ran 5 steps that the other run did not: steps 2..6, of in[0] 1x16"


def test_a_weight_known_by_its_checksum_alone_is_said_in_plain_words(tmp_path: Path) -> None:
    def weighing(path: Path, weight: Any) -> Path:
        writer = TraceWriter(path, meta={})
        call = writer.begin_call(CallRow(CallKind.MODULE, "", root=writer.add_root("model", "Root")))
        writer.add_edge(call, Role.WEIGHT, "weight", writer.add_value(value_row(weight, kind=ValueKind.PARAMETER), None))
        writer.add_edge(call, Role.OUTPUT, "out", writer.add_value(value_row(A), raw(A)))
        writer.end_call(call, CallStatus.RETURNED)
        return writer.close()

    comparison = compare_traces(weighing(tmp_path / "r.h5", B), weighing(tmp_path / "t.h5", B * 2))
    (told,) = [notice.statement for notice in comparison.notices if notice.kind == "weight-differs"]
    assert "their checksums differ; mean, size or range differ by at least 1; the elements were not kept" in told


def test_a_pipeline_that_ran_once_more_before(tmp_path: Path) -> None:
    """Only its first stage is given what the reference is: its forwards tell which ones of every stage are compared."""
    x, hidden, out = np.random.default_rng(0).standard_normal((3, 2, 8)).astype(np.float32)
    layers = {"layers.0": ("Layer", hidden), "layers.1": ("Layer", out)}
    reference = write_model(tmp_path / "reference.h5", layers, inputs=x[:, :4], steps=2)
    (tmp_path / "target").mkdir()
    for rank, (name, given) in enumerate([("layers.0", x[:, :4]), ("layers.1", hidden)]):
        path, meta = tmp_path / "target" / f"rank{rank:05}.h5", {"rank": rank, "world_size": 2}
        write_model(path, {name: layers[name]}, inputs=given, steps=3, meta=meta)
    comparison = compare_traces(reference, tmp_path / "target")
    assert ([], False) == ([origin.site for origin in comparison.origins], comparison.defect)
    assert ((0, 1), (1, 2)) == comparison.alignment.steps
    assert [] == [call.site for call in comparison.alignment.reference_only]


@pytest.mark.parametrize(("off", "kinds_found"), [(1e-7, {}), (0.2, {"input-differs": True}), (-3.0, {"input-differs": False})])
def test_a_cache_of_plain_tensors_is_no_input_that_somebody_chose(tmp_path: Path, off: float, kinds_found: dict[str, bool]) -> None:
    cache, ids = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32), np.arange(4)

    def decoding(path: Path, kept: np.ndarray[Any, Any]) -> Path:
        writer = TraceWriter(path, meta={})
        root = writer.add_root("model", "Root")
        for step in range(2):
            call = writer.begin_call(CallRow(CallKind.MODULE, "", type="Root", root=root, step=step))
            writer.add_edge(call, Role.INPUT, "in[0]", writer.add_value(value_row(ids), raw(ids)))
            if step:
                writer.add_edge(call, Role.INPUT, "in[1][0]", writer.add_value(value_row(kept), raw(kept)))
            writer.add_edge(call, Role.OUTPUT, "out", writer.add_value(value_row(cache), raw(cache)))
            writer.end_call(call, CallStatus.RETURNED)
            writer.end_step()
        return writer.close()

    other = (cache * (1 + off)).astype(np.float32)
    assert kinds_found == kinds(compare_traces(decoding(tmp_path / "r.h5", cache), decoding(tmp_path / "t.h5", other)))


@pytest.mark.parametrize(("off", "kind"), [(0, "constant-dtype"), (2, "weight-differs")])
def test_small_weights_are_rounded_to_the_numbers_that_a_dtype_has(tmp_path: Path, off: int, kind: str) -> None:
    """An epsilon of 1e-6 is 17 times float16's smallest number, and 1.3 % off there: no unit roundoff covers that."""

    def weighing(path: Path, weight: Any) -> Path:
        writer = TraceWriter(path, meta={})
        call = writer.begin_call(CallRow(CallKind.MODULE, "", root=writer.add_root("model", "Root")))
        writer.add_edge(call, Role.WEIGHT, "eps", writer.add_value(value_row(weight, kind=ValueKind.PARAMETER), raw(weight)))
        writer.add_edge(call, Role.OUTPUT, "out", writer.add_value(value_row(A), raw(A)))
        writer.end_call(call, CallStatus.RETURNED)
        return writer.close()

    weight = np.array([1e-6, 2e-6], np.float32)
    there = (weight.astype(np.float16).view(np.uint16) + np.uint16(off)).view(np.float16)
    comparison = compare_traces(weighing(tmp_path / "r.h5", weight), weighing(tmp_path / "t.h5", there))
    assert [kind] == [notice.kind for notice in comparison.notices if notice.kind.startswith(("constant", "weight"))]


def test_nan_is_said_of_a_value_that_the_runs_have_in_two_forms(tmp_path: Path) -> None:
    """With a dimension of requests, and without."""
    broken = A.copy()
    broken[4, 3] = np.nan
    comparison = compare_traces(model(tmp_path / "r.h5", a=A[None]), model(tmp_path / "t.h5", a=broken))
    (origin,) = [one for one in comparison.origins if one.site == "a"]
    assert "NaN at 1 of 96 elements" in origin.statement
