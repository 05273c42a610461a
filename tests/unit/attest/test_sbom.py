import json
import sys
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from envkit.attest.sbom import bill, counts, purl, require
from envkit.ground.errors import EnvironmentProblem
from envkit.ground.installation import libraries
from envkit.image.packages import Installed
from tests.support.attestations import MANIFEST_DIGEST, subject

PACKAGES = (
    Installed(
        kind="conda", name="numpy", version="2.4.6", build="py311_0", subdir="linux-64", channel="conda-forge",
        url="https://conda.example.com/conda-forge/linux-64/numpy-2.4.6-py311_0.conda", sha256="1" * 64,
        license="BSD-3-Clause AND MIT", locked=True,
    ),
    Installed(kind="deb", name="libstdc++6", version="12.2.0-14", arch="amd64"),
    Installed(kind="pypi", name="nvidia-cudnn-cu12", version="9.5.1.17", license="NVIDIA Proprietary Software"),
    Installed(kind="pypi", name="torch", version="2.7.1+cu126", sha256="6" * 64, license="MIT", locked=True),
)  # fmt: skip


def made(**more: Any) -> dict[str, Any]:
    return bill(subject(), PACKAGES, system=("debian", "bookworm"), **more)


def test_it_is_valid_and_whole() -> None:
    tree = made(absent=("conda tini 0.19.0",), rpm=True)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(tree)) is None
    rows = {one["name"]: one for one in tree["components"]}
    assert sorted(rows) == sorted(one.name for one in PACKAGES)
    assert rows["numpy"]["purl"] == (
        "pkg:conda/numpy@2.4.6?build=py311_0&channel=conda-forge&subdir=linux-64&type=conda"
    )
    assert rows["libstdc++6"]["purl"] == "pkg:deb/debian/libstdc%2B%2B6@12.2.0-14?arch=amd64&distro=bookworm"
    assert rows["torch"]["purl"] == "pkg:pypi/torch@2.7.1%2Bcu126"
    assert rows["torch"]["hashes"] == [{"alg": "SHA-256", "content": "6" * 64}]
    assert rows["numpy"]["licenses"] == [{"expression": "BSD-3-Clause AND MIT"}]
    assert rows["torch"]["licenses"] == [{"license": {"id": "MIT"}}]
    assert rows["nvidia-cudnn-cu12"]["licenses"] == [{"license": {"name": "NVIDIA Proprietary Software"}}]
    assert rows["numpy"]["externalReferences"][0]["url"] == PACKAGES[0].url
    assert tree["metadata"]["component"]["version"] == MANIFEST_DIGEST
    told = {(one["name"], one["value"]) for one in tree["metadata"]["properties"]}
    assert ("envkit:absent", "conda tini 0.19.0") in told
    assert ("envkit:incomplete", "RPM packages are not listed") in told


def test_the_same_image_has_the_same_bill() -> None:
    assert json.dumps(made()) == json.dumps(made())
    assert made()["metadata"]["timestamp"].startswith("1980-01-01T00:00:00")


@pytest.mark.parametrize("created", ["2026-11-01T10:00:00Z", "2026-11-01T10:00:00"])
def test_its_time_is_the_images(created: str) -> None:
    tree = bill(subject(created=created), (), system=("debian", None))
    assert tree["metadata"]["timestamp"].startswith("2026-11-01T10:00:00")
    assert bill(subject(created="no time"), (), system=("debian", None))["metadata"]["timestamp"].startswith(
        "1980-01-01"
    )


def test_what_is_not_known_is_left_out_of_a_package_url() -> None:
    assert purl(Installed(kind="conda", name="a", version="1"), ("debian", None)) == "pkg:conda/a@1"
    assert purl(Installed(kind="deb", name="a", version="1:2"), ("ubuntu", None)) == "pkg:deb/ubuntu/a@1:2"


def test_packages_are_counted_by_kind() -> None:
    assert counts(made()) == {"conda": 1, "pypi": 2, "deb": 1}
    assert counts({"components": [{"purl": "pkg:npm/x@1"}, 3]}) == {"conda": 0, "pypi": 0, "deb": 0, "npm": 1, "": 1}
    assert counts({}) == {"conda": 0, "pypi": 0, "deb": 0}


def test_without_the_library_the_way_to_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cyclonedx", None)
    with pytest.raises(EnvironmentProblem, match="needs the package cyclonedx-python-lib") as caught:
        require()
    assert caught.value.hint == libraries("attest")
