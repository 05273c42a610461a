"""Solve conda specs in a separate process: JSON on stdin, JSON on stdout.

A separate process can have its own environment variables (certificates, caches), and can exit without finalizing the
interpreter, which rattler's runtime threads may outlive.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

_REQUEST_S = 120  # the index of a large channel has tens of MB
_RETRIES = 3  # of one request


def main() -> int:
    """Solve the request on stdin; every failure is written as a document, too."""
    request = json.load(sys.stdin)
    try:
        import rattler  # noqa: F401, PLC0415 - so that its absence becomes a document
    except ImportError as error:
        answer: dict[str, Any] = {"fault": "missing", "message": str(error)}
    else:
        answer = _answer(request)
    json.dump(answer, sys.stdout)
    return 0


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    from rattler import exceptions  # noqa: PLC0415

    kinds = {
        "solver": exceptions.SolverError,
        "spec": (exceptions.InvalidMatchSpecError, exceptions.InvalidPackageNameError, exceptions.InvalidVersionError),
        "fetch": (exceptions.GatewayError, exceptions.FetchRepoDataError, exceptions.IoError),
        "channel": (exceptions.InvalidChannelError, exceptions.InvalidUrlError),
        "cache": (exceptions.CacheDirError, OSError),
    }
    try:
        return {"packages": asyncio.run(_solve(request))}
    except Exception as error:  # noqa: BLE001 - the caller turns each kind into an error of envkit
        kind = next((name for name, classes in kinds.items() if isinstance(error, classes)), "other")
        return {"fault": kind, "message": str(error) or type(error).__name__}


async def _solve(request: dict[str, Any]) -> list[dict[str, Any]]:
    import rattler  # noqa: PLC0415

    # Without the final slash, the channel's name would replace the last part of the alias's path.
    alias = rattler.ChannelConfig(f"{request['alias'].rstrip('/')}/", "/")
    gateway = rattler.Gateway(cache_dir=request["cache"], client=_client())
    newest = request["as_of"]
    channels = [rattler.Channel(name, alias) for name in request["channels"]]
    virtual = [_virtual(text) for text in request["virtual"]]

    async def solved(specs: list[Any], kept: list[Any]) -> list[Any]:
        return await rattler.solve(
            channels,
            specs,
            gateway=gateway,
            platforms=[request["platform"], "noarch"],
            virtual_packages=virtual,
            locked_packages=kept,
            timeout=timedelta(seconds=request["limit_s"]),
            exclude_newer=datetime.fromisoformat(newest).astimezone(UTC) if newest else None,
            # A channel may name further channels (CEP 42), which rattler would search too; the plan's list is complete.
            channel_relations="disabled",
        )

    specs, kept = _specs(request["specs"]), await _kept(gateway, channels, request)
    if request["update"]:
        # With the old versions of the others, the solver might prefer an old version of these too.
        specs += _newer(await solved(specs, []), request["update"])
    records = await solved(specs, kept)
    return [_row(record, request["alias"]) for record in records]


def _specs(texts: list[str]) -> list[Any]:
    """Return the specs, and each of their names again without a version.

    rattler filters records by spec before it applies channel priority. With `tool>=2` alone, it would skip a first
    channel that has only tool 1 and use a later channel. The bare name restricts tool to the first channel that has it.
    """
    import rattler  # noqa: PLC0415

    specs = [rattler.MatchSpec(text) for text in texts]
    names = {spec.name.normalized for spec in specs if spec.channel is None}
    return [*specs, *(rattler.MatchSpec(name) for name in sorted(names))]


def _newer(records: list[Any], update: dict[str, str]) -> list[Any]:
    """Return a spec for each record to update that is not older than the old version."""
    import rattler  # noqa: PLC0415

    return [
        rattler.MatchSpec(f"{record.name.normalized}=={record.version}={record.build}")
        for record in records
        if record.name.normalized in update and record.version >= rattler.Version(update[record.name.normalized])
    ]


def _client() -> Any:
    import rattler  # noqa: PLC0415

    # rattler reads SSL_CERT_FILE only together with the system's certificates, not with its built-in ones.
    if os.environ.get("SSL_CERT_FILE"):
        system = rattler.Config.from_toml('tls-root-certs = "system"')
        return rattler.Client.from_config(system, max_retries=_RETRIES, timeout=_REQUEST_S)
    return rattler.Client.default_client(max_retries=_RETRIES, timeout=_REQUEST_S)


def _virtual(text: str) -> Any:
    import rattler  # noqa: PLC0415

    # `__glibc=2.36=0`
    name, version, build = text.split("=")
    return rattler.GenericVirtualPackage(
        rattler.PackageName(name), rattler.Version(version), rattler.BuildString(build)
    )


async def _kept(gateway: Any, channels: list[Any], request: dict[str, Any]) -> list[Any]:
    """Return the channels' records of the old lock's packages, without those whose SHA-256 has changed since."""
    import rattler  # noqa: PLC0415

    if not request["keep"]:
        return []
    digests = {row["sha256"] for row in request["keep"]}
    specs = [rattler.MatchSpec(f"{row['name']}=={row['version']}={row['build']}") for row in request["keep"]]
    answers = await gateway.query(
        channels, [request["platform"], "noarch"], specs, recursive=False, channel_relations="disabled"
    )
    return [record for records in answers for record in records if record.sha256 and record.sha256.hex() in digests]


def _row(record: Any, alias: str) -> dict[str, Any]:
    noarch = record.noarch
    return {
        "name": record.name.normalized,
        "version": str(record.version),
        "build": str(record.build),
        "subdir": record.subdir,
        "channel": str(record.channel).removeprefix(alias).strip("/"),
        "url": str(record.url),
        "sha256": record.sha256.hex() if record.sha256 else None,
        "size": record.size,
        "depends": list(record.depends),
        "noarch": "python" if noarch.python else "generic" if noarch.generic else None,
    }


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
