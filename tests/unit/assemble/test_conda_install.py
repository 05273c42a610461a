from pathlib import Path

import pytest

from envkit.assemble.conda_install import contained

FOLDER = Path("/var/cache/staging/0")


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("libz.so.1", "libz.so.1"),
        ("../share/x", "../share/x"),
        ("../", "../"),
        ("../bin/../lib/y", "../bin/../lib/y"),
        ("/opt/env/lib/x", "/opt/env/lib/x"),
        ("/var/cache/staging/0/lib/x", "/opt/env/lib/x"),
        ("/var/cache/staging/0", "/opt/env"),
        ("/var/cache/staging/01/x", None),
        ("../../x", None),
        ("..", ".."),
        ("../..", None),
        ("a/../../../x", None),
        ("/etc/passwd", None),
        ("/opt/environment", None),
        ("/opt/env/../x", None),
        ("", None),
        ("a\nb", None),
    ],
)
def test_a_link_stays_in_the_environment(target: str, found: str | None) -> None:
    assert contained(target, "lib/link", folder=FOLDER, prefix="/opt/env") == found
