"""Stand-in for `conda` in the test world's images: conda's command line with rattler's solver and installer.

It supports what Dockerfiles use: `env create`, `create`, `install`, `list`, `clean`, `config`, `info` and `--version`,
the condarc keys `channel_alias`, `custom_channels`, `channels` and `channel_priority`, and CONDA_OVERRIDE_*.
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pip
import rattler
import yaml
from rattler.exceptions import GatewayError, InvalidMatchSpecError, SolverError

VERSION = "26.7.1"
NOT_FOUND = 404
ROOT = Path("/opt/conda")
CALLED_WITH = dict(os.environ)
SWITCHES = (
    "json", "explicit", "sha256", "override-channels", "strict-channel-priority", "no-default-packages",
    "show", "show-sources", "system", "env",
)  # fmt: skip


class CondaError(Exception):
    """Ends the command with its text on stderr and code 1, as conda does."""


def condarc() -> dict[str, Any]:
    """Return the settings: those of every condarc in order, then the CONDA_* variables. Later values override."""
    settings: dict[str, Any] = {"channel_alias": "", "channel_priority": "flexible", "channels": ["defaults"]}
    files = [ROOT / ".condarc", Path.home() / ".condarc"]
    if os.environ.get("CONDARC"):
        files.append(Path(os.environ["CONDARC"]))
    for file in files:
        if file.is_file():
            settings |= yaml.safe_load(file.read_text()) or {}
    for key in ("channel_alias", "channel_priority"):
        settings[key] = os.environ.get(f"CONDA_{key.upper()}") or settings[key]
    return settings


def channel_url(name: str, settings: dict[str, Any]) -> str:
    """Return the URL of a channel's name, as conda does."""
    if "://" in name:
        return name.rstrip("/")
    custom = settings.get("custom_channels") or {}
    if name in custom:
        return f"{custom[name].rstrip('/')}/{name}"
    if name == "defaults":
        raise CondaError("CondaToSNonInteractiveError: Terms of Service have not been accepted for channel: defaults")
    if not settings["channel_alias"]:
        raise CondaError(f"no channel_alias is set, and this stand-in has no public one: {name}")
    return f"{settings['channel_alias'].rstrip('/')}/{name}"


def require_channel(name: str, settings: dict[str, Any]) -> str:
    """Return the URL of a channel after checking that it exists. Like conda, request noarch/repodata.json first."""
    url = channel_url(name, settings)
    request = urllib.request.Request(f"{url}/noarch/repodata.json", method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=60).close()
    except urllib.error.HTTPError as error:
        if error.code == NOT_FOUND:
            raise CondaError(f"UnavailableInvalidChannel: HTTP 404 NOT FOUND for channel {name} <{url}>") from None
    except OSError:
        pass  # the solver's error about an unreachable server is better
    return url


async def solve(specs: list[str], channels: list[str], settings: dict[str, Any]) -> list[Any]:
    """Solve against the channels, with this machine's virtual packages and their CONDA_OVERRIDE_* settings."""
    strict = settings["channel_priority"] == "strict"
    return await rattler.solve(
        [require_channel(name, settings) for name in channels],
        [rattler.MatchSpec(spec) for spec in specs],
        gateway=rattler.Gateway(cache_dir=ROOT / "pkgs" / "cache"),
        virtual_packages=rattler.VirtualPackage.detect(rattler.VirtualPackageOverrides.from_env()),
        channel_priority=rattler.ChannelPriority.Strict if strict else rattler.ChannelPriority.Disabled,
    )


