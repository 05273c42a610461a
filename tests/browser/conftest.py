"""Debian's Chromium, one for all tests of this folder."""

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.conftest import IN_CI
from tests.support.chromium import Browser
from tests.world import apt
from tests.world.places import UnavailableError

_COMMAND, _PACKAGES = "chromium", ("chromium", "fonts-dejavu-core")


@pytest.fixture(scope="session")
def browser(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    command = shutil.which(_COMMAND)
    if command is None:
        command = _installed(may_install=IN_CI or bool(request.config.getoption("--run-engines")))
    # A browser writes below its home, which is not this test's.
    os.environ.setdefault("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
    started = Browser(command, tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()


def _installed(*, may_install: bool) -> str:
    if not may_install:
        pytest.skip("no chromium here: as root, apt-get install chromium, or run with --run-engines")
    try:
        apt.install(*_PACKAGES)
        return apt.require(_COMMAND, _COMMAND)
    except UnavailableError as error:
        if IN_CI:
            pytest.fail(f"CI has to show the report in a browser: {error}")
        pytest.skip(str(error))
