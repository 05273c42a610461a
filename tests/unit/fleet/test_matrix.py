"""Matrix files: what is refused with which words, and what combinations come of what is taken."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.fleet.matrix import Axes, Matrix, Value, parse, read_matrix, rows_of
from envkit.ground import records
from envkit.ground.errors import UsageError
from envkit.plan.definition import Definition
from envkit.resolve.request import FIELDS

MEANT = "did you mean pypi?"
OWN = "or a name that begins with miniconda- or wheels-"
HEAD = "schema: envkit.matrix/1\n"


def matrix(body: str) -> Matrix:
    return parse(HEAD + body, where="m.yaml")


def rows(body: str) -> list[dict[str, Value]]:
    return [dict(row) for row in rows_of(matrix(body))]


def faults(text: str) -> list[str]:
    with pytest.raises(UsageError) as caught:
        parse(text, where="m.yaml")
    assert caught.value.hint == "`envkit help fleet` lists every key and its meaning"
    return [caught.value.message, *caught.value.details]


def test_every_fault_of_a_file_comes_at_once() -> None:
    found = faults(
        """
schema: envkit.matrix/2
image: cpu
images: [cpu]
axis: {}
axes:
  pyton: ["3.11"]
  python: "3.11"
  torch: ["2.7", "2.7", "two", 5.x, true]
  source: [pypy]
  template: [conda]
  cpu: ["yes"]
  gpu: [[A100, V100], ""]
  os: []
include:
  - {tourch: "2.7"}
  - {}
  - cu126
exclude: {python: "3.11"}
"""
    )
    assert found == [
        "m.yaml: axis: unknown key; did you mean axes?",
        "m.yaml: schema: 'envkit.matrix/2' is not one of envkit.matrix/1; did you mean envkit.matrix/1?",
        "m.yaml: image and images: give one of them",
        "m.yaml: axes.pyton: unknown key; did you mean python?",
        "m.yaml: axes.python: is not a list of values; write python: [3.11]",
        "m.yaml: axes.torch[2]: 'two' is not a version",
        "m.yaml: axes.torch[3]: '5.x' is not a version",
        "m.yaml: axes.torch[4]: true is not text; quote it",
        "m.yaml: axes.torch[1]: '2.7' is listed twice",
        "m.yaml: axes.source[0]: 'pypy' is not one of auto, pytorch, pypi, conda-forge, conda-pytorch; " + MEANT,
        "m.yaml: axes.template[0]: 'conda' is not a template name; use miniconda, wheels, " + OWN,
        "m.yaml: axes.cpu[0]: 'yes' is not true or false",
        "m.yaml: axes.gpu[1]: the text is empty",
        "m.yaml: axes.os: is not a list of values; write os: [...]",
        "m.yaml: include[0].tourch: unknown key; did you mean torch?",
        "m.yaml: include[1]: the combination is empty",
        "m.yaml: include[2]: 'cu126' is not a mapping",
        "m.yaml: exclude: is not a list of combinations",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "m.yaml is empty"),
        ("image: cpu\n", "m.yaml: schema: missing; write `schema: envkit.matrix/1`"),
        (HEAD + "images: []\n", "m.yaml: images: the list is empty"),
        (HEAD + "axes: [python]\n", "m.yaml: axes: is not a mapping of fields to lists of values"),
        (
            HEAD + "axes: {python: [3.11]}\nexclude: [{torch: '2.7'}]\n",
            "m.yaml: exclude[0].torch: unknown key; known: python, image",
        ),
        (
            HEAD + "axes: {python: [3.11, 3.12]}\nexclude: [{python: '3.13'}]\n",
            "m.yaml: exclude[0].python: '3.13' is not a value of python, which lists '3.11', '3.12'",
        ),
        (
            HEAD
            + f"axes: {{os: [{', '.join(f'a{n}' for n in range(40))}], base: [{', '.join(map(str, range(26)))}]}}\n",
            "m.yaml: 1040 combinations; the limit is 1000",
        ),
    ],
)
def test_single_faults(text: str, message: str) -> None:
    assert faults(text)[0].startswith(message)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"m\.yaml"):
        read_matrix(tmp_path / "m.yaml")


def test_paths_begin_at_the_file_and_names_stay(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(HEAD + "images: [cpu, own.yaml, ./sub/two.yaml]\n")
    found = read_matrix(tmp_path / "m.yaml").images
    assert found == ("cpu", str(tmp_path / "own.yaml"), str(tmp_path / "sub/two.yaml"))
    assert parse(HEAD + "image: own.yaml\n", where="m.yaml").images == ("./own.yaml",)
    assert matrix("").images == ("default",)


def test_axes_are_fields_of_a_request_or_of_a_definition() -> None:
    assert set(records.fields(Axes)) <= {*FIELDS, *records.fields(Definition), "base"}


def test_the_last_axis_counts_first() -> None:
    assert rows("images: [cpu, devel]\naxes: {python: ['3.11', '3.12'], cpu: [true, null]}\n") == [
        {"image": image, "python": python, "cpu": cpu}
        for image in ("cpu", "devel")
        for python in ("3.11", "3.12")
        for cpu in (True, None)
    ]


def test_exclude_matches_what_it_names() -> None:
    body = "axes: {python: ['3.11', '3.12'], gpu: [A100, [A100, V100]]}\nexclude: "
    assert rows(body + "[{python: '3.12'}]\n") == [
        {"image": "default", "python": "3.11", "gpu": ("A100",)},
        {"image": "default", "python": "3.11", "gpu": ("A100", "V100")},
    ]
    assert rows(body + "[{python: '3.12', gpu: [A100, V100]}, {gpu: A100}]\n") == [
        {"image": "default", "python": "3.11", "gpu": ("A100", "V100")}
    ]


def test_include_means_what_it_means_to_users_of_ci() -> None:
    """The example by which a CI system explains it, with fields of an image for fruit, animal, color and shape."""
    found = rows(
        """
