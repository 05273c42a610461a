"""Manifests and configurations that lie in a folder are not asked for."""

import json
from pathlib import Path

import pytest

from envkit.ground.errors import EnvironmentProblem
from envkit.image import spec
from envkit.image.name import Reference, parse_reference
from envkit.registry.documents import Documents
from envkit.registry.registry import Registry
from envkit.registry.transport import Transport

MANIFEST = json.dumps({"schemaVersion": 2, "mediaType": spec.MANIFEST}).encode()


def keep(folder: Path, data: bytes) -> str:
    digest = spec.sha256(data)
    (folder / digest.removeprefix("sha256:")).write_bytes(data)
    return digest


def offline(folder: Path) -> Documents:
    return Documents(Registry("registry.example.com", Transport(), {}), folder, offline=True)


def named(digest: str) -> Reference:
    return parse_reference(f"registry.example.com/team/base@{digest}")


def test_what_is_kept_is_given(tmp_path: Path) -> None:
    digest = keep(tmp_path, MANIFEST)
    found = offline(tmp_path).manifest(named(digest))
    assert found is not None
    assert (found.data, found.media_type, found.digest) == (MANIFEST, spec.MANIFEST, digest)
    assert offline(tmp_path).config(named(digest), keep(tmp_path, b"{}")) == b"{}"


@pytest.mark.parametrize("data", [b"not JSON", b"[]", b'{"schemaVersion": 2}'])
def test_a_manifest_that_does_not_say_what_it_is_has_to_be_asked_for(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(EnvironmentProblem, match="is not in"):
        offline(tmp_path).manifest(named(keep(tmp_path, data)))


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    digest = keep(tmp_path, MANIFEST)
    (tmp_path / digest.removeprefix("sha256:")).write_bytes(MANIFEST + b" ")
    with pytest.raises(EnvironmentProblem) as caught:
        offline(tmp_path).manifest(named(digest))
    assert caught.value.message == (
        f"offline, and the manifest of registry.example.com/team/base@{digest} is not in {tmp_path}"
    )
    assert caught.value.hint == "run once without --offline"
    with pytest.raises(EnvironmentProblem, match="the configuration of"):
        offline(tmp_path).config(named(digest), digest)


@pytest.mark.parametrize("digest", ["sha256:../../etc/passwd", "", "md5:0", "sha256:" + "A" * 64])
def test_no_other_file_is_read(tmp_path: Path, digest: str) -> None:
    with pytest.raises(EnvironmentProblem):
        offline(tmp_path).config(named(f"sha256:{'0' * 64}"), digest)
