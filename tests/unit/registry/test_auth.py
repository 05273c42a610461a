"""Logins from the login files of container clients."""

import base64
import json
from pathlib import Path

import pytest

from envkit.ground.errors import EngineError
from envkit.registry.auth import Login, StoredLogin, find_login, login_files

HOST = "registry.example.com"


def auth(text: str) -> dict[str, str]:
    return {"auth": base64.b64encode(text.encode()).decode()}


def login(folder: Path, content: object, registry: str = HOST) -> Login | None:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / "config.json").write_bytes(data)
    found = find_login(registry, "team/train", {"DOCKER_CONFIG": str(folder)})
    assert found is None or found.path == folder / "config.json"
    return found.login if found else None


def test_where_the_files_are() -> None:
    home = {"HOME": "/home/one"}
    assert login_files(home) == (Path("/home/one/.docker/config.json"), Path("/home/one/.config/containers/auth.json"))
    everything = home | {
        "REGISTRY_AUTH_FILE": "/r/auth.json",
        "DOCKER_CONFIG": "/c",
        "XDG_RUNTIME_DIR": "/run/user/1",
        "XDG_CONFIG_HOME": "/x",
    }
    assert login_files(everything) == (
        Path("/r/auth.json"),
        Path("/c/config.json"),
        Path("/run/user/1/containers/auth.json"),
        Path("/x/containers/auth.json"),
    )


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_the_first_file_with_a_login_for_the_registry_counts(tmp_path: Path, first: int) -> None:
    environ = {
        "REGISTRY_AUTH_FILE": str(tmp_path / "own.json"),
        "DOCKER_CONFIG": str(tmp_path / "docker"),
        "XDG_RUNTIME_DIR": str(tmp_path / "run"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }
    files = login_files(environ)
    for number, path in enumerate(files):
        path.parent.mkdir(parents=True, exist_ok=True)
        key = HOST if number >= first else "other.example.com"
        path.write_text(json.dumps({"auths": {key: auth(f"user{number}:word")}}))
    assert find_login(HOST, "team/train", environ) == StoredLogin(
        Login(user=f"user{first}", password="word"), files[first]
    )


def test_a_file_that_is_named_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(EngineError) as caught:
        find_login(HOST, "a", {"REGISTRY_AUTH_FILE": str(tmp_path / "auth.json")})
    assert caught.value.message == f"REGISTRY_AUTH_FILE is {tmp_path}/auth.json, which does not exist"
    assert caught.value.hint == "unset REGISTRY_AUTH_FILE"


@pytest.mark.parametrize(
    ("repository", "user"),
    [("team/train", "narrow"), ("team/train/more", "narrow"), ("team/other", "team"), ("teams", "all")],
)
def test_the_narrowest_key_counts(tmp_path: Path, repository: str, user: str) -> None:
    rows = {HOST: auth("all:word"), f"{HOST}/team": auth("team:word"), f"{HOST}/team/train": auth("narrow:word")}
    (tmp_path / "config.json").write_text(json.dumps({"auths": rows}))
    found = find_login(HOST, repository, {"DOCKER_CONFIG": str(tmp_path)})
    assert found is not None
    assert found.login.user == user


def test_no_file_is_no_login(tmp_path: Path) -> None:
    assert find_login(HOST, "a", {"DOCKER_CONFIG": str(tmp_path)}) is None
    assert find_login(HOST, "a", {}) is None


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
    assert "someone" not in repr(StoredLogin(Login(user="someone"), Path("auth.json")))


@pytest.mark.requirement("R55")
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"{", "is not JSON, so no registry login can be read"),
        (b"[" * 100_000, "is not JSON, so no registry login can be read"),
        ([], ": it is not a JSON object, so no registry login can be read"),
        ({"auths": []}, None),
        ({"auths": [1]}, ": auths is not a JSON object, so no registry login can be read"),
        ({"auths": {HOST: "x"}}, f": auths.{HOST} is not a JSON object, so no registry login can be read"),
        (
            {"auths": {HOST: {"auth": "%%%"}}},
            f": auths.{HOST}.auth is not base64 text, so no registry login can be read",
        ),
        (
            {"auths": {HOST: auth("x")}},
            f": auths.{HOST}.auth has no user and password, so no registry login can be read",
        ),
        (
            {"credHelpers": {HOST: "../x"}},
            ": '../x' is not a valid name of a credential helper, so no registry login can be read",
        ),
        ({"credsStore": ["x"]}, ": ['x'] is not a valid name of a credential helper, so no registry login can be read"),
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
