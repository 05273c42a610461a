from __future__ import annotations

import json
import os
import resource
import threading
from pathlib import Path

import pytest

from envkit.doctor.host import conda, diagnose, disks, engines, libraries, limits, network, system, view
from envkit.doctor.model import Finding, Section, Severity
from envkit.engines.model import Probe
from envkit.ground.engine_names import RUNNERS
from envkit.ground.errors import EnvironmentProblem
from envkit.ground.host import Host, memory_limit
from envkit.ground.process import NoAnswerError
from envkit.run import remedies
from tests.support.clocks import before
from tests.unit.doctor.machine import machine

HOST = Host(os="debian12", os_title="Debian 12", machine="x86_64", platform="linux-64")
GOOD, BAD = (
    Probe(name="docker", available=True, detail="Docker 27"),
    Probe(name="docker", available=False, detail="away", hint="start it"),
)


def ids(section: Section) -> list[str]:
    return [one.id for one in section.findings]


def test_nothing_that_builds_or_runs_makes_the_work_impossible() -> None:
    found = engines.section({"docker": BAD}, {"docker": "away", "bubblewrap": "missing"}, {})
    assert [(one.id, one.blocks) for one in found.findings] == [("nothing-builds", True), ("nothing-runs", True)]
    assert found.findings[0].fix == ("start it",)
    assert ids(engines.section({"docker": BAD, "embedded": GOOD}, {"docker": "away", "bubblewrap": None}, {})) == []


@pytest.mark.parametrize(
    ("builder", "runners", "works", "missing"),
    [
        (GOOD, {"docker": None}, ("build", "verify (docker)", "run, shell and watch of images (docker)"), ()),
        (
            GOOD,
            {"docker": "away"},
            ("build --no-verify",),
            ("verify: no runner", "run, shell and watch of images: they"),
        ),
        (
            GOOD,
            {"proot": None, "bubblewrap": "no"},
            ("build", "verify (proot)", "run, shell and watch of images (proot)"),
            (),
        ),
        (BAD, {"proot": "no"}, (), ("build: no engine", "verify: no runner", "run, shell and watch of images: they")),
    ],
)
def test_which_commands_work_here_is_told_one_by_one(
    builder: Probe, runners: dict[str, str | None], works: tuple[str, ...], missing: tuple[str, ...]
) -> None:
    found, others = engines.commands({"docker": builder}, runners)
    assert found == ["init", "resolve", "lock", "render", "export", "install", *works]
    assert len(others) == len(missing)
    assert all(text.startswith(begin) for text, begin in zip(others, missing, strict=True))


def test_what_makes_a_runner_work_is_told_as_a_choice() -> None:
    found = engines.section(
        {"e": GOOD}, {"bubblewrap": "closed"}, {}, lambda: ["apt-get install proot", "sysctl -w a=1"]
    )
    (finding,) = found.findings
    assert finding.fix == ("Any one of these is enough:", "apt-get install proot", "sysctl -w a=1")
    (single,) = engines.section({"e": GOOD}, {"bubblewrap": "closed"}, {}, lambda: ["sysctl -w a=1"]).findings
    assert single.fix == ("sysctl -w a=1",)


def test_a_machine_where_only_proot_works_is_told_of_its_isolation() -> None:
    found = engines.section({"e": GOOD}, {"proot": None, "bubblewrap": "closed"}, {}, lambda: ["sysctl -w a=1"])
    assert [(one.id, one.severity, one.blocks) for one in found.findings] == [("weak-isolation", Severity.INFO, False)]


@pytest.mark.parametrize(
    ("programs", "contained", "told"),
    [
        (("apt-get", "dockerd", "podman"), False, ["x", "systemctl start docker"]),
        (("apt-get",), False, ["x", "apt-get install docker.io", "apt-get install podman"]),
        ((), False, ["x"]),
        (("apt-get",), True, ["x"]),
    ],
)
def test_an_engine_that_is_installed_is_started_and_not_installed(
    monkeypatch: pytest.MonkeyPatch, programs: tuple[str, ...], told: list[str], *, contained: bool
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}" if name in programs else None)
    monkeypatch.setattr(remedies, "options", lambda **_: ["x"])
    monkeypatch.setattr(remedies, "is_contained", lambda: contained)
    assert diagnose._options({"docker": "away", "podman": "missing"}) == told


