"""Completion in a real bash: its script is read, and its function is called as bash calls it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(sys.executable).parent
ASK = """
eval "$(envkit completion bash)"
complete -p envkit
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_envkit_completion envkit
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("envkit buil", ["build"]),
        ("envkit build tra", ["train.yaml"]),
        ("envkit resolve --os debian12", ["debian12"]),
        ("envkit verify --only C04,C05,C10,C1", [f"C04,C05,C10,C1{digit}" for digit in range(1, 10)]),
        ("envkit resolve --gpu rtx409", ["RTX4090", "RTX4090D"]),
    ],
)
def test_bash_offers_the_values(words: str, offered: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("schema: envkit.image/1\ntitle: one\n")
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-c", ASK.format(words=words)],
        cwd=tmp_path,
        env={"PATH": f"{PROGRAMS}:{os.environ['PATH']}", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    registered, *found = done.stdout.splitlines()
    assert registered == "complete -o nosort -F _envkit_completion envkit"
    assert sorted(found) == offered
    assert done.stderr == ""
