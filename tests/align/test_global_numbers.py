"""Global numbers of layers and experts: from the weights that are found in the reference, and only where they say so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerdiff.align.global_numbers import Figures, Print, renumbered, rounded_stage_offsets, split_number, stage_offsets


def bits(number: int, shape: tuple[int, ...] = (4,)) -> Print:
    return (number, 0), "float32", shape


def layers(first: int, count: int, *, named_from: int = 0, names: tuple[str, ...] = ("norm.weight", "mlp.weight")) -> dict[str, Print]:
    """Weights of layers `first`, ... of a model, numbered from `named_from`."""
    return {f"layers.{named_from + i}.{name}": bits(100 * (first + i) + at) for i in range(count) for at, name in enumerate(names)}


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("model.layers.3.mlp", ("model.layers", 3, "mlp")),
        ("layers.12", ("layers", 12, "")),
        ("0.norm", ("", 0, "norm")),
        ("layers.0.experts.5.weight", ("layers", 0, "experts.5.weight")),
        ("model.norm", None),
        ("conv2d.weight", None),
        ("", None),
    ],
)
def test_a_path_is_split_at_its_first_number(path: str, parts: tuple[str, int, str] | None) -> None:
    assert parts == split_number(path)


def test_a_stage_that_counts_from_zero_is_moved() -> None:
    assert {"layers": {0: 4}} == stage_offsets(layers(0, 8), layers(4, 4))


def test_a_stage_with_global_numbers_stays() -> None:
    assert {} == stage_offsets(layers(0, 8), layers(4, 4, named_from=4))
    assert {} == stage_offsets(layers(0, 8), layers(0, 4))


def test_a_stage_that_counts_from_another_number_is_moved_back() -> None:
    assert {"layers": {0: -1}} == stage_offsets(layers(0, 8), layers(4, 4, named_from=5))


def test_weights_that_are_not_found_say_nothing() -> None:
    stage = {name: bits(7_000 + i) for i, name in enumerate(layers(4, 4))}
    assert {} == stage_offsets(layers(0, 8), stage)


def test_the_weights_that_are_found_speak_for_those_that_are_cut() -> None:
    stage = {name: known if "norm" in name else bits(9_000) for name, known in layers(4, 4).items()}
    assert {"layers": {0: 4}} == stage_offsets(layers(0, 8), stage)


def test_weights_that_are_alike_in_every_layer_leave_numbers_as_they_are() -> None:
    ones = {f"layers.{i}.norm.weight": bits(1) for i in range(8)}
    assert {} == stage_offsets(ones, {f"layers.{i}.norm.weight": bits(1) for i in range(4)})


def test_weights_that_are_alike_in_every_layer_do_not_outvote_the_others() -> None:
    whole = {**layers(0, 8, names=("mlp.weight",)), **{f"layers.{i}.norm.weight": bits(1) for i in range(8)}}
    stage = {**layers(4, 4, names=("mlp.weight",)), **{f"layers.{i}.norm.weight": bits(1) for i in range(4)}}
    assert {"layers": {0: 4}} == stage_offsets(whole, stage)


def test_a_weight_of_another_name_or_dtype_is_another_weight() -> None:
    stage = {"layers.0.other.weight": bits(400), "layers.0.norm.weight": ((400, 0), "bfloat16", (4,))}
    assert {} == stage_offsets(layers(0, 8), stage)


def test_each_list_of_layers_has_its_own_number() -> None:
    whole = {f"{side}.{name}": (pair[0], side, pair[2]) for side in ("encoder", "decoder") for name, pair in layers(0, 6).items()}
    stage = {
        f"{side}.{name}": (pair[0], side, pair[2])
        for side, first in (("encoder", 2), ("decoder", 4))
        for name, pair in layers(first, 2).items()
    }
    assert {"encoder.layers": {0: 2}, "decoder.layers": {0: 4}} == stage_offsets(whole, stage)


def figures(first: int, count: int, dtype: str, *, apart: float = 0.05, rounding: float = 0.0) -> dict[str, Figures]:
    """Weights whose means part by `apart` from layer to layer, as a stage numbers them."""
    return {f"layers.{i}.mlp.weight": (dtype, (8,), apart * (first + i) + rounding, 1.0 - rounding) for i in range(count)}


def test_weights_in_another_dtype_are_found_by_their_figures() -> None:
    whole = figures(0, 8, "float32")
    assert {"layers": {0: 4}} == rounded_stage_offsets(whole, figures(4, 4, "bfloat16", rounding=1e-4))
    assert {} == rounded_stage_offsets(whole, figures(0, 4, "bfloat16", rounding=1e-4))
    assert {} == rounded_stage_offsets(whole, figures(4, 4, "float32"))  # in the same dtype bits tell


def test_figures_that_are_alike_in_every_layer_or_near_none_say_nothing() -> None:
    whole = figures(0, 8, "float32", apart=0.0)
    assert {} == rounded_stage_offsets(whole, figures(4, 4, "bfloat16", apart=0.0))
    assert {} == rounded_stage_offsets(figures(0, 4, "float32"), figures(6, 2, "bfloat16"))
    zeros = {name: (dtype, shape, 0.0, 0.0) for name, (dtype, shape, *_) in figures(0, 8, "float32").items()}
    assert {} == rounded_stage_offsets(zeros, {name: ("bfloat16", *known[1:]) for name, known in zeros.items()})


@pytest.mark.parametrize(
    ("site", "moved"),
    [
        ("layers.0", "layers.4"),
        ("layers.11.norm", "layers.15.norm"),
        ("layers.2/aten.add.Tensor#1", "layers.6/aten.add.Tensor#1"),
        ("layers.2.mlp/aten.mm.default#0", "layers.6.mlp/aten.mm.default#0"),
        ("layers", "layers"),
        ("layers.first.norm", "layers.first.norm"),
        ("norm", "norm"),
        ("other.layers.0", "other.layers.0"),
        ("", ""),
    ],
)
def test_sites_get_the_number_in_the_whole_model(site: str, moved: str) -> None:
    assert moved == renumbered({"layers": {0: 4}})(site)


def test_a_list_that_is_the_root_has_no_name_before_its_number() -> None:
    assert "7.norm" == renumbered({"": {0: 4}})("3.norm")


@given(first=st.integers(0, 20), count=st.integers(1, 8), named_from=st.integers(0, 30), before=st.sampled_from(["", "a.layers"]))
def test_any_stage_finds_its_numbers(first: int, count: int, named_from: int, before: str) -> None:
    def put(weights: dict[str, Print]) -> dict[str, Print]:
        return {name.replace("layers.", f"{before}." if before else "", 1): known for name, known in weights.items()}

    offsets = stage_offsets(put(layers(0, 30)), put(layers(first, count, named_from=named_from)))
    site = f"{before}.{named_from}.mlp".lstrip(".")
    assert f"{before}.{first}.mlp".lstrip(".") == renumbered(offsets)(site)


def experts(first: int, count: int, *, named_from: int = 0, layer: int = 0, named: int | None = None) -> dict[str, Print]:
    """Weights of experts `first`, ... of a layer, numbered from `named_from`; `named` is the layer's own number."""
    number = layer if named is None else named
    return {f"layers.{number}.experts.{named_from + i}.w": bits(10_000 * (layer + 1) + first + i) for i in range(count)}