axes:
  os: [debian12, rockylinux9]
  python: ["3.11", "3.12"]
include:
  - flavor: devel
  - flavor: runtime
    python: "3.11"
  - os: debian12
    base: a
  - os: ubuntu22.04
  - os: ubuntu22.04
    python: "3.11"
"""
    )
    assert found == [
        {"image": "default", "os": "debian12", "python": "3.11", "flavor": "runtime", "base": "a"},
        {"image": "default", "os": "debian12", "python": "3.12", "flavor": "devel", "base": "a"},
        {"image": "default", "os": "rockylinux9", "python": "3.11", "flavor": "runtime"},
        {"image": "default", "os": "rockylinux9", "python": "3.12", "flavor": "devel"},
        {"image": "default", "os": "ubuntu22.04"},
        {"image": "default", "os": "ubuntu22.04", "python": "3.11"},
    ]


def test_include_alone_says_what_there_is() -> None:
    assert rows("image: cpu\ninclude: [{python: '3.11'}, {python: '3.12', torch: '2.7'}]\n") == [
        {"image": "cpu", "python": "3.11"},
        {"image": "cpu", "python": "3.12", "torch": "2.7"},
    ]
    assert rows("images: [cpu, devel]\ninclude: [{image: cpu, python: '3.11'}]\n") == [
        {"image": "cpu", "python": "3.11"},
        {"image": "devel"},
    ]


NAMES = st.sampled_from(("a", "b", "c"))
FIELD = st.sampled_from(("os", "base", "flavor"))
PARTIAL = st.dictionaries(FIELD, NAMES, min_size=1, max_size=3).map(lambda row: tuple(row.items()))
MATRICES = st.builds(
    Matrix,
    where=st.just("m.yaml"),
    images=st.just(("default",)),
    axes=st.dictionaries(FIELD, st.lists(NAMES, min_size=1, max_size=3, unique=True).map(tuple), min_size=1).map(
        lambda axes: tuple(axes.items())
    ),
    include=st.lists(PARTIAL, max_size=4).map(tuple),
    exclude=st.lists(PARTIAL, max_size=3).map(tuple),
)


@given(MATRICES)
def test_every_combination_comes_from_the_axes_or_from_include(found: Matrix) -> None:
    axes = dict(found.axes)
    product = 1
    for values in axes.values():
        product *= len(values)
    made = [dict(row) for row in rows_of(found)]
    grown = made[: len(made) - _own(found, made)]
    assert len(grown) <= product
    for row in grown:
        for name, values in axes.items():
            assert row[name] in values
        assert not any(
            all(row.get(key) == value for key, value in one) and set(dict(one)) <= set(axes) for one in found.exclude
        )
    # What include names is found in some combination, unless a later entry changed what it added.
    for one in found.include:
        original = {key: value for key, value in one if key in axes}
        assert any(all(row.get(key) == value for key, value in original.items()) for row in made)


def _own(found: Matrix, made: list[dict[str, Value]]) -> int:
    """How many rows at the end are combinations that include brought."""
    kept = rows_of(Matrix(where="", images=found.images, axes=found.axes, exclude=found.exclude))
    return len(made) - len(kept)


@given(MATRICES)
def test_without_include_and_exclude_it_is_the_product(found: Matrix) -> None:
    plain = Matrix(where="", images=found.images, axes=found.axes)
    made = rows_of(plain)
    assert len(set(made)) == len(made)
    assert {tuple(name for name, _ in row) for row in made} == {("image", *(name for name, _ in found.axes))}
