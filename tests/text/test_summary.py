"""The summary of `diff`."""

from __future__ import annotations

import io

import pytest

from layerdiff.diagnose.findings import Notice
from layerdiff.judge.tables import Verdict
from layerdiff.saved.alignment_summary import PROPOSED
from layerdiff.text.render import render
from layerdiff.text.summary import summary
from tests.comparisons import comparison, layer
from tests.ranked import four_ranks

NORM = "model.layers.3.input_layernorm"


def plain(**options: object) -> list[str]:
    return [line.plain for line in summary(comparison(**options))]  # type: ignore[arg-type]  # options of the builder


def test_a_fault_with_its_numbers_and_the_next_command() -> None:
    assert plain(faults={NORM: Verdict.DEFECT}, notices=[Notice("dtype-mismatch", "bf16 against fp32")]) == [
        "reference  reference.h5  LlamaForCausalLM fp32 x1 cpu",
        "target     target.h5  LlamaForCausalLM bf16 x1 cuda",
        "aligned    422 of 422 calls paired",
        "profile    strict, judged by thresholds; record with --operators to decide",
        "",
        "◆ dtype-mismatch: bf16 against fp32",
        "",
        "✗ defect  1 origin: the runs differ beyond what the profile allows",
        "",
        f" 1  {NORM}  out  ✗ defect",
        "    epsilon 1e-6, reference 1e-5 (fit within 1%)",
        "    measured 0.0492 of 0.012 allowed (4.10×)  by output rel L2, bfloat16",
        "    evidence: input rel L2 0.00031, gain 158.7",
        "",
        "look     layerdiff show reference.h5 target.h5",
        "report   layerdiff report reference.h5 target.h5 -f markdown -o issue.md",
    ]


def test_a_clean_pair() -> None:
    assert "≈ No defect: all 381 differences are within bfloat16 rounding" in plain()


def test_mostly_unpaired_comes_first_with_its_proposal() -> None:
    rule = f"{PROPOSED}: target = 'encoder.(.*)', reference = 'model.\\1'"
    found = plain(layers=2, reference_only=layer(0), target_only=layer(1), remarks=[rule])
    assert found[:2] == ["! only 6 of 19 module calls pair: the two models name their modules differently", f"  {rule}"]
    assert found[-1] == "         layerdiff diff reference.h5 target.h5 --profile rules.toml"
    assert "rules.toml" not in "".join(plain(layers=2, reference_only=layer(0), target_only=layer(1)))  # where no rule is known
    assert "! only" not in "".join(plain(layers=2, reference_only=layer(0)))  # all that the target has pairs


def test_a_notice_names_its_site_once() -> None:
    found = plain(notices=[Notice("flip", f"{NORM}: decided otherwise", NORM), Notice("weight-differs", "another weight", NORM)])
    assert f"◆ flip: {NORM}: decided otherwise" in found
    assert f"◆ weight-differs at {NORM}: another weight" in found


def test_a_notice_that_is_a_defect_is_first_of_the_notices() -> None:
    found = plain(notices=[Notice("dtype-mismatch", "a"), Notice("input-differs", "b", None, True)])
    assert found[5:7] == ["✗ input-differs: b", "◆ dtype-mismatch: a"]


def test_many_origins_say_how_many_are_left_out() -> None:
    found = plain(faults={f"model.layers.{i}.mlp.act_fn": Verdict.UNEXPLAINED for i in range(13)})
    assert "and 3 more origins: layerdiff show, o lists them" in found


def test_names_cannot_steer_the_terminal() -> None:
    found = plain(faults={NORM: Verdict.DEFECT}, rename={NORM: "a\x1b[31m\nb\u202e"})
    assert all(line.isprintable() for line in found)
    assert " 1  a\\x1b[31m\\nb\\u202e  out  ✗ defect" in found


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("environment", "colored"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_color_only_for_a_terminal_that_wants_it(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], colored: bool) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    lines, terminal, pipe = summary(comparison(faults={NORM: Verdict.DEFECT})), Terminal(), io.StringIO()
    render(lines, terminal)
    render(lines, pipe)
    assert ("\x1b[" in terminal.getvalue()) is colored
    assert pipe.getvalue() == "".join(line.plain + "\n" for line in lines)


def test_a_stream_that_lacks_a_character_gets_a_question_mark() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    render(summary(comparison()), stream)
    stream.flush()
    assert b"? No defect" in stream.buffer.getvalue()  # type: ignore[attr-defined]  # BytesIO


def ranked(**options: object) -> list[str]:
    return [line.plain for line in summary(four_ranks(**options))]  # type: ignore[arg-type]  # options of the builder


def test_many_ranks_say_how_values_are_placed_and_which_rank_is_off() -> None:
    found = ranked()
    assert ["aligned    71 of 71 calls paired, x4", "placed     10 values: 3 replicated, 5 sharded, 1 partial, 1 unknown"] == found[2:4]
    assert "    ranks    rank 2 alone is off: 3.00e-1, the others up to 1.30e-7" in found


def test_ranks_that_are_alike_are_not_told_apart() -> None:
    assert not [text for text in ranked(q_proj=[1e-2, 2e-2, 1e-2, 5e-2]) if text.startswith("    ranks")]
    assert "    ranks    error by rank: 0: 1.00e-7, 1: 3.00e-1, 2: 2.00e-1, 3: 1.00e-7" in ranked(q_proj=[1e-7, 3e-1, 2e-1, 1e-7])


def test_one_process_says_nothing_of_ranks() -> None:
    assert not [text for text in plain() if text.startswith("placed") or ", x" in text]
