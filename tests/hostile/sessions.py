"""Hostile options of `run`, `shell` and `watch IMAGE`: the image is sound, and nothing of it runs."""

import os
from collections.abc import Sequence
from pathlib import Path

from tests.hostile.archives import archive
from tests.hostile.images import LAYER
from tests.support.file_images import write_layout

# Of each case: its options, and what the message names.
OPTIONS: dict[str, tuple[list[str], str]] = {
    "variable-name": (["-e", "A B=1"], "A B"),
    "variable-empty": (["-e", "=1"], "=1"),
    "data-not-there": (["--data", "nope"], "nope"),
    "data-is-a-pipe": (["--data", "pipe"], "pipe"),
    "data-over-the-root": (["--data", ".:/"], "/"),
    "data-over-proc": (["--data", ".:/proc"], "/proc"),
    "data-leads-up": (["--data", ".:/data/../etc"], "/data/../etc"),
    "workspace-not-there": (["--workspace", "nope"], "nope"),
    "workspace-is-a-file": (["--workspace", "file"], "file"),
    "shm-size": (["--shm-size", "much"], "much"),
    "network": (["--network", "container:1"], "container:1"),
    "runner": (["--runner", "host"], "host"),
}
OF_SESSIONS: dict[str, tuple[list[str], str]] = {
    "port": (["-p", "99999"], "--port"),
    "user": (["--user", "root"], "root"),
    "key-is-a-pipe": (["--ssh", "pipe"], "--ssh"),
    "key-is-private": (["--ssh", "private"], "--ssh"),
    "key-of-two-gigabytes": (["--ssh", "large"], "--ssh"),
    "key-is-a-device": (["--ssh", "device"], "--ssh"),
}


def _image(folder: Path) -> None:
    write_layout(folder / "image", [LAYER])
    os.mkfifo(folder / "pipe")
    (folder / "file").write_text("")
    (folder / "private").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2xyz\n")
    (folder / "device").symlink_to("/dev/zero")
    with (folder / "large").open("wb") as file:
        file.truncate(2 << 30)


def _add(command: str, name: str, options: Sequence[str], place: str) -> None:
    def make(folder: Path) -> list[str]:
        _image(folder)
        end = [] if command == "shell" else ["--", "true"]
        return [command, "oci:image", "--runner", "bubblewrap", *options, *end]

    make.__name__ = f"{command}-{name}"
    archive(
        "options", code=2, says=(place,), secret=("hunter2xyz",), writes=("home/.cache/envkit/*",), command=command
    )(make)


for _command in ("run", "shell", "watch"):
    for _name, (_options, _place) in {**OPTIONS, **(OF_SESSIONS if _command == "run" else {})}.items():
        _add(_command, _name, _options, _place)


def _printed(folder: Path, *options: str) -> list[str]:
    _image(folder)
    return ["run", "oci:image", "--runner", "bubblewrap", "--print", "srun", *options]


@archive("options", gives=["'--env=A=$(id); b'"])
def ok_print_of_a_variable(folder: Path) -> list[str]:
    return _printed(folder, "-e", "A=$(id); b", "--", "true")


@archive("options", gives=["echo 'a b' '$(id)'"])
def ok_print_of_odd_words(folder: Path) -> list[str]:
    return _printed(folder, "--", "echo", "a b", "$(id)")
