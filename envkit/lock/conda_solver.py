"""The conda solve itself, in a separate process: JSON on stdin, JSON on stdout.

rattler's runtime threads can outlive an interpreter that ends, so this process leaves without finalizing; and its
variables (certificates, caches) are not those of the command that waits for it.
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
    """Solve what stdin asks for; every failure is a document, too."""
    asked = json.load(sys.stdin)
    try:
        import rattler  # noqa: F401, PLC0415 - the one reason for which nothing at all can be solved
    except ImportError as error:
        answer: dict[str, Any] = {"fault": "missing", "message": str(error)}
    else:
        answer = _answer(asked)
    json.dump(answer, sys.stdout)
    return 0


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    from rattler import exceptions  # noqa: PLC0415

    kinds = {
        "solver": exceptions.SolverError,
        "spec": (exceptions.InvalidMatchSpecError, exceptions.InvalidPackageNameError, exceptions.InvalidVersionError),
        "fetch": (exceptions.GatewayError, exceptions.FetchRepoDataError, exceptions.IoError),
        "channel": (exceptions.InvalidChannelError, exceptions.InvalidUrlError),
        "cache": (exceptions.CacheDirError, OSError),
    }
    try:
        return {"packages": asyncio.run(_solve(asked))}
    except Exception as error:  # noqa: BLE001 - the caller tells the kinds apart and words them
        kind = next((name for name, classes in kinds.items() if isinstance(error, classes)), "other")
        return {"fault": kind, "message": str(error) or type(error).__name__}


async def _solve(asked: dict[str, Any]) -> list[dict[str, Any]]:
    import rattler  # noqa: PLC0415

    # Without the final slash, the last part of the alias's path would be replaced by the channel's name.
    alias = rattler.ChannelConfig(f"{asked['alias'].rstrip('/')}/", "/")
    gateway = rattler.Gateway(cache_dir=asked["cache"], client=_client())
    newest = asked["as_of"]
    channels = [rattler.Channel(name, alias) for name in asked["channels"]]
    records = await rattler.solve(
        channels,
        _specs(asked["specs"]),
        gateway=gateway,
        platforms=[asked["platform"], "noarch"],
        virtual_packages=[_virtual(text) for text in asked["virtual"]],
        locked_packages=await _kept(gateway, channels, asked),
        timeout=timedelta(seconds=asked["limit_s"]),
        exclude_newer=datetime.fromisoformat(newest).astimezone(UTC) if newest else None,
        channel_relations="disabled",
    )
    return [_row(record, asked["alias"]) for record in records]


def _specs(texts: list[str]) -> list[Any]:
    """The specs, and each name once more alone.

    The records of a spec are filtered before priority is applied, so with `tool>=2` alone a first channel that has
    only tool 1 would be passed over. With the bare name beside it, that channel's tool is the only one.
    """
    import rattler  # noqa: PLC0415

    specs = [rattler.MatchSpec(text) for text in texts]
    names = {spec.name.normalized for spec in specs if spec.channel is None}
    return [*specs, *(rattler.MatchSpec(name) for name in sorted(names))]


def _client() -> Any:
    import rattler  # noqa: PLC0415

    if os.environ.get("SSL_CERT_FILE"):
        system = rattler.Config.from_toml('tls-root-certs = "system"')
        return rattler.Client.from_config(system, max_retries=_RETRIES, timeout=_REQUEST_S)
    return rattler.Client.default_client(max_retries=_RETRIES, timeout=_REQUEST_S)


def _virtual(text: str) -> Any:
    import rattler  # noqa: PLC0415

    name, version, build = text.split("=")
    return rattler.GenericVirtualPackage(
        rattler.PackageName(name), rattler.Version(version), rattler.BuildString(build)
    )


async def _kept(gateway: Any, channels: list[Any], asked: dict[str, Any]) -> list[Any]:
    """The channels' own records of the old lock's packages; one whose bytes have changed since is not among them."""
    import rattler  # noqa: PLC0415

    if not asked["keep"]:
        return []
    digests = {row["sha256"] for row in asked["keep"]}
    specs = [rattler.MatchSpec(f"{row['name']}=={row['version']}={row['build']}") for row in asked["keep"]]
    answers = await gateway.query(
        channels, [asked["platform"], "noarch"], specs, recursive=False, channel_relations="disabled"
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
