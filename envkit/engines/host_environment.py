"""Choose a build's settings that depend on this machine: the network of its steps, and the trusted certificates."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.ground.addresses import is_loopback
from envkit.ground.errors import UsageError
from envkit.ground.progress import Silent
from envkit.ground.settings import NETWORKS, NO_BUNDLE, Mirrors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envkit.engines.model import Engine
    from envkit.ground.progress import Reporter

# Of OpenSSL, requests and pip.
_CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT")
_LARGEST_BUNDLE = 8 << 20  # bytes; Debian's bundle has 0.2 million
# The mirrors that build steps download from. Images are pulled by the engine, in its own network.
_FETCHED = (
    "conda_channel_alias", "miniconda", "pytorch_index", "python_index",
    "debian_mirror", "debian_security_mirror", "ubuntu_mirror", "rpm_mirror",
)  # fmt: skip


def network(requested: str, mirrors: Mirrors, engine: Engine, reporter: Reporter) -> str | None:
    """Return the engine's name for the network of the build's steps; None = the engine's default.

    `auto` selects the host network if a mirror is on loopback, which other networks cannot reach, or if the engine has
    no bridge.

    Raises:
        UsageError: the network is unknown.
    """
    if requested not in NETWORKS:
        raise UsageError(f"--network {requested!r:.80} is not one of {', '.join(NETWORKS)}", hint="--network auto")
    if requested != "auto":
        return None if requested == "default" else requested
    local = [
        field.name for field in fields(Mirrors) if field.name in _FETCHED and is_loopback(getattr(mirrors, field.name))
    ]
    if local:
        reporter.note(f"build network: host ({local[0]} is on this machine)")
        return "host"
    if not engine.has_bridge():
        reporter.note("build network: host (the engine has no bridge)")
        return "host"
    return None


def certificates(mirrors: Mirrors, environ: Mapping[str, str], reporter: Reporter) -> tuple[Mirrors, bytes | None]:
    """Return the mirrors for rendering, and the PEM bundle that pip and conda trust during the build.

    If `ca_bundle` is unset, the bundle that this machine's other clients use is taken: behind a TLS-intercepting proxy,
    nothing can be downloaded without it. The value `none` disables that.

    Raises:
        UsageError: the file cannot be read, or is not a PEM bundle.
    """
    bundle = mirrors.ca_bundle
    if bundle == NO_BUNDLE:
        return replace(mirrors, ca_bundle=None), None
    if bundle:
        return mirrors, _bundle(Path(bundle), "ca_bundle")
    for variable in _CA_VARIABLES:
        value = environ.get(variable)
        if value and Path(value).is_file():
            reporter.note(f"using CA bundle {value} ({variable}); ENVKIT_CA_BUNDLE=none disables it")
            return replace(mirrors, ca_bundle=value), _bundle(Path(value), variable)
    return mirrors, None


def _bundle(path: Path, setting: str) -> bytes:
    hint = "ENVKIT_CA_BUNDLE=none disables the bundle"
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_BUNDLE + 1)
    except OSError as error:
        raise UsageError(f"{setting}: {path}: {error.strerror or error}", hint=hint) from error
    if b"-----BEGIN CERTIFICATE-----" not in data or len(data) > _LARGEST_BUNDLE:
        raise UsageError(f"{setting}: {path} is not a PEM bundle of certificates", hint=hint)
    return data


def ca_file(mirrors: Mirrors, reporter: Reporter | None = None) -> str | None:
    """Return the PEM file that the settings or this machine's other clients use; None = the system's authorities.

    Raises:
        UsageError: it cannot be read.
    """
    rendered, _ = certificates(mirrors, os.environ, reporter or Silent())
    return rendered.ca_bundle
