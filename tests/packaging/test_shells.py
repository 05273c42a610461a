"""Completion in a real bash, zsh and fish: each is set up as its script says, and driven in a terminal."""

import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envkit.ground.state import LastBuilt, write_last
from tests.support.programs import program

PROGRAMS = Path(sys.executable).parent
_LONGEST_S = 120  # for a shell that hangs
# After Tab, Ctrl-G prints the line as the shell has it.
SETUP = {
    "bash": """
eval "$(envkit completion bash)"
bind 'set bell-style none'
bind -x '"\\C-g": printf "LINE<%s>\\n" "$READLINE_LINE"'
PS1='READY> '
""",
    "zsh": """
fpath+=~/.zfunc; autoload -Uz compinit; compinit -u
show() { print -r -- "LINE<$BUFFER>" }
zle -N show
bindkey '^G' show
PS1='READY> '
""",
    "fish": """
set -g fish_autosuggestion_enabled 0
function fish_prompt; echo -n 'READY> '; end
bind \\cg 'echo "LINE<"(commandline)">"'
""",
}
START = {"bash": ["--noprofile", "--rcfile", ".bashrc", "-i"], "zsh": ["-i"], "fish": ["-i"]}
# Where the shell reads its settings, and where it finds the script by itself; bash reads the script in its settings.
SETTINGS = {"bash": ".bashrc", "zsh": ".zshrc", "fish": ".config/fish/config.fish"}
SCRIPTS = {"zsh": ".zfunc/_envkit", "fish": ".config/fish/completions/envkit.fish"}
LINES = {
    "envkit buil": "envkit build ",
    "envkit help slow": "envkit help slow-training ",
    "envkit build tra": "envkit build train.yaml ",
    "envkit verify oci:bu": "envkit verify oci:build/image ",
    "envkit run first:": "envkit run first:1 ",
    "envkit resolve --os=ubuntu22": "envkit resolve --os=ubuntu22.04 ",
    "envkit lock --check -o my": "envkit lock --check -o my.lock ",
    "envkit build --locked=my": "envkit build --locked=my.lock ",
    "envkit diff oci:build/image my": "envkit diff oci:build/image my.lock ",
    "envkit verify --only C04,C01": "envkit verify --only C04,C01 ",
    "envkit build tra --locked=my": "envkit build tra --locked=my.lock ",
}


class Terminal:
    """A shell that believes that somebody types."""

    def __init__(self, argv: list[str], folder: Path, environment: dict[str, str]) -> None:
        self._own, theirs = pty.openpty()
        self._process = subprocess.Popen(
            ["setsid", "--ctty", *argv],  # fish ends without a terminal that controls it
            cwd=folder,
            env=environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self._read("READY> ")

    def completed(self, typed: str) -> str:
        """Type words and Tab; return the line and delete it."""
        os.write(self._own, f"{typed}\t\a".encode())
        line = self._read(r"LINE<([^>\n]*)>")
        os.write(self._own, b"\x15")  # Ctrl-U
        return line

    def close(self) -> None:
        """End the shell."""
        self._process.kill()
        self._process.wait()
        os.close(self._own)

    def _read(self, pattern: str) -> str:
        found = b""
        while (match := re.search(pattern, found.decode(errors="replace"))) is None:
            ready, _, _ = select.select([self._own], [], [], _LONGEST_S)
            assert ready, f"no {pattern} in {found!r}"
            found += os.read(self._own, 4096)
        return match[match.re.groups]


def write(file: Path, text: str) -> None:
    """Write a file and the folders that it is in."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture(params=["bash", "zsh", "fish"])
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Terminal]:
    name = str(request.param)
    path = program(request.config, name, name)
    environment = {"PATH": f"{PROGRAMS}:/usr/bin:/bin", "HOME": str(tmp_path), "TERM": "xterm", "LC_ALL": "C.UTF-8"}
    write(tmp_path / SETTINGS[name], SETUP[name])
    if name in SCRIPTS:
        made = subprocess.run(
            ["envkit", "completion", name], env=environment, capture_output=True, check=True, text=True
        )
        write(tmp_path / SCRIPTS[name], made.stdout)
    (tmp_path / "train.yaml").write_text("schema: envkit.image/1\ntitle: one\n")
    (tmp_path / "my.lock").write_text("{}")
    (tmp_path / "build" / "image").mkdir(parents=True)
    (tmp_path / "build" / "image" / "oci-layout").write_text("{}")
    last = LastBuilt(image="sha256:1", tags=("first:1",), plan="p", engine="docker", built="2026-11-23T00:00:00Z")
    write_last(tmp_path / ".local" / "state" / "envkit", last)
    terminal = Terminal([path, *START[name]], tmp_path, environment)
    yield terminal
    terminal.close()


def test_a_tab_completes_the_line(shell: Terminal) -> None:
    assert {typed: shell.completed(typed) for typed in LINES} == LINES


ASK = """
eval "$(envkit completion bash)"
complete -p envkit
COMP_LINE={line!r}; COMP_POINT=${{#COMP_LINE}}; COMPREPLY=()
_envkit_completion envkit
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("envkit verify --only C04,C05,C10,C1", [f"C04,C05,C10,C1{digit}" for digit in range(1, 10)]),
        ("envkit resolve --gpu rtx409", ["RTX4090", "RTX4090D"]),
    ],
)
def test_bash_offers_several_values(line: str, offered: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-c", ASK.format(line=line)],
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
