"""apt-get of a rendered Dockerfile asks the mirror of the settings: built for real, through a server that counts."""

import http.server
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envkit.engines.context import pack
from envkit.engines.log import BuildLog
from envkit.engines.model import Engine, Job
from envkit.ground.settings import Mirrors
from envkit.image.name import image_name
from envkit.render.render import render
from envkit.run.model import RunLimits
from envkit.run.runners import choose
from tests.support.heard import Heard
from tests.support.plans import plan_from
from tests.world.world import World

pytestmark = pytest.mark.engine
PACKAGE = "tini"  # 250 kB, depends on the C library alone
LOOK = f"""
set -eu
test -x /usr/bin/{PACKAGE}
grep -rc 127.0.0.1 /etc/apt /usr/share/envkit | grep -v ':0$' || true
ls /usr/share/envkit
"""


@pytest.fixture
def counted(place: World) -> Iterator[tuple[str, Counter[str]]]:
    """The address of a Debian mirror on loopback, and what was asked of it; it passes on what the world's has."""
    asked: Counter[str] = Counter()
    upstream = {"/debian/": place.debian_mirror, "/debian-security/": place.debian_security_mirror}

    class Passing(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked[self.path] += 1
            root = next(((head, real) for head, real in upstream.items() if self.path.startswith(head) and real), None)
            if root is None:
                self.send_error(404)
                return
            try:
                with urllib.request.urlopen(f"{root[1]}/{self.path.removeprefix(root[0])}", timeout=60) as answer:
                    data = answer.read()
            except urllib.error.HTTPError as error:
                self.send_error(error.code)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            del format, args

    if place.debian_mirror is None or place.debian_security_mirror is None:
        pytest.skip("the apt of this machine knows no Debian mirror, or none of the security archive")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Passing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def test_packages_of_the_final_stage_come_from_the_mirror(
    engine: Engine, pinned: str, counted: tuple[str, Counter[str]], heard: Heard, tmp_path: Path
) -> None:
    address, asked = counted
    mirrors = Mirrors(debian_mirror=f"{address}/debian", debian_security_mirror=f"{address}/debian-security")
    plan = replace(plan_from("request: {cpu: true}\n"), system=(PACKAGE,))
    made = render(plan, mirrors=mirrors, base=pinned, syntax=engine.syntax)
    # The steps of the final stage up to its packages, as they were rendered; conda is not what is tried here.
    text = made.files["Dockerfile"].decode()
    steps = text[text.rindex("\nFROM ") : text.index("\nCOPY passwd group")]
    files = {name: data for name, data in made.files.items() if name not in ("Dockerfile", ".dockerignore")}
    context = pack({"Dockerfile": f"{steps}\n".encode(), **files})
    with BuildLog(tmp_path / "log", heard) as log:
        image = engine.make(context, Job(name="mirrored", network="host", no_cache=True), log, heard)
    assert asked["/debian/dists/bookworm/InRelease"] == 1
    assert asked["/debian/dists/bookworm-updates/InRelease"] == 1
    assert any(path.startswith("/debian/pool/") and f"/{PACKAGE}_" in path for path in asked), asked
    assert asked["/debian-security/dists/bookworm-security/InRelease"] == 1
    runner = choose("podman" if engine.name == "podman" else "docker", heard, image=image_name(image))
    done = runner.run(
        image_name(image), ("/bin/sh", "-c", LOOK), {}, gpus=None, limits=RunLimits(timeout_s=60), reporter=heard
    )
    assert done.exit_code == 0, done.stderr
    assert done.stdout.decode().split() == ["system.txt"], "nothing of the mirror stays"
