"""The exported jobs that update a lock, run step by step: real git, real solves, the services' answers on loopback."""

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from envkit.lock.store import read_lock
from tests.lock.commands import serve_images
from tests.lock.served import Pkg, Site, put_channel
from tests.support.exports import exported, main_file, read_yaml

pytestmark = pytest.mark.long
# As `gh` does what the workflow asks of it, with the pull requests in a file.
GH = """#!/bin/sh
echo "$*" >> "$GH_FOLDER/calls"
case "$1 $2" in
  "pr list") if [ -f "$GH_FOLDER/body" ]; then echo 1; else echo 0; fi ;;
  "pr create" | "pr edit")
    for word in "$@"; do last=$word; done
    cp "$last" "$GH_FOLDER/body"
    ;;
esac
"""


@dataclass
class GitLab:
    """Merge requests as GitLab's API keeps them."""

    open: list[dict[str, str]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def gitlab() -> Iterator[GitLab]:
    found = GitLab()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.tokens.append(self.headers.get("PRIVATE-TOKEN"))
            query = parse_qs(urlsplit(self.path).query)
            rows = [
                {"iid": n} for n, one in enumerate(found.open, 1) if [one["source_branch"]] == query["source_branch"]
            ]
            self._answer(rows)

        def do_POST(self) -> None:
            found.open.append(self._given())
            self._answer({}, 201)

        def do_PUT(self) -> None:
            found.open[int(self.path.rpartition("/")[2]) - 1] |= self._given()
            self._answer({})

        def _given(self) -> dict[str, str]:
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            return {name: values[0] for name, values in parse_qs(text).items()}

        def _answer(self, tree: Any, status: int = 200) -> None:
            data = json.dumps(tree).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_port}/api/v4"
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


