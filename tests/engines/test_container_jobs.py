"""Exported GitLab, GitHub and Kubernetes jobs, run for real in containers as `docker run` makes them by default.

Each job installs envkit with pip and builds the CPU image of the world's conda channel, with a real torch.
"""

import base64
import hashlib
import json
import os
import re
import secrets
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.engines.test_exported_jobs import CPU
from tests.packaging.test_wheel import build
from tests.support.containers import build_image
from tests.support.kubernetes import documents, started_with
from tests.world.places import REPOSITORY
from tests.world.world import World, up

pytestmark = [pytest.mark.engine, pytest.mark.long]
_IMAGE = "envkit-tests-jobs"
_DEFINITION = f"{CPU}smoke: {{tier: quick}}\n"
_AUTHORITIES = Path(os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"))
_BUNDLE = "/authorities.crt"
# Of the restricted profile: what the exported pods ask for themselves.
_RESTRICTED = ("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--read-only")


@dataclass(frozen=True)
class Site:
    """A checkout with a definition, and the containers that run jobs in it."""

    folder: Path
    world: World
    wheel: Path

    def export(self, kind: str, *flags: str) -> None:
        """Write the files of one kind into the checkout."""
        digest = hashlib.sha256(self.wheel.read_bytes()).hexdigest()
        requirement = f"/wheels/{self.wheel.name} --hash=sha256:{digest}"
        argv = [sys.executable, "-m", "envkit", "export", kind, "small.yaml", "--requirement", requirement, *flags]
        done = subprocess.run(argv, cwd=self.folder, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def run(
        self, argv: list[str], env: Mapping[str, str], *flags: str, mounts: Mapping[Path, str]
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command in a default container; the flags are what a job asks for itself."""
        words = ["docker", "run", "--rm", "--network", "host", *flags]
        given = {name: value for name, value in self.world.env().items() if name.startswith("ENVKIT_")}
        given |= {"ENVKIT_CA_BUNDLE": _BUNDLE, "SSL_CERT_FILE": _BUNDLE, "PIP_CERT": _BUNDLE}
        given |= {"PIP_DEFAULT_TIMEOUT": "180", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        for name, value in {**given, **env}.items():
            words += ["--env", f"{name}={value}"]
        for host, path in {self.wheel.parent: "/wheels:ro", _AUTHORITIES: f"{_BUNDLE}:ro", **mounts}.items():
            words += ["--volume", f"{host}:{path}"]
        return subprocess.run(
            [*words, _IMAGE, *argv], check=False, capture_output=True, text=True, errors="replace", timeout=840
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A world with a channel, and an image as Python's own are: `python` and `pip` of a virtual environment."""
    world = up(("docker", "registry", "base", "channel"))
    world.require("docker", "registry", "base", "channel")
    assert world.base is not None
    folder = tmp_path_factory.mktemp("jobs")
    build_image(world.base, _IMAGE, ("python3", "python3-venv", "bash"), folder)
    (folder / "checkout").mkdir()
    (folder / "checkout/small.yaml").write_text(_DEFINITION)
    return Site(folder / "checkout", world, build("wheel", REPOSITORY, folder / "wheels"))


def _verified(record: Path) -> None:
    tree = json.loads(record.read_bytes())
    assert tree["summary"]["exit_code"] == 0, tree["summary"]
    assert tree["run"]["runner"] == "proot"
    assert tree["run"]["isolation"]["level"] == "weak"
    assert tree["env"]["sw"]["torch"].startswith("2.13.0")


def _script(*parts: str) -> list[str]:
    """A script as runners run it, after the virtual environment that the image of a job has."""
    return ["bash", "-e", "-o", "pipefail", "-c", "\n".join(("python3 -m venv /venv; PATH=/venv/bin:$PATH", *parts))]


def test_a_gitlab_job_builds_and_verifies(site: Site) -> None:
    site.export("gitlab", "--out", "./")
    tree = yaml.safe_load((site.folder / ".gitlab-ci.yml").read_text())
    (row,) = tree["build"]["parallel"]["matrix"]
    variables = {name: str(value).replace("$CI_PROJECT_DIR", "/builds") for name, value in tree["variables"].items()}
    given = {**row, **variables, "CI_COMMIT_BRANCH": "main", "CI_DEFAULT_BRANCH": "main"}
    script = _script("cd /builds", *tree["build"]["before_script"], *tree["build"]["script"])
    done = site.run(script, given, mounts={site.folder: "/builds"})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    _verified(site.folder / "reports" / row["CELL"] / "record.json")


def test_a_github_job_in_a_container_builds_and_verifies(site: Site) -> None:
    site.export("github", "--out", "./")
    path = next(site.folder.rglob(".github/workflows/*.yml"))
    workflow = yaml.safe_load(path.read_text())
    job = workflow["jobs"]["build"]
    (row,) = job["strategy"]["matrix"]["include"]
    values = {f"matrix.{name}": str(value) for name, value in row.items()} | {"github.workspace": "/work"}
    # A job in a container: its `job.container.id` is set.
    steps = [one for one in job["steps"] if "run" in one and "!job.container.id" not in one.get("if", "")]
    given = _filled(workflow["env"] | job["env"], values) | {"GITHUB_REF": "refs/heads/main"}
    parts = []
    for step in steps:  # each is a shell of its own
        env = [f"{name}={value}" for name, value in _filled(step.get("env", {}), values).items()]
        parts.append(shlex.join(["env", *env, "bash", "-e", "-o", "pipefail", "-c", step["run"]]))
    done = site.run(_script("cd /work", *parts), given, mounts={site.folder: "/work"})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    _verified(site.folder / "reports/record.json")


def test_a_kubernetes_job_builds_and_its_pod_verifies(site: Site) -> None:
    name = f"{site.world.registry}/jobs/{secrets.token_hex(4)}"
    site.export("kubernetes", "--registry", name, "--set", "only=C01,C05", "--out", "k8s/")
    files = site.folder / "k8s"
    (job,) = (one for one in documents((files / "build.yaml").read_text()) if one["kind"] == "Job")
    pod = job["spec"]["template"]["spec"]
    (stored,) = documents((files / "plans/plans.yaml").read_text())
    scratch = {}
    for volume in ("installed", "home", "tmp", "plans"):
        scratch[volume] = files / volume
        scratch[volume].mkdir(exist_ok=True)
        scratch[volume].chmod(0o777)
    _store(stored, files / "plans")
    for container in (*pod["initContainers"], *pod["containers"]):
        env = {one["name"]: one["value"] for one in container["env"]} | {"JOB_COMPLETION_INDEX": "0"}
        mounts = {scratch[one["name"]]: one["mountPath"] for one in container["volumeMounts"]}
        done = site.run(started_with(container["command"], env), env, *_flags(pod), mounts=mounts)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    log = _verified_in_a_pod(files)
    questions = str(files / "plans/questions.yaml")
    argv = [sys.executable, "-m", "envkit", "verify", "--observed", "-", "--questions", questions, "--json"]
    judged = subprocess.run(argv, input=log, cwd=site.folder, check=False, capture_output=True)
    assert judged.returncode == 0, judged.stderr.decode()
    assert json.loads(judged.stdout)["summary"]["verdict"] == "PASS"


def _verified_in_a_pod(files: Path) -> bytes:
    """The log of the pod that runs the pushed image."""
    (stored,) = documents((files / "plans/questions.yaml").read_text())
    job = next(one for one in documents((files / "verify.yaml").read_text()) if one["kind"] == "Job")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    folder = files / "questions"
    folder.mkdir()
    _store(stored, folder, pod["volumes"][0]["configMap"]["items"])
    subprocess.run(["docker", "pull", "--quiet", container["image"]], check=True, capture_output=True)
    argv = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "", *_flags(pod), "--tmpfs", "/tmp:rw,exec"]
    argv += ["--volume", f"{folder}:{container['volumeMounts'][0]['mountPath']}:ro", container["image"]]
    done = subprocess.run([*argv, *started_with(container["command"], {})], check=False, capture_output=True)
    subprocess.run(["docker", "rmi", "--force", container["image"]], check=True, capture_output=True)
    return done.stdout


def _flags(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """What `docker run` is given for a pod's own security context."""
    user = pod["securityContext"]
    return ("--user", f"{user['runAsUser']}:{user['runAsGroup']}", *_RESTRICTED)


def _store(tree: Mapping[str, Any], folder: Path, items: list[dict[str, str]] | None = None) -> None:
    """Write a ConfigMap's files, as the kubelet mounts them."""
    data = {name: text.encode() for name, text in (tree.get("data") or {}).items()}
    data |= {name: base64.b64decode(text) for name, text in (tree.get("binaryData") or {}).items()}
    for item in items or [{"key": name, "path": name} for name in data]:
        (folder / item["path"]).write_bytes(data[item["key"]])


def _filled(env: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, str]:
    """Return variables with the expressions in them replaced, as GitHub does it."""
    return {
        name: re.sub(r"\$\{\{ ([\w.]+) \}\}", lambda found: values[found[1]], str(text)) for name, text in env.items()
    }
