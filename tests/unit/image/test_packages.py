import json
import tarfile
from dataclasses import replace
from pathlib import Path
from tarfile import TarInfo

import pytest

from envkit.attest.access import Access
from envkit.attest.packages import with_lock
from envkit.ground.errors import IntegrityError
from envkit.ground.progress import Silent
from envkit.image import packages
from envkit.image.name import InLayout
from envkit.image.packages import Installed, ScanResult, look
from tests.support.file_images import Packed, entry, packed, write_layout
from tests.support.locks import debian_base, lock_for
from tests.support.plans import shipped_plan
from tests.unit.lock.samples import conda, wheel

SITE = "opt/env/lib/python3.11/site-packages"
NUMPY = {
    "name": "numpy",
    "version": "2.4.6",
    "build": "py311_0",
    "subdir": "linux-64",
    "channel": "https://conda.example.com/conda-forge/linux-64",
    "url": "https://user:word@conda.example.com/conda-forge/linux-64/numpy-2.4.6-py311_0.conda",
    "sha256": "1" * 64,
    "license": "BSD-3-Clause",
    "files": ["lib/python3.11/site-packages/numpy-2.4.6.dist-info/METADATA"],
}
METADATA = "Metadata-Version: 2.4\nName: Some_Thing\nVersion: 1.0\nLicense-Expression: MIT\n\nLong words.\n"
STATUS = (
    "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.36-9\nDescription: C\n more: it\n\n"
    "Package: gone\nStatus: deinstall ok config-files\nArchitecture: amd64\nVersion: 1\n"
)


def found(folder: Path, *layers: dict[str, str]) -> ScanResult:
    return of(folder, *(packed([(entry(name), text.encode()) for name, text in layer.items()]) for layer in layers))


def of(folder: Path, *layers: Packed) -> ScanResult:
    write_layout(folder / "layout", layers)
    opened = Access().open(InLayout(path=folder / "layout"))
    assert opened is not None
    return look(opened, Silent())


def names(one: ScanResult) -> list[str]:
    return [f"{row.kind} {row.name} {row.version}" for row in one.packages]


def test_conda_python_and_debian_packages(tmp_path: Path) -> None:
    seen = found(
        tmp_path,
        {"var/lib/dpkg/status": STATUS, "usr/share/envkit/envkit.lock": "{}"},
        {
            "opt/env/conda-meta/numpy-2.4.6-py311_0.json": json.dumps(NUMPY),
            "opt/env/conda-meta/history": "words",
            f"{SITE}/numpy-2.4.6.dist-info/METADATA": "Name: numpy\nVersion: 2.4.6\n\n",
            f"{SITE}/some_thing-1.0.dist-info/METADATA": METADATA,
            f"{SITE}/setuptools/_vendor/wheel-0.45.dist-info/METADATA": METADATA,
            "opt/conda/pkgs/zlib-1-0/info/conda-meta/zlib-1-0.json": json.dumps(NUMPY | {"name": "zlib"}),
        },
    )
    assert seen.packages == (
        Installed(
            kind="conda", name="numpy", version="2.4.6", build="py311_0", subdir="linux-64", channel="conda-forge",
            sha256="1" * 64, license="BSD-3-Clause",
        ),
        Installed(kind="deb", name="libc6", version="2.36-9", arch="amd64"),
        Installed(kind="pypi", name="some-thing", version="1.0", license="MIT"),
    )  # fmt: skip
    assert (seen.lock, seen.plan, seen.rpm) == (b"{}", None, False)


def test_sizes_are_those_of_each_packages_own_list(tmp_path: Path) -> None:
    paths = [{"_path": "a", "size_in_bytes": 1000}, {"_path": "b", "size_in_bytes": 24}, {"_path": "c"}, "d"]
    digits = "9" * 5000
    seen = found(
        tmp_path,
        {
            "var/lib/dpkg/status": STATUS.replace("Version: 2", "Installed-Size: 12\nVersion: 2"),
            "opt/env/conda-meta/numpy-2.4.6-py311_0.json": json.dumps(NUMPY | {"paths_data": {"paths": paths}}),
            f"{SITE}/some_thing-1.0.dist-info/METADATA": METADATA,
            f"{SITE}/some_thing-1.0.dist-info/RECORD": f'"a,b.py",sha256=x,70\nc.py,,7\nRECORD,,\nd,,{digits}\ne,,-5\n',
            f"{SITE}/other-1.0.dist-info/METADATA": METADATA.replace("Some_Thing", "other"),
        },
    )
    assert {one.name: one.unpacked for one in seen.packages} == {
        "libc6": 12 << 10, "numpy": 1024, "some-thing": 77, "other": None,
    }  # fmt: skip