async def explicit(lines: list[str]) -> list[Any]:
    """Return the records of `url#hash` lines. A hash that differs from the channel's is an error."""
    chosen = []
    gateway = rattler.Gateway(cache_dir=ROOT / "pkgs" / "cache")
    for line in lines:
        url, _, digest = line.partition("#")
        channel, subdir, filename = url.rsplit("/", 2)
        name = filename.rsplit("-", 2)[0]
        answers = await gateway.query([channel], [rattler.Subdir(subdir)], [rattler.MatchSpec(name)], recursive=False)
        matching = [record for rows in answers for record in rows if record.file_name == filename]
        if not matching:
            raise CondaError(f"PackagesNotFoundError: {url}")
        digest = digest.removeprefix("sha256:")
        known = [bytes(value).hex() for value in (matching[0].sha256, matching[0].md5) if value]
        if digest and digest not in known:
            raise CondaError(
                "ChecksumMismatchError: Conda detected a mismatch between the expected content and downloaded content\n"
                f"for url '{url}'.\n  expected sha256: {digest}\n  actual sha256: {known[0]}"
            )
        chosen.append(matching[0])
    return chosen


async def link(records: list[Any], prefix: Path) -> None:
    """Install the records into the prefix, with metadata that every user may read."""
    await rattler.install(
        records,
        prefix,
        cache_dir=ROOT / "pkgs",
        show_progress=False,
        execute_link_scripts=False,
    )
    for file in (prefix / "conda-meta").glob("*.json"):
        file.chmod(0o644)
    (prefix / "conda-meta" / "history").touch()


def install(arguments: argparse.Namespace, specs: list[str], channels: list[str], settings: dict[str, Any]) -> None:
    """Solve (or read an explicit list), install, and print the packages."""
    lines = [row.strip() for name in arguments.file or [] for row in Path(name).read_text().splitlines()]
    lines = [row for row in lines if row and not row.startswith("#")]
    if "@EXPLICIT" in lines:
        records = asyncio.run(explicit([row for row in lines if row != "@EXPLICIT"]))
    else:
        specs = [*specs, *lines]
        records = asyncio.run(solve(specs, channels, settings))
    prefix = Path(arguments.prefix or ROOT / "envs" / (arguments.name or "base"))
    if arguments.dry_run:
        print("\n".join(record.url for record in records))
        return
    asyncio.run(link(records, prefix))
    if not arguments.quiet:
        print("\n".join(f"  + {record.name.source} {record.version} {record.build}" for record in records))


def env_create(arguments: argparse.Namespace, settings: dict[str, Any]) -> None:
    """Run `conda env create`: install the conda part of an environment.yml, then its pip list with the new Python."""
    file = Path((arguments.file or ["environment.yml"])[0])
    document = yaml.safe_load(file.read_text())
    specs = [item for item in document["dependencies"] if isinstance(item, str)]
    pip = [line for item in document["dependencies"] if isinstance(item, dict) for line in item.get("pip", [])]
    channels = document.get("channels", [])
    channels += settings["channels"]  # as since conda 26.7, where nodefaults is an ordinary channel name
    arguments.file = None
    arguments.prefix = arguments.prefix or document.get("prefix")
    arguments.name = arguments.name or document.get("name")
    install(arguments, [spec.split("::")[-1] for spec in specs], list(dict.fromkeys(channels)), settings)
    if pip:
        python = Path(arguments.prefix or ROOT / "envs" / arguments.name) / "bin" / "python"
        if not python.exists():
            raise CondaError("EnvironmentFileError: a pip list needs python among the dependencies")
        with tempfile.NamedTemporaryFile("w", suffix=".requirements.txt", dir=file.resolve().parent) as listed:
            listed.write("\n".join(pip) + "\n")
            listed.flush()
            print("Installing pip dependencies", flush=True)
            command = [str(python), "-m", "pip", "install", "-U", "-r", listed.name, "--exists-action=b"]
            if subprocess.run(command, check=False, cwd=file.resolve().parent, env=CALLED_WITH).returncode:
                raise CondaError("CondaEnvException: Pip failed")


def list_packages(arguments: argparse.Namespace) -> None:
    """Run `conda list`, with `--explicit` and `--json`."""
    folder = Path(arguments.prefix or ROOT) / "conda-meta"
    records = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    if arguments.json:
        keys = {"name": "name", "version": "version", "build_string": "build", "channel": "channel"}
        print(json.dumps([{key: record.get(field) for key, field in keys.items()} for record in records], indent=1))
    elif arguments.explicit:
        print("@EXPLICIT")
        print("\n".join(f"{record['url']}#{record['sha256' if arguments.sha256 else 'md5']}" for record in records))
    else:
        print("\n".join(f"{record['name']} {record['version']} {record['build']}" for record in records))


