"""`make demo` in plain containers, which have no namespaces: how long it takes, what runs the image, how it ends.

    python -m benchmarks.plain_containers [--small] [--only NAME ...] [--cache FOLDER]

Runs as root on Debian, with a Docker engine. Every environment gets a fresh clone of this repository, and the Python
index and Debian sources of this machine. `--small` builds a CPU image from the test world's conda channel and registry
instead of CUDA torch from the Python index. `--cache` is shared by environments of the same user, so that 3 GB are
downloaded once.

An environment is as documented if its exit code and, if something is verified, its runner are the documented ones.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks._report import Figure, finish, tell
from tests.support.containers import build_image
from tests.world.world import World, up

CHECKOUT = Path(__file__).resolve().parents[1]
LIMIT_S = 3000
_SMALL = 'schema: envkit.image/1\ntitle: CPU\ncompanions: []\nrequest: {os: debian12, python: "3.11", cpu: true}\n'
_AUTHORITIES = Path(os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"))
_POD = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "1000:1000",
        "--tmpfs", "/tmp:rw,exec,mode=1777")  # fmt: skip
_FRESH, _PREPARED = "envkit-plain-fresh", "envkit-plain-prepared"
# Root installs the rest itself; for a normal user it must be there already.
_NEEDED = ("make", "git", "python3")
_PREPARATION = ("python3-venv", "mmdebstrap", "proot")
_COMMAND = """\
cp -r /checkout "$HOME/envkit" && cd "$HOME/envkit"
if [ -n "$SMALL" ]; then printf %s "$SMALL" > small.yaml; fi
exec make demo DEMO_REQUEST="$REQUEST"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where the demo runs. `flags` are those of `docker run`; None is this machine itself, 'chroot' a chroot on it."""

    name: str
    flags: Sequence[str] | str | None
    prepared: bool = False
    code: int  # of the recipe, because make itself exits 2 for any recipe that fails
    runner: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of the demo in one environment."""

    environment: Environment
    seconds: float
    code: int
    runner: str | None
    verdict: str | None
    last: str

    @property
    def as_documented(self) -> bool:
        """Whether exit code and runner are the documented ones."""
        return (self.code, self.runner) == (self.environment.code, self.environment.runner)


def environments(*, small: bool) -> tuple[Environment, ...]:
    """Return the environments with their documented outcomes.

    Without namespaces only root can make a base from Debian's packages, so the full build fails for other users.
    """
    user = (0, "proot") if small else (9, None)
    return (
        Environment(name="machine", flags=None, code=0, runner="bubblewrap"),
        Environment(name="docker, root", flags=(), code=0, runner="proot"),
        Environment(name="docker, user", flags=("--user", "1000:1000"), prepared=True, code=user[0], runner=user[1]),
        Environment(name="docker, no power", flags=("--cap-drop", "ALL"), prepared=True, code=9, runner=None),
        Environment(name="chroot", flags="chroot", code=0, runner="proot"),
        Environment(name="pod", flags=_POD, prepared=True, code=user[0], runner=user[1]),
    )


