"""Which Docker engine is asked."""

from typing import Any, ClassVar, Self

import docker
import pytest

from envkit.engines.docker import DockerEngine


class Client:
    """The SDK's client, which remembers its addresses."""

    addresses: ClassVar[list[str]] = []
    timeout = 0

    def __init__(self, base_url: str, **_: Any) -> None:
        self.addresses.append(base_url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def version(self, **_: Any) -> dict[str, str]:
        return {"ApiVersion": "1.44", "Version": "25.0"}

    def close(self) -> None:
        """Nothing is open."""


def test_the_address_of_an_engine_comes_before_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://engine.example.com:1")
    monkeypatch.setattr(docker, "APIClient", Client)
    monkeypatch.setattr(Client, "addresses", [])
    DockerEngine("tcp://engine.example.org:2").probe()
    assert set(Client.addresses) == {"tcp://engine.example.org:2"}