def test_the_exit_code_is_that_of_what_blocks() -> None:
    def concluded(*findings: Finding) -> tuple[int, str]:
        found = diagnose.conclude((Section(id="x", title="X", findings=findings),))
        return found.exit_code, found.conclusion

    warn = Finding(id="w", severity=Severity.WARN, title="a warning")
    error = Finding(id="e", severity=Severity.ERROR, title="no driver")
    block = Finding(id="b", severity=Severity.ERROR, title="nothing builds", blocks=True)
    assert concluded() == (0, "no problems found")
    assert concluded(warn) == (0, "a warning; envkit works here")
    assert concluded(warn, error) == (0, "envkit works here, but GPU programs may not: no driver")
    assert concluded(error, block) == (9, "nothing builds; other commands may work")
    told = Section(id="engines", title="E", facts=((engines.WORKS, "resolve, lock"),), findings=(block,))
    assert diagnose.conclude((told,)).conclusion == "nothing builds; these work: resolve, lock"


def test_what_docker_says_of_itself_is_read() -> None:
    info = {
        "Driver": "vfs",
        "DockerRootDir": "/var/lib/docker",
        "Warnings": ["WARNING: No memory limit support", "x"],
    }
    assert ids(engines.section({"docker": GOOD}, {"docker": None}, info)) == ["docker-vfs", "docker-limits"]


@pytest.mark.parametrize("text", ["no json", "[" * 100_000, "[]"])
def test_an_answer_of_docker_that_is_no_json_object_counts_as_none(text: str, tmp_path: Path) -> None:
    assert diagnose._docker_info(machine(tmp_path, answers={"docker": text})) == {}


def test_the_root_of_docker_is_read_as_json(tmp_path: Path) -> None:
    root = tmp_path / 'a "b"'
    root.mkdir()
    info = diagnose._docker_info(machine(tmp_path, answers={"docker": json.dumps({"DockerRootDir": str(root)})}))
    assert diagnose.data_folders(tmp_path, info)["Docker"] == root


def test_a_program_that_does_not_answer_has_a_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object, **_options: object) -> None:
        raise NoAnswerError("nvidia-smi did not answer within 10 s")

    monkeypatch.setattr(view, "ask_program", hang)
    answer = view.run(["env"])
    assert answer is not None
    assert answer.code == view.NO_ANSWER


def test_a_section_that_hangs_or_fails_does_not_keep_the_others() -> None:
    released = threading.Event()

    def hang() -> Section:
        released.wait(60)
        return Section(id="a", title="too late")

    def fail() -> Section:
        raise EnvironmentProblem("it is gone")

    works = {"a": ("A", hang), "b": ("B", fail), "c": ("C", lambda: Section(id="c", title="C"))}
    with before(60):
        found = diagnose.run_sections(works, 0.5)
    released.set()
    assert [section.id for section in found] == ["a", "b", "c"]
    assert [one.evidence[0].text for section in found for one in section.findings] == [
        "no answer within 0.5 s",
        "it is gone",
    ]


CG = "/sys/fs/cgroup"


@pytest.mark.parametrize(
    ("files", "quota", "memory"),
    [
        (
            {f"{CG}/cgroup.controllers": "cpu", f"{CG}/cpu.max": "150000 100000", f"{CG}/memory.max": "max"},
            1.5,
            None,
        ),
        (
            {
                f"{CG}/cgroup.controllers": "cpu",
                "/proc/self/cgroup": "0::/a/b\n",
                f"{CG}/a/cpu.max": "50000 100000",
                f"{CG}/a/b/cpu.max": "max 100000",
                f"{CG}/a/memory.max": "1073741824",
            },
            0.5,
            1 << 30,
        ),
        (
            {
                "/proc/self/cgroup": "3:cpu,cpuacct:/x\n4:memory:/x\n",
                f"{CG}/cpu/x/cpu.cfs_quota_us": "200000",
                f"{CG}/cpu/x/cpu.cfs_period_us": "100000",
                f"{CG}/memory/memory.limit_in_bytes": "9223372036854771712",
            },
            2.0,
            None,
        ),
        (
            {
                "/proc/self/cgroup": "3:cpu:/\n",
                f"{CG}/cpu/cpu.cfs_quota_us": "-1",
                f"{CG}/cpu/cpu.cfs_period_us": "100000",
            },
            None,
            None,
        ),
        ({"/proc/self/cgroup": "0::/../x\n"}, None, None),
    ],
)
def test_the_tightest_limit_of_the_control_groups_counts(
    tmp_path: Path, files: dict[str, str], quota: float | None, memory: int | None
) -> None:
    view = machine(tmp_path, files)
    assert (limits.cpu_quota(view), memory_limit(view.root)) == (quota, memory)


