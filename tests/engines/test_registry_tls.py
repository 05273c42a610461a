"""A registry that speaks TLS, with certificates of an authority that this machine does and does not trust."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from envkit.assemble import base
from envkit.ground.errors import EnvironmentProblem
from envkit.ground.settings import Mirrors
from envkit.image import spec
from envkit.image.name import parse_reference
from envkit.registry.push import Pushed
from envkit.registry.registry import Registry
from envkit.registry.retry import Policy
from envkit.registry.transport import Transport, speaks_tls
from tests.engines.certificates import Authority, authority
from tests.engines.oci_images import image_of, push, registry
from tests.support.heard import Heard

pytestmark = pytest.mark.engine
HOME: dict[str, str] = {"HOME": "/nonexistent"}


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("certificates") / "authority")


@pytest.fixture(scope="module")
def port(signer: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("registry"), certificate=signer.sign()) as found:
        yield found.rpartition(":")[2]


@pytest.fixture
def image(tmp_path: Path) -> spec.Image:
    return image_of(tmp_path, salt=secrets.token_hex(8), big=3_000_000)


def send(image: spec.Image, where: str, bundle: Path | None) -> Pushed:
    reference = parse_reference(where)
    policy = Policy(tries=2, first_s=0.01)
    with Transport(ca_bundle=str(bundle) if bundle else None, policy=policy) as transport:
        return push(image, reference, Registry(reference.registry, transport, HOME), Heard())


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_an_image_goes_there_and_comes_back(image: spec.Image, signer: Authority, port: str, name: str) -> None:
    where = f"{name}:{port}/team/{secrets.token_hex(4)}:1"
    assert send(image, where, signer.bundle).digest == image.digest
    with Transport(ca_bundle=str(signer.bundle)) as transport:
        found, source = base.from_reference(where, None, "linux-64", Mirrors(), transport)
    assert (found.digest, source.root) == (image.digest, f"https://{name}:{port}")


@pytest.mark.requirement("R56")
@pytest.mark.parametrize("other", [True, False])
def test_an_authority_that_is_not_trusted(image: spec.Image, port: str, tmp_path: Path, *, other: bool) -> None:
    bundle = authority(tmp_path / "other").bundle if other else None
    with pytest.raises(EnvironmentProblem) as caught:
        send(image, f"localhost:{port}/team/train:1", bundle)
    assert caught.value.message == f"the certificate of localhost:{port} is not trusted"
    assert caught.value.hint == "ENVKIT_CA_BUNDLE=FILE.pem adds certificate authorities"
    assert caught.value.exit_code == 9


@pytest.mark.requirement("R56")
@pytest.mark.parametrize(
    ("names", "days", "why"),
    [
        ("DNS:registry.example.com", 1, "it is for another host"),
        ("DNS:localhost", -1, "it is expired, or this machine's clock is wrong"),
    ],
)
def test_a_certificate_that_does_not_hold(
    image: spec.Image, signer: Authority, tmp_path: Path, *, names: str, days: int, why: str
) -> None:
    with registry(tmp_path, certificate=signer.sign(names, days=days)) as host:
        port = host.rpartition(":")[2]
        with pytest.raises(EnvironmentProblem) as caught:
            send(image, f"localhost:{port}/team/train:1", signer.bundle)
    assert caught.value.message.startswith(f"the certificate of localhost:{port} is not trusted: {why}")


@pytest.mark.requirement("R56")
def test_a_registry_on_this_machine_without_tls(image: spec.Image, tmp_path: Path) -> None:
    with registry(tmp_path) as host:
        assert not speaks_tls(host)
        assert send(image, f"{host}/team/train:1", None).digest == image.digest
