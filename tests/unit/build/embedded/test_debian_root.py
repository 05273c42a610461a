from pathlib import Path

import pytest

from envkit.build.embedded import debian_root
from envkit.build.log import BuildLog
from envkit.errors import EngineError, EnvkitError, IntegrityError, LockError, SurroundingsError
from envkit.lock.model import DebPackage, LockedBase
from envkit.progress import Silent


def _package(name: str, digit: str) -> DebPackage:
    return DebPackage(name=name, version="1.0", arch="amd64", sha256=digit * 64, size=1)


BASE = LockedBase(
    kind="bootstrap",
    reference="bootstrap:debian/bookworm",
    suite="bookworm",
    packages=(_package("bash", "a"), _package("tini", "b")),
)


def _sums(*rows: tuple[str, str]) -> str:
    return "".join(f"{digit * 64}  /tmp/x/var/cache/apt/archives/{file}\n" for digit, file in rows)


def test_the_archives_of_the_lock_are_accepted_however_often_they_are_listed() -> None:
    rows = (("a", "bash_1.0_amd64.deb"), ("b", "tini_1.0_amd64.deb"))
    debian_root.compare(BASE, _sums(*rows, *rows))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            (("a", "bash_1.0_amd64.deb"), ("c", "tini_1.0_amd64.deb")),
            "tini 1.0: the mirror gives tini_1.0_amd64.deb with another SHA-256 than the lock's",
        ),
        ((("a", "bash_1.0_amd64.deb"),), "tini 1.0: the mirror gives no archive with another SHA-256"),
        (
            (("a", "bash_1.0_amd64.deb"), ("b", "tini_1.0_amd64.deb"), ("c", "nasty_9_all.deb")),
            "nasty_9_all.deb was installed, and the lock does not name it",
        ),
    ],
)
def test_other_archives_are_refused(rows: tuple[tuple[str, str], ...], said: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        debian_root.compare(BASE, _sums(*rows))
    assert said in caught.value.message
    assert "envkit lock" in (caught.value.hint or "")


def test_the_key_follows_the_packages_and_nothing_else() -> None:
    key = debian_root.layer_key(BASE)
    assert key == debian_root.layer_key(LockedBase(kind="bootstrap", reference="other", suite="bookworm",
                                                   packages=BASE.packages))  # fmt: skip
    fewer = LockedBase(kind="bootstrap", reference=BASE.reference, suite="bookworm", packages=BASE.packages[:1])
    assert key != debian_root.layer_key(fewer)


@pytest.mark.parametrize(
    ("line", "kind", "said"),
    [
        ("E: Version '1.0' for 'tini' was not found", LockError, "other versions than the lock"),
        ("E: Unable to correct problems, you have held broken packages.", LockError, "other versions than the lock"),
        ("tar: write error: No space left on device", SurroundingsError, "disk full"),
        ("E: Failed to fetch http://deb.example.com/x", SurroundingsError, "cannot be reached"),
        ("E: mmdebstrap failed to run", EngineError, "mmdebstrap ended with code 25"),
    ],
)
def test_each_failure_says_what_it_is(tmp_path: Path, line: str, kind: type[EnvkitError], said: str) -> None:
    with BuildLog(None, Silent()) as log:
        log.write(line)
        error = debian_root._failure(BASE, 25, tmp_path, log)
    assert type(error) is kind
    assert said in error.message
    assert line in error.details
