"""The sound CPU image of the world's conda channel in Docker, and the ways to break what surrounds it or lies in it."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import secrets
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from envkit.ground.process import ask
from envkit.ground.progress import Reporter, Silent
from envkit.image.name import ImageName, image_name
from envkit.plan.definition import load
from envkit.plan.model import BuildPlan
from envkit.plan.planner import plan_of
from envkit.run.docker import DockerRunner
from envkit.run.model import STRONG, Isolation, RunLimits, Runner, RunResult
from envkit.verify.driver import Options, verify_image
from tests.support.plans import facts

DEFINITION = 'schema: envkit.image/1\ntitle: CPU\ncompanions: []\nrequest: {os: debian12, python: "3.11", cpu: true}\n'
SITE = "/opt/env/lib/python3.11/site-packages"
TORCH = f"{SITE}/torch/__init__.py"
BREAKS = "/opt/breaks"
SHM = "--shm-size=1g"
"""What a sound run is given; the plan asks for no more."""
_BEGIN = f"""
import os
if "BREAK" in os.environ:
    exec(open(f"{BREAKS}/{{os.environ['BREAK']}}.py").read(), globals())
"""
_PATIENCE = 20
# Import torch once; then for each line of stdin fork, set variables, break torch, run the payload, and tell its end.
_FORKS = f"""
import base64, json, os, runpy, sys, torch

def run(asked):
    os.environ.update(asked["variables"])
    for name in filter(None, os.environ.get("BREAK", "").split(",")):
        with open(f"{BREAKS}/{{name}}.py") as code:
            exec(code.read(), vars(torch))
    sys.argv = asked["argv"]
    # The payload's own limits are not the subject here, and a busy machine reaches them.
    sys.path.insert(0, sys.argv[0])
    from envkit.smoke import suite
    suite.TIME_FACTOR *= {_PATIENCE}
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        return ended.code or 0

for line in sys.stdin:
    asked = json.loads(line)
    out, err = os.memfd_create("out"), os.memfd_create("err")
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        code = 70
        try:
            code = run(asked)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    told = [os.pread(fd, os.fstat(fd).st_size, 0) for fd in (out, err)]
    os.close(out)
    os.close(err)
    print(json.dumps([code, *[base64.b64encode(data).decode() for data in told]]), flush=True)
"""
_LIMIT_S = 300.0
Said = tuple[str, str | None]
"""Verdict and reason code."""


@dataclass(frozen=True, slots=True)
class Sound:
    """The sound image, its plan, and images on top of it."""

    name: str
    plan: BuildPlan
    made: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def layer(self, *instructions: str) -> str:
        """The tag of the image with these instructions on top, built once."""
        return self.layer_of({}, *instructions)

    def layer_of(
        self, files: Mapping[str, bytes], *instructions: str, base: str | None = None, user: str = "1000:1000"
    ) -> str:
        """As `layer`, with a build context (path -> content), on another image than the sound one, for another user."""
        base = base or self.name
        key = (base, user, instructions, frozenset(files.items()))
        if key not in self.made:
            tag = f"{self.name.rpartition(':')[0]}:{secrets.token_hex(4)}"
            text = "\n".join([f"FROM {base}", "USER 0", *instructions, f"USER {user}", ""])
            context = _tar({"Dockerfile": text.encode(), **files})
            subprocess.run(
                ["docker", "build", "--quiet", "--tag", tag, "-"],
                input=context, check=True, capture_output=True, timeout=_LIMIT_S,
            )  # fmt: skip
            self.made[key] = tag
        return self.made[key]

    def broken(self, files: Mapping[str, str]) -> str:
        """The image whose torch runs one of these pieces of code at its end: the one that BREAK names, if any."""
        packed = {f"breaks/{name}.py": text.encode() for name, text in files.items()}
        packed["breaks/begin"] = _BEGIN.encode()
        return self.layer_of(packed, f"COPY breaks {BREAKS}", f"RUN cat {BREAKS}/begin >> {TORCH}")

    def checks(
        self,
        only: str,
        *flags: str,
        image: str | None = None,
        plan: BuildPlan | None = None,
        tier: str = "quick",
        started: bool = False,
        launch: Mapping[str, Any] | None = None,
        runner: Runner | None = None,
    ) -> dict[str, dict[str, Any]]:
        """The record's checks by id; `only` of none is the whole tier. `flags` are for a container of its own.

        What starts the image through its entry point (S05, S06) takes as long as a check and runs where `started`.
        """
        chosen = tuple(only.split(",")) if only else ()
        launched: Mapping[str, Any] | None = None if started or not only else launch or {}
        options = Options(tier=tier, only=chosen, allow_cpu=True, launch=launched)
        runner = runner or Flagged((SHM, *flags))
        record = verify_image(image_name(image or self.name), plan or self.plan, runner, Silent(), options)
        return {one["id"]: one for one in record.tree["checks"]}

    @contextlib.contextmanager
    def forks(self, image: str, *flags: str) -> Iterator[Forks]:
        """One container of the image for many runs, whose Python has imported torch."""
        name = f"envkit-control-{secrets.token_hex(4)}"
        python = f"{self.plan.prefix}/bin/python"
        _docker("create", "--name", name, "--interactive", "--network", "none", SHM, *flags,
                "--entrypoint", python, image, "-c", _FORKS)  # fmt: skip
        try:
            with subprocess.Popen(
                ["docker", "start", "--attach", "--interactive", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            ) as process:
                yield Forks(name, process)
                assert process.stdin is not None
                process.stdin.close()
        finally:
            _docker("rm", "--force", "--volumes", name)

    def said(self, only: str, *flags: str, **how: Any) -> dict[str, Said]:
        """Verdict and reason code of every check."""
        found = self.checks(only, *flags, **how)
        return {name: (one["verdict"], one["reason_code"]) for name, one in found.items()}


@dataclass(slots=True)
class Flagged:
    """Docker's runner, with flags of `docker run` that no limit of envkit's would set."""

    flags: Sequence[str]
    name: str = "docker"
    isolation: Isolation = STRONG

    def probe(self) -> str | None:
        """As Docker's runner."""
        return DockerRunner().probe()

    def inspect(self, image: ImageName) -> Mapping[str, Any]:
        """As Docker's runner."""
        return DockerRunner().inspect(image)

    def run(
        self,
        image: ImageName,
        argv: Sequence[str],
        files: Mapping[str, bytes],
        *,
        gpus: str | None,
        limits: RunLimits,
        reporter: Reporter,
        entrypoint: bool = False,
    ) -> RunResult:
        """The run with the flags; what goes through the entry point has Docker's own."""
        if entrypoint:
            return DockerRunner().run(
                image, argv, files, gpus=gpus, limits=limits, reporter=reporter, entrypoint=entrypoint
            )
        name = f"envkit-control-{secrets.token_hex(4)}"
        _docker(
            "create", "--name", name, "--network", "none", *self.flags, "--entrypoint", argv[0], image.typed, *argv[1:]
        )
        try:
            subprocess.run(["docker", "cp", "-", f"{name}:/"], input=_tar(files), check=True, capture_output=True)
            began = time.monotonic()
            done = subprocess.run(
                ["docker", "start", "--attach", name], capture_output=True, timeout=_LIMIT_S, check=False
            )
            return RunResult(
                exit_code=done.returncode,
                stdout=done.stdout,
                stderr=done.stderr,
                duration_s=time.monotonic() - began,
                oom_killed=False,
                image_id=image.typed,
            )
        finally:
            _docker("rm", "--force", "--volumes", name)


