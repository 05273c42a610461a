"""Logins from the configuration file of container clients."""

import base64
import json
from pathlib import Path

import pytest

from envkit.build.embedded.credentials import Login, config_file, find_login
from envkit.errors import EngineError

HOST = "registry.example.com"


def auth(text: str) -> dict[str, str]:
    return {"auth": base64.b64encode(text.encode()).decode()}


def login(folder: Path, content: object, registry: str = HOST) -> Login | None:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / "config.json").write_bytes(data)
    return find_login(registry, {"DOCKER_CONFIG": str(folder)})


def test_where_the_file_is() -> None:
    assert config_file({"HOME": "/home/one"}) == Path("/home/one/.docker/config.json")
    assert config_file({"HOME": "/home/one", "DOCKER_CONFIG": "/c"}) == Path("/c/config.json")


def test_no_file_is_no_login(tmp_path: Path) -> None:
    assert find_login(HOST, {"DOCKER_CONFIG": str(tmp_path)}) is None
    assert find_login(HOST, {}) is None


@pytest.mark.parametrize("key", [HOST, f"https://{HOST}", f"https://{HOST}/v1/", f"https://{HOST}/v2/"])
def test_user_and_password(tmp_path: Path, key: str) -> None:
    found = login(tmp_path, {"auths": {key: auth("someone:pass:word")}})
    assert found == Login(user="someone", password="pass:word")
    assert found.basic() == "Basic " + base64.b64encode(b"someone:pass:word").decode()


def test_docker_hub_has_a_key_of_its_own(tmp_path: Path) -> None:
    assert login(tmp_path, {"auths": {"https://index.docker.io/v1/": auth("a:b")}}, "docker.io") is not None


def test_another_registry_gets_nothing(tmp_path: Path) -> None:
    assert login(tmp_path, {"auths": {HOST: auth("a:b")}}, f"{HOST}:5000") is None
    assert login(tmp_path, {"auths": {HOST: {}}}) is None


def test_identity_token(tmp_path: Path) -> None:
    found = login(tmp_path, {"auths": {HOST: {"identitytoken": "abc"}}})
    assert found == Login(user="", identity_token="abc")


def test_a_login_has_no_text_form() -> None:
    assert "word" not in repr(Login(user="someone", password="word", identity_token="word"))
    assert "someone" not in repr(Login(user="someone"))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"{", "is not JSON, so no registry login can be read"),
        (b"[" * 100_000, "is not JSON, so no registry login can be read"),
        ([], ": it is not a table, so no registry login can be read"),
        ({"auths": []}, None),
        ({"auths": [1]}, ": auths is not a table, so no registry login can be read"),
        ({"auths": {HOST: "x"}}, f": auths.{HOST} is not a table, so no registry login can be read"),
        (
            {"auths": {HOST: {"auth": "%%%"}}},
            f": auths.{HOST}.auth is not base64 text, so no registry login can be read",
        ),
        (
            {"auths": {HOST: auth("x")}},
            f": auths.{HOST}.auth holds no user and password, so no registry login can be read",
        ),
        (
            {"credHelpers": {HOST: "../x"}},
            ": '../x' is not a credential helper's name, so no registry login can be read",
        ),
        ({"credsStore": ["x"]}, ": ['x'] is not a credential helper's name, so no registry login can be read"),
    ],
)
def test_faults_name_the_file(tmp_path: Path, content: object, why: str | None) -> None:
    if why is None:
        assert login(tmp_path, content) is None
        return
    with pytest.raises(EngineError) as caught:
        login(tmp_path, content)
    assert caught.value.message.startswith(str(tmp_path / "config.json"))
    assert caught.value.message.endswith(why)
    assert caught.value.exit_code == 8
