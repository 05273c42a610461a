"""A network of one's own with a public address, link-local metadata and a service on loopback; run it as a program.

    unshare --net --mount python -m tests.engines.address_lab FOLDER < asked.json

Everything lies on the loopback device of a network namespace: 8.8.4.4 there is public by its number and reaches nobody.
`asked` has `answers` of the registry by path (status, headers, body) and `argv` for envkit; printed are the exit code,
what envkit wrote, and every request that each server met.
"""

import json
import os
import select
import socket
import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PUBLIC, METADATA, NAME, REBOUND = "8.8.4.4", "169.254.169.254", "registry.example.com", "rebound.example.com"
REGISTRY, INNER, PROXY, SECRET = 443, 8081, 3128, "INTERNAL-SECRET-TOKEN"
Request = dict[str, str]


def _server(
    place: tuple[str, int], name: str, answers: dict[str, Any], met: list[Request], context: ssl.SSLContext | None
) -> ThreadingHTTPServer:
    """Answer at an address: what `answers` says where this is the registry, a token everywhere else."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the base class
            pass

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            sent = self.headers.get("Authorization", "")
            met.append({"server": name, "line": f"{self.command} {self.path}", "authorization": sent})
            status, headers, body = 200, {}, json.dumps({"token": SECRET})
            if name == "registry":
                path = self.path.partition("?")[0]
                status, headers, body = answers.get(f"{self.command} {path}") or answers.get(path) or (404, {}, "")
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body.encode())

        def do_CONNECT(self) -> None:
            """Play the proxy of a company, which alone resolves names: all of them are the registry's."""
            met.append({"server": name, "line": f"CONNECT {self.path}", "authorization": ""})
            with socket.create_connection((PUBLIC, REGISTRY)) as there:
                self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                ends = {self.connection: there, there: self.connection}
                while piece := (ready := select.select(list(ends), [], [])[0][0]).recv(1 << 16):
                    ends[ready].sendall(piece)
            self.close_connection = True

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = answer  # noqa: N815

    server = ThreadingHTTPServer(place, Handler)
    server.daemon_threads = False  # closing the server waits for them: TLS in a thread crashes an interpreter that ends
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.05,)).start()
    return server


def main(folder: Path) -> None:
    """Set the network up, run envkit, and tell what happened."""
    asked = json.load(sys.stdin)
    for command in (
        ("ip", "link", "set", "lo", "up"),
        ("ip", "address", "add", f"{PUBLIC}/32", "dev", "lo"),
        ("ip", "address", "add", f"{METADATA}/32", "dev", "lo"),
        ("mount", "--bind", str(folder / "hosts"), "/etc/hosts"),
    ):
        subprocess.run(command, check=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    met: list[Request] = []
    servers = [
        _server(place, name, asked["answers"], met, context if secure else None)
        for place, name, secure in (
            ((PUBLIC, REGISTRY), "registry", True),
            (("127.0.0.1", REGISTRY), "loopback", True),
            (("127.0.0.1", INNER), "loopback", False),
            (("127.0.0.1", PROXY), "proxy", False),
            ((METADATA, 80), "metadata", False),
            ((METADATA, REGISTRY), "metadata", True),
        )
    ]
    done = subprocess.run(
        [sys.executable, "-m", "envkit", *asked["argv"]],
        env=os.environ | {"ENVKIT_CA_BUNDLE": str(folder / "authority.pem")} | asked.get("env", {}),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    for server in servers:
        server.shutdown()
        server.server_close()
    print(json.dumps({"rc": done.returncode, "out": done.stdout, "err": done.stderr, "met": met}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
