"""Debian's programs that tests start, installed if tests may do so."""

import shutil

import pytest

from tests.conftest import IN_CI
from tests.world import apt
from tests.world.places import UnavailableError


def program(config: pytest.Config, command: str, *packages: str) -> str:
    """Return the path of a command. If it is missing, install its packages or skip the test; in CI, fail."""
    path = shutil.which(command)
    if path is not None:
        return path
    if not (IN_CI or config.getoption("--run-engines")):
        pytest.skip(f"no {command} here: as root, apt-get install {' '.join(packages)}, or run with --run-engines")
    try:
        apt.install(*packages)
        return apt.require(command, packages[0])
    except UnavailableError as error:
        if IN_CI:
            pytest.fail(f"CI has to start {command}: {error}")
        pytest.skip(str(error))
