"""A Slurm cluster of one node on loopback: munged, slurmctld and slurmd from Debian's packages, in their own folder.

It does not need cgroups: processes are found through /proc, and tasks are not bound to CPUs.
"""

import contextlib
import os
import pwd
import re
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.world import apt, processes
from tests.world.places import UnavailableError

_PACKAGES = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client"}
_SECONDS = 20.0
_CONF = """ClusterName=world
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
ReturnToService=2
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} State=UNKNOWN
{more}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster. With `env`, Slurm's commands use it."""

    folder: Path
    node: str
    cpus: int
    memory_mb: int
    env: Mapping[str, str]

    def run(self, *argv: str, cwd: Path, seconds: float = 120) -> "subprocess.CompletedProcess[str]":
        """Run one of Slurm's commands in a folder."""
        return subprocess.run(argv, cwd=cwd, env=self.env, check=False, capture_output=True, text=True, timeout=seconds)

    def submit(self, *argv: str, cwd: Path, seconds: float = 600) -> tuple[str, list[int]]:
        """Submit a script, wait for all of its tasks, and return the job ID and their exit codes.

        `sbatch --wait` is not used because it polls only every ten seconds.
        """
        submitted = self.run("sbatch", "--parsable", *argv, cwd=cwd)
        assert submitted.returncode == 0, submitted.stderr
        job, deadline = submitted.stdout.strip(), time.monotonic() + seconds
        while self.run("squeue", "--noheader", "--format=%A", f"--jobs={job}", cwd=cwd).stdout.split():
            assert time.monotonic() < deadline, f"job {job} does not end"
            time.sleep(0.2)
        shown = self.run("scontrol", "show", "job", job, cwd=cwd).stdout
        return job, [int(code) for code in re.findall(r"\bExitCode=(\d+):", shown)]


@contextmanager
def cluster(folder: Path, more: str = "") -> Iterator[Cluster]:
    """Run a cluster with its files below `folder` for the length of the block. `more` is added to its configuration.

    Raises:
        UnavailableError: the packages cannot be installed, or a daemon does not start.
    """
    for command, package in _PACKAGES.items():
        if shutil.which(command) is None:
            apt.require(command, package)
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    host, cpus = socket.gethostname().partition(".")[0], len(os.sched_getaffinity(0))
    memory_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (1 << 20)
    made = Cluster(
        folder=folder,
        node=host,
        cpus=cpus,
        memory_mb=memory_mb,
        env={**os.environ, "SLURM_CONF": str(folder / "slurm.conf")},
    )
    (folder / "slurm.conf").write_text(
        _CONF.format(
            host=host,
            folder=folder,
            user=pwd.getpwuid(os.geteuid()).pw_name,
            cpus=cpus,
            memory=memory_mb,
            more=more,
            controller_port=processes.free_port(),
            node_port=processes.free_port(),
        )
    )
    with ExitStack() as stack:
        # --force: its socket is for this user alone, in a folder that others cannot enter.
        munged = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
        munged += [f"--{name}-file={folder}/munged.{name}" for name in ("pid", "log", "seed")]
        stack.enter_context(_daemon(made, munged, (folder / "munge.socket").exists))
        conf = str(folder / "slurm.conf")
        stack.enter_context(_daemon(made, ["slurmctld", "-D", "-f", conf], lambda: _answers(made, "scontrol", "ping")))
        stack.enter_context(_daemon(made, ["slurmd", "-D", "-f", conf], lambda: _idle(made)))
        try:
            yield made
        finally:
            _cancel_all(made)


def _cancel_all(made: Cluster) -> None:
    """Cancel every job, because the processes that run a job (slurmstepd) outlive the daemons."""
    deadline = time.monotonic() + _SECONDS
    while jobs := made.run("squeue", "--noheader", "--format=%A", cwd=made.folder).stdout.split():
        if time.monotonic() > deadline:
            raise AssertionError(f"jobs that do not end: {jobs}")
        made.run("scancel", *jobs, cwd=made.folder)
        time.sleep(0.2)


@contextmanager
def _daemon(made: Cluster, argv: Sequence[str], answers: Callable[[], bool]) -> Iterator[None]:
    log = made.folder / f"{argv[0]}.out"
    wrapper = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*wrapper, *argv], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=made.env
        )
    try:
        deadline = time.monotonic() + _SECONDS
        while not answers():
            if process.poll() is not None or time.monotonic() > deadline:
                raise UnavailableError(f"{argv[0]} did not start: {processes.tail(log)}")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(processes.STOP_SECONDS)
        process.kill()
        process.wait()


def _answers(made: Cluster, *argv: str) -> bool:
    done = made.run(*argv, cwd=made.folder)
    return done.returncode == 0 and "DOWN" not in done.stdout


def _idle(made: Cluster) -> bool:
    return made.run("sinfo", "--noheader", "--format=%t", cwd=made.folder).stdout.strip() == "idle"
