"""What every run of the tests leaves on the disk."""

import pytest

pytest_plugins = ["pytester"]
_FIXTURES = """
import pytest
from tests.conftest import pytest_fixture_setup

@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("shared")

@pytest.fixture(scope="module")
def own(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    yield folder, request.getfixturevalue("shared")
    assert folder.is_dir(), "its own clean-up still has it"
"""


def test_the_folders_of_a_modules_fixtures_go_with_it_and_those_of_the_run_stay(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(_FIXTURES)
    first = pytester.makepyfile(test_a="def test(own):\n    assert all(folder.is_dir() for folder in own)")
    second = pytester.makepyfile(
        test_b="def test(shared):\n    assert sorted(one.name for one in shared.parent.glob('*0')) == ['shared0']"
    )
    done = pytester.runpytest_inprocess("-p", "no:xdist", "-p", "no:cacheprovider", first, second)
    done.assert_outcomes(passed=2)
