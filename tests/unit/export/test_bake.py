import json
from dataclasses import replace
from typing import Any

import hcl2
import pytest
from hcl2.utils import SerializationOptions

from envkit.export import bake
from envkit.ground.errors import UsageError
from envkit.ground.settings import Mirrors
from tests.support.exports import cell, exported, matrix_order, order

_READ = SerializationOptions(with_comments=False, explicit_blocks=False, strip_string_quotes=True)


def blocks(text: str, kind: str) -> dict[str, Any]:
    tree = hcl2.loads(text, serialization_options=_READ)
    return {name: body for block in tree[kind] for name, body in block.items()}


def test_every_image_is_a_target_over_its_own_context() -> None:
    files = exported("bake")
    targets = blocks(files[bake.FILE], "target")
    assert set(targets) == {"_common", "cpu", "cu126"}
    cuda = targets["cu126"]
    assert cuda["inherits"] == ["_common"]
    assert cuda["platforms"] == ["linux/amd64"]
    assert cuda["tags"] == ["${REGISTRY}:cu126"]
    assert cuda["labels"] == {"envkit.version": "1.2.3", "envkit.cell": "cu126"}
    assert cuda["cache-from"] == ["type=registry,ref=${REGISTRY}:cu126-cache"]
    assert f"{cuda['context']}/{targets['_common']['dockerfile']}" in files


def test_the_context_is_whole() -> None:
    files = exported("bake", ("cu126",))
    below = {name.removeprefix("contexts/cu126/"): text for name, text in files.items() if name != bake.FILE}
    assert json.loads(below["plan.json"])["name"] == "cu126"
    assert "--mount=type=cache" in below["Dockerfile"]
    copied = [line for line in below[".dockerignore"].splitlines() if line.startswith("!")]
    assert {line[1:] for line in copied} <= set(below)


def test_the_authorities_of_the_mirrors_come_along() -> None:
    files = exported("bake", ("cpu",), mirrors=Mirrors(ca_bundle="ca.pem"), ca_bundle="-----BEGIN")
    assert files["contexts/cpu/ca-bundle.pem"] == "-----BEGIN"


def test_groups_are_what_the_matrix_says() -> None:
    groups = blocks(bake.export(matrix_order("bake"))[bake.FILE], "group")
    assert groups["default"]["targets"] == [
        "cpu-python3-11-torch2-6",
        "cpu-python3-11-torch2-7",
        "cpu-python3-12-torch2-6",
        "cpu-python3-12-torch2-7",
        "cu126-python3-11",
    ]
    assert groups["gpu"]["targets"] == ["cu126-python3-11"]
    assert groups["torch-2-6"]["targets"] == ["cpu-python3-11-torch2-6", "cpu-python3-12-torch2-6"]
    assert set(groups) == {"default", "gpu", "cpu", "python-3-11", "python-3-12", "torch-2-6", "torch-2-7"}


def test_a_group_never_has_a_targets_name() -> None:
    assert set(blocks(exported("bake")[bake.FILE], "group")) == {"default", "gpu"}  # `cpu` is an image here


def test_names_that_collapsed_into_one_image_are_its_tags() -> None:
    own = replace(cell(), also=("cpu-python3.11",))
    text = bake.export(order("bake", (), cells=(own,), definitions={"cpu": "cpu"}))[bake.FILE]
    assert blocks(text, "target")["cpu"]["tags"] == ["${REGISTRY}:cpu", "${REGISTRY}:cpu-python3.11"]


def test_variables_change_what_a_build_does() -> None:
    text = exported("bake")[bake.FILE]
    variables = blocks(text, "variable")
    assert variables["REGISTRY"]["default"] == "registry.example.com/team/train"
    assert variables["CACHE_TO"]["default"] is False
    assert variables["ATTEST"]["default"] is True
    assert blocks(text, "target")["cpu"]["cache-to"].startswith("${CACHE_TO ? ")
    assert blocks(text, "target")["_common"]["attest"].startswith("${ATTEST ? ")


def test_attestations_and_cache_can_be_left_out() -> None:
    text = exported("bake", given={"attest": "none", "cache": "none"})[bake.FILE]
    assert blocks(text, "variable")["ATTEST"]["default"] is False
    assert "cache-from" not in blocks(text, "target")["cpu"]
    assert "mode=min" in exported("bake", given={"attest": "min"})[bake.FILE]


def test_without_a_registry_nothing_is_shared() -> None:
    text = exported("bake", registry=None)[bake.FILE]
    assert blocks(text, "variable")["REGISTRY"]["default"] == "envkit"
    assert "cache-from" not in blocks(text, "target")["cpu"]


def test_a_long_name_still_has_a_cache_of_its_own() -> None:
    long = [replace(cell(), name="a" * 127 + end) for end in "bc"]
    text = bake.export(order("bake", (), cells=tuple(long), definitions={one.name: "cpu" for one in long}))[bake.FILE]
    first, second = (body["cache-from"][0] for name, body in blocks(text, "target").items() if name != "_common")
    assert first != second
    assert len(first.partition(":")[2]) <= 128


def test_names_that_are_one_target_are_refused() -> None:
    cells = (replace(cell(), name="a.b"), replace(cell(), name="a-b"))
    with pytest.raises(UsageError, match="two images have the bake target 'a-b'"):
        bake.export(order("bake", (), cells=cells, definitions={"a.b": "cpu", "a-b": "cpu"}))


def test_a_base_of_the_matrix_is_the_one_in_the_dockerfile() -> None:
    own = replace(cell(), axes=(("base", "registry.example.com/debian:12"),))
    made = bake.export(order("bake", (), cells=(own,), definitions={"cpu": "cpu"}))
    assert "FROM registry.example.com/debian:12\n" in made["contexts/cpu/Dockerfile"]


def test_a_base_that_only_envkit_makes_is_refused() -> None:
    own = replace(cell(), axes=(("base", "bootstrap:debian/bookworm"),))
    with pytest.raises(UsageError, match="cpu: only envkit can build the base bootstrap:debian/bookworm"):
        bake.export(order("bake", (), cells=(own,), definitions={"cpu": "cpu"}))
