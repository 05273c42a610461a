"""A registry that answers what a test wrote down, true or not; everything else is not there."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from envkit.attest.attached import ARTIFACT
from envkit.image import spec
from envkit.registry.referrers import EMPTY

PLACE = "/v2/team/train"


@dataclass
class Liar:
    """Answers by path, or by `METHOD path`: status, headers and body. The image is `HOST/team/train:1`."""

    address: str = ""
    answers: dict[str, tuple[int, Mapping[str, str], bytes]] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)

    @property
    def image(self) -> str:
        return f"{self.address}/team/train:1"

    def has(self, digest: str, data: bytes, *names: str, kind: str = spec.MANIFEST) -> None:
        for name in (digest, *names):
            self.answers[f"{PLACE}/manifests/{name}"] = (200, {"Content-Type": kind}, data)

    def blob(self, data: bytes, digest: str | None = None) -> dict[str, Any]:
        digest = digest or spec.sha256(data)
        self.answers[f"{PLACE}/blobs/{digest}"] = (200, {}, data)
        return {"mediaType": spec.LAYER_TAR, "digest": digest, "size": len(data)}

    def holds(self, layers: object = None, labels: Mapping[str, str] | None = None) -> str:
        """An image of these layers; its digest."""
        rootfs = {"type": "layers", "diff_ids": [spec.sha256(b"layer")]}
        config = self.blob(spec.canonical({"architecture": "amd64", "config": {"Labels": labels}, "rootfs": rootfs}))
        layers = [self.blob(b"layer")] if layers is None else layers
        data = spec.canonical({"schemaVersion": 2, "mediaType": spec.MANIFEST, "config": config, "layers": layers})
        self.has(spec.sha256(data), data, "1")
        return spec.sha256(data)

    def attaches(self, digest: str, *statements: object) -> None:
        """Statements without a signature, as anybody can make them who may push."""
        rows = []
        for one in statements:
            document = self.blob(json.dumps(one).encode()) | {"mediaType": ARTIFACT}
            tree = {"artifactType": ARTIFACT, "config": self.blob(b"{}") | {"mediaType": EMPTY}, "layers": [document]}
            data = spec.canonical({"schemaVersion": 2, "subject": {"digest": digest}, **tree})
            self.has(spec.sha256(data), data)
            rows.append({"digest": spec.sha256(data), "size": len(data)})
        self.lists(digest, rows)

    def lists(self, digest: str, rows: list[Any], link: str = "") -> None:
        headers = {"Content-Type": spec.INDEX, **({"Link": link} if link else {})}
        body = spec.canonical({"schemaVersion": 2, "manifests": rows})
        self.answers[f"{PLACE}/referrers/{digest}"] = (200, headers, body)


@contextmanager
def liar() -> Iterator[Liar]:
    """The registry, running."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the base class
            pass

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            line = f"{self.command} {self.path}"
            found.seen.append(line)
            status, headers, body = found.answers.get(line) or found.answers.get(self.path) or (404, {}, b"")
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                with suppress(ConnectionError):  # whoever has enough of a long lie hangs up
                    self.wfile.write(body)

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found = Liar(address=f"127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
