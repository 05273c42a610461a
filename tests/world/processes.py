"""Background processes of the world: started once, found by their state files, and stopped on request."""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.world.places import UnavailableError, cache

STOP_SECONDS = 15.0
_FIRST_PORT = 20_000
_LINUX_FIRST_EPHEMERAL_PORT = 32_768


def free_port(preferred: int = 0) -> int:
    """Return the preferred loopback port if it is free, else another free port.

    A program binds the port only some time later. So the other port is below the ephemeral range, from which the kernel
    picks ports for connections and for servers without a port number, so that no other test gets it in the meantime.
    """
    others = random.sample(range(_FIRST_PORT, _first_ephemeral_port()), 100)
    for port in filter(None, (preferred, *others)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise UnavailableError("no free port on 127.0.0.1")


def _first_ephemeral_port() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        first = 0
    return first if first > _FIRST_PORT + 1000 else _LINUX_FIRST_EPHEMERAL_PORT


def state_of(name: str) -> dict[str, int]:
    """Return the state of a running process (`pid`, `port`, `started`), or an empty mapping if it does not run."""
    try:
        state: dict[str, int] = json.loads(_state_file(name).read_text())
        started = _start_ticks(state["pid"])
    except (OSError, ValueError, KeyError):
        return {}
    return state if started == state.get("started") else {}


def start(
    name: str,
    argv: Sequence[str],
    *,
    port: int,
    keep: bool,
    answers: Callable[[], bool],
    seconds: float = 30,
    env: Mapping[str, str] | None = None,
) -> None:
    """Start a process in the background and wait until it answers.

    With `keep` it outlives this run. Otherwise the kernel ends it together with the thread that started it.

    Raises:
        UnavailableError: it ended or did not answer; the message has the end of its log.
    """
    stop(name)  # a process that runs but no longer answers
    log = log_file(name)
    wrapper = [] if keep or not shutil.which("setpriv") else ["setpriv", "--pdeathsig", "TERM"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*wrapper, *argv],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )
    state = {"pid": process.pid, "port": port, "started": _start_ticks(process.pid)}
    _state_file(name).write_text(json.dumps(state))
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise UnavailableError(f"{name} ended with code {process.returncode}: {tail(log)}")
        if answers():
            process.returncode = 0  # its state file is used from here on; this avoids a ResourceWarning
            return
        time.sleep(0.1)
    stop(name)
    raise UnavailableError(f"{name} did not answer within {seconds:.0f} s: {tail(log)}")


def stop(name: str) -> bool:
    """Stop a process that this world started and return whether there was one."""
    state = state_of(name)
    _state_file(name).unlink(missing_ok=True)
    if not state:
        return False
    pid = state["pid"]
    for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            if _start_ticks(pid) != state["started"]:
                return True
            time.sleep(0.05)
    return True


def run_rattler(*arguments: str) -> None:
    """Run `with_rattler.py` in a process of its own; raises UnavailableError."""
    script = Path(__file__).with_name("with_rattler.py")
    done = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnavailableError(f"rattler {arguments[0]}: {' '.join(done.stderr[-600:].split())}")


def log_file(name: str) -> Path:
    """Return the path of a background process's log."""
    return cache("run") / f"{name}.log"


def tail(log: Path, characters: int = 600) -> str:
    """Return the end of a log on one line."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return " ".join(text[-characters:].split()) or "(its log is empty)"


def _state_file(name: str) -> Path:
    return cache("run") / f"{name}.json"


def _start_ticks(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; 0 if it does not exist or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])