def test_limits_become_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/sys/fs/cgroup/cgroup.controllers": "", "/sys/fs/cgroup/cpu.max": "50000 100000",
        "/sys/fs/cgroup/memory.max": str(2 << 30),
        "/proc/pressure/cpu": "some avg10=1.00 avg60=42.50 avg300=0 total=1\n",
        "/proc/meminfo": "MemTotal: 1000 kB\n",
    }  # fmt: skip
    rlimits = {resource.RLIMIT_MEMLOCK: 65536, resource.RLIMIT_NOFILE: 1024}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (rlimits[kind], rlimits[kind]))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    monkeypatch.setattr(limits, "_size", lambda _view, _name: (64 << 20, 60 << 20))
    found = limits.section(machine(tmp_path, files))
    assert ids(found) == ["shm-small", "memlock-small", "few-files", "cpu-quota", "little-memory", "busy-machine"]
    assert found.findings[3].title == "programs see 4 CPUs but may use only 0.5"
    assert found.findings[3].fix == ("set OMP_NUM_THREADS=1, and use no more workers than that",)
    monkeypatch.setattr(limits, "_size", lambda _view, _name: (8 << 30, 1 << 20))
    assert ids(limits.section(machine(tmp_path, files)))[0] == "shm-full"


def test_full_and_closed_disks_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(tmp_path)

    class Volume:
        f_bavail, f_frsize, f_files, f_favail = 500_000_000 // 4096, 4096, 10**6, 10

    monkeypatch.setattr(os, "statvfs", lambda _path: Volume)
    found = disks.section({"state": tmp_path / "a" / "b", "Docker": tmp_path})
    assert ids(found) == ["state-disk-full", "few-inodes", "little-disk", "few-inodes"]
    assert found.findings[0].blocks
    monkeypatch.setattr(os, "statvfs", lambda _path: real)
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    blocked = [one for one in disks.section({"cache": tmp_path}).findings if one.blocks]
    assert [one.id for one in blocked] == ["cache-not-writable"]


