import hashlib
import json
from pathlib import Path

import pytest

from envkit.engines.address import DEFAULT, docker_address


def _context(folder: Path, name: str, host: object) -> None:
    meta = folder / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest()
    meta.mkdir(parents=True)
    (meta / "meta.json").write_text(json.dumps({"Name": name, "Endpoints": {"docker": {"Host": host}}}))


def test_the_variable_wins(tmp_path: Path) -> None:
    _context(tmp_path, "rootless", "unix:///run/user/1000/docker.sock")
    env = {"DOCKER_HOST": "tcp://127.0.0.1:2375", "DOCKER_CONFIG": str(tmp_path), "DOCKER_CONTEXT": "rootless"}
    assert docker_address(env) == "tcp://127.0.0.1:2375"


def test_the_clients_context_comes_next(tmp_path: Path) -> None:
    _context(tmp_path, "rootless", "unix:///run/user/1000/docker.sock")
    (tmp_path / "config.json").write_text('{"currentContext": "rootless"}')
    assert docker_address({"DOCKER_CONFIG": str(tmp_path)}) == "unix:///run/user/1000/docker.sock"
    assert docker_address({"DOCKER_CONFIG": str(tmp_path), "DOCKER_CONTEXT": "rootless"}).startswith("unix:///run/user")


@pytest.mark.parametrize("config", ["", "[]", "{", '{"currentContext": "default"}', '{"currentContext": 3}', "null"])
def test_else_it_is_the_usual_socket(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    assert docker_address({"DOCKER_CONFIG": str(tmp_path)}) == DEFAULT
    assert docker_address({}) == DEFAULT


def test_a_context_without_an_address_is_ignored(tmp_path: Path) -> None:
    _context(tmp_path, "odd", 3)
    assert docker_address({"DOCKER_CONFIG": str(tmp_path), "DOCKER_CONTEXT": "odd"}) == DEFAULT