def config(arguments: argparse.Namespace, settings: dict[str, Any]) -> None:
    """Run `conda config`: show all settings, or change keys of /opt/conda/.condarc."""
    file = ROOT / ".condarc"
    tree = (yaml.safe_load(file.read_text()) if file.is_file() else None) or {}
    for key, value in arguments.set or []:
        tree[key] = yaml.safe_load(value)
    for key, value in (arguments.add or []) + (arguments.append or []):
        tree.setdefault(key, []).append(value)
    for key, value in arguments.remove or []:
        tree[key] = [item for item in tree.get(key, []) if item != value]
    for key in arguments.remove_key or []:
        tree.pop(key, None)
    if arguments.set or arguments.add or arguments.append or arguments.remove or arguments.remove_key:
        file.write_text(yaml.safe_dump(tree))
    else:
        print(yaml.safe_dump(settings), end="")


def clean() -> None:
    """Run `conda clean`: remove the package cache."""
    shutil.rmtree(ROOT / "pkgs", ignore_errors=True)


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse the command line; what is not supported is an error."""
    if argv[:1] == ["env"]:
        argv = ["-".join(argv[:2]), *argv[2:]]
    parser = argparse.ArgumentParser(prog="conda")
    parser.add_argument("-V", "--version", action="version", version=f"conda {VERSION}")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name in ("create", "install", "env-create", "list", "clean", "info", "config"):
        verb = verbs.add_parser(name)
        for short, long in (("-y", "--yes"), ("-q", "--quiet"), ("-d", "--dry-run")):
            verb.add_argument(short, long, action="store_true")
        for long in SWITCHES:
            verb.add_argument(f"--{long}", action="store_true")
        verb.add_argument("-p", "--prefix")
        verb.add_argument("-n", "--name")
        verb.add_argument("-c", "--channel", action="append", default=[])
        verb.add_argument("--solver")
        verb.add_argument("-f", "--file", action="store_true" if name == "clean" else "append")
        if name == "clean":
            for flags in (("-a", "--all"), ("-t", "--tarballs"), ("-i", "--index-cache"), ("--packages",)):
                verb.add_argument(*flags, action="store_true")
        if name == "config":
            for long in ("--set", "--add", "--append", "--prepend", "--remove"):
                verb.add_argument(long, nargs=2, action="append")
            verb.add_argument("--remove-key", action="append")
        verb.add_argument("specs", nargs="*")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Run one command and return its exit code."""
    arguments = parse(argv)
    settings = condarc()
    own = settings.get("ssl_verify")
    certificates = own if isinstance(own, str) else Path(pip.__file__).parent / "_vendor" / "certifi" / "cacert.pem"
    os.environ["SSL_CERT_FILE"] = str(certificates)
    if arguments.strict_channel_priority:
        settings["channel_priority"] = "strict"
    channels = arguments.channel if arguments.override_channels else [*arguments.channel, *settings["channels"]]
    try:
        if arguments.verb == "env-create":
            env_create(arguments, settings)
        elif arguments.verb in {"create", "install"}:
            install(arguments, arguments.specs, channels, settings)
        elif arguments.verb == "list":
            list_packages(arguments)
        elif arguments.verb == "config":
            config(arguments, settings)
        elif arguments.verb == "clean":
            clean()
        else:
            urls = [channel_url(name, settings) for name in channels if name != "defaults"]
            facts = {"conda_version": VERSION, "root_prefix": str(ROOT), "platform": "linux-64", "channels": urls}
            print(json.dumps(facts, indent=1))
    except CondaError as error:
        print(f"\n{error}\n", file=sys.stderr)
        return 1
    except (SolverError, GatewayError, InvalidMatchSpecError) as error:
        host = urlsplit(settings["channel_alias"]).netloc
        print(f"\n{type(error).__name__} (channels at {host}): {error}\n", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # rattler's threads can crash the interpreter while it is finalized
