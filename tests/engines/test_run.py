"""`envkit run` as a person uses it: exit codes, signals, users, folders, ports, a terminal, and the printed line.

At the end `envkit watch` in an image, which starts the same sessions.
"""

import contextlib
import os
import platform
import pty
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from envkit.ground.process import pids
from envkit.ground.state import BUILT, write_built
from envkit.watch.model import Record, read
from tests.engines.conftest import OF_FILES, PARTS, containers
from tests.world import apt
from tests.world.processes import free_port

pytestmark = [pytest.mark.engine, pytest.mark.long]

_PATIENCE_S = 60.0
# A server that says one word: perl is in every Debian base.
_SERVER = (
    "use IO::Socket::INET; my $s = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $ARGV[0], Listen => 1) "
    'or die; $| = 1; print "up\\n"; my $c = $s->accept; print $c "hello\\n"; close $c;'
)


@pytest.fixture(params=["docker", "podman", *OF_FILES])
def name(request: pytest.FixtureRequest) -> str:
    """What runs the session."""
    if request.param in OF_FILES:
        request.getfixturevalue("file_image")
        apt.require(OF_FILES[request.param], request.param)
    else:
        request.getfixturevalue("place").require(*PARTS[request.param])
    if request.param == "podman":
        apt.require("catatonit", "catatonit")
    return str(request.param)


@pytest.fixture
def image(name: str, images: Callable[[str], str]) -> str:
    """The image whose entry point tells on stderr that it was entered."""
    return images(name)


