"""The processes that solve: their time limit, their environment, and the certificates they trust."""

import http.server
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envkit.ground.errors import EnvironmentProblem, InterruptedRun, TimeLimitError
from envkit.lock import child, conda, wheels
from envkit.lock.index_locations import IndexLocations
from tests.lock.plans import TARGET, VIRTUAL, cpu
from tests.lock.plans import wheels as wheels_plan
from tests.lock.served import Dist, Pkg, Served, Site, put_channel, put_index
from tests.support.pids import all_end


@pytest.mark.requirement("R21")
def test_a_solver_that_finds_no_end_is_ended() -> None:
    argv = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(TimeLimitError, match="solving it took longer than 0 s") as caught:
        child.run(argv, env={}, what="solving it", limit_s=0.3)
    assert caught.value.exit_code == 124


def test_what_a_solver_started_ends_with_it(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    below = f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    argv = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {below!r}])"]

    def check() -> None:
        if mark.exists() and mark.read_text():
            raise InterruptedRun(2)

    with pytest.raises(InterruptedRun):
        child.run(argv, env={}, what="solving it", stdin=b"x" * 300_000, check=check)
    assert all_end([int(mark.read_text())], within_s=20)  # the signal was sent; when it acts is the kernel's


def test_what_is_asked_goes_through_whole_while_it_is_watched() -> None:
    asked, seen = bytes(range(256)) * 4000, []
    argv = [sys.executable, "-c", "import sys, time; time.sleep(0.5); sys.stdout.buffer.write(sys.stdin.buffer.read())"]
    done = child.run(argv, env={}, what="solving it", stdin=asked, check=lambda: seen.append(1))
    assert (done.returncode, done.stdout) == (0, asked)
    assert seen


def test_a_solver_that_cannot_start_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="nosuch cannot be run: No such file or directory"):
        child.run([str(tmp_path / "nosuch")], env={}, what="solving it")


def test_nothing_that_steers_a_solver_gets_through(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UV_INDEX", "UV_PRERELEASE", "PIP_INDEX_URL", "CONDA_OVERRIDE_CUDA", "LC_ALL", "PYTHONHASHSEED"):
        monkeypatch.setenv(name, "odd")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.com:3128")
    found = child.environment("/ca.pem", {"UV_DEFAULT_INDEX": "https://index.example.com"})
    assert "odd" not in found.values()
    assert found["HTTPS_PROXY"] == "http://proxy.example.com:3128"
    assert found["SSL_CERT_FILE"] == "/ca.pem"
    assert found["UV_DEFAULT_INDEX"] == "https://index.example.com"
    assert (found["LC_ALL"], found["TZ"]) == ("C.UTF-8", "UTC")


def test_a_cache_that_cannot_be_written_is_a_passing_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file, not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with child.repodata_folder() as folder:
        assert folder.is_dir()
        assert not folder.is_relative_to(tmp_path)
    assert not folder.exists()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "good"))
    with child.repodata_folder() as folder:
        assert folder == tmp_path / "good" / "envkit" / "repodata"
    assert folder.is_dir()


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[tuple[Site, Path]]:
    """A site over https whose certificate only its own bundle knows."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, and it makes the certificate")
    key, certificate, authority = (tmp_path / name for name in ("key.pem", "cert.pem", "ca.pem"))
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    own = ["-keyout", str(tmp_path / "ca.key"), "-out", str(authority), "-subj", "/CN=own authority"]
    leaf = ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=localhost"]
    leaf += ["-CA", str(authority), "-CAkey", str(tmp_path / "ca.key")]
    leaf += ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
    for rest in (own, leaf):
        subprocess.run([*made, *rest], check=True, capture_output=True)
    served = Served()
    server: http.server.ThreadingHTTPServer = served._server
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    served.site.url = served.site.url.replace("http:", "https:")
    with served as site:
        yield site, authority


@pytest.mark.parametrize("told", [True, False])
def test_both_solvers_and_the_sizes_trust_the_bundle_and_nothing_else(told: bool, secure: tuple[Site, Path]) -> None:
    site, authority = secure
    put_channel(site, "conda-forge", [Pkg("tool", "1")])
    index = put_index(site, "/simple", [Dist("a", "1")], sizes=False, dates=False)
    indexes = IndexLocations(conda_alias=site.url, python_index=index, ca_bundle=str(authority) if told else None)
    if not told:
        with pytest.raises(EnvironmentProblem, match="no answer from https://127") as of_conda:
            conda.solve(cpu(), ["tool"], VIRTUAL, indexes)
        with pytest.raises(EnvironmentProblem, match="no answer from https://127") as of_wheels:
            wheels.solve(wheels_plan("a"), TARGET, indexes, torch=("a",), chosen={})
        assert {one.value.hint for one in (of_conda, of_wheels)} == {
            "ENVKIT_CA_BUNDLE=FILE.pem adds certificate authorities"
        }
        return
    assert conda.solve(cpu(), ["tool"], VIRTUAL, indexes)[0].name == "tool"
    assert wheels.solve(wheels_plan("a"), TARGET, indexes, torch=("a",), chosen={})[0].name == "a"
