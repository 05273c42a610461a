"""Serve a git repository over HTTP on loopback with `git http-backend`."""

from __future__ import annotations

import http.server
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_FIXED = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.com",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.com",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
}


@dataclass(frozen=True)
class Repository:
    """A served repository with one commit."""

    url: str
    commit: str
    asked: list[str]  # paths of the requests


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | _FIXED


def _git(folder: Path, *arguments: str) -> str:
    argv = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, env=_environment())
    return done.stdout.strip()


def _commit(folder: Path, files: Mapping[str, str]) -> str:
    folder.mkdir(parents=True)
    _git(folder, "init", "--quiet")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    _git(folder, "add", "--all")
    _git(folder, "commit", "--quiet", "--message", "first")
    return _git(folder, "rev-parse", "HEAD")


class _Handler(http.server.BaseHTTPRequestHandler):
    root: Path
    asked: list[str]
    moved: str | None

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path, _, query = self.path.partition("?")
        self.asked.append(path)
        if self.moved is not None:
            self.send_response(302)
            self.send_header("Location", self.moved + self.path)
            self.end_headers()
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        variables = {
            **_environment(),
            "GIT_PROJECT_ROOT": str(self.root), "GIT_HTTP_EXPORT_ALL": "1", "PATH_INFO": path, "QUERY_STRING": query,
            "REQUEST_METHOD": self.command, "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)), "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
        }  # fmt: skip
        done = subprocess.run(["git", "http-backend"], input=body, capture_output=True, env=variables, check=True)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        rows = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.send_response(int(rows.pop("Status", "200").split()[0]))
        for name, value in rows.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class names it so
        """Print nothing."""


@contextmanager
def served(folder: Path, files: Mapping[str, str], *, moved: str | None = None) -> Iterator[Repository]:
    """Serve a repository with these files in one commit; `moved` is a URL to which every request is redirected."""
    commit = _commit(folder / "project", files)
    asked: list[str] = []
    handler = type("Handler", (_Handler,), {"root": folder, "asked": asked, "moved": moved})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield Repository(f"http://127.0.0.1:{server.server_address[1]}/project", commit, asked)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
