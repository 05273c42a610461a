from pathlib import Path
from typing import cast

import pytest

from envkit.engines.host_environment import certificates, network
from envkit.engines.model import Engine
from envkit.ground.errors import UsageError
from envkit.ground.progress import Silent
from envkit.ground.settings import Mirrors
from tests.support.heard import Heard

PEM = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"


class Bridged:
    """As much of an engine as the choice of a network asks for."""

    def __init__(self, *, bridge: bool) -> None:
        self._bridge = bridge

    def has_bridge(self) -> bool:
        return self._bridge


def chosen(asked: str, mirrors: Mirrors, *, bridge: bool = True) -> tuple[str | None, list[str]]:
    heard = Heard()
    return network(asked, mirrors, cast("Engine", Bridged(bridge=bridge)), heard), heard.notes


def test_the_engines_own_network_is_the_rule() -> None:
    assert chosen("auto", Mirrors()) == (None, [])
    assert chosen("auto", Mirrors(python_index="https://pypi.example.com/simple")) == (None, [])
    assert chosen("default", Mirrors(python_index="http://127.0.0.1:8000/simple")) == (None, [])
    assert chosen("none", Mirrors()) == ("none", [])
    assert chosen("host", Mirrors()) == ("host", [])


def test_a_mirror_on_this_machine_needs_the_hosts_network() -> None:
    found, notes = chosen("auto", Mirrors(python_index="http://127.0.0.1:8000/simple"))
    assert found == "host"
    assert notes == ["build network: host (python_index is on this machine)"]


def test_a_registry_on_this_machine_is_the_engines_matter() -> None:
    assert chosen("auto", Mirrors(registry="127.0.0.1:5000")) == (None, [])


def test_without_a_bridge_it_is_the_hosts() -> None:
    found, notes = chosen("auto", Mirrors(), bridge=False)
    assert found == "host"
    assert "no bridge" in notes[0]


def test_an_unknown_network_is_refused() -> None:
    with pytest.raises(UsageError, match="--network 'mesh' is not one of auto, default, host, none"):
        chosen("mesh", Mirrors())


def test_a_bundle_that_is_set_is_read(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(PEM)
    mirrors, data = certificates(Mirrors(ca_bundle=str(tmp_path / "ca.pem")), {}, Silent())
    assert data == PEM.encode()
    assert mirrors.ca_bundle == str(tmp_path / "ca.pem")


def test_the_machines_own_bundle_is_taken_and_told(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(PEM)
    heard = Heard()
    environ = {"SSL_CERT_FILE": str(tmp_path / "absent.pem"), "PIP_CERT": str(tmp_path / "ca.pem")}
    mirrors, data = certificates(Mirrors(), environ, heard)
    assert data == PEM.encode()
    assert mirrors.ca_bundle
    assert "(PIP_CERT)" in heard.notes[0]
    assert "ENVKIT_CA_BUNDLE=none disables it" in heard.notes[0]


def test_none_turns_it_off(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(PEM)
    mirrors, data = certificates(Mirrors(ca_bundle="none"), {"SSL_CERT_FILE": str(tmp_path / "ca.pem")}, Silent())
    assert (mirrors.ca_bundle, data) == (None, None)


def test_nothing_set_is_nothing_sent() -> None:
    assert certificates(Mirrors(), {}, Silent()) == (Mirrors(), None)


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("-----BEGIN PRIVATE KEY-----\n")
    for name, message in (
        ("key.pem", "is not a PEM bundle of certificates"),
        ("absent.pem", "No such file"),
        (".", "directory"),
    ):
        with pytest.raises(UsageError, match=message):
            certificates(Mirrors(ca_bundle=str(tmp_path / name)), {}, Silent())
