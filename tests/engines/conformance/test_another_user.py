"""The embedded engine as a user with no power at all: the same suite, the same bytes, a base from packages."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envkit.lock import base as lock_base
from envkit.lock.request import request_of
from envkit.lock.store import write_lock
from tests.engines.conformance.conftest import GIVEN, Bench, Subject
from tests.engines.conformance.sources import Sources
from tests.engines.faults import Proxy
from tests.support.another_user import another_user, python_for, site_packages, words_for
from tests.support.heard import Heard
from tests.world import apt
from tests.world.places import REPOSITORY, UnavailableError

pytestmark = [pytest.mark.engine, pytest.mark.long]
_USER = "envkit-tests-builder"


@pytest.fixture(scope="module")
def nobody() -> Iterator[pwd.struct_passwd]:
    """A user made for these tests; `useradd` gives it subordinate ids."""
    apt.require("newuidmap", "uidmap")
    apt.require("mmdebstrap", "mmdebstrap")
    with another_user(_USER) as user:
        yield user


@pytest.fixture
def environment(nobody: pwd.struct_passwd, served: Sources, proxy: Proxy) -> dict[str, str]:
    """The settings of this test run, and folders of the user's own."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(("ENVKIT_", "SSL_", "REQUESTS_"))}
    return {
        **kept,
        **served.settings(proxy.address),
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": nobody.pw_dir,
        "TMPDIR": nobody.pw_dir,
        "PYTHONPATH": f"{REPOSITORY}:{site_packages()}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "CI": "true",  # where a skip is a failure
    }


def _run(user: pwd.struct_passwd, environment: dict[str, str], *words: str, said: str = "") -> tuple[int, str, str]:
    argv = [*words_for(user), python_for(user), *words]
    done = subprocess.run(
        argv, cwd=REPOSITORY, env=environment, input=said, capture_output=True, text=True, check=False, timeout=600
    )
    return done.returncode, done.stdout, done.stderr


def _document(user: pwd.struct_passwd, subject: Subject, name: str) -> str:
    folder = Path(user.pw_dir) / name
    folder.mkdir()
    (folder / "plan.json").write_bytes(subject.plan.canonical())
    write_lock(folder / "envkit.lock", subject.lock)
    shutil.copytree(Path(subject.plan.folder) / "project", folder / "project")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user.pw_uid, user.pw_gid)
    return json.dumps({
        "folder": str(folder), "plan": str(folder / "plan.json"), "lock": str(folder / "envkit.lock"), "umask": 0o077,
    })  # fmt: skip


def test_the_suite_passes(nobody: pwd.struct_passwd, environment: dict[str, str], served: Sources) -> None:
    given = Path(nobody.pw_dir) / "sources.json"
    given.write_text(served.to_text())
    folder = Path(__file__).parent.relative_to(REPOSITORY)
    words = ["-m", "pytest", "-q", "-x", "--run-engines", "-p", "no:cacheprovider", "-k", "embedded"]
    words += ["--basetemp", f"{nobody.pw_dir}/pytest", f"{folder}/test_images.py", f"{folder}/test_failures.py"]
    code, out, err = _run(nobody, {**environment, GIVEN: str(given)}, *words)
    assert code == 0, out[-4000:] + err[-2000:]
    assert " 0 failed, 0 skipped" in out


def test_the_bytes_are_those_that_root_gets(
    nobody: pwd.struct_passwd, environment: dict[str, str], subject: Subject, benches: Callable[[str], Bench]
) -> None:
    document = _document(nobody, subject, subject.plan.template)
    code, out, err = _run(nobody, environment, "-m", "tests.engines.embedded_build", said=document)
    assert code == 0, err[-3000:]
    assert out.strip() == benches("embedded").build(subject, Heard()).digest


@pytest.fixture(scope="module")
def on_packages(wheels: Subject) -> Subject:
    """The wheels on a base that is made from Debian's packages."""
    reference = "bootstrap:debian/bookworm"
    base = lock_base.bootstrapped(reference, wheels.plan, os.environ.get("ENVKIT_DEBIAN_MIRROR"))
    request = request_of(wheels.plan, glibc="2.36", base=reference)
    return Subject(wheels.plan, replace(wheels.lock, base=base, request=request))


def test_a_base_from_packages_is_the_same_for_root(
    nobody: pwd.struct_passwd, environment: dict[str, str], on_packages: Subject, benches: Callable[[str], Bench]
) -> None:
    document = _document(nobody, on_packages, "packages")
    code, out, err = _run(nobody, environment, "-m", "tests.engines.embedded_build", said=document)
    assert code == 0, err[-3000:]
    assert out.strip() == benches("embedded").build(on_packages, Heard()).digest


def test_without_subordinate_ids_there_is_a_way_out(
    nobody: pwd.struct_passwd, environment: dict[str, str], on_packages: Subject
) -> None:
    rows = [line.split(":") for line in Path("/etc/subuid").read_text().splitlines()]
    row = next((row for row in rows if row[0] == nobody.pw_name), None)
    if row is None:
        raise UnavailableError("useradd gave no subordinate ids here")
    span = f"{row[1]}-{int(row[1]) + int(row[2]) - 1}"
    subprocess.run(["usermod", "--del-subuids", span, "--del-subgids", span, nobody.pw_name], check=True)
    document = _document(nobody, on_packages, "no-ids")
    code, _, err = _run(nobody, environment, "-m", "tests.engines.embedded_build", said=document)
    assert code != 0
    assert "/etc/subuid has no line for" in err
