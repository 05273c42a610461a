"""What only bubblewrap does: hostile images, layers as hard links, images without a shell, and a killed run."""

import os
import secrets
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envkit.ground.errors import EngineError, EnvironmentProblem
from envkit.image.name import image_name
from envkit.run import remedies
from envkit.run.bubblewrap import BubblewrapRunner
from envkit.run.model import RunLimits, RunResult
from envkit.run.rootless.sandbox import Means
from envkit.run.runners import choose_for
from tests.engines.conftest import command_lines, containers
from tests.support.file_images import Packed, entry, packed, write_layout
from tests.support.heard import Heard
from tests.world import base

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("file_image")]
Rows = list[tuple[tarfile.TarInfo, bytes]]
LINK, FOLDER = tarfile.SYMTYPE, tarfile.DIRTYPE


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., str]:
    """An image of the Debian base with further layers; its reference."""

    def make(*layers: Rows, user: str = "0", on_base: bool = True) -> str:
        found = base.layer()
        below = [Packed(found.path.read_bytes(), found.diff_id)] if on_base else []
        config = {"Env": [f"PATH={base.PATH}"], "User": user}
        return f"oci:{write_layout(tmp_path / 'layout', [*below, *map(packed, layers)], config)}"

    return make


def run(image: str, script: str, runner: BubblewrapRunner | None = None, **how: Any) -> RunResult:
    return (runner or BubblewrapRunner()).run(
        image_name(image),
        ["sh", "-c", script],
        how.pop("files", {}),
        gpus=None,
        limits=RunLimits(**how),
        reporter=Heard(),
    )


def test_links_in_the_image_lead_no_mount_astray(made: Callable[..., str], tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "hosts").write_text("mine")
    rows = [(entry(name, LINK, target=f"/oldroot{outside}"), b"") for name in ("run", "tmp", "dev", "sys", "proc")]
    rows += [(entry("etc", FOLDER, mode=0o755), b"")]
    for name, up in (("hosts", "/oldroot"), ("hostname", ""), ("resolv.conf", "../../../../oldroot")):
        rows.append((entry(f"etc/{name}", LINK, target=f"{up}{outside}/hosts"), b""))
    result = run(made(rows), "cat /run/envkit/f /etc/hosts; touch /tmp/x && echo tmp", files={"/run/envkit/f": b"in\n"})
    assert result.stdout == b"in\n127.0.0.1 localhost envkit\n::1 localhost\ntmp\n"
    assert [path.name for path in outside.iterdir()] == ["hosts"]
    assert (outside / "hosts").read_text() == "mine"


@pytest.mark.parametrize(
    "means",
    [
        Means(entered=True, overlay=True, sysfs=True),
        Means(entered=True, overlay=False, sysfs=True),
        Means(entered=False, overlay=False, sysfs=False),
    ],
    ids=["overlay", "links", "bubblewrap alone"],
)
def test_every_way_of_stacking_shows_the_same(made: Callable[..., str], means: Means) -> None:
    lower: Rows = [
        (entry("srv/a"), b"a"), (entry("srv/b"), b"b"), (entry("opt/old"), b"x"), (entry("home/old/deep"), b"x"),
        (entry("srv/kind"), b"x"),
    ]  # fmt: skip
    upper: Rows = [
        (entry("srv/.wh.a"), b""), (entry("srv/b"), b"B"), (entry("opt/.wh..wh..opq"), b""), (entry("opt/new"), b"n"),
        (entry("home/.wh.old"), b""), (entry("srv/kind", FOLDER, mode=0o755), b""), (entry("srv/kind/in"), b"x"),
    ]  # fmt: skip
    runner = BubblewrapRunner()
    runner._means = means
    result = run(
        made(lower, upper),
        "cd /; find srv opt home -mindepth 1 | sort; cat srv/b; touch /srv/x 2>/dev/null || echo fixed; id -u",
        runner,
    )
    assert result.stdout == b"opt/new\nsrv/b\nsrv/kind\nsrv/kind/in\nBfixed\n0\n"
    assert runner._means == means