def test_what_a_higher_layer_removes_or_replaces_is_gone(tmp_path: Path) -> None:
    seen = found(
        tmp_path,
        {
            "opt/env/conda-meta/numpy-2.4.6-py311_0.json": json.dumps(NUMPY),
            f"{SITE}/one-1.0.dist-info/METADATA": "Name: one\nVersion: 1.0\n\n",
            f"{SITE}/two-1.0.dist-info/METADATA": "Name: two\nVersion: 1.0\n\n",
            "srv/lib/python3.11/site-packages/three-1.0.dist-info/METADATA": "Name: three\nVersion: 1.0\n\n",
            "var/lib/dpkg/status": STATUS,
        },
        {
            "opt/env/conda-meta/.wh.numpy-2.4.6-py311_0.json": "",
            f"{SITE}/.wh.one-1.0.dist-info": "",
            f"{SITE}/one-2.0.dist-info/METADATA": "Name: one\nVersion: 2.0\n\n",
            "srv/.wh..wh..opq": "",
            "var/lib/dpkg/status": STATUS.replace("2.36-9", "2.36-10"),
        },
    )
    assert names(seen) == ["deb libc6 2.36-10", "pypi one 2.0", "pypi two 1.0"]


HIDDEN = {
    "opt/env/conda-meta/numpy-2.4.6-py311_0.json": json.dumps(NUMPY),
    f"{SITE}/one-1.0.dist-info/METADATA": "Name: one\nVersion: 1.0\n\n",
}


@pytest.mark.parametrize(
    "rows",
    [
        [(entry("opt/env", tarfile.SYMTYPE, target="../srv"), b"")],
        [(entry("opt/env"), b"a file")],
        [
            (entry("opt/env/conda-meta/numpy-2.4.6-py311_0.json"), b"{"),
            (entry(f"{SITE}/one-1.0.dist-info/METADATA", tarfile.SYMTYPE, target="a"), b""),
        ],
        [(entry("opt/.wh.env"), b"")],
        [(entry("opt/.wh..wh..opq"), b"")],
        [(entry(".wh..wh..opq"), b"")],
    ],
)
def test_nothing_shows_below_what_a_higher_layer_put_there(tmp_path: Path, rows: list[tuple[TarInfo, bytes]]) -> None:
    below = packed([(entry(name), text.encode()) for name, text in HIDDEN.items()])
    assert names(of(tmp_path / "below", below)) == ["conda numpy 2.4.6", "pypi one 1.0"]
    assert names(of(tmp_path, below, packed(rows))) == []


def test_a_hard_link_is_the_file_that_it_leads_to(tmp_path: Path) -> None:
    seen = of(
        tmp_path,
        packed(
            [
                (entry("var/lib/dpkg/status-old"), STATUS.encode()),
                (entry("var/lib/dpkg/status", tarfile.LNKTYPE, target="./var/lib/dpkg/status-old"), b""),
                (entry("srv/a"), json.dumps(NUMPY).encode()),
                (entry("srv/b", tarfile.LNKTYPE, target="srv/a"), b""),
                (entry("opt/env/conda-meta/numpy-2.4.6-py311_0.json", tarfile.LNKTYPE, target="srv/b"), b""),
                (entry("root/.cache/METADATA"), METADATA.encode()),
                (entry(f"{SITE}/other-3.dist-info/METADATA", tarfile.LNKTYPE, target="root/.cache/METADATA"), b""),
            ]
        ),
    )
    assert names(seen) == ["conda numpy 2.4.6", "deb libc6 2.36-9", "pypi some-thing 1.0"]
    assert [one.license for one in seen.packages] == ["BSD-3-Clause", None, "MIT"]


def test_a_hard_link_to_a_symbolic_link_is_one(tmp_path: Path) -> None:
    rows = [
        (entry("srv/a", tarfile.SYMTYPE, target="b"), b""),
        (entry(f"{SITE}/other-3.dist-info/METADATA", tarfile.LNKTYPE, target="srv/a"), b""),
    ]
    assert names(of(tmp_path, packed(rows))) == []


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [(entry("var/lib/dpkg/status", tarfile.LNKTYPE, target="srv/none"), b"")],
            "to 'srv/none', which is not a file",
        ),
        (
            [(entry("var/lib/dpkg/status", tarfile.LNKTYPE, target="var/lib/dpkg/status"), b"")],
            "to 'var/lib/dpkg/status', which is not a file",
        ),
        ([(entry(".wh."), b"")], "removes a file without a name, below ''"),
        ([(entry("opt/env/.wh..."), b"")], "removes a file without a name, below 'opt/env'"),
    ],
)
def test_layers_that_would_hide_packages_from_the_list_alone(
    tmp_path: Path, rows: list[tuple[TarInfo, bytes]], said: str
) -> None:
    below = packed([(entry("var/lib/dpkg/status"), STATUS.encode())])
    with pytest.raises(IntegrityError, match=said):
        of(tmp_path, below, packed(rows))


