"""Debian's Chromium, one for all tests of this folder."""

import os
from collections.abc import Iterator

import pytest

from tests.support.chromium import Browser
from tests.support.programs import program


@pytest.fixture(scope="session")
def browser(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    command = program(request.config, "chromium", "chromium", "fonts-dejavu-core")
    # A browser writes below its home, which is not this test's.
    os.environ.setdefault("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
    started = Browser(command, tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()
