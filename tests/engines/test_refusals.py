"""Why an engine does not answer: each cause told apart, within seconds, with real sockets in place of the engine's."""

import contextlib
import http.server
import json
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envkit.assemble.builders import choose
from envkit.assemble.engine import EmbeddedBuilder
from envkit.engines.builder import EngineBuilder
from envkit.engines.docker import DockerEngine
from envkit.engines.model import Probe
from envkit.ground.errors import EnvironmentProblem, UsageError
from envkit.image.name import image_name
from envkit.run.docker import DockerRunner
from tests.support.heard import Heard

Asking = Callable[[str], EnvironmentProblem]


def _by_engine(address: str) -> EnvironmentProblem:
    with pytest.raises(EnvironmentProblem) as caught:
        DockerEngine(address).local("debian")
    return caught.value


def _by_runner(address: str) -> EnvironmentProblem:
    with pytest.raises(EnvironmentProblem) as caught:
        DockerRunner(address).inspect(image_name("debian"))
    return caught.value


@pytest.fixture(params=[_by_engine, _by_runner], ids=["builder", "runner"])
def refused(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Asking:
    """Ask the engine at an address and give the error."""
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    asking: Asking = request.param
    return asking


@contextlib.contextmanager
def listener(path: Path, answer: bytes | None) -> Iterator[str]:
    """A server on a Unix socket that gives every caller the same answer, or none at all."""
    done = threading.Event()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(8)
        server.settimeout(0.1)
        held: list[socket.socket] = []

        def serve() -> None:
            while not done.is_set():
                try:
                    caller, _ = server.accept()
                except TimeoutError:
                    continue
                held.append(caller)
                if answer is not None:
                    with contextlib.suppress(OSError):  # a caller that only looks in is gone by now
                        caller.recv(65536)
                        caller.sendall(answer)
                    caller.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"unix://{path}"
        finally:
            done.set()
            thread.join()
            for caller in held:
                caller.close()


def http_answer(body: bytes, status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


@pytest.mark.requirement("R23")
def test_no_socket(refused: Asking, tmp_path: Path) -> None:
    error = refused(f"unix://{tmp_path}/absent.sock")
    assert error.message == f"no Docker engine found: {tmp_path}/absent.sock does not exist"
    assert "apt-get install docker.io" in (error.hint or "")
    assert error.exit_code == 9


def test_a_socket_that_nobody_listens_at(refused: Asking, tmp_path: Path) -> None:
    path = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
    error = refused(f"unix://{path}")
    assert error.message == f"the Docker engine is not running: nothing listens at {path}"
    assert error.hint == "systemctl start docker"


@pytest.mark.requirement("R23")
@pytest.mark.skipif(os.geteuid() == 0, reason="root may use every socket")
def test_permission_denied(refused: Asking, tmp_path: Path) -> None:
    with listener(tmp_path / "engine.sock", None) as address:
        (tmp_path / "engine.sock").chmod(0)
        error = refused(address)
    assert "permission denied" in error.message
    assert "usermod -aG docker" in (error.hint or "")


@pytest.mark.requirement("R23")
def test_a_hung_engine(refused: Asking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("engines.docker", "run.docker", "engines.address"):
        monkeypatch.setattr(f"envkit.{module}.PATIENCE_S", 1.0)
    with listener(tmp_path / "engine.sock", None) as address:
        error = refused(address)
    assert "did not answer within 1 s" in error.message
    assert error.hint == "systemctl restart docker"


def test_the_real_patience_is_below_ten_seconds() -> None:
    from envkit.engines.address import PATIENCE_S  # noqa: PLC0415

    assert PATIENCE_S < 10


@pytest.mark.requirement("R23")
@pytest.mark.parametrize(
    "answer",
    [
        http_answer(b"<html>It works!</html>"),
        http_answer(b"not found", "404 Not Found"),
        http_answer(b"{}"),
        http_answer(b"[]"),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
    ],
)
def test_something_else_listens(refused: Asking, tmp_path: Path, answer: bytes) -> None:
    with listener(tmp_path / "engine.sock", answer) as address:
        error = refused(address)
    assert "is not a Docker engine" in error.message
    assert "DOCKER_HOST" in (error.hint or "")


@pytest.mark.requirement("R23")
@pytest.mark.parametrize("spoken", ["1.20", "1.39"])
def test_an_engine_that_is_too_old(refused: Asking, tmp_path: Path, spoken: str) -> None:
    body = json.dumps({"Version": "18.09", "ApiVersion": spoken, "MinAPIVersion": "1.12"}).encode()
    with listener(tmp_path / "engine.sock", http_answer(body)) as address:
        error = refused(address)
    assert "API" in error.message
    assert "update the engine" in (error.hint or "")


def test_no_engine_at_a_tcp_address(refused: Asking) -> None:
    error = refused("tcp://127.0.0.1:9")
    assert error.message == "no Docker engine answers at tcp://127.0.0.1:9"


@pytest.mark.parametrize("address", ["nonsense", "ftp://127.0.0.1", "/var/run/docker.sock"])
def test_what_is_no_address(refused: Asking, address: str) -> None:
    error = refused(address)
    assert error.message == f"DOCKER_HOST is {address!r}, which is not an engine address"


@pytest.mark.parametrize(
    "config", ["[]", "{", '{"auths": 3}', '{"credsStore": "absent"}', '{"currentContext": "absent"}']
)
def test_an_odd_client_configuration_is_no_crash(
    refused: Asking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "config.json").write_text(config)
    assert refused(f"unix://{tmp_path}/absent.sock").exit_code == 9


def test_auto_names_every_engine_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heard: Heard) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/absent.sock")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert choose("auto", heard).name == "embedded"
    (note,) = heard.notes
    assert note.startswith("engine: embedded: ")
    assert "absent.sock does not exist" in note
    assert "podman is not installed" in note
    missing = Probe(name="embedded", available=False, detail="embedded: a library is missing", hint="pip install it")
    monkeypatch.setattr(EmbeddedBuilder, "probe", lambda _: missing)
    with pytest.raises(EnvironmentProblem) as caught:
        choose("auto", heard)
    assert caught.value.message == "no container engine answers on this machine"
    assert [line.partition(":")[0] for line in caught.value.details] == ["docker", "buildkit", "podman", "embedded"]
    assert all("try:" in line for line in caught.value.details)
    with pytest.raises(EnvironmentProblem, match=r"absent\.sock does not exist"):
        choose("docker", heard)
    with pytest.raises(EnvironmentProblem, match="podman is not installed"):
        choose("podman", heard)


def test_an_unknown_engine_is_a_usage_error(heard: Heard) -> None:
    with pytest.raises(UsageError, match="unknown engine 'kaniko'") as caught:
        choose("kaniko", heard)
    assert "docker, buildkit, podman" in (caught.value.hint or "")


def test_probing_never_raises(tmp_path: Path) -> None:
    probe = EngineBuilder(DockerEngine(f"unix://{tmp_path}/absent.sock")).probe()
    assert not probe.available
    assert probe.hint


@pytest.mark.requirement("R25")
def test_an_engine_that_goes_away_is_told(tmp_path: Path) -> None:
    class Once(http.server.BaseHTTPRequestHandler):
        """Answers who it is, then breaks every connection."""

        def do_GET(self) -> None:
            if not self.path.endswith("/version"):
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            body = json.dumps({"Version": "20.10", "ApiVersion": "1.41"}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            del format, args

        def address_string(self) -> str:
            return "unix"

    with socketserver.ThreadingUnixStreamServer(str(tmp_path / "engine.sock"), Once) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            error = _by_engine(f"unix://{tmp_path}/engine.sock")
        finally:
            server.shutdown()
    assert "lost the connection to the docker engine" in error.message
    assert "that run removes the leftovers" in (error.hint or "")
