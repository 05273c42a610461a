"""Matrices into cells: names, plans, equal plans, impossible ones."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envkit.fleet.expand import Expanded, base_of, expand
from envkit.fleet.matrix import Matrix, parse
from envkit.fleet.names import cell_name, hash_tag, marked
from envkit.ground.errors import UsageError
from envkit.image.name import parse_reference
from envkit.plan.definition import Definition
from envkit.plan.definition import load as load_definition
from envkit.plan.definition import parse as parse_definition
from tests.support.plans import facts

HEAD = "schema: envkit.image/1\ntitle: A title\n"


def load(name: str) -> Definition:
    """Definitions that lie nowhere: train and infer; others are shipped."""
    if name.endswith("train.yaml"):
        return parse_definition(HEAD + "request: {cpu: true}\npip: [einops]\n", where=name, folder=Path("/nonexistent"))
    return load_definition(name)


def cells(body: str, *, base: str = "auto", **typed: str) -> Expanded:
    return expand(parse(f"schema: envkit.matrix/1\n{body}", where="m.yaml"), typed, facts(), load, base=base)


def test_each_cell_has_its_name_its_axes_and_its_plan() -> None:
    found = cells("image: cpu\naxes: {python: ['3.11', '3.12'], torch: ['2.7.*']}\n")
    assert not found.impossible
    assert [cell.name for cell in found.cells] == ["cpu-python3.11-torch2.7", "cpu-python3.12-torch2.7"]
    assert found.cells[0].axes == (("python", "3.11"), ("torch", "2.7.*"))
    assert [cell.plan.resolution.python for cell in found.cells] == ["3.11", "3.12"]
    assert {cell.plan.resolution.torch for cell in found.cells} == {"2.7.1"}


def test_equal_plans_are_one_cell_unless_their_bases_differ() -> None:
    body = "image: cpu\naxes: {torch: ['2.7.1', '2.7.*'], base: [auto, 'debian:12']}\n"
    found = cells(body).cells
    assert [(cell.name, cell.also) for cell in found] == [
        ("cpu-torch2.7.1-baseauto", ("cpu-torch2.7-baseauto",)),
        ("cpu-torch2.7.1-basedebian_12", ("cpu-torch2.7-basedebian_12",)),
    ]
    assert [base_of(cell, "typed") for cell in found] == ["auto", "debian:12"]
    assert base_of(cells("image: cpu\n").cells[0], "typed") == "typed"


def test_every_cell_may_build_the_sources_of_the_command_line() -> None:
    matrix = parse("schema: envkit.matrix/1\nimage: cpu\naxes: {torch: ['2.6.*', '2.7.*']}\n", where="m.yaml")
    found = expand(matrix, {}, facts(), load, allow_source=["ext", "own<2"])
    assert [cell.plan.allow_source for cell in found.cells] == [("ext", "own<2")] * 2


def test_impossible_cells_come_with_their_reason_and_a_way() -> None:
    found = cells("image: cpu\naxes: {torch: ['2.7.*', '1.0.*']}\n")
    assert [cell.name for cell in found.cells] == ["cpu-torch2.7"]
    (one,) = found.impossible
    assert (one.name, one.axes) == ("cpu-torch1.0", (("torch", "1.0.*"),))
    assert one.reason.startswith(
        'no build matches --torch "1.0.*": because torch 1.0.* is not in the compatibility data of '
    )
    assert one.hint is not None
    assert one.hint.startswith("envkit resolve ")


def test_fields_of_the_definition_are_laid_over_it() -> None:
    body = "image: ./train.yaml\ninclude: [{pip: rich, features: [jupyter]}, {flavor: devel}, {apt: [git, curl]}]\n"
    plain, devel, packages = (cell.plan for cell in cells(body).cells)
    assert plain.pip == ("einops", "rich")
    assert plain.features == ("jupyter",)
    assert (devel.flavor, devel.pip) == ("devel", ("einops",))
    assert packages.system[-2:] == ("git", "curl")


def test_what_is_typed_holds_for_every_cell() -> None:
    found = cells("image: cpu\naxes: {python: ['3.11', '3.12']}\n", torch="2.7.1")
    assert {cell.plan.resolution.torch for cell in found.cells} == {"2.7.1"}
    with pytest.raises(UsageError) as caught:
        cells("image: cpu\naxes: {python: ['3.11', '3.12']}\n", python="3.11")
    assert caught.value.message == "--python and the axis python of m.yaml contradict each other"
    assert caught.value.hint == "remove --python or the axis"
    with pytest.raises(UsageError, match=r"--base and the axis base of m\.yaml contradict each other"):
        cells("image: cpu\naxes: {base: [none, 'debian:12']}\n", base="debian:13")
    assert len(cells("image: cpu\naxes: {base: [none, 'debian:12']}\n").cells) == 2
    with pytest.raises(UsageError) as caught:
        cells("image: cpu\naxes: {os: [debian12]}\ninclude: [{torch: '2.8.0'}]\n", torch="2.7.1")
    assert caught.value.message == "--torch and torch in include of m.yaml contradict each other"
    assert caught.value.hint == "remove --torch or torch"


def test_faults_of_all_cells_come_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        cells("image: cpu\naxes: {os: [debain12, debian12], pip: ['a b', einops]}\n")
    lines = [caught.value.message, *caught.value.details]
    assert len(lines) == 3
    assert lines[0].startswith("m.yaml: cpu-osdebain12-pipa_b: m.yaml: cpu-osdebain12-pipa_b: pip[0]: 'a b' ")
    assert "--os: unknown operating system 'debain12'" in lines[1]
    assert lines[2].startswith("cpu-osdebian12-pipa_b: ")


def test_two_images_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        cells("images: [./a/train.yaml, ./b/train.yaml]\n")
    message = "m.yaml: a/train.yaml and b/train.yaml both have the name train, which becomes the tag"
    assert (caught.value.message, caught.value.hint) == (message, "rename one of the files")


def test_a_name_that_is_no_image_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown image definition 'cqu'"):
        cells("image: cqu\n")


def test_equal_names_of_different_cells_get_marks_that_no_order_changes() -> None:
    bases = ["a.example/x/debian:12", "b.example/y/debian:12", "debian:13"]
    first, second = (cells(f"image: cpu\naxes: {{base: {order}}}\n").cells for order in (bases, bases[::-1]))
    names = {dict(cell.axes)["base"]: cell.name for cell in first}
    assert names == {dict(cell.axes)["base"]: cell.name for cell in second}
    assert names["debian:13"] == "cpu-basedebian_13"
    assert len(set(names.values())) == 3


TEXT = st.text(min_size=0, max_size=60)


@given(TEXT, st.lists(st.tuples(st.sampled_from(("os", "base", "torch")), TEXT), max_size=4))
def test_names_are_tags(definition: str, axes: list[tuple[str, str]]) -> None:
    for name in (cell_name(definition, axes), marked(cell_name(definition, axes), definition, axes)):
        assert parse_reference(f"registry.example.com/team/train:{name}").tag == name


def test_hashes_differ_where_anything_differs() -> None:
    found = [
        hash_tag("sha256:a", "sha256:b"),
        hash_tag("sha256:a", None),
        hash_tag("sha256:ab", "sha256:"),
        hash_tag("sha256:a", "sha256:b", ("label a=b",)),
    ]
    assert len(set(found)) == 4
    assert all(len(one) == 12 and int(one, 16) >= 0 for one in found)


CHOICES = {
    "python": ("3.10", "3.11", "3.12"),
    "torch": ("2.6.*", "2.7.1", "2.7.*", "0.1"),
    "os": ("debian12", "ubuntu22.04"),
}


@settings(max_examples=25, deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={key: st.lists(st.sampled_from(values), min_size=1, unique=True) for key, values in CHOICES.items()},
    )
)
def test_every_row_is_a_cell_one_of_its_equals_or_impossible(axes: dict[str, list[str]]) -> None:
    matrix = Matrix(where="m.yaml", images=("cpu",), axes=tuple((key, tuple(values)) for key, values in axes.items()))
    found = expand(matrix, {}, facts(), load)
    names = [name for cell in found.cells for name in (cell.name, *cell.also)] + [one.name for one in found.impossible]
    count = 1
    for values in axes.values():
        count *= len(values)
    assert len(names) == len(set(names)) == count
    assert len({cell.plan.digest for cell in found.cells}) == len(found.cells)
    assert all("0.1" in dict(one.axes).values() for one in found.impossible)