def test_wsl_numa_and_namespaces_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/sys/kernel/osrelease": "5.15.0-microsoft-standard-WSL2\n",
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n", "/proc/sys/user/max_user_namespaces": "100\n",
        "/sys/devices/system/node/node0/cpulist": "0-1\n", "/sys/devices/system/node/node1/cpulist": "2-3,8\n",
        "/sys/bus/pci/devices/0000:c1:00.0/vendor": "0x10de\n", "/sys/bus/pci/devices/0000:c1:00.0/class": "0x030200\n",
        "/sys/bus/pci/devices/0000:c1:00.0/numa_node": "1\n", "/.dockerenv": "",
    }  # fmt: skip
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    found = system.section(machine(tmp_path, files), HOST, uid=1000, user="me")
    assert ids(found) == ["wsl", "userns", "numa-remote"]
    assert dict(found.facts)["inside a container"] == "docker"
    assert dict(found.facts)["NUMA nodes"] == "node0 (CPUs 0-1), node1 (CPUs 2-3,8)"
    assert "userns" not in ids(system.section(machine(tmp_path, files), HOST, uid=0, user="root"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {8})
    assert "numa-remote" not in ids(system.section(machine(tmp_path, files), HOST, uid=0, user="root"))


APPARMOR = "kernel.apparmor_restrict_unprivileged_userns"


@pytest.mark.parametrize(
    ("files", "uid", "state", "fixes"),
    [
        ({"user/max_user_namespaces": "96365"}, 1000, "available (96365 at most)", []),
        ({}, 1000, "unknown", []),
        ({"user/max_user_namespaces": "0"}, 1000, "user.max_user_namespaces=0", ["user.max_user_namespaces=15000"]),
        ({"user/max_user_namespaces": "0"}, 0, "user.max_user_namespaces=0", ["user.max_user_namespaces=15000"]),
        (
            {"user/max_user_namespaces": "9", "kernel/unprivileged_userns_clone": "0"}, 1000,
            "kernel.unprivileged_userns_clone=0", ["kernel.unprivileged_userns_clone=1"],
        ),
        ({"user/max_user_namespaces": "9", "kernel/unprivileged_userns_clone": "0"}, 0, "available (9 at most)", []),
        (
            {"user/max_user_namespaces": "9", "kernel/apparmor_restrict_unprivileged_userns": "1"}, 1000,
            f"{APPARMOR}=1", [f"{APPARMOR}=0"],
        ),
        (
            {"user/max_user_namespaces": "0", "kernel/apparmor_restrict_unprivileged_userns": "1"}, 1000,
            "user.max_user_namespaces=0", ["user.max_user_namespaces=15000", f"{APPARMOR}=0"],
        ),
    ],
)  # fmt: skip
def test_of_the_settings_for_user_namespaces_those_that_close_them_are_told(
    tmp_path: Path, files: dict[str, str], uid: int, state: str, fixes: list[str]
) -> None:
    here = machine(tmp_path, {f"/proc/sys/{name}": f"{text}\n" for name, text in files.items()})
    found = system.section(here, HOST, uid=uid, user="me")
    assert dict(found.facts)["user namespaces"].startswith(state)
    assert [fix.removeprefix("as root: sysctl -w ") for one in found.findings for fix in one.fix] == fixes


def test_apparmor_that_is_off_closes_nothing_and_a_profile_of_bubblewrap_is_told(tmp_path: Path) -> None:
    files = {f"/proc/sys/{APPARMOR.replace('.', '/')}": "1\n", "/sys/module/apparmor/parameters/enabled": "N\n"}
    assert ids(system.section(machine(tmp_path, files), HOST, uid=1000, user="me")) == []
    files |= {"/sys/module/apparmor/parameters/enabled": "Y\n", "/etc/apparmor.d/bwrap-userns-restrict": ""}
    (found,) = system.section(machine(tmp_path, files), HOST, uid=1000, user="me").findings
    assert found.fix[-1].startswith("bubblewrap has an AppArmor profile here")


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"/proc/self/mounts": "overlay / overlay rw,lowerdir=/var/lib/containerd/1 0 0\n"}, "containerd"),
        (
            {"/proc/self/mounts": "overlay / overlay rw,lowerdir=/a 0 0\n"},
            "an overlay as its root: probably a container",
        ),
        ({"/proc/self/mounts": "/dev/sda1 / ext4 rw 0 0\noverlay /var/lib/docker/1 overlay rw 0 0\n"}, "no"),
        ({"/proc/1/root/x": ""}, "a chroot"),
    ],
)
def test_a_container_without_a_mark_and_a_chroot_are_seen(tmp_path: Path, files: dict[str, str], told: str) -> None:
    found = system.section(machine(tmp_path, files), HOST, uid=0, user="root")
    assert dict(found.facts)["inside a container"] == told


def test_rootless_podman_needs_a_range_of_ids(tmp_path: Path) -> None:
    view = machine(
        tmp_path, {"/usr/bin/podman": "", "/etc/subuid": "me:100000:65536\n", "/etc/subgid": "1000:1:65536\n"}
    )
    assert ids(system.section(view, HOST, uid=1000, user="me")) == []
    found = system.section(view, HOST, uid=1001, user="you").findings
    assert [one.text for one in found[0].evidence] == [
        f"/etc/{name} has no line for you" for name in ("subuid", "subgid")
    ]
    assert ids(system.section(view, HOST, uid=0, user="root")) == []


