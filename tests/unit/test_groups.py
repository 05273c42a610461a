"""Which tests share a process."""

import pytest

from tests.groups import process_of

ENGINES = "tests/engines"


@pytest.mark.parametrize(
    ("nodeid", "process"),
    [
        ("tests/unit/plan/test_model.py::test_a[docker]", "tests/unit/plan/test_model.py"),
        (f"{ENGINES}/test_runners.py::test_a[podman]", "daemons"),
        (f"{ENGINES}/test_runners.py::test_a[bubblewrap-0-/tmp]", "files"),
        (f"{ENGINES}/test_runners.py::test_a", "daemons"),
        (f"{ENGINES}/conformance/test_failures.py::test_a[embedded-wheels]", "files"),
        (f"{ENGINES}/test_registry_tls.py::test_a[1.2]", "files"),
        (f"{ENGINES}/test_new.py::test_a", "daemons"),
        ("tests/world/test_world.py::test_a", "daemons"),
        ("tests/lock/test_world.py::test_a", "daemons"),
        ("tests/lock/test_wheels.py::test_a", "tests/lock/test_wheels.py"),
    ],
)
def test_tests_of_one_engine_share_a_process(nodeid: str, process: str) -> None:
    assert process_of(nodeid) == process
