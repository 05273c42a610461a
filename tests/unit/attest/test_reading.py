"""What an image carries: from its lock, from layers above it, or from all layers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from envkit.attest.access import Access
from envkit.attest.content import Content
from envkit.attest.reading import read_content
from envkit.ground.errors import EngineError, IntegrityError, UsageError
from envkit.image.name import InRegistry, published_name
from envkit.lock.store import to_text
from tests.support.file_images import write_layout
from tests.unit.attest.carriers import SITE, base, files, layout, lock, own, plan


def read(name: str) -> Content:
    return read_content(published_name(name), Access())


def rows(found: Content) -> list[str]:
    return [f"{one.kind} {one.name} {one.exact}" for one in found.packages or ()]


LOCKED = [f"wheel {one.name} {one.version}" for one in lock().wheels]


def test_the_lock_in_the_top_layer_tells_and_no_other_layer_is_read(tmp_path: Path) -> None:
    name = layout(tmp_path, base(), own())
    blobs = tmp_path / "blobs" / "sha256"
    lowest = read(name).layers[0]  # type: ignore[index]  # a layout has layers
    (blobs / str(lowest.digest).removeprefix("sha256:")).write_bytes(bytes(lowest.size or 0))
    found = read(name)
    assert (rows(found), found.packages_from) == (LOCKED, "lock")
    assert (found.lock, found.plan, found.notes) == (lock(), plan(), ())
    assert (found.user, found.workdir, found.entrypoint) == ("1000:1000", "/w", ("/e",))
    assert found.packages is not None
    assert found.packages[0].sha256 == lock().wheels[0].sha256


def test_what_a_layer_above_the_lock_installs_and_removes_counts(tmp_path: Path) -> None:
    more = files({
        f"{SITE}/einops-1.0.dist-info/METADATA": b"", f"{SITE}/.wh.einops-0.9.0.dist-info": b"",
        f"{SITE}/.wh.nvidia_cudnn_cu12-9.5.1.17.dist-info": b"",
    })  # fmt: skip
    found = read(layout(tmp_path, base(), own(), more))
    assert rows(found) == ["wheel einops 1.0", *(one for one in LOCKED if "einops" not in one and "cudnn" not in one)]
    assert found.packages_from == "lock and layers"


def test_a_lock_that_a_layer_above_removes_is_not_there(tmp_path: Path) -> None:
    gone = files({"usr/share/.wh.envkit": b""})
    found = read(layout(tmp_path, base(), own(), gone))
    assert (found.lock, found.packages_from) == (None, "layers")
    assert rows(found) == ["deb base-files 12.4", "wheel torch 2.7.1"]


@pytest.mark.parametrize(
    "gone", ["opt/.wh.env", "opt/env/.wh..wh..opq", f"{SITE}/.wh..wh..opq", "opt/env/lib/python3.11/.wh.site-packages"]
)
def test_a_lock_does_not_tell_what_is_left_of_a_folder_that_was_removed(tmp_path: Path, gone: str) -> None:
    found = read(layout(tmp_path, base(), own(), files({gone: b"", f"{SITE}/einops-1.0.dist-info/METADATA": b""})))
    assert (rows(found), found.packages_from) == (["deb base-files 12.4", "wheel einops 1.0"], "layers")
    assert (found.lock, found.plan) == (lock(), plan())


def test_without_a_lock_every_layer_is_read(tmp_path: Path) -> None:
    meta, conda = "opt/env/conda-meta", f"{SITE}/numpy-2.4.6.dist-info"
    upper = files({
        f"{meta}/numpy-2.4.6-py311_0.json": b"{}", f"{conda}/METADATA": b"", f"{conda}/INSTALLER": b"conda\n",
        f"{SITE}/Foo_Bar-1.0.dist-info/METADATA": b"", f"{SITE}/Foo_Bar-1.0.dist-info/INSTALLER": b"uv",
        f"{SITE}/setuptools/_vendor/inner-1.0.dist-info/METADATA": b"",
        "opt/conda/pkgs/x-1-0/lib/python3.11/site-packages/x-1.dist-info/METADATA": b"",
    })  # fmt: skip
    found = read(layout(tmp_path, base(), upper, named={}))
    assert rows(found) == [
        "conda numpy 2.4.6 py311_0", "deb base-files 12.4", "wheel foo-bar 1.0", "wheel torch 2.7.1",
    ]  # fmt: skip
    assert (found.packages_from, found.lock, found.plan) == ("layers", None, None)


def test_an_opaque_folder_hides_what_lies_below(tmp_path: Path) -> None:
    upper = files({f"{SITE}/.wh..wh..opq": b"", f"{SITE}/new-1.0.dist-info/METADATA": b""})
    assert rows(read(layout(tmp_path, base(), upper, named={}))) == ["deb base-files 12.4", "wheel new 1.0"]


def test_packages_of_rpm_are_said_to_be_missing(tmp_path: Path) -> None:
    found = read(layout(tmp_path, files({"var/lib/rpm/rpmdb.sqlite": b"x"}), named={}))
    assert found.notes == (f"oci:{tmp_path}: the database of its RPM packages cannot be read, so they are not listed",)


def test_a_lock_that_the_label_does_not_promise_is_refused(tmp_path: Path) -> None:
    other = replace(lock(), as_of="2026-01-01T00:00:00Z")
    with pytest.raises(IntegrityError, match=r"/usr/share/envkit/envkit\.lock has the digest sha256:.*, but the label"):
        read(layout(tmp_path, own(other)))


def test_a_lock_that_cannot_be_read_is_a_note(tmp_path: Path) -> None:
    found = read(layout(tmp_path, base(), files({"usr/share/envkit/envkit.lock": b"{}"})))
    assert found.notes[0].endswith("; it is ignored")
    assert found.packages_from == "layers"


def test_flipped_bytes_are_refused(tmp_path: Path) -> None:
    name = layout(tmp_path, own())
    digest = str(read(name).layers[0].digest)  # type: ignore[index]  # a layout has layers
    blob = tmp_path / "blobs" / "sha256" / digest.removeprefix("sha256:")
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    with pytest.raises(IntegrityError):
        read(name)


def test_locks_and_plans_are_read_by_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(to_text(lock()))
    (tmp_path / "b").write_bytes(plan().canonical())
    (tmp_path / "c").write_text(json.dumps({"schema": "other/1"}))
    assert (read(str(tmp_path / "a")).kind, rows(read(str(tmp_path / "a")))) == ("lock", LOCKED)
    found = read(str(tmp_path / "b"))
    assert (found.kind, found.packages, found.labels["envkit.torch"]) == (
        "plan",
        None,
        plan().resolution.torch,
    )
    with pytest.raises(UsageError, match="is neither a lock") as caught:
        read(str(tmp_path / "c"))
    assert caught.value.hint == f"for an archive of `docker save` use docker-archive:{tmp_path / 'c'}"
    with pytest.raises(UsageError, match="is a folder") as caught:
        read(str(tmp_path))
    assert caught.value.hint == f"for an OCI layout use oci:{tmp_path}"


def test_a_layout_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="there is no image"):
        read(f"oci:{tmp_path}/none")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("registry.example.com/team/train:1", True),
        ("localhost/team/train", True),
        ("127.0.0.1:5000/train", True),
        ("registry:example.com/train", True),
        ("team/train:1", False),
        ("train:1.0", False),
    ],
)
def test_a_name_with_a_host_means_a_registry(text: str, expected: bool) -> None:
    assert isinstance(published_name(text), InRegistry) is expected


@pytest.mark.parametrize("odd", [{"Entrypoint": 5}, {"Cmd": "sh"}, {"Env": 5}, {"Labels": 5}])
def test_a_start_that_is_no_list_of_words_is_refused(tmp_path: Path, odd: dict[str, object]) -> None:
    write_layout(tmp_path, [base()], odd)
    with pytest.raises(IntegrityError, match=next(iter(odd))):
        read(f"oci:{tmp_path}")
