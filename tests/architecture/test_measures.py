"""Each measure sees the rule broken: a made-up package with a second place fails it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture import measures


def package(folder: Path, **sources: str) -> list[measures.Module]:
    """Write a package `made` of these modules; `below__name` lies in the package `below`."""
    root = folder / "made"
    for name, text in {"__init__": "", **sources}.items():
        path = root / f"{name if name == '__init__' else name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text)
    return measures.modules(root)


@pytest.mark.parametrize(
    "second", ["import fcntl\nfcntl.flock(3, fcntl.LOCK_EX)", "from fcntl import lockf\n\ndef f():\n    lockf(3, 1)"]
)
def test_a_second_lock_is_seen(tmp_path: Path, second: str) -> None:
    first = '"""Uses fcntl.flock(2)."""\nimport fcntl\nfcntl.flock(1, 2)'
    assert measures.lock_callers(package(tmp_path, store=first, other="'fcntl.flock(1)'", third=second)) == {
        "made.store", "made.third"
    }  # fmt: skip


@pytest.mark.parametrize(
    "second",
    [
        "import os\nos.environ.get('XDG_CACHE_HOME')",
        "import os\nos.environ['XDG_CACHE_HOME']",
        "from pathlib import Path\nPath.home() / '.cache'",
        "from pathlib import Path\nPath('~/.cache/envkit').expanduser()",
    ],
)
def test_a_second_way_to_the_cache_is_seen(tmp_path: Path, second: str) -> None:
    hint = "HINT = 'set XDG_CACHE_HOME to a folder'\nNAMES = {'cache': 'XDG_CACHE_HOME'}\nIN_IMAGE = '/home/.cache/pip'"
    assert measures.cache_finders(package(tmp_path, hint=hint, second=second)) == {"made.second"}


@pytest.mark.parametrize(
    "second",
    [
        "NAMES = {'linux-64': 'amd64', 'linux-aarch64': 'arm64'}",
        "def name(machine):\n    return 'amd64' if machine == 'x86_64' else 'arm64'",
        "BOTH = ('x86_64', 'aarch64')",
    ],
)
def test_a_second_table_of_architectures_is_seen(tmp_path: Path, second: str) -> None:
    one = '"""Takes x86_64 and aarch64."""\nDEFAULT = "linux-64"\nTEXT = "needs x86_64 or aarch64"'
    assert measures.architecture_tables(package(tmp_path, one=one, second=second)) == {"made.second"}
