"""Wrappers are stripped; a submodule that happens to be called `module` is not."""

from __future__ import annotations

import pytest

from layerdiff.align.aligning import align
from tests.align.trees import calls, names, pairs

PLAIN = ("- : Model", "  layers.0 : Block", "    layers.0.norm : Norm", "    layers.0.norm/aten.mul#0")


@pytest.mark.parametrize(
    ("part", "holder"), [("_orig_mod", "OptimizedModule"), ("module", "DistributedDataParallel"), ("module", "VendorEngine")]
)
def test_a_wrapper_around_the_root(part: str, holder: str) -> None:
    wrapped = calls(
        f"- : {holder}",
        f"  {part} : Model",
        f"    {part}.layers.0 : Block",
        f"      {part}.layers.0.norm : Norm",
        f"      {part}.layers.0.norm/aten.mul#0",
    )
    plain = calls(*PLAIN)
    found = align(plain, wrapped)
    assert [(0, 1), (1, 2), (2, 3)] == pairs(found)[:3]
    assert ["", "", "layers.0", "layers.0.norm", "layers.0.norm/aten.mul#0"] == list(found.sites.target)
    assert [-1, -1, 1, 2, 2] == found.parents.target.tolist()
    assert (f"the wrapper prefix `{part}.` was stripped from 3 module paths of the target",) == found.remarks
    assert [(1, 0), (2, 1), (3, 2)] == pairs(align(wrapped, plain))[:3]


def test_wrappers_around_blocks() -> None:
    target = calls(
        "- : Model",
        "  layers.0 : FullyShardedDataParallel",
        "    layers.0._fsdp_wrapped_module : CheckpointWrapper",
        "      layers.0._fsdp_wrapped_module._checkpoint_wrapped_module : Block",
        "        layers.0._fsdp_wrapped_module._checkpoint_wrapped_module.norm : Norm",
    )
    found = align(calls("- : Model", "  layers.0 : Block", "    layers.0.norm : Norm"), target)
    assert [(0, 0), (1, 3), (2, 4)] == pairs(found)
    assert ([], []) == (found.reference_only, found.target_only)
    assert [-1, 0, 0, 0, 3] == found.parents.target.tolist()
    said = "the wrapper prefix `_checkpoint_wrapped_module.`, `_fsdp_wrapped_module.` was stripped from 3 module paths of the target"
    assert (said,) == found.remarks


def test_a_genuine_module_on_both_sides_stays() -> None:
    lines = ("- : Model", "  adapter : Adapter", "    adapter.module : Linear", "  head : Linear")
    found = align(calls(*lines), calls(*lines))
    assert ["", "adapter", "adapter.module", "head"] == names(found)
    assert () == found.remarks


def test_a_genuine_module_inside_a_wrapper_stays() -> None:
    target = calls(
        "- : Engine", "  module : Model", "    module.adapter : Adapter", "      module.adapter.module : Linear", "    module.head : Linear"
    )
    found = align(calls("- : Model", "  adapter : Adapter", "    adapter.module : Linear", "  head : Linear"), target)
    assert [(0, 1), (1, 2), (2, 3), (3, 4)] == pairs(found)
    assert ["", "adapter", "adapter.module", "head"] == names(found)


def test_a_model_whose_only_child_is_called_module() -> None:
    plain = ("- : Model", "  module : Encoder", "    module.a : Linear")
    wrapped = ("- : Engine", "  module : Model", "    module.module : Encoder", "      module.module.a : Linear")
    assert [(0, 0), (1, 1), (2, 2)] == pairs(align(calls(*plain), calls(*plain)))
    assert ["", "module", "module.a"] == names(align(calls(*plain), calls(*wrapped)))
    assert [(0, 1), (1, 2), (2, 3)] == pairs(align(calls(*plain), calls(*wrapped)))


def test_a_wrapped_leaf() -> None:
    found = align(calls("- : M", "  a : Linear"), calls("- : M", "  a : Wrapper", "    a.module : Linear"))
    assert [(0, 0), (1, 2)] == pairs(found)


def test_what_stands_beside_a_wrapped_module_is_kept() -> None:
    target = calls("- : Engine", "  module : Model", "    module.a : A", "    module.b : B", "  timer : Timer")
    found = align(calls("- : Model", "  a : A", "  b : B"), target)
    assert [(0, 1), (1, 2), (2, 3)] == pairs(found)
    assert [(4, "the reference never runs timer")] == found.target_only


def test_a_module_that_calls_itself_is_no_wrapper() -> None:
    lines = ("- : M", "  a : A", "    a : A")
    assert [(0, 0), (1, 1), (2, 2)] == pairs(align(calls(*lines), calls(*lines)))


@pytest.mark.parametrize("prefix", ["base_model.model", "base_model"])
def test_the_model_that_adapters_were_put_into_is_the_model(prefix: str) -> None:
    """LoRA lies around the model, a learnt prompt does not; either is a child of what peft returns."""
    adapted = calls(
        "- : PeftModelForCausalLM", f"  {prefix} : Model", f"    {prefix}.model.a : Block", f"      {prefix}.model.a.lora_A.x : Linear"
    )
    plain = calls("- : Model", "  model.a : Block")
    found = align(plain, adapted)
    assert ["", "", "model.a", "model.a.lora_A.x"] == list(found.sites.target)
    assert [(0, 1), (1, 2)] == pairs(found)[:2]
    assert [(1, 0), (2, 1)] == pairs(align(adapted, plain))[:2]


def test_where_both_runs_have_adapters_nothing_is_stripped() -> None:
    adapted = calls("- : PeftModel", "  base_model.model : Model", "    base_model.model.a : Block")
    assert ["", "base_model.model", "base_model.model.a"] == list(align(adapted, adapted).sites.target)
