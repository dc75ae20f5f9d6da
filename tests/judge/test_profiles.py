from __future__ import annotations

from pathlib import Path

import pytest

from layerdiff.align.alignment import RenameRule
from layerdiff.errors import ProfileError
from layerdiff.judge.profiles import Profile, Threshold, load_profile

FULL = """
base = "relaxed"
allow = ["tf32"]
same_dtype = true

[[threshold]]
sites = "model.layers.*.mlp*"
dtype = "bfloat16"
local = 0.02
gain = 8

[[threshold]]
sites = "*"

[[rename]]
target = 'transformer\\.h\\.(\\d+)'
reference = 'model.layers.\\1'
"""


def test_the_built_in_profiles() -> None:
    assert load_profile("strict") == Profile("strict")
    assert load_profile("relaxed").allow == {"tf32", "quantised", "low-precision-collectives"}
    assert load_profile(Profile("mine")) == Profile("mine")


def test_a_file_says_everything(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(FULL)
    profile = load_profile(path)
    assert profile.allow == {"tf32", "quantised", "low-precision-collectives"}
    assert profile.same_dtype is True
    assert profile.thresholds == (Threshold("model.layers.*.mlp*", "bfloat16", 0.02, 8.0), Threshold("*"))
    assert profile.renames == (RenameRule(r"transformer\.h\.(\d+)", r"model.layers.\1"),)
    assert profile.to_json()["name"] == str(path)


def test_globs_match_whole_sites() -> None:
    threshold = Threshold("model.layers.*.mlp*")
    assert threshold.matches("model.layers.3.mlp.act_fn")
    assert not threshold.matches("x.model.layers.3.mlp")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("alow = []", "alow is no key of a profile; known are allow, base"),
        ('base = "loose"', "must be one of strict, relaxed"),
        ('allow = ["int8"]', "allow must be a list of tf32"),
        ("same_dtype = 1", "same_dtype must be true or false"),
        ("[[threshold]]\nlocal = 1", "threshold 1: sites is missing"),
        ('[[threshold]]\nsites = "*"\nlocal = -1', "threshold 1: local must be a number, 0 or more"),
        ('[[threshold]]\nsites = "*"\ngain = true', "threshold 1: gain must be a number"),
        ('[[threshold]]\nsites = "*"\ndtype = "bf16"', "is no dtype"),
        ('[[threshold]]\nsites = "*"\nrel = 1', "threshold 1: rel is no key"),
        ("threshold = 3", r"written as \[\[threshold\]\] tables"),
        ('[[rename]]\ntarget = "("\nreference = ""', "rename 1: target is no regular expression"),
        ('[[rename]]\ntarget = "a"', "rename 1: both target"),
        ("a = = 1", "is not TOML"),
    ],
)
def test_a_wrong_file_says_what_and_where(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "p.toml"
    path.write_text(text)
    with pytest.raises(ProfileError, match=said) as caught:
        load_profile(path)
    assert "p.toml" in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot be read"):
        load_profile(tmp_path / "none.toml")
