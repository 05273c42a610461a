import gzip
import io
import tarfile
from pathlib import Path

import pytest

from envkit.assemble import base_files
from envkit.ground.errors import EngineError, IntegrityError
from envkit.image import spec, zstd
from envkit.image.tarstream import Kind
from envkit.image.tree import IMPLIED
from tests.support.file_images import Packed, digest, entry, packed

STATUS = b"""Package: tini
Status: install ok installed
Version: 0.19

Package: gone
Status: deinstall ok config-files

Package: mawk
Status: install ok installed
Provides: awk
Description: a line
 more: of it
"""


def _layers(folder: Path, *layers: Packed, kind: str = spec.LAYER_GZIP) -> list[spec.Layer]:
    found = []
    for number, one in enumerate(layers):
        blob = folder / f"{number}"
        blob.write_bytes(one.data)
        described = spec.Descriptor(media_type=kind, digest=digest(one.data), size=len(one.data))
        found.append(spec.Layer(descriptor=described, diff_id=one.diff_id, made_by="", blob=blob))
    return found


def _folder(name: str, mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, tarfile.DIRTYPE, mode=mode), b""


def _link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, kind, target=target), b""


def test_links_are_followed_as_the_kernel_does(tmp_path: Path) -> None:
    layer = packed([
        _link("bin", "usr/bin"), (entry("usr/bin/bash", mode=0o755), b"x"), _link("usr/bin/sh", "bash"),
        _link("usr/bin/up", "../../usr/bin/sh"), _link("etc/abs", "/bin/bash"), _link("loop", "loop"),
        _link("broken", "nowhere"), _link("out", "../../../../etc/abs"),
    ])  # fmt: skip
    found = base_files.read(_layers(tmp_path, layer))
    for path in ("/bin/bash", "/bin/sh", "/bin/up", "/etc/abs", "/out", "/usr/bin/../bin/bash", "//usr//bin/./sh"):
        assert (got := found.find(path)) is not None, path
        assert got.mode == 0o755
    assert found.find("/usr") == IMPLIED
    for path in ("/loop", "/broken", "/none", "/bin/bash2"):
        assert found.find(path) is None


def test_upper_layers_hide_and_replace(tmp_path: Path) -> None:
    lower = packed([
        _folder("a"), (entry("a/one"), b""), (entry("a/two"), b""), (entry("b/one"), b""), (entry("c/deep/x"), b""),
        (entry("etc/passwd"), b"old\n"), (entry("d/x"), b""),
    ])  # fmt: skip
    upper = packed([
        (entry("a/.wh.one"), b""), (entry("b/new"), b""), (entry("b/.wh..wh..opq"), b""), (entry(".wh.c"), b""),
        (entry("etc/passwd"), b"new\n"), (entry("d"), b"a file now"),
    ])  # fmt: skip
    found = base_files.read(_layers(tmp_path, lower, upper))
    there = {
        path: found.find(path) is not None for path in ("a/one", "a/two", "b/one", "b/new", "c/deep/x", "c", "d/x")
    }
    assert there == {
        "a/one": False, "a/two": True, "b/one": False, "b/new": True, "c/deep/x": False, "c": False, "d/x": False,
    }  # fmt: skip
    assert found.text("/etc/passwd") == "new\n"
    assert found.text("/etc/group") == ""
    assert (got := found.find("/d")) is not None
    assert got.kind is Kind.FILE


@pytest.mark.parametrize("name", ["var/lib/dpkg/status", "./var/lib/dpkg/status.d/all"])
def test_debian_packages_are_known_wherever_dpkg_lists_them(tmp_path: Path, name: str) -> None:
    found = base_files.read(_layers(tmp_path, packed([(entry(name), STATUS)])))
    assert found.packages() == frozenset({"tini", "mawk", "awk"})


def test_no_list_of_packages_is_not_an_empty_list(tmp_path: Path) -> None:
    assert base_files.read(_layers(tmp_path, packed([_folder("etc")]))).packages() is None


def test_what_changes_its_user_is_found_with_its_contents(tmp_path: Path) -> None:
    layer = packed([
        (entry("usr/bin/su", mode=0o4755), b"su"), (entry("usr/bin/wall", mode=0o2755), b"wall"),
        (entry("usr/bin/ls", mode=0o755), b"ls"), _link("usr/bin/sg", "usr/bin/su", tarfile.LNKTYPE),
        _folder("var/mail", 0o2775), _folder("var/spool"),
    ])  # fmt: skip
    found = base_files.read(_layers(tmp_path, layer)).set_ids()
    assert {path: one.value for path, one in found.items()} == {
        "usr/bin/su": b"su", "usr/bin/wall": b"wall", "usr/bin/sg": b"su", "var/mail": None,
    }  # fmt: skip


def test_uncompressed_layers_are_read_too(tmp_path: Path) -> None:
    layers = _layers(tmp_path, packed([(entry("etc/group"), b"g\n")], compress=False), kind=spec.LAYER_TAR)
    assert base_files.read(layers).text("etc/group") == "g\n"


def test_zstd_is_read_too_and_its_damage_named(tmp_path: Path) -> None:
    plain = packed([(entry("etc/group"), b"g\n")], compress=False)
    frames = b"".join(zstd.compress(piece, 3) for piece in (plain.data[:700], plain.data[700:]))
    small = Packed(frames, plain.diff_id)
    assert base_files.read(_layers(tmp_path, small, kind=spec.LAYER_ZSTD)).text("etc/group") == "g\n"
    damaged = Packed(frames[:6] + b"\xff" * 20 + frames[26:], plain.diff_id)
    with pytest.raises(IntegrityError, match="of the base image cannot be read"):
        base_files.read(_layers(tmp_path, damaged, kind=spec.LAYER_ZSTD))


@pytest.mark.parametrize("damage", ["cut", "flipped", "no tar"])
def test_a_damaged_layer_is_named(tmp_path: Path, damage: str) -> None:
    whole = packed([(entry("etc/passwd"), bytes(range(256)) * 999)])
    middle = len(whole.data) // 2
    data = {
        "cut": whole.data[:middle],
        "flipped": whole.data[:middle] + bytes([whole.data[middle] ^ 255]) + whole.data[middle + 1 :],
        "no tar": gzip.compress(b"x" * 10240),
    }[damage]
    with pytest.raises(IntegrityError, match=r"layer sha256:[0-9a-f]{64} of the base image cannot be read"):
        base_files.read(_layers(tmp_path, Packed(data, whole.diff_id)))


def test_a_list_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_files, "_LARGEST", 10)
    with pytest.raises(EngineError, match=r"/etc/passwd of the base image is too large: 11 bytes"):
        base_files.read(_layers(tmp_path, packed([(entry("etc/passwd"), b"x" * 11)])))


def test_paths_that_lead_out_stay_inside(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(entry("../../etc/passwd"), io.BytesIO())
    data = buffer.getvalue()
    layers = _layers(tmp_path, Packed(gzip.compress(data), digest(data)))
    assert base_files.read(layers).find("/etc/passwd") is not None


@pytest.mark.requirement("R41")
def test_a_file_below_a_whiteout_s_name_is_refused(tmp_path: Path) -> None:
    # The layer on top would repeat it without its set-user-ID bit, and with its folder: `.wh.usr` deletes /usr.
    layer = packed([(entry(".wh.usr/su", mode=0o4755), b"x")])
    with pytest.raises(IntegrityError, match=r"contains '\.wh\.usr/su', below a name that begins with \.wh\."):
        base_files.read(_layers(tmp_path, layer))
