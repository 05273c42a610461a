import json
from typing import Any

import pytest

from envkit.assemble import conda_package
from envkit.ground.errors import EngineError
from tests.support.conda_archives import locked

PACKAGE = locked("zlib", depends=("libzlib 1.0",), url="https://example.com/conda-forge/linux-64/zlib-1.0-0.conda")


def record(cache: str) -> dict[str, Any]:
    """As an installer writes it, with what is its own."""
    return {
        "name": "zlib",
        "version": "1.0",
        "build": "0",
        "build_number": 0,
        "depends": ["older"],
        "license": "Zlib",
        "url": f"file://{cache}/zlib-1.0-0.conda",
        "channel": f"https://user:secret@{cache}/conda-forge",
        "extracted_package_dir": f"{cache}/pkgs/zlib-1.0-0",
        "package_tarball_full_path": f"{cache}/pkgs/zlib-1.0-0.conda",
        "link": {"source": f"{cache}/pkgs/zlib-1.0-0", "type": 1},
        "requested_specs": ["zlib"],
        "files": ["lib/b", "lib/a"],
        "paths_data": {
            "paths_version": 1,
            "paths": [{"_path": "lib/b", "path_type": "hardlink"}, {"_path": "lib/a", "path_type": "hardlink"}],
        },
    }


def test_the_record_says_nothing_of_one_installation() -> None:
    one = conda_package.record_file(record("one.example.com"), PACKAGE)
    backwards = dict(reversed(record("two.example.com").items()))
    assert one == conda_package.record_file(backwards, PACKAGE)
    assert b"one.example.com" not in one
    assert b"secret" not in one


def test_the_record_keeps_what_scanners_read() -> None:
    tree = json.loads(conda_package.record_file(record("x"), PACKAGE))
    assert list(tree) == sorted(tree)
    assert tree["files"] == ["lib/a", "lib/b"]
    assert [row["_path"] for row in tree["paths_data"]["paths"]] == ["lib/a", "lib/b"]
    assert tree["channel"] == "https://example.com/conda-forge"
    assert (tree["url"], tree["fn"]) == (PACKAGE.url, "zlib-1.0-0.conda")
    assert (tree["license"], tree["sha256"], tree["size"]) == ("Zlib", PACKAGE.sha256, 100)
    assert tree["depends"] == ["libzlib 1.0"]
    assert not {"link", "extracted_package_dir", "package_tarball_full_path"} & tree.keys()


def test_paths_are_sorted() -> None:
    assert conda_package.record_paths(record("x")) == ("lib/a", "lib/b")


def test_another_package_in_the_archive_is_an_error() -> None:
    data = json.dumps({**record("x"), "version": "9.9"}).encode()
    with pytest.raises(EngineError) as caught:
        conda_package.read_record(data, PACKAGE)
    assert caught.value.message == "the archive of zlib 1.0 0 contains zlib 9.9 0"


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"paths_data": {"paths": [{}]}}', b"\xff"])
def test_a_record_that_is_none_is_an_error(data: bytes) -> None:
    with pytest.raises(EngineError, match="py-rattler wrote no readable record of zlib"):
        conda_package.read_record(data, PACKAGE)
