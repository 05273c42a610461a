"""Which of the host's users a container's users are."""

import pytest

from envkit.run.rootless.owners import MOST_ID, gives_away, host_id, shift_within

ALL = "         0          0 4294967295\n"


@pytest.mark.parametrize(
    ("maps", "shift"),
    [
        ((ALL, ALL), 2**31),
        ((ALL, "0 0 65536\n"), 0),  # one of the two lacks the IDs
        (("0 100000 65536\n", "0 100000 65536\n"), 0),  # a rootless container
        (("0 1000 1\n1 100000 65536\n", ALL), 0),
        (("0 0 1000\n2147483648 5000 2147483647\n", ALL), 2**31),
        (("0 0 2147483649\n", ALL), 0),
        (("", ""), 0),
    ],
)
def test_ids_are_shifted_where_the_namespace_has_them(maps: tuple[str, str], shift: int) -> None:
    assert shift_within(*maps) == shift


@pytest.mark.parametrize("ident", [-1, MOST_ID + 1, 2**32 - 2, 2**32 - 1, 2**40])
def test_an_id_that_no_container_can_have_is_nobody(ident: int) -> None:
    assert host_id(ident, 2**31) == 2**31 + 65534


def test_every_shifted_id_is_one_that_the_kernel_takes() -> None:
    assert host_id(0, 2**31) == 2**31
    assert host_id(MOST_ID, 2**31) == 2**32 - 2


@pytest.mark.parametrize(
    ("uid", "gid", "gives"),
    [
        ("0 0 4294967295", "0 0 4294967295", True),
        ("0 1000 1\n1 100000 65536", "0 1000 1\n1 100000 65536", True),
        ("1 100000 65536\n0 1000 1", "0 0 65535", True),
        ("0 1000 1\n2 100000 65536", "0 0 65535", False),
        ("0 0 65535", "0 1000 1", False),
        ("0 1000 1", "0 1000 1", False),
        ("", "", False),
    ],
    ids=["host", "rootless engine", "in any order", "with a gap", "one group", "unshare", "none"],
)
def test_root_of_a_namespace_with_one_user_gives_no_files_away(uid: str, gid: str, gives: bool) -> None:
    assert gives_away(uid, gid) is gives