def main() -> int:
    """Run the demo in every environment; return 0 if each ended as documented."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--cache", type=Path)
    options = parser.parse_args()
    chosen = [item for item in environments(small=options.small) if not options.only or item.name in options.only]
    world = up(("docker", "registry", "base", *(("channel",) if options.small else ())))
    world.require("docker", "registry", "base", *(("channel",) if options.small else ()))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="envkit-plain-", dir="/var/tmp")))
        folder.chmod(0o755)
        demo = Demo(world, folder, small=options.small, cache=options.cache)
        outcomes = []
        for environment in chosen:
            outcomes.append(demo.run(environment))
            tell(_row(outcomes[-1]))
    good = sum(outcome.as_documented for outcome in outcomes)
    against = "small CPU image" if options.small else "CUDA torch from the Python index"
    figure = Figure(name="as documented", figure=good, unit="", better="higher", goal=len(outcomes), against=against)
    return finish("plain_containers", [figure])


class Demo:
    """The demo, with what every environment needs for it."""

    def __init__(self, world: World, folder: Path, *, small: bool, cache: Path | None) -> None:
        self._folder, self._small, self._cache = folder, small, cache
        self._world = world.env() if small else {}
        assert world.base is not None
        subprocess.run(["git", "clone", "-q", str(CHECKOUT), str(folder / "checkout")], check=True)
        self._images = folder / "images"
        build_image(world.base, _FRESH, _NEEDED, self._images)
        build_image(world.base, _PREPARED, (*_NEEDED, *_PREPARATION), self._images)

    def run(self, environment: Environment) -> Outcome:
        """Run it in one environment."""
        out = self._folder / environment.name.replace(", ", "-").replace(" ", "-")
        out.mkdir()
        out.chmod(0o777)
        began = time.monotonic()
        if environment.flags is None:
            done = self._here(out)
        elif isinstance(environment.flags, str):
            done = self._chroot(out)
        else:
            done = self._contained(environment, environment.flags, out)
        seconds = time.monotonic() - began
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        (out / "log").write_text("\n".join(lines))
        errors = [line for line in lines if line.startswith("error:")]
        if done.returncode and not any("Error 9" in line for line in lines):
            at_fault = [at for at, line in enumerate(lines) if line.split(maxsplit=1)[0] in ("FAIL", "ERROR")]
            tell("\n".join([*(line for at in at_fault for line in lines[at : at + 2]), *lines[-30:]]))
        tree = json.loads((out / "build.json").read_text()) if (out / "build.json").exists() else {}
        record = (tree.get("verification") or {}).get("record") or {}
        return Outcome(
            environment=environment,
            seconds=seconds,
            code=_recipe_code(done.returncode, lines),
            runner=record.get("run", {}).get("runner"),
            verdict=record.get("summary", {}).get("verdict"),
            last=errors[-1] if errors else "",
        )

    def _variables(self, out: str) -> dict[str, str]:
        request = "small.yaml" if self._small else "--cuda 12.6 --source pypi --template wheels"
        return {
            "REQUEST": f"{request} -o {out}/build.json",
            "SMALL": _SMALL if self._small else "",
            **dict.fromkeys(("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"), "/authorities.crt"),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_DEFAULT_TIMEOUT": "180",
            **self._world,
            **({"ENVKIT_CA_BUNDLE": "/authorities.crt"} if "ENVKIT_CA_BUNDLE" in self._world else {}),
        }

    def _contained(self, environment: Environment, flags: Sequence[str], out: Path) -> subprocess.CompletedProcess[str]:
        user = "--user" in flags
        home = "/home/demo" if user else "/root"
        argv = ["docker", "run", "--rm", "--network", "host", "--env", f"HOME={home}", *flags]
        mounts = {self._folder / "checkout": "/checkout:ro", _AUTHORITIES: "/authorities.crt:ro", out: "/out"}
        for host, path in {**mounts, **({self._home(out): home} if user else {})}.items():
            argv += ["--volume", f"{host}:{path}"]
        if self._cache is not None:
            kept = self._cache / ("user" if user else "root")
            kept.mkdir(parents=True, exist_ok=True)
            kept.chmod(0o777)
            argv += ["--volume", f"{kept}:/cache", "--env", "XDG_CACHE_HOME=/cache"]
        for name, value in self._variables("/out").items():
            argv += ["--env", f"{name}={value}"]
        image = _PREPARED if environment.prepared else _FRESH
        return _run([*argv, image, "sh", "-c", _COMMAND])

    def _here(self, out: Path) -> subprocess.CompletedProcess[str]:
        home = self._home(out)
        env = {**self._variables(str(out)), "HOME": str(home), "PATH": os.environ["PATH"]}
        authorities = dict.fromkeys(("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"), str(_AUTHORITIES))
        if "ENVKIT_CA_BUNDLE" in env:
            authorities["ENVKIT_CA_BUNDLE"] = str(_AUTHORITIES)
        command = _COMMAND.replace("/checkout", str(self._folder / "checkout"))
        return _run(["sh", "-c", command], env={**env, **authorities})

    def _chroot(self, out: Path) -> subprocess.CompletedProcess[str]:
        """Run it in a chroot as `debootstrap` makes one, with /proc, /sys and /dev of the machine."""
        with chroot_of(_FRESH, self._folder / "root") as root:
            for name in ("checkout", "home/demo"):
                (root / name).mkdir(parents=True)
            shutil.copytree(self._folder / "checkout", root / "checkout", dirs_exist_ok=True)
            shutil.copy(_AUTHORITIES, root / "authorities.crt")
            shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
            (root / "out").mkdir()
            env = {**self._variables("/out"), "HOME": "/home/demo", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
            done = _run(["chroot", str(root), "sh", "-c", _COMMAND], env=env)
            if (root / "out/build.json").exists():
                shutil.copy(root / "out/build.json", out / "build.json")
            return done

    @staticmethod
    def _home(out: Path) -> Path:
        home = out / "home"
        home.mkdir()
        home.chmod(0o777)
        return home


@contextmanager
def chroot_of(image: str, root: Path) -> Iterator[Path]:
    """Yield a folder with the files of an image and the machine's own /proc, /sys and /dev; remove it afterwards."""
    root.mkdir()
    ident = subprocess.run(["docker", "create", image], check=True, capture_output=True, text=True).stdout.strip()
    try:
        with subprocess.Popen(["docker", "export", ident], stdout=subprocess.PIPE) as source:
            subprocess.run(["tar", "-x", "-C", str(root)], stdin=source.stdout, check=True)
        with machine_files(root):
            yield root
    finally:
        subprocess.run(["docker", "rm", ident], check=True, capture_output=True)
        shutil.rmtree(root)


@contextmanager
def machine_files(root: Path) -> Iterator[None]:
    """Mount the machine's own /proc, /sys and /dev in a root."""
    mounted: list[Path] = []
    try:
        for name in ("proc", "sys", "dev", "dev/shm"):
            subprocess.run(["mount", "--bind", f"/{name}", str(root / name)], check=True)
            mounted.append(root / name)
        yield
    finally:
        for path in reversed(mounted):
            subprocess.run(["umount", str(path)], check=True)


def _run(argv: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=LIMIT_S)


def _recipe_code(code: int, lines: Sequence[str]) -> int:
    """Return the exit code of the recipe that failed, from make's own message."""
    for line in reversed(lines):
        if line.startswith("make:") and " Error " in line:
            return int(line.rpartition(" ")[2])
    return code


def _row(outcome: Outcome) -> str:
    documented = f"exit code {outcome.environment.code}, {outcome.environment.runner}"
    state = "" if outcome.as_documented else f"  NOT AS DOCUMENTED: {documented}"
    runner, verdict = outcome.runner or "-", outcome.verdict or "-"
    cells = f"{outcome.seconds:6.0f} s  {runner:<10}  {verdict:<12}  exit code {outcome.code}"
    return f"{outcome.environment.name:<17}{cells}{state}" + (f"\n    {outcome.last}" if outcome.last else "")


if __name__ == "__main__":
    sys.exit(main())
