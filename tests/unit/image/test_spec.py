"""Configuration, manifest and index: byte for byte."""

import json
from pathlib import Path
from typing import Any

import pytest

from envkit.ground.errors import EngineError
from envkit.image import document, spec
from envkit.image.spec import LayerDigest
from tests.support.plans import shipped_plan

MADE = LayerDigest(digest="d" * 64, diff_id="e" * 64, size=1000, tar_size=2000)
LAYER = spec.layer(MADE, Path("/blob"), "envkit: torch 2.7.1")
NO_BASE = spec.Base(name="")
RUNTIME = spec.Runtime(
    env=(("PATH", "/opt/env/bin:/bin"), ("LANG", "C.UTF-8")),
    user="1000:1000",
    workdir="/workspace",
    entrypoint=("/opt/env/bin/tini", "--"),
    cmd=("python",),
)
LABELS = {
    "com.example.team": "vision",
    "envkit.plan": "sha256:1",
    "org.opencontainers.image.title": "Ein Bild: ö",
}
BELOW = spec.Layer(
    descriptor=spec.Descriptor(media_type=spec.LAYER_GZIP, digest=f"sha256:{'a' * 64}", size=7),
    diff_id=f"sha256:{'b' * 64}",
    made_by="base",
)
BASE = spec.Base(
    name="registry.example.com/debian:12",
    layers=(BELOW,),
    config={
        "Env": ["PATH=/bin", "KEPT=yes", "odd"],
        "Labels": {"com.example.team": "base", "com.example.kept": "1"},
        "Cmd": ["bash"],
        "ExposedPorts": {"22/tcp": {}},
        "User": "root",
    },
    history=(
        {"created": "2025-01-01T00:00:00Z", "created_by": "ADD rootfs"},
        {"created_by": "CMD", "empty_layer": True},
    ),
)


def build(base: spec.Base = NO_BASE, labels: dict[str, str] | None = None, **changes: Any) -> spec.Image:
    return spec.image(base, changes.get("layers", (LAYER,)), RUNTIME, LABELS if labels is None else labels, "linux-64")


def test_configuration_to_the_byte() -> None:
    assert build().config.decode() == (
        '{"architecture":"amd64","config":{"Cmd":["python"],"Entrypoint":["/opt/env/bin/tini","--"],'
        '"Env":["PATH=/opt/env/bin:/bin","LANG=C.UTF-8"],"Labels":{"com.example.team":"vision",'
        '"envkit.plan":"sha256:1","org.opencontainers.image.title":"Ein Bild: ö"},"StopSignal":"SIGTERM",'
        '"User":"1000:1000","WorkingDir":"/workspace"},"created":"1980-01-01T00:00:00Z","history":['
        '{"created":"1980-01-01T00:00:00Z","created_by":"envkit: torch 2.7.1"},'
        '{"created":"1980-01-01T00:00:00Z","created_by":"envkit: configuration","empty_layer":true}],"os":"linux",'
        f'"rootfs":{{"diff_ids":["sha256:{"e" * 64}"],"type":"layers"}}}}'
    )


def test_manifest_to_the_byte() -> None:
    image = build()
    assert image.manifest.decode() == (
        '{"annotations":{"envkit.plan":"sha256:1","org.opencontainers.image.title":"Ein Bild: ö"},'
        f'"config":{{"digest":"{image.id}","mediaType":"application/vnd.oci.image.config.v1+json",'
        f'"size":{len(image.config)}}},"layers":[{{"digest":"sha256:{"d" * 64}",'
        '"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","size":1000}],'
        '"mediaType":"application/vnd.oci.image.manifest.v1+json","schemaVersion":2}'
    )
    assert image.digest == spec.sha256(image.manifest)
    assert image.size == 1000 + len(image.manifest) + len(image.config)


def test_index_names_the_image() -> None:
    image = build()
    assert json.loads(spec.index(image, "1.0")) == {
        "schemaVersion": 2,
        "mediaType": spec.INDEX,
        "manifests": [
            {
                "mediaType": spec.MANIFEST,
                "digest": image.digest,
                "size": len(image.manifest),
                "annotations": {"org.opencontainers.image.ref.name": "1.0"},
            }
        ],
    }


def test_the_order_of_labels_changes_nothing() -> None:
    assert build(labels=dict(reversed(LABELS.items()))) == build()


def test_a_base_is_inherited_as_a_dockerfile_would() -> None:
    tree = json.loads(build(BASE).config)
    assert tree["config"]["Env"] == ["PATH=/opt/env/bin:/bin", "KEPT=yes", "LANG=C.UTF-8"]
    assert tree["config"]["Labels"]["com.example.team"] == "vision"
    assert tree["config"]["Labels"]["com.example.kept"] == "1"
    assert tree["config"]["Cmd"] == ["python"]
    assert tree["config"]["ExposedPorts"] == {"22/tcp": {}}
    assert tree["config"]["User"] == "1000:1000"
    assert tree["rootfs"]["diff_ids"] == [BELOW.diff_id, LAYER.diff_id]
    assert tree["history"][:2] == list(BASE.history)


