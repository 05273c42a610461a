"""Programs of Debian that tests start: installed where tests may do that."""

import shutil

import pytest

from tests.conftest import IN_CI
from tests.world import apt
from tests.world.places import UnavailableError


def program(config: pytest.Config, command: str, *packages: str) -> str:
    """Return the path of a command; without it, install its packages, or skip the test. In CI a skip is a failure."""
    found = shutil.which(command)
    if found is not None:
        return found
    if not (IN_CI or config.getoption("--run-engines")):
        pytest.skip(f"no {command} here: as root, apt-get install {' '.join(packages)}, or run with --run-engines")
    try:
        apt.install(*packages)
        return apt.require(command, packages[0])
    except UnavailableError as error:
        if IN_CI:
            pytest.fail(f"CI has to start {command}: {error}")
        pytest.skip(str(error))
