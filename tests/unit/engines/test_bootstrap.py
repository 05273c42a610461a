"""What mmdebstrap installed against the lock, what its failures mean, and what is asked of the machine."""

import os
import shutil
from pathlib import Path

import pytest

from envkit.engines import bootstrap
from envkit.engines.log import BuildLog
from envkit.ground.errors import EngineError, EnvironmentProblem, EnvkitError, IntegrityError, LockError
from envkit.ground.progress import Silent
from tests.support.locks import debian_base

PACKAGES = debian_base("bash", "tini").packages
FILES = {"bash": ("a" * 64, "bash_1.0_amd64.deb"), "tini": ("b" * 64, "tini_1.0_amd64.deb")}


def _sums(*rows: tuple[str, str]) -> str:
    return "".join(f"{digest}  /passing/var/cache/apt/archives/{file}\n" for digest, file in rows)


def test_the_archives_of_the_lock_are_accepted_however_often_they_are_listed() -> None:
    bootstrap.compare(PACKAGES, _sums(*FILES.values(), *FILES.values()))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            (FILES["bash"], ("c" * 64, "tini_1.0_amd64.deb")),
            "tini 1.0: the SHA-256 of the mirror's tini_1.0_amd64.deb is not the lock's",
        ),
        ((FILES["bash"],), "tini 1.0: it was not installed"),
        (
            (*FILES.values(), ("c" * 64, "nasty_9_all.deb")),
            "nasty_9_all.deb was installed, but is not in the lock",
        ),
    ],
)
def test_other_archives_are_refused(rows: tuple[tuple[str, str], ...], said: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        bootstrap.compare(PACKAGES, _sums(*rows))
    assert said in caught.value.message
    assert "envkit lock" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("line", "kind", "said"),
    [
        ("E: Version '1.0' for 'tini' was not found", LockError, "not have the versions in the lock"),
        (
            "E: Unable to correct problems, you have held broken packages.",
            LockError,
            "not have the versions in the lock",
        ),
        ("tar: write error: No space left on device", EnvironmentProblem, "disk full"),
        ("E: Failed to fetch http://deb.example.com/x", EnvironmentProblem, "cannot be reached"),
        ("E: mmdebstrap failed to run", EngineError, "mmdebstrap ended with code 25"),
    ],
)
def test_each_failure_says_what_it_is(tmp_path: Path, line: str, kind: type[EnvkitError], said: str) -> None:
    with BuildLog(None, Silent()) as log:
        log.write(line)
        error = bootstrap._failure("making it", 25, tmp_path, log, locked=True)
    assert type(error) is kind
    assert said in error.message
    assert line in error.details


def test_without_a_lock_no_lock_is_blamed(tmp_path: Path) -> None:
    with BuildLog(None, Silent()) as log:
        log.write("E: Unable to correct problems, you have held broken packages.")
        assert type(bootstrap._failure("making it", 25, tmp_path, log, locked=False)) is EngineError


def test_without_mmdebstrap_its_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(EnvironmentProblem, match="needs mmdebstrap, which is not installed") as caught:
        bootstrap._program("making it")
    assert (caught.value.hint or "").startswith("apt-get install mmdebstrap; or ")


def test_a_user_without_further_ids_is_told_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(bootstrap, "_user", lambda: "ann")
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/newuidmap")
    monkeypatch.setattr(bootstrap, "_ID_RANGES", (tmp_path / "subuid", tmp_path / "subgid"))
    (tmp_path / "subuid").write_text("annabel:100000:65536\n")
    with pytest.raises(EnvironmentProblem, match="subuid has no line for ann") as caught:
        bootstrap._mode("making it")
    assert "usermod --add-subuids 100000-165535 --add-subgids 100000-165535 ann; or run envkit as root" in (
        caught.value.hint or ""
    )
    for name in ("subuid", "subgid"):
        (tmp_path / name).write_text("ann:100000:65536\n")
    assert bootstrap._mode("making it") == "unshare"
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(EnvironmentProblem, match="newuidmap is not installed"):
        bootstrap._mode("making it")


def test_root_needs_no_further_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert bootstrap._mode("making it") == "root"
