import pytest

from benchmarks.kills import is_leftover

NAMESPACE = 4026531836


def started(pid: int) -> str:
    return {8758: "1000"}.get(pid, "")


@pytest.mark.parametrize(
    ("group", "leftover"),
    [
        (f"envkit-{NAMESPACE}-8758-1000-ab12cd34", False),  # its process runs
        (f"envkit-{NAMESPACE}-8758-999-ab12cd34", True),  # another process has the ID now
        (f"envkit-{NAMESPACE}-77-1000-ab12cd34", True),
        ("envkit-4026532999-77-1000-ab12cd34", False),  # of another PID namespace
        ("envkit-build-cache", False),
        ("envkit-1-2-3", False),
    ],
)
def test_a_control_group_is_left_over_if_its_process_has_ended(group: str, *, leftover: bool) -> None:
    assert is_leftover(group, NAMESPACE, started) is leftover