def test_conda_configuration_is_read_where_conda_reads_it(tmp_path: Path) -> None:
    files = {
        "/home/me/.condarc": "channels: ['https://conda.example.com/t/secret/main', defaults, pytorch]\n"
        "channel_priority: disabled\n",
        "/etc/conda/.condarc": "ssl_verify: false\n",
        "/opt/conda/.condarc": "channels: [",
    }
    found = conda.section(machine(tmp_path, files, environ={"HOME": "/home/me"}))
    assert sorted(ids(found)) == sorted(
        ["ssl-verify-off", "condarc-unreadable", "anaconda-defaults", "pytorch-channel", "channel-priority"]
    )
    assert "secret" not in str(found)
    assert ids(conda.section(machine(tmp_path / "other", environ={"CONDA_EXE": "/x/conda"}))) == ["anaconda-defaults"]
    assert conda.shown("https://me:hunter2@conda.example.com/t/tk-1/x") == "https://conda.example.com/t/***/x"


def test_libraries_that_hide_others_are_found(tmp_path: Path) -> None:
    files = {
        "/usr/local/cuda-12.4/lib64/libcudnn.so.9": "a",
        "/usr/lib/libcudnn.so.8": "b",
        "/usr/local/cuda-12.4/lib64/libcublas.so.12": "",
    }
    cache = "\tlibcudnn.so.8 (libc6,x86-64) => /usr/lib/libcudnn.so.8\n\tlibm.so.6 (libc6) => /lib/libm.so.6\n"
    environ = {"LD_LIBRARY_PATH": "/usr/local/cuda-12.4/lib64:", "CUDA_LAUNCH_BLOCKING": "1",
               "PYTORCH_NO_CUDA_MEMORY_CACHING": "0", "CUDA_VISIBLE_DEVICES": "", "CUDA_HOME": "/nowhere",
               "PYTHONPATH": "/x", "NVIDIA_TF32_OVERRIDE": "1"}  # fmt: skip
    found = libraries.section(machine(tmp_path, files, {"ldconfig": cache}, environ))
    assert ids(found) == [
        "ld-library-path",
        "pythonpath",
        "two-cudnn",
        "cuda-visible-devices",
        "cuda-launch-blocking",
        "pytorch-no-cuda-memory-caching",
        "cuda-home",
    ]
    assert dict(found.facts)["CUDA toolkits"] == "cuda-12.4"
    assert libraries.section(machine(tmp_path / "other", files, {"ldconfig": cache})).findings == ()


def test_one_cudnn_by_two_names_is_one(tmp_path: Path) -> None:
    cache = "\tlibcudnn.so.9 (libc6) => /lib64/libcudnn.so.9\n"
    view = machine(tmp_path, {"/usr/lib/libcudnn.so.9": ""}, {"ldconfig": cache}, {"LD_LIBRARY_PATH": "/usr/lib"})
    (tmp_path / "lib64").symlink_to("usr/lib")
    assert len(libraries.cudnns(view)) == 1


def test_proxies_are_compared_and_their_passwords_hidden(tmp_path: Path) -> None:
    environ = {
        "http_proxy": "http://me:hunter2@proxy.example.com:3128",
        "HTTP_PROXY": "http://other.example.com",
        "SSL_CERT_FILE": "/nothing.pem",
    }
    found = network.section(machine(tmp_path, environ=environ))
    assert ids(found) == ["proxy-contradiction", "no-proxy", "proxy-password", "ca-bundle-missing"]
    assert "hunter2" not in str(found)
    assert dict(found.facts)["http_proxy"] == "http://***@proxy.example.com:3128"
    sound = {"https_proxy": "http://proxy.example.com", "no_proxy": "localhost,127.0.0.1"}
    assert network.section(machine(tmp_path, environ=sound)).findings == ()
    assert network.without_password("http://[bad") == "not an address"


def test_every_runner_of_images_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(diagnose, "run_parallel", lambda *_: {})
    found = diagnose.engines_section("docker", tmp_path, {})
    asked = {name.removeprefix("runs: ") for name, _ in found.facts if name.startswith("runs: ")}
    assert asked == {*RUNNERS} - {"host"}