def test_experts_that_a_rank_counts_from_zero_are_moved() -> None:
    reference = {**layers(0, 2), **experts(0, 8), **experts(0, 8, layer=1)}
    rank = {**layers(0, 2), **experts(4, 4), **experts(4, 4, layer=1)}
    offsets = stage_offsets(reference, rank)
    assert {"layers.0.experts": {0: 4}, "layers.1.experts": {0: 4}} == offsets
    assert "layers.1.experts.6.gate" == renumbered(offsets)("layers.1.experts.2.gate")
    assert "layers.1.norm" == renumbered(offsets)("layers.1.norm")


def test_an_inner_list_is_found_once_the_outer_one_has_its_numbers() -> None:
    reference = {**layers(0, 4), **experts(0, 8, layer=2)}
    stage = {**layers(2, 2), **experts(4, 4, layer=2, named=0)}
    outer = stage_offsets(reference, stage)
    assert {"layers": {0: 2}} == outer
    site = renumbered(outer)
    assert {"layers.2.experts": {0: 4}} == stage_offsets(reference, {site(name): known for name, known in stage.items()})


def test_numbers_of_two_lists_are_added_inner_first() -> None:
    assert "layers.5.experts.6/aten.mm.default#0" == renumbered({"layers": {0: 2}, "layers.3.experts": {0: 4}})(
        "layers.3.experts.2/aten.mm.default#0"
    )


