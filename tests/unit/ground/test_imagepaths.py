"""The one rule for names of files in images."""

import pytest

from envkit.ground import imagepaths


@pytest.mark.parametrize(
    "name",
    [
        "a", "lib/python3.11/site-packages/x.py", "wh.a", "a.wh.b", ".whatever", "x/.wh", ".w/h.", "a b", "ünïcode",
        "x" * 255, "/".join(["d"] * 64), "a..b", "...", ".a", "-", "a:b", "a=b",
    ],
)  # fmt: skip
def test_usual_names_are_fine(name: str) -> None:
    assert imagepaths.fault(name) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "is not a valid path"),
        ("/a", "is not a valid path"),
        ("a/", "is not a valid path"),
        ("a//b", "is not a valid path"),
        ("./a", "is not a valid path"),
        ("a/../../b", "is not a valid path"),
        ("a\nb", "is not a valid path"),
        ("a\x1b[2J", "is not a valid path"),
        ("a\\b", "is not a valid path"),
        ("x" * 256, "has a name of more than 255 bytes"),
        ("ü" * 128, "has a name of more than 255 bytes"),
        ("/".join(["d"] * 65), "has 65 parts; the limit is 64"),
        ("/".join(["d" * 200] * 20), "has 4019 bytes; the limit is 3544"),
        (".wh.a", "begins with .wh."),
        (".wh..wh..opq", "begins with .wh."),
        ("a/.wh.b", "begins with .wh."),
        ("a/.wh.b/c", "begins with .wh."),
    ],
)
def test_what_no_package_may_hold(name: str, why: str) -> None:
    found = imagepaths.fault(name)
    assert found is not None
    assert why in found
    assert len(found) < 300
    assert found.isprintable()
