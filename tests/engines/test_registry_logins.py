"""Logins that other tools keep: skopeo, podman and buildah write the same file."""

import json
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from envkit.ground.errors import EngineError
from envkit.image import spec
from envkit.image.name import parse_reference
from envkit.registry.push import Pushed
from envkit.registry.registry import Registry
from envkit.registry.transport import Transport
from tests.engines.oci_images import image_of, push, registry
from tests.support.heard import Heard
from tests.world import apt

pytestmark = pytest.mark.engine
PASSWORD = "not-a-secret"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("registry"), password=True) as found:
        yield found


@pytest.fixture
def image(tmp_path: Path) -> spec.Image:
    return image_of(tmp_path, salt=secrets.token_hex(8))


@pytest.fixture
def file(host: str, tmp_path: Path) -> Path:
    """What `skopeo login` writes."""
    path = tmp_path / "containers" / "auth.json"
    argv = [apt.require("skopeo", "skopeo"), "login", "--tls-verify=false", "--authfile", str(path)]
    argv += ["--username", "someone", "--password-stdin", host]
    done = subprocess.run(argv, input=PASSWORD, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return path


def send(image: spec.Image, where: str, environ: dict[str, str]) -> Pushed:
    reference = parse_reference(where)
    with Transport() as transport:
        return push(image, reference, Registry(reference.registry, transport, environ), Heard())


@pytest.mark.parametrize("variable", ["REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"])
def test_the_file_is_found(image: spec.Image, host: str, file: Path, variable: str) -> None:
    value = file if variable == "REGISTRY_AUTH_FILE" else file.parents[1]
    pushed = send(image, f"{host}/team/{secrets.token_hex(4)}:1", {"HOME": "/nonexistent", variable: str(value)})
    assert pushed.digest == image.digest


def test_a_login_for_another_part_of_the_registry_is_none(image: spec.Image, host: str, file: Path) -> None:
    tree = json.loads(file.read_text())
    file.write_text(json.dumps({"auths": {f"{host}/team": tree["auths"][host]}}))
    environ = {"HOME": "/nonexistent", "REGISTRY_AUTH_FILE": str(file)}
    assert send(image, f"{host}/team/{secrets.token_hex(4)}:1", environ).digest == image.digest
    with pytest.raises(EngineError) as caught:
        send(image, f"{host}/other/train:1", environ)
    assert caught.value.message.startswith(f"{host} requires a login, and none was found in {file} or /nonexistent/")
    assert caught.value.hint == f"docker login {host}"


def test_a_wrong_login_is_named_by_its_file_alone(image: spec.Image, host: str, file: Path) -> None:
    file.write_text(json.dumps({"auths": {host: {"username": "someone", "password": "sesame-open"}}}))
    with pytest.raises(EngineError) as caught:
        send(image, f"{host}/team/train:1", {"REGISTRY_AUTH_FILE": str(file)})
    assert caught.value.exit_code == 8
    text = " ".join((caught.value.message, caught.value.hint or "", *caught.value.details))
    assert "sesame" not in text
    assert "someone" not in text
