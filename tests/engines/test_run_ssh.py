"""`envkit run` starts the SSH server of an image, and the line that it prints logs in with the caller's key."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envkit.ground.paths import data_folder
from tests.support.containers import build_image
from tests.world import apt
from tests.world.world import World

pytestmark = [pytest.mark.engine, pytest.mark.long]

_NAME = "localhost/envkit-test/run-ssh:1"
_BASE = "localhost/envkit-test/run-ssh-base:1"


@pytest.fixture(scope="module")
def image(place: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image with an SSH server, a user and labels, as the feature `ssh` gives them."""
    place.require("docker", "registry", "base")
    assert place.base is not None
    folder = tmp_path_factory.mktemp("ssh")
    build_image(place.base, _BASE, ["openssh-server"], folder)
    context = folder / "context"
    context.mkdir()
    (context / "sshd.sh").write_bytes((data_folder("templates") / "files" / "sshd.sh").read_bytes())
    (context / "Dockerfile").write_text(
        f"FROM {_BASE}\n"
        "COPY sshd.sh /usr/share/envkit/sshd.sh\n"
        "RUN chmod 755 /usr/share/envkit/sshd.sh && "
        "echo 'envkit:x:1000:1000:envkit:/tmp/home:/bin/bash' >> /etc/passwd && echo 'envkit:x:1000:' >> /etc/group\n"
        "LABEL envkit.features=ssh\n"
        "ENV HOME=/tmp/home\n"
        "USER 1000:1000\n"
        'CMD ["python"]\n'
    )
    argv = ["docker", "build", "--quiet", "--tag", _NAME, str(context)]
    subprocess.run(argv, check=True, capture_output=True, env={**os.environ, "DOCKER_BUILDKIT": "0"})
    yield _NAME
    subprocess.run(["docker", "rmi", "--force", _NAME, _BASE], check=False, capture_output=True)


def test_the_printed_address_lets_the_caller_in(image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apt.require("ssh", "openssh-client")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    key = tmp_path / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    argv = [
        sys.executable,
        "-m",
        "envkit",
        "run",
        image,
        "--runner",
        "docker",
        "--network",
        "host",
        "--ssh",
        f"{key}.pub",
    ]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stderr is not None
            said = ""
            while "Server listening" not in said:
                line = process.stderr.readline()
                assert line, said
                said += line
            address = re.search(r"^ssh: (ssh -p 2222 envkit@127\.0\.0\.1)   \(key .*\.pub\)$", said, re.MULTILINE)
            assert address is not None, said
            login = [*shlex.split(address[1]), "-i", str(key), "-o", "StrictHostKeyChecking=no", "-o", "BatchMode=yes"]
            login += ["-o", f"UserKnownHostsFile={tmp_path / 'known'}", "id -un; exit 7"]
            done = subprocess.run(login, capture_output=True, text=True, check=False, timeout=60)
            assert (done.returncode, done.stdout) == (7, "envkit\n"), done.stderr
        finally:
            process.terminate()
            process.wait(timeout=60)


def test_an_image_without_the_feature_is_refused(place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.require("docker", "registry", "base")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert place.base is not None
    argv = [sys.executable, "-m", "envkit", "run", place.base, "--runner", "docker", "--ssh", "id.pub"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "error: --ssh needs an image with the feature ssh\n" in done.stderr
