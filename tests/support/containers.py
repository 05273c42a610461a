"""Images for plain containers: the world's base with Debian packages from this machine's sources."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.world import apt


def build_image(base: str, name: str, packages: Sequence[str], folder: Path) -> None:
    """Build an image from the world's base with Debian packages."""
    context = folder / name
    context.mkdir(parents=True)
    (context / "sources.list").write_text("".join(f"{source.line()}\n" for source in apt.debian_sources()))
    options = [f"{line};" for line in apt.carried_options()]
    (context / "99envkit").write_text("\n".join([*options, ""]))
    (context / "Dockerfile").write_text(
        f"FROM {base}\n"
        "RUN rm -f /etc/apt/sources.list.d/*\n"
        "COPY sources.list /etc/apt/sources.list\n"
        "COPY 99envkit /etc/apt/apt.conf.d/99envkit\n"
        "RUN apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "
        f"{' '.join(packages)}\n"
    )
    argv = ["docker", "build", "--quiet", "--network", "host", "--tag", name, str(context)]
    subprocess.run(argv, check=True, capture_output=True, env={**os.environ, "DOCKER_BUILDKIT": "0"})