def test_another_run_finds_the_layers_untouched(made: Callable[..., str]) -> None:
    image = made([(entry("srv/f", mode=0o666), b"whole")])
    runner = BubblewrapRunner()
    for means in (None, Means(entered=False, overlay=False, sysfs=False)):
        runner._means = means
        assert run(image, "echo cut > /srv/f; chmod 000 /srv/f; rm -f /srv/f", runner).exit_code != 0
        assert run(image, "cat /srv/f").stdout == b"whole"


def test_an_image_without_a_shell_can_be_run(made: Callable[..., str]) -> None:
    with pytest.raises(EngineError, match="'sh' cannot be run in it"):
        run(made([(entry("file"), b"x")], on_base=False), "true")


def test_a_missing_user_is_named(made: Callable[..., str]) -> None:
    with pytest.raises(EngineError, match="the image has no user 'nobody-here'"):
        run(made(user="nobody-here"), "true")


_ALONE = (
    "from envkit.run.bubblewrap import BubblewrapRunner as R; from envkit.run.model import RunLimits as L; "
    "from envkit.ground.progress import Silent as S; from envkit.image.name import image_name; import sys; "
    "R().run(image_name(sys.argv[1]), ['sh', '-c', ': ' + sys.argv[2] + '; sleep 300'], {}, gpus=None, "
    "limits=L(timeout_s=5), reporter=S())"
)


def await_that(condition: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_killed_run_leaves_nothing_and_the_next_one_cleans(file_image: str) -> None:
    before, word = containers("files").keys(), f"word{secrets.token_hex(6)}"
    with subprocess.Popen([sys.executable, "-c", _ALONE, file_image, word]) as process:
        await_that(lambda: any(line.startswith(f"sh\0-c\0: {word}") for line in command_lines()), 30)
        os.kill(process.pid, signal.SIGKILL)
    await_that(lambda: not any(word in line for line in command_lines()), 2)
    run(file_image, "true")
    assert containers("files").keys() <= before


def test_a_run_killed_at_any_moment_ends_within_its_limit(file_image: str) -> None:
    before, word = containers("files").keys(), f"word{secrets.token_hex(6)}"
    for step in range(12):
        with subprocess.Popen([sys.executable, "-c", _ALONE, file_image, word]) as process:
            time.sleep(0.25 + 0.04 * step)
            os.kill(process.pid, signal.SIGKILL)
    await_that(lambda: not any(word in line for line in command_lines()), 12)
    # The kernel may hold on to a group for a moment after its last process.
    await_that(lambda: run(file_image, "true").exit_code == 0 and containers("files").keys() <= before, 10)


def test_without_bubblewrap_it_is_said_what_to_install(
    made: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    for name in ("auto", "bubblewrap"):
        with pytest.raises(EnvironmentProblem, match="bubblewrap is not installed") as caught:
            choose_for(image_name(made()), name, Heard())
        assert caught.value.hint == remedies.hint(building=False)
        assert caught.value.exit_code == 9


def test_gpus_come_from_the_hosts_cdi_specification(
    made: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = next(Path("/").glob("lib/*/libz.so.1")).resolve()
    specification = tmp_path / "nvidia.yaml"
    specification.write_text(f"""\
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: all
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
      hostPath: /dev/zero
containerEdits:
  env: [FROM_CDI=yes]
  hooks:
  - hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
    args: [nvidia-cdi-hook, create-symlinks, --link, libdriver.so.1::/opt/driver/libdriver.so]
  mounts:
  - {{hostPath: {library}, containerPath: /opt/driver/libdriver.so.1}}
""")
    monkeypatch.setattr("envkit.run.rootless.host_gpus._CDI", (str(specification),))
    script = (
        "head -c 2 /dev/nvidia0 | od -An -tx1; readlink /opt/driver/libdriver.so; echo $FROM_CDI; "
        'readlink "$TRITON_LIBCUDA_PATH/libz.so.1"; touch /opt/driver/libdriver.so.1 2>/dev/null || echo fixed; '
        "cmp /opt/driver/libdriver.so.1 $TRITON_LIBCUDA_PATH/libz.so.1 && echo same"
    )
    result = BubblewrapRunner().run(
        image_name(made(user="1234:1234")), ["sh", "-c", script], {}, gpus="all", limits=RunLimits(), reporter=Heard()
    )
    expected = " 00 00\nlibdriver.so.1\nyes\n/opt/driver/libdriver.so.1\nfixed\nsame\n"
    assert result.stdout.decode() == expected, result.stderr