def test_a_history_that_misses_layers_is_not_taken_over() -> None:
    base = spec.Base(name=BASE.name, layers=(BELOW, BELOW), history=BASE.history)
    rows = json.loads(build(base).config)["history"]
    assert sum(not row.get("empty_layer") for row in rows) == 3
    assert rows[0] == {"created_by": "base"}


def test_source_date_epoch_reaches_the_image_through_its_label() -> None:
    labels = LABELS | {"org.opencontainers.image.created": "2026-01-02T03:04:05Z"}
    tree = json.loads(build(labels=labels).config)
    assert tree["created"] == "2026-01-02T03:04:05Z"
    assert {row["created"] for row in tree["history"]} == {"2026-01-02T03:04:05Z"}


def test_what_the_specification_names_is_an_annotation_too() -> None:
    names = ("created", "source", "revision", "licenses", "version", "title", "base.name", "base.digest")
    told = {f"org.opencontainers.image.{name}": "2026-01-02T03:04:05Z" for name in names}
    made = build(labels=told | {"com.example.team": "vision"})
    assert json.loads(made.manifest)["annotations"] == told
    assert told.items() <= json.loads(made.config)["config"]["Labels"].items()


def test_arm_has_its_variant() -> None:
    tree = json.loads(spec.image(spec.Base(name=""), (), RUNTIME, {}, "linux-aarch64").config)
    assert (tree["os"], tree["architecture"], tree["variant"]) == ("linux", "arm64", "v8")


def test_more_layers_than_engines_take() -> None:
    build(layers=(LAYER,) * 127)
    with pytest.raises(EngineError) as caught:
        build(layers=(LAYER,) * 128)
    assert caught.value.message == "the image has 128 layers, but engines support at most 127"


def test_what_a_plan_says_about_containers() -> None:
    plan = shipped_plan()
    runtime = spec.runtime_of(plan)
    assert runtime.env == plan.env
    assert runtime.user == plan.user
    assert (runtime.entrypoint, runtime.cmd, runtime.workdir) == (plan.entrypoint, plan.cmd, plan.workdir)


@pytest.mark.parametrize(
    ("manifest", "kind"),
    [
        (b'{"mediaType": "application/vnd.docker.distribution.manifest.v2+json"}', "docker.distribution.manifest.v2"),
        (b'{"schemaVersion": 2}', "oci.image.manifest.v1"),
        (b'{"mediaType": 1}', "oci.image.manifest.v1"),
        (b"[]", "oci.image.manifest.v1"),
        (b"{", "oci.image.manifest.v1"),
    ],
)
def test_a_manifest_says_what_it_is(*, manifest: bytes, kind: str) -> None:
    image = spec.Image(manifest=manifest, config=b"{}", layers=())
    assert image.media_type == image.descriptor.media_type == f"application/vnd.{kind}+json"


@pytest.mark.requirement("R4")
@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"config": []}, "config is not an object"),
        ({"config": {"Labels": ["a"]}}, "config.Labels is not an object of strings: ['a']"),
        ({"config": {"Labels": {"envkit.plan": 7}}}, "config.Labels is not an object of strings"),
        ({"config": {"Cmd": 3}}, "config.Cmd is not a list of valid strings: 3"),
        ({"config": {"Cmd": "sh"}}, "config.Cmd is not a list of valid strings"),
        ({"config": {"Entrypoint": 1.5}}, "config.Entrypoint is not a list of valid strings"),
        ({"config": {"Env": [None]}}, "config.Env is not a list of valid strings"),
        ({"config": {"Env": ["A=\0"]}}, "config.Env is not a list of valid strings"),
        ({"config": {"WorkingDir": "/a\0b"}}, "config.WorkingDir is not a valid string"),
        ({"config": {"WorkingDir": "/\ud800"}}, "config.WorkingDir is not a valid string"),
        ({"config": {"User": 0}}, "config.User is not a valid string: 0"),
        ({"history": 1.5}, "history is not a list of objects: 1.5"),
        ({"history": [7]}, "history is not a list of objects"),
        ({"architecture": ["amd64"]}, "architecture is not a string"),
    ],
)
def test_a_configuration_of_other_types(tree: dict[str, Any], words: str) -> None:
    assert str(document.config_fault(tree)).startswith(words)


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"config": None, "history": None},
        {"config": {"Labels": None, "Env": [], "Cmd": ["sh"], "User": "", "Volumes": {"/a": {}}}, "history": [{}]},
    ],
)
def test_a_configuration_as_engines_write_it(tree: dict[str, Any]) -> None:
    assert document.config_fault(tree) is None
