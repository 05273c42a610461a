import gzip
import json
import re
from pathlib import Path

import pytest

from envkit.cli import main
from tests.support.attestations import LABELS
from tests.support.file_images import entry, packed, write_layout


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main.run(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def layout(tmp_path: Path) -> str:
    return f"oci:{write_layout(tmp_path / 'image', [packed([(entry('a'), b'1')])], {'Labels': LABELS})}"


def test_a_folder_tells_what_its_labels_say(layout: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["inspect", layout], capsys)
    assert code == 0
    assert (
        f"{layout}\n  torch 2.7.1, CUDA 12.6, cuDNN 9.5.1, Python 3.12 on docker.io/library/debian:bookworm-slim\n"
        in out
    )
    assert "not verified on this machine\n" in out
    assert "  on sm_120  (" in out


def test_a_folder_as_json(layout: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["inspect", layout, "--json"], capsys)
    tree = json.loads(out)
    assert (code, tree["schema"], tree["verdict"]) == (0, "envkit.inspect/1", "not proved")
    assert (tree["attestations"], tree["layers"], tree["listing"]) == (None, 1, None)
    assert (tree["packages"], tree["packages_from"]) == ({"conda": 0, "pypi": 0, "deb": 0}, "layers")


def test_a_key_asks_for_signatures_that_a_folder_has_not(
    layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["attest", "--new-key", str(tmp_path / "k")], capsys)[0] == 0
    code, _, err = run(["inspect", layout, "--key", str(tmp_path / "k.pub")], capsys)
    assert code == 5
    assert "no document is attached" in err


@pytest.mark.parametrize(
    ("typed", "code", "said"),
    [
        (["oci:/nowhere"], 8, "/nowhere"),
        ([""], 2, "the image name is empty"),
        (["/"], 2, "'/' is a path without a prefix for the kind of image"),
        (["docker-archive:/nowhere.tar", "--packages"], 8, "/nowhere.tar is not a file"),
        (["registry.example.com/a:1", "--require", "proved"], 2, "--require proved needs --key or --identity"),
        (["registry.example.com/a:1", "--key", "/nowhere"], 2, "/nowhere: no such file"),
    ],
)
def test_what_cannot_be_looked_at(typed: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, _, err = run(["inspect", *typed], capsys)
    assert found == code
    assert said in err
    assert "\nhint: " in err


SITE = "opt/env/lib/python3.11/site-packages"
STATUS = "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.36-9\n"
COPYRIGHT = "Format: dep5\n\nFiles: *\nLicense: LGPL-2.1\n\nFiles: a\nLicense: GPL-2\n\nLicense: GPL-2\n words\n"
CONFIG = {"User": "1000:1000", "WorkingDir": "/workspace", "Cmd": ["jupyter", "lab"], "ExposedPorts": {"8888/tcp": {}},
          "Labels": {"com.example.team": "vision"}}  # fmt: skip


@pytest.fixture
def full(tmp_path: Path) -> str:
    """An image of another builder: Debian, a wheel, RPM packages, in three layers."""
    database = gzip.decompress((Path(__file__).parents[1] / "image/rpm/rpmdb.sqlite.gz").read_bytes())
    rows = [
        {"var/lib/dpkg/status": STATUS.encode(), "usr/share/doc/libc6/copyright": COPYRIGHT.encode()},
        {f"{SITE}/torch-2.7.1+cu126.dist-info/METADATA": b"Name: torch\nVersion: 2.7.1+cu126\nLicense: BSD-3-Clause\n"},
        {"var/lib/rpm/rpmdb.sqlite": database},
    ]
    layers = [packed([(entry(name), data) for name, data in row.items()]) for row in rows]
    return f"oci:{write_layout(tmp_path / 'image', layers, CONFIG)}"


def test_the_summary_of_an_image_of_another_builder(full: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["inspect", full], capsys)
    assert code == 0
    assert f"{full}\n  torch 2.7.1, CUDA 12.6\n" in out
    assert "  5 packages: 1 Python, 1 Debian, 3 RPM (in its layers)\n" in out
    assert "  user 1000:1000; folder /workspace; command jupyter lab; ports 8888/tcp\n" in out
    assert "\nlargest layers\n" in out
    assert "\nlabels\n  com.example.team = vision\n" in out


def test_every_package_is_listed_with_its_license(full: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["inspect", full, "--packages", "-q"], capsys)
    assert code == 0
    assert out.splitlines() == [
        "5 packages",
        "  kind  name     version      license",
        "  deb   libc6    2.36-9       LGPL-2.1 and GPL-2",
        "  pypi  torch    2.7.1+cu126  BSD-3-Clause",
        "  rpm   epochal  4:2.0-1.el9  GPLv2+ and LGPLv2+",
        "  rpm   many     1-1          BSD",
        "  rpm   plain    1.2-3.el9    MIT",
    ]


def test_packages_by_license(full: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["inspect", full, "--licenses", "-q"], capsys)
    assert code == 0
    assert out.startswith("5 licenses of 5 packages, from package metadata\n")
    assert "  BSD-3-Clause        1         torch\n" in out


def test_layers_come_with_the_largest_first(full: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["inspect", full, "--layers", "-q"], capsys)
    lines = out.splitlines()
    assert code == 0
    assert re.fullmatch("3 layers, [0-9.]+ kB; 1 is the lowest", lines[0])
    assert [line.split()[0] for line in lines[2:]] == ["3", "1", "2"]


def test_lists_as_json(full: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["inspect", full, "--packages", "--json", "-q"], capsys)
    tree = json.loads(out)
    torch = next(one for one in tree["listing"]["packages"] if one["name"] == "torch")
    assert (code, torch["kind"], torch["license"], tree["user"], tree["ports"]) == (
        0, "pypi", "BSD-3-Clause", "1000:1000", ["8888/tcp"],
    )  # fmt: skip
    assert [one["unpacked"] > 0 for one in tree["listing"]["layers"]] == [True, True, True]


def test_a_damaged_layer_is_one_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_layout(tmp_path / "image", [packed([(entry("a"), b"1")])])
    blob = max((folder / "blobs/sha256").iterdir(), key=lambda one: one.read_bytes()[:2] == b"\x1f\x8b")
    blob.write_bytes(bytes(blob.stat().st_size))
    code, out, err = run(["inspect", f"oci:{folder}", "--packages", "-q"], capsys)
    assert (code, out, err.count("error: "), err.count("hint: ")) == (10, "", 1, 1)


def test_json_is_written_whatever_the_image_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = LABELS | {"org.opencontainers.image.title": "\ud800\x9b\u202e"}
    folder = write_layout(tmp_path / "image", [packed([(entry("a"), b"1")])], {"Labels": labels})
    code, out, _ = run(["inspect", f"oci:{folder}", "--json"], capsys)
    assert (code, json.loads(out)["title"], out.isascii()) == (0, "\ud800\x9b\u202e", True)


def test_a_file_of_authorities_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENVKIT_CA_BUNDLE", "/nowhere.pem")
    code, _, err = run(["inspect", "registry.example.com/a:1"], capsys)
    assert code == 2
    assert "ca_bundle: /nowhere.pem: No such file or directory" in err


def test_the_page_has_layers_and_packages_and_the_answer_stays_the_summary(
    full: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(["inspect", full, "--report", f"html={tmp_path / 'page.html'}", "-q"], capsys)
    assert code == 0
    assert "\nlargest layers\n" in out
    page = (tmp_path / "page.html").read_text()
    assert page.count('class="tile t') == 2 * 3  # three layers, for wide and for narrow screens

    assert "3 RPM packages" in page
    assert "2.7.1+cu126" in page


def test_lines_are_folded_to_the_terminal_and_digests_stay_whole(
    layout: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = run(["inspect", layout], capsys)[1]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    _, out, _ = run(["inspect", layout], capsys)
    assert out.split() == plain.split()
    wide = [line for line in out.splitlines() if len(line) > 60]
    assert wide
    assert all(len(line.split()) == 1 for line in wide)  # the layout's path and digests