@pytest.fixture
def words(name: str, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """`envkit run` with this runner and image, and a folder of its own to work in."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    if name == "proot":  # which gives other images neither the caller's user nor, by default, a network
        write_built(tmp_path / "state" / "envkit", [image])
    return [sys.executable, "-m", "envkit", "run", image, "--runner", name, "-q"]


def run(words: Sequence[str], *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*words, *more], capture_output=True, text=True, check=False, timeout=_PATIENCE_S, stdin=subprocess.DEVNULL
    )


def script(words: Sequence[str], text: str, *options: str) -> subprocess.CompletedProcess[str]:
    return run(words, *options, "--", "sh", "-c", text)


@contextmanager
def running(words: Sequence[str], *more: str) -> Iterator[subprocess.Popen[str]]:
    """A session that has said `up`. It ignores no signal, though this test run may, as below nohup."""
    plain = ["env", "--default-signal=INT,TERM,HUP"]
    with subprocess.Popen(
        [*plain, *words, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("code", [0, 3, 126, 137])
def test_exit_codes_come_through(words: list[str], code: int) -> None:
    assert script(words, f"exit {code}").returncode == code


@pytest.mark.parametrize(("signal_name", "code"), [("SEGV", 139), ("TERM", 143)])
def test_a_command_that_dies_by_a_signal(words: list[str], signal_name: str, code: int) -> None:
    assert script(words, f"kill -{signal_name} $$").returncode == code


@pytest.mark.parametrize(("command", "code"), [("/nowhere", 127), ("/etc", 126)])
def test_a_command_that_is_not_in_the_image(words: list[str], command: str, code: int) -> None:
    done = run(words, "--", command)
    assert done.returncode == code
    assert done.stderr.count(command) == 1


def test_streams_stay_apart_and_input_comes_in(words: list[str]) -> None:
    done = subprocess.run(
        [*words, "--", "sh", "-c", "cat; echo err >&2"],
        input="typed\n", capture_output=True, text=True, check=False, timeout=_PATIENCE_S,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "typed\n", "entered\nerr\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_command(words: list[str], number: signal.Signals) -> None:
    text = f"trap 'echo got; exit 40' {number.name.removeprefix('SIG')}; echo up; sleep 60 & wait"
    with running(words, "--", "sh", "-c", text) as process:
        process.send_signal(number)
        out, _ = process.communicate(timeout=_PATIENCE_S)
    assert (process.returncode, out) == (40, "got\n")


def test_a_command_without_a_handler_ends_by_the_signal_and_leaves_nothing(name: str, words: list[str]) -> None:
    with running(words, "--", "sh", "-c", "echo up; exec sleep 61.7") as process:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=_PATIENCE_S)
    assert process.returncode == 143
    assert not sleepers("61.7")
    assert not left_containers(name, "sleep 61.7")


def sleepers(seconds: str) -> list[int]:
    """Processes that sleep so long."""
    sleeping = []
    for pid in pids():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            sleeping += [pid] if words[:2] == [b"sleep", seconds.encode()] else []
    return sleeping


def left_containers(name: str, word: str) -> list[str]:
    """Folders of runs, or an engine's containers with a word in their commands: other tests use the engine, too."""
    if name in OF_FILES:
        return [str(folder) for folder in Path(os.environ["XDG_CACHE_HOME"], "envkit/runs").iterdir()]
    return [text for text in containers(name).values() if word in text]


def test_the_caller_owns_what_is_written_and_data_is_read_only(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("1\n")
    text = (
        "pwd; id -u; cat /data/x; echo 2 > made; touch /data/y 2>/dev/null || echo refused; touch /y || echo read-only"
    )
    done = script(words, text, "--workspace", ".", "--data", str(tmp_path / "data"))
    assert (done.returncode, done.stdout) == (0, f"/srv\n{os.getuid()}\n1\nrefused\nread-only\n")
    made = Path("made")
    assert (made.read_text(), made.stat().st_uid) == ("2\n", os.getuid())


@pytest.mark.parametrize("name", ["proot"], indirect=True)
def test_proot_leaves_no_shared_memory_and_keeps_the_image(words: list[str]) -> None:
    """What a session leaves in /dev/shm is gone, and no later session has its changes of the image."""
    before = set(Path("/dev/shm").iterdir())
    # Not `:`, after which a refused redirection ends the shell.
    text = "echo x > /dev/shm/kept; ls /dev/shm; true > /etc/shells; rm -f /etc/shells; touch /tmp/made && ls /tmp"
    done = script(words, text)
    assert (done.returncode, done.stdout) == (0, "kept\nmade\n")
    assert set(Path("/dev/shm").iterdir()) == before
    assert run(words, "--", "test", "-s", "/etc/shells").returncode == 0


@pytest.mark.parametrize("name", ["proot"], indirect=True)
def test_a_session_of_a_killed_envkit_ends_and_its_folders_go(words: list[str]) -> None:
    with running(words, "--shm-size", "1MiB", "--", "sh", "-c", "echo up; exec sleep 62.9") as process:
        process.kill()
        process.wait()
        limit = time.monotonic() + _PATIENCE_S
        while sleepers("62.9") and time.monotonic() < limit:
            time.sleep(0.05)
    assert not sleepers("62.9")
    assert run(words, "--", "true").returncode == 0  # it removes what the killed one left
    assert not left_containers("proot", "")
    assert not list(Path("/dev/shm").glob("envkit-*"))


@pytest.mark.parametrize("name", ["bubblewrap"], indirect=True)
def test_the_folder_may_hold_envkits_own_cache(words: list[str]) -> None:
    folder = os.environ["XDG_CACHE_HOME"]
    done = script(words, "ls envkit", "--workspace", folder)
    assert (done.returncode, done.stderr) == (0, "entered\n")
    assert "runs" in done.stdout.split()


def test_an_image_that_is_not_known_gets_no_folder(name: str, words: list[str]) -> None:
    Path("secret").write_text("s")
    options: tuple[str, ...] = ()
    if name == "proot":
        shutil.rmtree(Path(os.environ["XDG_STATE_HOME"], "envkit", BUILT))
        refused = run(words, "--", "true")
        assert refused.returncode == 2
        assert "an image that was not built here gets no network by default: proot cannot" in refused.stderr
        options = ("--network", "host")
    done = script(words, "ls; echo $HOME; touch /tmp/a && echo writable", *options)
    assert (done.returncode, done.stdout) == (0, "/tmp\nwritable\n")


@pytest.mark.parametrize("name", ["bubblewrap"], indirect=True)
def test_a_verification_makes_no_image_known(words: list[str], image: str) -> None:
    Path("secret").write_text("s")
    look = "ls; cat /proc/net/dev | wc -l; touch added 2>/dev/null || echo refused"
    before = script(words, look)
    verified = [sys.executable, "-m", "envkit", "verify", image, "--runner", "bubblewrap"]
    done = subprocess.run(verified, capture_output=True, text=True, check=False)
    assert done.returncode != 0  # it has no Python
    assert list(Path(os.environ["XDG_STATE_HOME"], "envkit", "records").glob("*.json"))
    after = script(words, look)
    assert "secret" not in before.stdout.split()
    assert (after.returncode, after.stdout) == (before.returncode, before.stdout)


def test_another_user_and_variables(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSED", "here")
    done = script(
        words, "id -u; id -g; echo $GREETING $ONE $PASSED",
        "--user", "77:88", "-e", "ONE=1 2", "-e", "PASSED", "--workspace", "none",
    )  # fmt: skip
    assert done.stdout == "77\n88\nhello 1 2 here\n"


def test_no_capability_and_enough_shared_memory(name: str, words: list[str]) -> None:
    done = script(words, "grep CapEff /proc/self/status; df -Pk /dev/shm | tail -1", "--shm-size", "300MiB")
    capabilities, shm = done.stdout.splitlines()
    assert capabilities.split()[1].strip("0") == ""
    size = int(shm.split()[1])
    assert size == 300 << 10 if name != "proot" else size > 300 << 10  # which cannot limit it


def test_a_port_of_the_container_can_be_reached(words: list[str]) -> None:
    port = str(free_port())
    with running(words, "--network", "host", "-p", port, "--", "perl", "-e", _SERVER, port) as process:
        with socket.create_connection(("127.0.0.1", int(port)), timeout=10) as client:
            assert client.makefile().read() == "hello\n"
        assert process.wait(timeout=_PATIENCE_S) == 0


def test_a_port_in_use_is_one_error(words: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = run(words, "--network", "host", "-p", str(port), "--", "true")
    assert (done.returncode, done.stdout) == (9, "")
    assert f"error: port {port} of 127.0.0.1 is in use by another program\n" in done.stderr
    assert f"hint: envkit run --port {port + 1}:{port}\n" in done.stderr


def test_without_a_network_nothing_is_reached(name: str, words: list[str]) -> None:
    if name == "proot":
        refused = run(words, "--network", "none", "--", "true")
        assert refused.returncode == 2
        assert "--network none: proot cannot keep a program off the network" in refused.stderr
        return
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        text = f"use IO::Socket::INET; exit(IO::Socket::INET->new(PeerAddr => '127.0.0.1:{port}') ? 1 : 0)"
        assert run(words, "--network", "none", "--", "perl", "-e", text).returncode == 0


def test_the_printed_line_does_the_same(name: str, words: list[str], tmp_path: Path) -> None:
    if name in OF_FILES:
        refused = run(words, "--print")
        assert refused.returncode == 2
        assert "which has no command line of its own" in refused.stderr
        return
    (tmp_path / "data").mkdir()
    text = (
        "id -u; pwd; echo $ONE; grep CapEff /proc/self/status; df -Pk /dev/shm | tail -1; ls /data; echo x > f; exit 9"
    )
    options = ("--workspace", ".", "--data", str(tmp_path / "data"), "-e", "ONE=a b $c", "--network", "none")
    direct = script(words, text, *options)
    printed = script(words, text, *options, "--print").stdout
    by_hand = subprocess.run(["sh", "-c", printed], capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
    assert shlex.split(printed)[:3] == [name, "run", "--rm"]
    assert (by_hand.returncode, by_hand.stdout, by_hand.stderr) == (9, direct.stdout, direct.stderr)
    assert direct.returncode == 9


def test_a_terminal(words: list[str]) -> None:
    """Typed lines are run, Ctrl-C ends the command and not the shell, and the exit code comes through."""
    shell = [*words[:3], "shell", *words[4:]]
    child, terminal = pty.fork()
    if child == 0:
        os.execv(shell[0], shell)
    try:
        type_until(terminal, "[ -t 0 ] && echo is-a-$((40 + 2))\n", "is-a-42")
        type_until(terminal, "echo wait-$((1 + 1)); sleep 60\n", "wait-2")
        time.sleep(0.5)  # until the shell has handed the terminal to sleep
        type_until(terminal, "\x03echo back-$((2 + 2))\n", "back-4")
        os.write(terminal, b"exit 5\n")
        read_until(terminal, None)
        _, status = os.waitpid(child, 0)
    finally:
        os.close(terminal)  # a hangup ends what is left
    assert os.waitstatus_to_exitcode(status) == 5


def type_until(terminal: int, text: str, wanted: str) -> None:
    os.write(terminal, text.encode())
    assert wanted in read_until(terminal, wanted)


def read_until(terminal: int, wanted: str | None) -> str:
    """What the terminal shows until a word comes, or to its end."""
    shown, limit = "", time.monotonic() + _PATIENCE_S
    while (wanted is None or wanted not in shown) and time.monotonic() < limit:
        if select.select([terminal], [], [], 1)[0]:
            try:
                shown += os.read(terminal, 4096).decode(errors="replace")
            except OSError:
                break
    return shown


GLIBC = (2, 36)  # of the image
_TRAINING = """
import sys, time, torch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.zeros(4)

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in torch.utils.data.DataLoader(Slow(), num_workers=1):
    model(batch).sum().backward()
    optimizer.step()
sys.exit(7)
"""


def watched(words: Sequence[str], *command: str, options: Sequence[str] = ()) -> tuple[int, Record]:
    """The exit code and the record of a command below `envkit watch`."""
    below = [*words[:3], "watch", *words[4:], *options, "-o", "../record.json"]
    done = run(below, "--", *command)
    assert "error" not in done.stderr, done.stderr
    return done.returncode, read(Path("../record.json"))


def test_a_training_in_an_image_is_watched(words: list[str]) -> None:
    """It runs on the Python and the torch of this machine, as the image has none."""
    torch = pytest.importorskip("torch")
    if tuple(map(int, platform.libc_ver()[1].split("."))) > GLIBC:
        pytest.skip("this machine's Python needs a newer glibc than that of the image")
    Path("train.py").write_text(_TRAINING)
    mounts = {sys.base_prefix: "/opt/python", str(Path(torch.__file__).parents[1]): "/opt/site"}
    options = [word for one in mounts.items() for word in ("--data", ":".join(one))]
    options += ["--workspace", ".", "-e", "PYTHONPATH=/opt/site"]
    library = sysconfig.get_config_var("LIBDIR").removeprefix(sys.base_prefix)
    options += ["-e", f"LD_LIBRARY_PATH=/opt/python{library}"]
    python = f"/opt/python/bin/python{sysconfig.get_python_version()}"
    code, record = watched(words, python, "train.py", options=options)
    assert (code, record.exit_code, record.image) == (7, 7, words[4])
    (rank,) = record.ranks
    assert (rank.steps, len(record.workers_of(rank))) == (195, 1)
    # Its main thread is found among this machine's processes, whatever its id is in the container.
    assert any(one.main_queued is not None for one in record.samples)
    assert max(one.cpus for one in record.samples) > 0


def test_a_signal_reaches_a_command_that_is_watched(words: list[str]) -> None:
    text = "trap 'echo got; exit 40' TERM; echo up; sleep 60 & wait"
    with running([*words[:3], "watch", *words[4:]], "--", "sh", "-c", text) as process:
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=_PATIENCE_S)
    assert (process.returncode, out) == (40, "got\n")


def test_a_command_that_is_watched_and_not_in_the_image(words: list[str]) -> None:
    assert watched(words, "/nowhere")[0] == 127