@dataclass(slots=True)
class Forks:
    """A runner with one container: every run is a fork of its Python, with variables of its own."""

    container: str
    process: subprocess.Popen[bytes]
    variables: Mapping[str, str] = field(default_factory=dict)
    name: str = "docker"
    isolation: Isolation = STRONG

    def given(self, **variables: str) -> Forks:
        """The same container for runs with these variables."""
        return replace(self, variables=variables)

    def probe(self) -> str | None:
        """As Docker's runner."""
        return DockerRunner().probe()

    def inspect(self, image: ImageName) -> Mapping[str, Any]:
        """As Docker's runner."""
        return DockerRunner().inspect(image)

    def run(
        self,
        image: ImageName,
        argv: Sequence[str],
        files: Mapping[str, bytes],
        *,
        gpus: str | None,
        limits: RunLimits,
        reporter: Reporter,
        entrypoint: bool = False,
    ) -> RunResult:
        """The run of `argv` without its Python; files replace those of the run before."""
        del gpus, limits, reporter
        assert not entrypoint
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        subprocess.run(["docker", "cp", "-", f"{self.container}:/"], input=_tar(files), check=True, capture_output=True)
        began = time.monotonic()
        asked = {"argv": argv[1:], "variables": dict(self.variables)}
        self.process.stdin.write(json.dumps(asked).encode() + b"\n")
        self.process.stdin.flush()
        code, out, err = json.loads(self.process.stdout.readline())
        return RunResult(
            exit_code=code,
            stdout=base64.b64decode(out),
            stderr=base64.b64decode(err),
            duration_s=time.monotonic() - began,
            oom_killed=False,
            image_id=image.typed,
        )


@contextlib.contextmanager
def sound_image(folder: Path) -> Iterator[Sound]:
    """The image as it should be; it and the images made on top of it are removed at the end."""
    file = folder / "image.yaml"
    file.write_text(DEFINITION)
    plan = plan_of(load(str(file)), {}, facts())
    (folder / "plan.json").write_bytes(plan.canonical())
    subprocess.run(
        [sys.executable, "-m", "envkit", "lock", str(file), "-o", str(folder / "envkit.lock")],
        check=True, capture_output=True,
    )  # fmt: skip
    name = f"localhost/envkit-test/{secrets.token_hex(4)}:sound"
    asked = {name: str(folder / file) for name, file in (("plan", "plan.json"), ("lock", "envkit.lock"))}
    subprocess.run(
        [sys.executable, "-m", "tests.engines.embedded_build"],
        input=json.dumps({**asked, "folder": str(folder), "output": f"docker-daemon:{name}"}),
        env=dict(os.environ),
        check=True,
        text=True,
        stdout=subprocess.DEVNULL,
    )
    sound = Sound(name, plan)
    try:
        yield sound
    finally:
        tags = [*sound.made.values(), name]
        subprocess.run(["docker", "rmi", "--force", *tags], check=False, capture_output=True)


def _docker(*arguments: str) -> str:
    answer = ask(["docker", *arguments], patience_s=_LIMIT_S)
    assert answer.code == 0, answer.err
    return answer.out.strip()


def _tar(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, data in files.items():
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
