"""CUDA starts in an image: every runner gives a run what the driver asks of the system, and no GPU that was not given.

The driver is a stand-in that opens the nodes, names its threads and reads what real ones read (`driver_standin.c`), on
a machine with two simulated GPUs (`gpu_machine.py`).
"""

from __future__ import annotations

import json
import os
import platform
import pty
import pwd
import secrets
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from envkit.run.model import DATA
from envkit.watch.model import read
from tests.engines.conftest import IMAGE, OF_FILES
from tests.engines.test_run import GLIBC, read_until, type_until
from tests.support import standin
from tests.support.another_user import another_user, words_for
from tests.support.file_images import Packed, entry, packed, write_archive, write_layout
from tests.support.gpu_machine import NODES, STARTED, GpuMachine, python, require_compiler, variables
from tests.support.kernel_files import OWN_ENTRIES, SCRIPT, writable_paths
from tests.world import apt, base, engine, processes
from tests.world.world import World, up

pytestmark = [
    pytest.mark.engine,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make device nodes"),
]
_USER = "envkit-gpus"
_SETTINGS = {**IMAGE, "Env": [f"PATH={base.PATH}", *IMAGE["Env"]]}
_ROOT_AND_USER = ("bubblewrap", "proot")
# What verification calls: `Runner.run` of the runner that is chosen for an image.
# Without a PID namespace, proot's runs see the machine's processes. The kernel lets everyone open these entries of any
# process and refuses writing; a run of the caller's own user may open all entries of that user's processes but `mem`.
_OPEN_TO_ALL = {f"other /proc/OWN/{name}" for name in (
    "attr/apparmor/current", "attr/apparmor/exec", "attr/current", "attr/exec", "attr/fscreate", "attr/keycreate",
    "attr/smack/current", "attr/sockcreate", "timerslack_ns",
)}  # fmt: skip
_OF_SAME_USER = {f"other {path}" for path in OWN_ENTRIES} - {"other /proc/OWN/mem"}
_WRITES = r"""
use strict; use Fcntl; my ($pid) = @ARGV;
my %values = ('mem' => 'x', 'attr/current' => 'x', 'attr/exec' => 'x', 'timerslack_ns' => '60000', 'comm' => 'x',
    'uid_map' => '0 0 1', 'loginuid' => '1', 'oom_score_adj' => '500');
for my $name (sort keys %values) {
  my $file;
  print "$name\n" if sysopen($file, "/proc/$pid/$name", O_WRONLY) && defined syswrite($file, $values{$name});
}
"""
_ALONE = """
import sys
from envkit.cli.main import run
from envkit.run.bubblewrap import BubblewrapRunner
from envkit.run.rootless.sandbox import Means
BubblewrapRunner._find_means = lambda self: Means(entered=False, overlay=False, sysfs=False)
"""
_VERIFY = """
import sys
from envkit.ground.progress import Silent
from envkit.image.name import image_name
from envkit.run.model import RunLimits
from envkit.run.runners import choose_for
name, image, gpus, *argv = sys.argv[1:]
runner, image = choose_for(image_name(image), name, Silent())
gpus = None if gpus == "none" else gpus
ended = runner.run(image, argv, {"/run/envkit/f": b""}, gpus=gpus, limits=RunLimits(timeout_s=60), reporter=Silent())
sys.stdout.buffer.write(ended.stdout)
sys.stderr.buffer.write(ended.stderr)
sys.exit(ended.exit_code)
"""