@pytest.mark.parametrize("name", ["/", "a b", "\ud800", ""])
def test_names_that_no_package_has(tmp_path: Path, name: str) -> None:
    quoted = json.dumps(NUMPY | {"name": name, "license": "\ud800", "files": []})
    status = f"Package: {name}\nVersion: 1\n".encode(errors="replace").decode()
    metadata = f"Name: {name}\nVersion: 1\n\n".encode(errors="replace").decode()
    seen = found(
        tmp_path,
        {
            "opt/env/conda-meta/numpy-2.4.6-py311_0.json": quoted,
            "var/lib/dpkg/status.d/a": status if name != "\ud800" else "Package: ?\nVersion: 1\n",
            f"{SITE}/one-1.dist-info/METADATA": metadata if name != "\ud800" else "Name: ?\nVersion: 1\n\n",
        },
    )
    assert names(seen) == ["pypi one 1"]


def test_debians_own_python_packages_are_listed_once(tmp_path: Path) -> None:
    folder = "usr/lib/python3/dist-packages/pip-23.0.dist-info"
    seen = found(
        tmp_path,
        {
            "var/lib/dpkg/status.d/pip": "Package: python3-pip\nVersion: 23.0-1\nArchitecture: all\n",
            "var/lib/dpkg/info/python3-pip.list": f"/.\n/usr\n/{folder}/METADATA\n",
            f"{folder}/METADATA": "Name: pip\nVersion: 23.0\n\n",
        },
    )
    assert names(seen) == ["deb python3-pip 23.0-1"]


@pytest.mark.parametrize(
    ("text", "system"),
    [
        ('ID=ubuntu\nVERSION_CODENAME="noble"\n', ("ubuntu", "noble")),
        ("NAME=x\nID=debian\n", ("debian", None)),
        ("ID=a b?c\n", ("debian", None)),
        ("", ("debian", None)),
    ],
)
def test_whose_packages_they_are(tmp_path: Path, text: str, system: tuple[str, str | None]) -> None:
    assert found(tmp_path, {"usr/lib/os-release": text}).system == system


def test_rpm_packages_are_told_of_and_damaged_files_left_out(tmp_path: Path) -> None:
    seen = found(
        tmp_path,
        {
            "var/lib/rpm/rpmdb.sqlite": "x",
            "opt/env/conda-meta/broken-1-0.json": "{",
            f"{SITE}/bare-1.5.dist-info/METADATA": "",
        },
    )
    assert (names(seen), seen.rpm) == (["pypi bare 1.5"], True)


def test_a_file_of_rpm_counts_however_large_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_MOST_TEXT", 10)
    assert found(tmp_path, {"var/lib/rpm/rpmdb.sqlite": "x" * 11}).rpm


@pytest.mark.parametrize(
    ("head", "told"),
    [
        ("License: BSD", "BSD"),
        ("License: UNKNOWN\nClassifier: License :: OSI Approved :: MIT License", "MIT License"),
        ("License: " + "word " * 100, None),
        ("License: MIT\nLicense-Expression: Apache-2.0 OR MIT", "Apache-2.0 OR MIT"),
        ("", None),
    ],
)
def test_the_license_of_a_wheel(tmp_path: Path, head: str, told: str | None) -> None:
    text = f"Name: a\nVersion: 1\n{head}".rstrip("\n") + "\n\n"
    (one,) = found(tmp_path, {f"{SITE}/a-1.dist-info/METADATA": text}).packages
    assert one.license == told


def test_a_lock_adds_hashes_and_names_what_is_missing(tmp_path: Path) -> None:
    seen = found(
        tmp_path,
        {
            "var/lib/dpkg/status": STATUS.replace("2.36-9", "1.0"),
            "opt/env/conda-meta/numpy-2.4.6-py311_0.json": json.dumps(NUMPY),
            f"{SITE}/some_thing-1.0.dist-info/METADATA": METADATA,
            f"{SITE}/extra-3.dist-info/METADATA": "Name: extra\nVersion: 3\n\n",
        },
    )
    plan = shipped_plan()
    rows = (conda("numpy", "2.4.6", build="py311_0", sha256="1" * 64), conda("tini", "0.19.0", build="h0_0"))
    lock = replace(lock_for(plan), conda=rows, wheels=(wheel("some-thing", "1.0", sha256="4" * 64),))
    lock = replace(lock, base=debian_base("libc6"))
    packages, absent = with_lock(seen.packages, lock)
    assert {one.name: (one.sha256 or "")[:1] for one in packages if one.locked} == {
        "numpy": "1",
        "libc6": "a",
        "some-thing": "4",
    }
    assert [one.name for one in packages if not one.locked] == ["extra"]
    assert absent == ("conda tini 0.19.0",)
    numpy = next(one for one in packages if one.name == "numpy")
    assert numpy.url == rows[0].url


def test_an_archive_that_is_not_the_locks_is_not_called_so(tmp_path: Path) -> None:
    seen = found(tmp_path, {"opt/env/conda-meta/numpy-2.4.6-py311_0.json": json.dumps(NUMPY)})
    row = conda("numpy", "2.4.6", build="py311_0", sha256="2" * 64)
    lock = replace(lock_for(shipped_plan()), conda=(row,), wheels=())
    packages, absent = with_lock(seen.packages, lock)
    assert [(one.locked, one.sha256) for one in packages] == [(False, "1" * 64)]
    assert absent == ("conda numpy 2.4.6",)
