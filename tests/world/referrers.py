"""A proxy that adds the referrers API (OCI distribution specification 1.1) to Debian's registry, which lacks it.

All requests are forwarded to the real registry. The proxy adds the header OCI-Subject to the response for a manifest
with a `subject`, and answers /v2/NAME/referrers/DIGEST with the list, in pages of two.
"""

import contextlib
import hashlib
import http.client
import json
import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

INDEX = "application/vnd.oci.image.index.v1+json"
_LIST = re.compile(r"/v2/(?P<name>.+)/referrers/(?P<digest>sha256:[0-9a-f]{64})(?:\?(?P<query>.*))?")
_PUT = re.compile(r"/v2/(?P<name>.+)/manifests/[^/]+")
_PAGE = 2


@contextmanager
def referrers_before(upstream: str) -> Iterator[str]:
    """Run the proxy for the registry at `upstream` and yield its `host:port`."""
    lists: dict[tuple[str, str], dict[str, dict[str, Any]]] = defaultdict(dict)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the base class
            pass

        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            listing = _LIST.fullmatch(self.path)
            if listing and self.command == "GET":
                self.listed(listing)
                return
            status, headers, answer = self.forward(body)
            put = _PUT.fullmatch(self.path)
            if put and self.command == "PUT" and status == 201:
                subject = self.note(put["name"], body)
                headers += [("OCI-Subject", subject)] if subject else []
            self.answer(status, headers, answer)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one  # noqa: N815

        def listed(self, listing: re.Match[str]) -> None:
            rows = list(lists[listing["name"], listing["digest"]].values())
            start = int((listing["query"] or "from=0").partition("=")[2])
            tree = {"schemaVersion": 2, "mediaType": INDEX, "manifests": rows[start : start + _PAGE]}
            headers = [("Content-Type", INDEX)]
            if start + _PAGE < len(rows):
                path = self.path.partition("?")[0]
                headers.append(("Link", f'<{path}?from={start + _PAGE}>; rel="next"'))
            self.answer(200, headers, json.dumps(tree).encode())

        def note(self, name: str, body: bytes) -> str | None:
            tree = json.loads(body)
            subject = tree.get("subject")
            if not subject:
                return None
            digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
            row = {"mediaType": tree["mediaType"], "digest": digest, "size": len(body)}
            row |= {key: tree[key] for key in ("artifactType", "annotations") if key in tree}
            lists[name, subject["digest"]][digest] = row
            return str(subject["digest"])

        def forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            with contextlib.closing(http.client.HTTPConnection(upstream, timeout=60)) as connection:
                connection.request(self.command, self.path, body or None, dict(self.headers))
                response = connection.getresponse()
                data = response.read()
                dropped = ("Transfer-Encoding", "Connection", "Content-Length")
                kept = [(name, value) for name, value in response.getheaders() if name not in dropped]
                if self.command == "HEAD" and response.headers.get("Content-Length"):
                    kept.append(("Content-Length", response.headers["Content-Length"]))
                return response.status, kept, data

        def answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            if self.command != "HEAD":
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