def test_weights_in_a_narrower_dtype_are_known_by_what_they_would_round_to() -> None:
    rounded = [(f"layers.{i}.mlp.weight", bits(500 + i)) for i in range(8)]
    assert {"layers": {0: 4}} == stage_offsets(layers(0, 8), {f"layers.{i}.mlp.weight": bits(504 + i) for i in range(4)}, rounded)


def test_a_list_is_found_where_the_list_inside_it_is_off_too() -> None:
    assert {"layers": {0: 2}} == stage_offsets(experts(0, 8, layer=2), experts(4, 4, layer=2, named=0))


# numbers that are no offset, and weights that are cut


def one_by_one(*numbers: int, named: tuple[int, ...] = ()) -> dict[str, Print]:
    """Layers of the model as a rank counts them."""
    return {
        name: bits_ for own, number in enumerate(numbers) for name, bits_ in layers(number, 1, named_from=(named or range(99))[own]).items()
    }


@pytest.mark.parametrize("held", [(1, 3, 5, 7), (0, 1, 4, 5), (2, 3, 6, 7), (0, 4), (0, 5)])
def test_layers_that_were_dealt_have_an_offset_each(held: tuple[int, ...]) -> None:
    site = renumbered(stage_offsets(layers(0, 8), one_by_one(*held)))
    assert [f"layers.{number}.norm" for number in held] == [site(f"layers.{own}.norm") for own in range(len(held))]


@pytest.mark.parametrize("held", [(1, 0, 2, 3), (0, 0, 2, 3), (3, 2, 1, 0), (0, 5, 2, 3)])
def test_layers_that_take_each_others_place_keep_their_numbers(held: tuple[int, ...]) -> None:
    assert {} == stage_offsets(layers(0, 8), one_by_one(*held))


def test_a_number_without_weights_goes_with_the_one_before() -> None:
    site = renumbered({"layers": {1: 2, 3: 5}})
    assert ["layers.2", "layers.3", "layers.4", "layers.8"] == [site(f"layers.{own}") for own in range(4)]


def cut(weights: dict[str, Print], whole: dict[str, Print]) -> tuple[dict[str, Print], dict[str, list[str]]]:
    """Parts of weights, whose bits are nowhere, and by name of which of the whole model's they are."""
    of = {name: [other for other, known in whole.items() if known == bits_] for name, bits_ in weights.items()}
    return {name: bits(100_000 + i, (2,)) for i, name in enumerate(weights)}, of


def test_weights_that_are_cut_are_asked_of_which_they_are_a_part() -> None:
    whole, asked = layers(0, 16), list[str]()
    parts, of = cut(layers(8, 8), whole)

    def ask(name: str) -> list[str]:
        asked.append(name)
        return of[name]

    assert {"layers": {0: 8}} == stage_offsets(whole, parts, parts_of=ask)
    assert {"layers.0", "layers.7"} == {name.rpartition(".")[0].rpartition(".")[0] for name in asked}


def test_where_the_first_and_the_last_part_disagree_all_are_asked() -> None:
    whole = layers(0, 16)
    parts, of = cut(one_by_one(1, 3, 5, 7), whole)
    site = renumbered(stage_offsets(whole, parts, parts_of=lambda name: of[name]))
    assert ["layers.1", "layers.3", "layers.5", "layers.7"] == [site(f"layers.{own}") for own in range(4)]


def test_weights_whose_bits_tell_are_not_asked() -> None:
    whole = layers(0, 8)
    stage = {name: known if "norm" in name else bits(9_000) for name, known in layers(4, 4).items()}

    def ask(name: str) -> list[str]:
        raise AssertionError(name)

    assert {"layers": {0: 4}} == stage_offsets(whole, stage, parts_of=ask)


def test_parts_inside_a_list_that_is_off_are_asked_once_it_has_its_numbers() -> None:
    whole = {**experts(0, 8, layer=2), **experts(0, 8, layer=3)}
    parts, of = cut({**experts(4, 4, layer=2, named=0), **experts(4, 4, layer=3, named=1)}, whole)
    offsets = stage_offsets(whole, parts, parts_of=lambda name: of[name])
    assert {"layers": {0: 2}} == offsets
    site = renumbered(offsets)
    back = {site(name): name for name in parts}
    inner = stage_offsets(whole, {site(name): known for name, known in parts.items()}, parts_of=lambda name: of[back[name]])
    assert {"layers.2.experts": {0: 4}, "layers.3.experts": {0: 4}} == inner