@dataclass
class Repository:
    """A clone with one commit, the repository that it came from, and the programs that a job finds."""

    work: Path
    remote: Path
    env: dict[str, str]

    def git(self, *words: str, folder: Path | None = None) -> str:
        done = subprocess.run(
            ["git", *words], cwd=folder or self.work, env=self.env, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def bash(self, script: str, env: Mapping[str, str]) -> None:
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", script], cwd=self.work, env=self.env | dict(env),
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def proposed(self) -> tuple[str, ...]:
        """Names of the branches, and what the proposal changes."""
        branches = self.git("branch", "--format", "%(refname:short)", folder=self.remote).splitlines()
        if "envkit/lock" not in branches:
            return ()
        changed = self.git("diff", "--name-only", "main", "envkit/lock", folder=self.remote)
        return (self.git("log", "-1", "--format=%s", "envkit/lock", folder=self.remote), changed)


@pytest.fixture
def repository(tmp_path: Path, site: Site) -> Repository:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, words in (("envkit", "-m envkit"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
    (programs / "gh").write_text(GH)
    for path in programs.iterdir():
        path.chmod(0o755)
    (tmp_path / "gh").mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ENVKIT_", "GIT_"))}
    names = {f"GIT_{who}_{what}": "a@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    env = kept | names | {
        "PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1",
        "RUNNER_TEMP": str(tmp_path / "temp"), "GH_FOLDER": str(tmp_path / "gh"),
        **serve_images(site),
    }  # fmt: skip
    made = Repository(tmp_path / "work", tmp_path / "group" / "project.git", env)
    made.remote.mkdir(parents=True)
    made.git("init", "-q", "--bare", "-b", "main", folder=made.remote)
    made.git("clone", "-q", str(made.remote), str(made.work), folder=tmp_path)
    made.bash("git switch -q -c main; echo x > README; git add .; git commit -qm first; git push -q origin main", {})
    return made


def a_newer_numpy(site: Site, repository: Repository) -> None:
    """Commit the lock, and publish a new release."""
    repository.git("switch", "-q", "main")
    repository.bash("envkit lock cpu --base none; git add .; git commit -qm lock; git push -q origin main", {})
    rows = [
        Pkg(one.name, one.version, one.depends, one.build) for one in read_lock(repository.work / "envkit.lock").conda
    ]
    put_channel(site, "conda-forge", [*rows, Pkg("numpy", "1000", ("python 3.11.*",))])


def run_github(repository: Repository, tmp_path: Path) -> str:
    """Run the workflow as a runner does; return the body of the pull request."""
    workflow = read_yaml(main_file(exported("github-lock", ("cpu",))))
    temp = tmp_path / "temp"
    subprocess.run(["rm", "-rf", temp], check=True)
    temp.mkdir()
    repository.git("switch", "-q", "main")
    (tmp_path / "outputs").write_text("")
    steps = [step for step in workflow["jobs"]["lock"]["steps"] if "run" in step and step["name"] != "Install envkit"]
    assert [step.get("if") for step in steps] == [None, "steps.solve.outputs.changed == 'true'"]
    for step in steps:
        if "if" in step and "changed=true" not in (tmp_path / "outputs").read_text().splitlines():
            continue
        script = _without_base(step["run"])
        repository.bash(script, workflow["env"] | {"GITHUB_OUTPUT": str(tmp_path / "outputs"), "GH_TOKEN": "t"})
    body = tmp_path / "gh" / "body"
    return body.read_text() if body.exists() else ""


def run_gitlab(repository: Repository, gitlab: GitLab) -> None:
    job = read_yaml(main_file(exported("gitlab-lock", ("cpu",))))["envkit-lock"]
    repository.git("switch", "-q", "main")
    given = {
        "CI_PROJECT_URL": str(repository.remote).removesuffix(".git"), "CI_API_V4_URL": gitlab.url,
        "CI_PROJECT_ID": "7", "CI_DEFAULT_BRANCH": "main", "LOCK_TOKEN": "secret",
    }  # fmt: skip
    repository.bash("\n".join(map(_without_base, job["script"])), job["variables"] | given)


def _without_base(script: str) -> str:
    """The base would be looked up in a registry."""
    return script.replace("--engine embedded", "--engine embedded --base none")


def test_github_gets_one_pull_request_with_the_difference(site: Site, repository: Repository, tmp_path: Path) -> None:
    assert run_github(repository, tmp_path) == "The first lock of cpu.\n"
    assert repository.proposed() == ("Update envkit.lock", "envkit.lock")
    (tmp_path / "gh" / "body").unlink()
    a_newer_numpy(site, repository)
    body = run_github(repository, tmp_path)
    assert "| numpy | conda | 999 0 | 1000 0 |" in body
    assert "**Packages: 1 changed, 0 added, 0 removed**" in body
    assert run_github(repository, tmp_path) == body
    calls = (tmp_path / "gh" / "calls").read_text().splitlines()
    assert [" ".join(line.split()[:2]) for line in calls if "create" in line or "edit" in line] == [
        "pr create", "pr create", "pr edit",
    ]  # fmt: skip


def test_nothing_is_proposed_where_nothing_changed(
    site: Site, repository: Repository, tmp_path: Path, gitlab: GitLab
) -> None:
    a_newer_numpy(site, repository)
    serve_images(site)
    assert run_github(repository, tmp_path) == ""
    run_gitlab(repository, gitlab)
    assert (repository.proposed(), gitlab.open, gitlab.tokens) == ((), [], [])


def test_gitlab_gets_one_merge_request_with_the_difference(site: Site, repository: Repository, gitlab: GitLab) -> None:
    a_newer_numpy(site, repository)
    run_gitlab(repository, gitlab)
    (first,) = gitlab.open
    assert (first["source_branch"], first["target_branch"], first["title"]) == (
        "envkit/lock",
        "main",
        "Update envkit.lock",
    )
    assert "| numpy | conda | 999 0 | 1000 0 |" in first["description"]
    gitlab.open[0] = first | {"description": "old"}
    run_gitlab(repository, gitlab)
    assert gitlab.open == [first]
    assert set(gitlab.tokens) == {"secret"}
    assert repository.proposed() == ("Update envkit.lock", "envkit.lock")
