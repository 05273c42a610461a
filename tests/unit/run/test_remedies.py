"""What helps where nothing can run an image: only what this place lacks, and only what would work in it."""

import os

import pytest

from envkit.ground import namespaces as kernel
from envkit.ground.namespaces import Setting
from envkit.run import remedies


def place(
    monkeypatch: pytest.MonkeyPatch,
    *programs: str,
    namespaces: bool = False,
    traced: bool = True,
    contained: bool = True,
    stuck: bool = False,
    user: int = 0,
    closed: tuple[Setting, ...] = (),
    filtered: bool = False,
) -> None:
    """A machine or container with these programs and permissions."""
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}" if name in programs else None)
    monkeypatch.setattr(remedies, "namespaces_open", lambda: namespaces)
    monkeypatch.setattr(remedies, "can_trace", lambda: traced)
    monkeypatch.setattr(remedies, "root_without", lambda *_: stuck)
    monkeypatch.setattr(kernel, "closed_by", lambda: closed)
    monkeypatch.setattr(kernel, "is_filtered", lambda: filtered)
    monkeypatch.setattr(remedies, "_IN_A_CONTAINER", ("/",) if contained else ())
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: user)


def test_a_container_without_namespaces_is_told_of_proot(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, "apt-get", "bwrap")
    assert remedies.hint(building=True).splitlines() == [
        "apt-get install proot",
        f"      or: {remedies.DOCKER} ...",
        f"      or: {remedies.PODMAN} ...",
        "      or: envkit build --no-verify",
    ]


def test_a_normal_user_is_told_who_installs(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, "apt-get", user=1000)
    assert remedies.hint(building=False).startswith("as root: apt-get install proot\n")


@pytest.mark.parametrize("namespaces", [False, True])
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("contained", [False, True])
@pytest.mark.parametrize("programs", [("apt-get", "bwrap", "proot"), ("apt-get", "bwrap"), ("apt-get", "proot")])
def test_nothing_is_named_that_is_installed(
    monkeypatch: pytest.MonkeyPatch, programs: tuple[str, ...], *, namespaces: bool, traced: bool, contained: bool
) -> None:
    place(monkeypatch, *programs, namespaces=namespaces, traced=traced, contained=contained)
    told = remedies.hint(building=False)
    assert ("install proot" in told) <= ("proot" not in programs)
    assert ("install bubblewrap" in told) <= ("bwrap" not in programs)
    assert ("with bubblewrap installed" in told) <= ("bwrap" not in programs)


def test_a_machine_with_namespaces_is_told_of_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, "apt-get", namespaces=True, contained=False)
    assert remedies.hint(building=False) == "apt-get install bubblewrap"


def test_where_nothing_can_be_traced_proot_does_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, "apt-get", "bwrap", traced=False)
    assert "proot" not in remedies.hint(building=True)


def test_root_without_its_powers_is_told_to_be_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, "apt-get", stuck=True)
    told = remedies.hint(building=True)
    assert told.startswith("run as a user other than root (docker run --user 1000)")
    assert "apt-get install" not in told


def test_there_is_always_a_next_command(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, namespaces=True, contained=False)
    assert remedies.hint(building=False) == "envkit doctor"


CLONE = Setting(name="kernel.unprivileged_userns_clone", value="0", allows="1", why="only root may")


def test_only_the_setting_that_closes_namespaces_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, "bwrap", "proot", contained=False, user=1000, closed=(CLONE,))
    assert remedies.hint(building=False).startswith("sysctl -w kernel.unprivileged_userns_clone=1   # as root")
    place(monkeypatch, "bwrap", "proot", contained=False, user=1000)
    assert "sysctl" not in remedies.hint(building=False)


def test_a_container_without_a_mark_is_known_by_its_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, "bwrap", "proot", contained=False, filtered=True)
    assert remedies.options(building=False) == [f"{remedies.DOCKER} ...", f"{remedies.PODMAN} ..."]
    place(monkeypatch, "bwrap", "proot", contained=False, filtered=True, namespaces=True)
    assert remedies.options(building=False) == []