@dataclass(frozen=True)
class Place:
    """A runner on the machine with GPUs: its name, who calls it, and where the machine's GPUs are named."""

    machine: GpuMachine
    runner: str
    user: pwd.struct_passwd | None
    source: str
    image: str

    def verify(self, gpus: str, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command as verification does."""
        words = [python(self.user), "-c", _VERIFY, self.runner, self.image, gpus, *argv]
        return self.machine.run(self.source, words, user=self.user)

    @property
    def network(self) -> list[str]:
        """What proot needs for an image that was not built here."""
        return ["--network", "host"] if self.runner == "proot" else []

    def envkit(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command of envkit."""
        return self.machine.run(self.source, [python(self.user), "-m", "envkit", *argv], user=self.user)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that every user may enter, and no run of proot may write to."""
    # Podman makes a name of an image's path, in which `-_` is not allowed, as in names that tempfile makes.
    path = Path(f"/var/tmp/envkit-gpus-{secrets.token_hex(4)}")
    path.mkdir(mode=0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path)


@pytest.fixture(scope="module")
def machine(folder: Path) -> GpuMachine:
    (folder / "machine").mkdir()
    return GpuMachine.prepare(folder / "machine", require_compiler())


@pytest.fixture(scope="module")
def layers(machine: GpuMachine) -> list[Packed]:
    """The Debian base and a program that starts CUDA."""
    layer = base.layer()
    program = packed([(entry("usr/bin/cuda-start", mode=0o755), (machine.folder / "cuda-start").read_bytes())])
    return [Packed(layer.path.read_bytes(), layer.diff_id), program]


@pytest.fixture(scope="module")
def image(folder: Path, layers: list[Packed]) -> str:
    """The usual image with that program, in a file."""
    return f"oci:{write_layout(folder / 'layout', layers, _SETTINGS)}"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Podman with its settings in the environment."""
    found = up(("podman", "registry"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in found.env().items():
            patch.setenv(name, value)
        yield found


@pytest.fixture(scope="module")
def image_in_docker(folder: Path, machine: GpuMachine, layers: list[Packed]) -> Iterator[str]:
    """The image in a Docker engine of its own, which found NVIDIA's hook when it started."""
    command = apt.require("dockerd", "docker.io")
    address = f"unix://{folder}/docker.sock"
    path = [str(machine.hook()), os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"]
    options = ["--data-root", f"{folder}/docker", "--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/docker.pid"]
    options += ["--host", address, "--iptables=false", "--ip6tables=false", "--bridge=none"]
    # In a network namespace of its own: a dockerd without a bridge removes the `docker0` of the machine's other engine.
    processes.start(
        "dockerd-gpus", ["unshare", "--net", command, *options], port=0, keep=False, seconds=60,
        env={"PATH": os.pathsep.join(path)}, answers=lambda: engine.answers(address),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", address)
        archive = write_archive(folder / "image.tar", layers, _SETTINGS, tag="cuda-starts:1")
        subprocess.run(["docker", "load", "--quiet", "--input", str(archive)], check=True, capture_output=True)
        yield "cuda-starts:1"
    processes.stop("dockerd-gpus")


@pytest.fixture(scope="module")
def nobody() -> Iterator[pwd.struct_passwd]:
    with another_user(_USER) as user:
        yield user


_OF_FILES = [(name, who, source) for name in OF_FILES for who in ("root", "user") for source in ("cdi", "loader")]
# The machine's engine gives GPUs by NVIDIA's hook, Podman by CDI.
_PLACES = [*_OF_FILES, ("docker", "root", "none"), ("podman", "root", "cdi")]


@pytest.fixture(params=_PLACES, ids="-".join)
def place(request: pytest.FixtureRequest, machine: GpuMachine, image: str, nobody: pwd.struct_passwd) -> Place:
    """A runner, its caller, and the source of the machine's GPUs."""
    name, who, source = request.param
    if name == "docker":
        image = request.getfixturevalue("image_in_docker")
    elif name == "podman":
        world = request.getfixturevalue("world")
        world.require("podman")
        apt.require("catatonit", "catatonit")
    else:
        apt.require(OF_FILES[name], name)
    return Place(machine, name, nobody if who == "user" else None, source, image)


@pytest.mark.parametrize(("gpus", "count"), [("all", 2), ("0", 1), ("1,0", 2)])
def test_cuda_starts_in_a_verification(place: Place, gpus: str, count: int) -> None:
    done = place.verify(gpus, "cuda-start")
    assert (done.stdout.strip(), done.returncode) == (STARTED.format(count), 0), done.stderr


def test_without_gpus_none_is_there(place: Place) -> None:
    done = place.verify("none", "sh", "-c", "ls /dev | grep nvidia; cuda-start")
    assert done.returncode != 0
    assert done.stdout == ""
    assert "libcuda.so.1" in done.stderr


def test_with_gpus_no_kernel_file_can_be_opened_for_writing(place: Place) -> None:
    done = place.verify("all", "perl", "-e", SCRIPT)
    assert done.returncode == 0, done.stderr
    found, tried = writable_paths(done.stdout)
    tried_as = {"runner": place.runner, "user": place.user is not None, "tried": tried}
    print(json.dumps({**tried_as, "writable": sorted(found)}))
    assert tried > 500  # otherwise the test has looked at nothing
    others = {path for path in found if path.startswith("other ")}
    expected = set() if place.runner != "proot" else _OPEN_TO_ALL if place.user is None else _OF_SAME_USER
    assert others <= expected
    assert found - others <= OWN_ENTRIES
    assert "/proc/OWN/comm" in found


@pytest.mark.parametrize("place", [("proot", "root", "cdi"), ("proot", "user", "cdi")], ids="-".join, indirect=True)
def test_a_run_of_proot_writes_to_no_other_process(place: Place) -> None:
    words = [*words_for(place.user), "sleep", "60"] if place.user else ["sleep", "60"]
    with subprocess.Popen(words) as other:
        try:
            done = place.verify("all", "perl", "-e", _WRITES, str(other.pid))
        finally:
            other.kill()
    assert done.returncode == 0, done.stderr
    # A user's own processes: whether the kernel ends them first when memory is short. No limit is lowered.
    assert done.stdout.split() == ([] if place.user is None else ["oom_score_adj"])


def test_cuda_starts_in_a_session(place: Place) -> None:
    options = [place.image, "--runner", place.runner, *place.network, "--workspace", "none", "-q"]
    for gpus, count in (("all", 2), ("1", 1)):
        done = place.envkit("run", *options, "--gpus", gpus, "--", "cuda-start")
        assert (done.stdout.strip(), done.returncode) == (STARTED.format(count), 0), done.stderr
    done = place.envkit("run", *options, "--gpus", "none", "--", "cuda-start")
    assert (done.stdout, done.returncode) == ("", 127)


def test_cuda_starts_below_watch(place: Place, tmp_path: Path) -> None:
    record = Path(place.user.pw_dir if place.user else tmp_path, "record.json")
    options = [
        "--runner",
        place.runner,
        *place.network,
        "--workspace",
        "none",
        "-q",
        "--gpus",
        "all",
        "-o",
        str(record),
    ]
    done = place.envkit("watch", place.image, *options, "--", "cuda-start")
    if place.runner == "proot" and place.user is None:
        # The image was not built here, so it runs as another user, who may not enter the folder for the events.
        assert done.returncode == 9
        assert "hint: run envkit as a user other than root" in done.stderr
        return
    assert STARTED.format(2) in done.stdout, done.stderr
    assert done.returncode == 0
    assert read(record).exit_code == 0


def test_cuda_starts_in_a_shell(place: Place) -> None:
    options = ["--runner", place.runner, *place.network, "--workspace", "none", "-q", "--gpus", "all"]
    command = [python(place.user), "-m", "envkit", "shell", place.image, *options]
    words = [*place.machine.words(place.source, place.user), *command]
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe(words[0], words, {**os.environ, **variables(place.user)})
    try:
        type_until(terminal, "cuda-start; echo ended-$((40 + $?))\n", "ended-40")
        os.write(terminal, b"exit 5\n")
        read_until(terminal, None)
        _, status = os.waitpid(child, 0)
    finally:
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 5


@pytest.fixture(scope="module")
def torch_folder(folder: Path) -> Path:
    """A folder with this Python and its torch, whose CUDA is that of `cuda_standin.py`."""
    torch = pytest.importorskip("torch")
    if tuple(map(int, platform.libc_ver()[1].split("."))) > GLIBC:
        pytest.skip("this machine's Python needs a newer glibc than that of the image")
    site = Path(torch.__file__).parents[1]
    made = folder / "torch"
    (made / "standin").mkdir(parents=True)
    shutil.copytree(sys.base_prefix, made / "python", symlinks=True, copy_function=_linked, ignore=_unneeded)
    shutil.copytree(site, made / "site", symlinks=True, copy_function=_linked)
    device = made / "standin" / "device.py"
    device.write_bytes(standin.DEVICE.read_bytes())
    (made / "standin" / "sitecustomize.py").write_text(standin.SITE.format(device=f"{DATA}/standin/device.py"))
    return made


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _unneeded(_: str, names: list[str]) -> set[str]:
    return {name for name in names if name in ("site-packages", "test", "__pycache__") or name.startswith("config-")}


@pytest.fixture(scope="module")
def torch_image(folder: Path, layers: list[Packed]) -> str:
    """The image whose Python and torch are in the user's folder of a verification."""
    link = packed([(entry("opt/env", tarfile.SYMTYPE, target=f"{DATA}/python"), b"")])
    paths = {
        "PYTHONPATH": f"{DATA}/standin:{DATA}/site",
        "LD_LIBRARY_PATH": f"{DATA}/python/lib",
        "STANDIN_STARTS": "1",
    }
    settings = {**_SETTINGS, "Env": [*_SETTINGS["Env"], *map("=".join, paths.items())], "Entrypoint": []}
    return f"oci:{write_layout(folder / 'torch-layout', [*layers, link], settings)}"


@pytest.mark.parametrize("place", [(name, "root", "cdi") for name in OF_FILES], ids="-".join, indirect=True)
def test_the_kernel_check_of_a_verification_passes(
    place: Place, torch_folder: Path, torch_image: str, tmp_path: Path
) -> None:
    record = tmp_path / "record.json"
    options = ["--runner", place.runner, "--gpus", "all", "--only", "C04", "--data", str(torch_folder)]
    done = place.envkit("verify", torch_image, *options, "-o", str(record))
    assert record.exists(), done.stderr
    verdicts = {one["id"]: one["verdict"] for one in json.loads(record.read_text())["checks"]}
    assert verdicts["C04.kernel"] == "PASS", done.stdout


@pytest.fixture
def damaged(machine: GpuMachine) -> Iterator[GpuMachine]:
    """The machine, whose CDI specification and nodes a test may change."""
    yield machine
    machine.specify(machine.cdi())
    machine.list_nodes(NODES)


@pytest.mark.parametrize("runner", OF_FILES)
def test_a_specification_with_a_device_that_does_not_exist_is_named(
    runner: str, damaged: GpuMachine, image: str
) -> None:
    tree = damaged.cdi()
    tree["containerEdits"]["deviceNodes"].append({"path": "/dev/nvidia-modeset", "hostPath": "/dev/nvidia-none"})
    damaged.specify(tree)
    done = Place(damaged, runner, None, "cdi", image).verify("all", "cuda-start")
    assert "/etc/cdi/nvidia.yaml lists /dev/nvidia-none, which this machine does not have" in done.stderr


@pytest.mark.parametrize("source", ["cdi", "loader"])
def test_a_missing_nvidia_uvm_is_named_with_the_command(source: str, damaged: GpuMachine, image: str) -> None:
    damaged.list_nodes([name for name in NODES if name != "nvidia-uvm"])
    tree = damaged.cdi()
    tree["containerEdits"]["deviceNodes"] = [{"path": "/dev/nvidia-uvm"}]
    damaged.specify(tree)
    options = ["--runner", "bubblewrap", "--workspace", "none", "--gpus", "all"]
    done = Place(damaged, "bubblewrap", None, source, image).envkit("run", image, *options, "--", "cuda-start")
    assert done.returncode == 9
    assert "error: /dev/nvidia-uvm is missing, and CUDA does not start without it" in done.stderr
    assert "hint: nvidia-modprobe -u -c 0   # as root" in done.stderr


@pytest.mark.parametrize(
    ("source", "gpus", "ended"),
    [
        ("loader", "MIG-5f3a", (9, "the MIG device MIG-5f3a can be given to a container only by a CDI specification")),
        ("loader", "GPU-5f3a", (9, "which GPU GPU-5f3a is cannot be found out: /proc/driver/nvidia/gpus is missing")),
        ("loader", "7", (2, "there is no GPU 7 here")),
        ("cdi", "0:1", (2, "there is no GPU 0:1 in /etc/cdi/nvidia.yaml")),
        ("cdi", "GPU-5f3a", (2, "there is no GPU GPU-5f3a in /etc/cdi/nvidia.yaml")),
    ],
)
def test_a_gpu_that_cannot_be_given_is_named(
    source: str, gpus: str, ended: tuple[int, str], machine: GpuMachine, image: str
) -> None:
    code, said = ended
    options = ["--runner", "bubblewrap", "--workspace", "none", "--gpus", gpus]
    done = Place(machine, "bubblewrap", None, source, image).envkit("run", image, *options, "--", "cuda-start")
    assert said in " ".join(done.stderr.split())
    assert done.returncode == code


_HERE = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--setenv", "LD_LIBRARY_PATH"]


@pytest.mark.parametrize(
    ("refused", "code"),
    [("", 0), ("comm", 304), ("sys", 304), ("nodes", 100), ("nvidiactl", 100), ("nvidia0", 100), ("nvidia-uvm", 999)],
)
def test_the_stand_in_answers_refusals_as_drivers_do(refused: str, code: int, machine: GpuMachine) -> None:
    """With what people measured in sandboxes: NVIDIA/OpenShell#710, truefoundry/trueforge#466."""
    words = [*_HERE, str(machine.folder / "lib")]
    for name in ("nvidiactl", "nvidia0", "nvidia-uvm"):
        bind = "--ro-bind" if refused == "nodes" else "--dev-bind"
        words += [] if name == refused else [bind, str(machine.folder / "nodes.d" / name), f"/dev/{name}"]
    words += ["--remount-ro", "/proc"] if refused == "comm" else []
    words += ["--tmpfs", "/sys"] if refused == "sys" else []
    done = subprocess.run([*words, machine.folder / "cuda-start"], capture_output=True, text=True, check=False)
    assert done.stdout.startswith(f"cuInit {code}, "), done.stderr


@pytest.mark.parametrize("network", [True, False], ids=["own network", "host network"])
def test_where_nothing_can_be_mounted_a_run_with_gpus_has_sys(network: bool, machine: GpuMachine, image: str) -> None:
    # What bubblewrap does alone, without `enter.py`. CUDA fails with 304 in a container that has no /sys.
    session = ("--network", "none" if network else "host")
    code = _ALONE + "sys.exit(run(sys.argv[1:]))"
    words = [python(None), "-c", code, "run", image, "--runner", "bubblewrap", "--workspace", "none", "-q", *session]
    done = machine.run("cdi", [*words, "--gpus", "all", "--", "sh", "-c", "cuda-start; ls /sys/class/net | wc -l"])
    started, interfaces = done.stdout.splitlines()
    assert started == STARTED.format(2)
    assert (interfaces == "0") == network
