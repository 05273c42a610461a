"""The table of architectures."""

import os

import pytest

from envkit.ground import platforms


@pytest.mark.parametrize(
    ("name", "machine", "oci"), [("linux-64", "x86_64", "linux/amd64"), ("linux-aarch64", "aarch64", "linux/arm64")]
)
def test_every_name_leads_to_the_same_platform(name: str, machine: str, oci: str) -> None:
    found = platforms.platform(name)
    assert (found.machine, found.oci) == (machine, oci)
    assert platforms.of_machine(machine) == platforms.of_machine(found.architecture.upper()) == found
    assert {platforms.SPELLINGS[text] for text in (name, machine, oci, found.architecture)} == {name}


def test_a_machine_that_no_image_is_for_keeps_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "host", "6", "1", "s390x")))
    assert platforms.here() == "linux/s390x"
    assert platforms.of_machine("s390x") is None
