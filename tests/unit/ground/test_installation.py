"""Hints about this installation: they work however it was installed, and never name envkit on an index."""

import importlib.metadata
import json
import shlex
from typing import Any

import pytest

from envkit import __version__
from envkit.ground import installation
from envkit.ground.naming import DISTRIBUTION

A = "a" * 64
WHEEL = f"envkit_gpu-{__version__}-py3-none-any.whl"


class Recorded:
    """A distribution with what pip recorded of its source."""

    requires = ("distributed>=2024.8; extra == 'fleet'", "click>=8.1", "torch>=2.0; extra == 'bench'")

    def __init__(self, direct_url: Any) -> None:
        self._text = direct_url if isinstance(direct_url, str | None) else json.dumps(direct_url)

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self._text


def install(monkeypatch: pytest.MonkeyPatch, direct_url: Any) -> None:
    def found(name: str) -> Recorded:
        assert name == DISTRIBUTION
        return Recorded(direct_url)

    monkeypatch.setattr(importlib.metadata, "distribution", found)


@pytest.mark.parametrize(
    ("direct_url", "source"),
    [
        ({"url": "file:///srv/my%20wheels/" + WHEEL, "archive_info": {}}, f"'/srv/my wheels/{WHEEL}'"),
        ({"url": "file:///srv/envkit", "dir_info": {"editable": True}}, "/srv/envkit"),
        ({"url": f"https://files.example/{WHEEL}", "archive_info": {"hashes": {"sha256": A}}},
         f"'https://files.example/{WHEEL}#sha256={A}'"),
        ({"url": "https://git.example/e.git", "vcs_info": {"vcs": "git", "commit_id": "c" * 40}},
         f"git+https://git.example/e.git@{'c' * 40}"),
    ],
)  # fmt: skip
def test_it_is_installed_again_from_its_source(direct_url: Any, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, direct_url)
    assert installation.again() == f"pip install --force-reinstall --no-deps {source}"


@pytest.mark.parametrize("direct_url", [None, "", "{", "[]", {"url": 3}, {"url": "https://files.example/x.whl"}])
def test_without_a_known_source_the_file_is_named(direct_url: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, direct_url)
    assert installation.again().startswith(f"pip install --force-reinstall --no-deps {WHEEL}   # the file that envkit")


def test_another_machine_needs_the_file_and_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {"url": "file:///srv/envkit", "dir_info": {}})
    assert shlex.split(installation.elsewhere("fleet")) == [WHEEL, "distributed>=2024.8"]


def test_the_libraries_of_an_extra_are_those_of_the_metadata() -> None:
    words = shlex.split(installation.libraries("attest"))
    assert words == ["pip", "install", "cryptography>=43", "cyclonedx-python-lib>=11.6"]


def test_without_metadata_the_checkout_is_installed_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert shlex.split(installation.libraries("attest"))[-1].endswith("[attest]")
    assert shlex.split(installation.again())[-1].startswith("/")
