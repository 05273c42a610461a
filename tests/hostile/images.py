"""Hostile OCI documents: layouts and a registry on loopback that says what a case wrote down."""

import json
from functools import partial
from pathlib import Path
from typing import Any

from tests.hostile.archives import archive
from tests.support.file_images import digest, entry, packed, write_layout

LAYER = packed([(entry("var/lib/dpkg/status"), b"Package: a\nStatus: install ok installed\nVersion: 1\n\n")])
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
INSPECT = ["inspect", "oci:image"]
DIFF = ["diff", "oci:image", "oci:image", "--progress", "quiet"]
refused = partial(archive, "layouts", code=10)
accepted = partial(archive, "layouts")


class Layout:
    """A layout whose documents a case writes as it likes; digests and sizes fit unless a case says otherwise."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "image"
        write_layout(self.folder, [LAYER])

    def put(self, tree: Any, kind: str = MANIFEST) -> dict[str, Any]:
        """Keep a document; gives its descriptor."""
        data = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
        (self.folder / "blobs" / "sha256" / digest(data).removeprefix("sha256:")).write_bytes(data)
        return {"mediaType": kind, "digest": digest(data), "size": len(data)}

    def names(self, *rows: object) -> None:
        """Write index.json."""
        (self.folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": list(rows)}))

    def image(self, members: dict[str, Any], **manifest: Any) -> None:
        """One image: members of its configuration and of its manifest."""
        whole = {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [LAYER.diff_id]}}
        layers = [{"mediaType": "x", "digest": digest(LAYER.data), "size": len(LAYER.data)}]
        tree = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.put(whole | members, CONFIG),
            "layers": layers,
        }
        self.names(self.put(tree | manifest))


@accepted(gives=("oci:image", "identical"))
def ok_sound(folder: Path) -> list[str]:
    Layout(folder)
    return DIFF


@accepted(gives=("identical",))
def ok_settings_that_are_null(folder: Path) -> list[str]:
    Layout(folder).image({"config": {"Env": None, "Labels": None, "Cmd": None}, "history": None})
    return DIFF


@accepted(gives=("oci:image",))
def ok_an_index_of_one_platform(folder: Path) -> list[str]:
    there = Layout(folder)
    found = json.loads((there.folder / "index.json").read_bytes())["manifests"]
    there.names(there.put({"schemaVersion": 2, "mediaType": INDEX, "manifests": found}, INDEX))
    return INSPECT


@accepted(gives=("déjà vu",))
def ok_a_version_of_other_letters(folder: Path) -> list[str]:
    Layout(folder).image({"config": {"Labels": {"envkit.torch": "déjà vu"}}})
    return INSPECT


@accepted(gives=("torch x",))
def ok_a_version_that_steers_a_terminal_is_shown_as_words(folder: Path) -> list[str]:
    Layout(folder).image({"config": {"Labels": {"envkit.torch": "\x1b[2Jx\u202e"}}})
    return INSPECT


@refused(code=8, says=("oci:image", "index.json"))
def no_layout(folder: Path) -> list[str]:
    (folder / "image").mkdir()
    return INSPECT


@refused(says=("index.json", "not JSON"))
def an_index_that_is_no_json(folder: Path) -> list[str]:
    (Layout(folder).folder / "index.json").write_bytes(b"{")
    return INSPECT


@refused(says=("index.json", "not JSON"))
def an_index_of_100_000_brackets(folder: Path) -> list[str]:
    (Layout(folder).folder / "index.json").write_bytes(b"[" * 100_000)
    return INSPECT


@refused(says=("index.json", "not a JSON object"))
def an_index_that_is_a_list(folder: Path) -> list[str]:
    (Layout(folder).folder / "index.json").write_bytes(b"[]")
    return INSPECT


@refused(says=("index.json", "not JSON"))
def an_index_of_bytes(folder: Path) -> list[str]:
    (Layout(folder).folder / "index.json").write_bytes(b"\x00\xff\xfe")
    return INSPECT


@refused(says=("index.json", "too large for"))
def an_index_of_10_megabytes(folder: Path) -> list[str]:
    (Layout(folder).folder / "index.json").write_bytes(b" " * (10 << 20))
    return INSPECT


@refused(code=8, says=("index.json",))
def an_index_without_images(folder: Path) -> list[str]:
    Layout(folder).names()
    return INSPECT


@refused(says=("has no SHA-256 digest",))
def a_digest_that_is_a_path(folder: Path) -> list[str]:
    Layout(folder).names({"mediaType": MANIFEST, "digest": "sha256:../../../../etc/passwd", "size": 1})
    return INSPECT


@refused(says=("index.json", "has no SHA-256 digest"))
def a_descriptor_that_is_null(folder: Path) -> list[str]:
    Layout(folder).names(None)
    return INSPECT


@refused(says=("has no size",))
def a_size_of_words(folder: Path) -> list[str]:
    Layout(folder).names({"mediaType": MANIFEST, "digest": f"sha256:{'a' * 64}", "size": "1"})
    return INSPECT


@refused(says=("cannot be read",))
def a_manifest_that_is_not_there(folder: Path) -> list[str]:
    Layout(folder).names({"mediaType": MANIFEST, "digest": f"sha256:{'a' * 64}", "size": 1})
    return INSPECT


@refused(says=("has the digest",))
def a_manifest_of_other_bytes(folder: Path) -> list[str]:
    there = Layout(folder)
    row = there.put({"schemaVersion": 2})
    (there.folder / "blobs" / "sha256" / row["digest"].removeprefix("sha256:")).write_bytes(b"x" * row["size"])
    there.names(row)
    return INSPECT


@refused(says=("bytes, not",))
def a_manifest_of_another_size(folder: Path) -> list[str]:
    there = Layout(folder)
    there.names(there.put({"schemaVersion": 2}) | {"size": 1})
    return INSPECT


@refused(says=("deep",))
def indexes_within_indexes(folder: Path) -> list[str]:
    there = Layout(folder)
    row = json.loads((there.folder / "index.json").read_bytes())["manifests"][0]
    for _ in range(6):
        row = there.put({"schemaVersion": 2, "manifests": [row]}, INDEX)
    there.names(row)
    return INSPECT


@refused(says=("layers", "configuration"))
def layers_that_are_a_number(folder: Path) -> list[str]:
    Layout(folder).image({}, layers=7)
    return INSPECT


@refused(says=("layers", "configuration"))
def fewer_layers_than_the_configuration_has(folder: Path) -> list[str]:
    Layout(folder).image({}, layers=[])
    return INSPECT


@refused(says=("config",))
def a_configuration_that_is_null(folder: Path) -> list[str]:
    Layout(folder).image({}, config=None)
    return INSPECT


@refused(says=("diff_ids",))
def digests_of_layers_that_are_words(folder: Path) -> list[str]:
    Layout(folder).image({"rootfs": {"diff_ids": ["latest"]}})
    return INSPECT


@refused(says=("configuration", "Labels"))
def labels_that_are_a_list(folder: Path) -> list[str]:
    Layout(folder).image({"config": {"Labels": ["a"]}})
    return INSPECT


@refused(says=("configuration", "Env"))
def a_variable_that_is_a_number(folder: Path) -> list[str]:
    Layout(folder).image({"config": {"Env": ["A=1", 3]}})
    return DIFF


@refused(says=("configuration", "history"))
def a_history_that_is_a_number(folder: Path) -> list[str]:
    Layout(folder).image({"history": 1.5})
    return DIFF


@refused(says=("annotations",))
def annotations_that_are_a_list(folder: Path) -> list[str]:
    there = Layout(folder)
    there.names(there.put({"schemaVersion": 2}) | {"annotations": ["x"]})
    return INSPECT


@refused(code=2, says=("2 images", "image"))
def two_images_of_one_name(folder: Path) -> list[str]:
    there = Layout(folder)
    there.names(*(there.put({"schemaVersion": 2, "x": number}) for number in range(2)))
    return INSPECT
