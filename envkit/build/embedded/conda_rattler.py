"""Work that py-rattler does, in a process of its own: a JSON document on stdin, one on stdout.

rattler's runtime threads can outlive an interpreter that ends, so this process leaves without finalising; and a fault
in a package's archive ends it rather than the build. It imports nothing of this project.

    {"verb": "describe", "packages": [{"archive"}]}                         -> {"listings": [{"paths", "entry_points"}]}
    {"verb": "install", "packages": [{"archive", "folder", ...}], ...}      -> {"records": [text of conda-meta]}
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import sys
from pathlib import Path
from typing import Any

_LINK = "info/link.json"
_PATHS = "info/paths.json"


def main() -> int:
    """Do what stdin asks for; every failure is a document, too."""
    asked = json.load(sys.stdin)
    os.umask(0o022)
    try:
        import rattler  # noqa: F401, PLC0415 - the one reason for which nothing at all can be done
    except ImportError as error:
        answer: dict[str, Any] = {"fault": "missing", "message": str(error)}
    else:
        answer = _answer(asked)
    json.dump(answer, sys.stdout)
    return 0


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    current: list[str] = []
    try:
        if asked["verb"] == "describe":
            return {"listings": asyncio.run(_describe_all(asked["packages"], current))}
        descriptor = os.open(asked["staging"], os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # held to the end: nobody takes the folder for an abandoned one
        return {"records": asyncio.run(_install_all(asked, current))}
    except Exception as error:  # noqa: BLE001 - the caller words them
        chain = [error, error.__cause__, error.__context__]
        text = " ".join(str(one) or type(one).__name__ for one in chain if one is not None)
        full = "No space left" in text or "quota exceeded" in text
        return {"fault": "full" if full else "other", "message": text, "package": current[-1] if current else ""}


async def _describe_all(packages: list[dict[str, Any]], current: list[str]) -> list[dict[str, Any]]:
    found = []
    for package in packages:
        current.append(package["name"])
        found.append(await _describe(package))
    return found


async def _describe(package: dict[str, Any]) -> dict[str, Any]:
    from rattler.package_streaming import PackageArchive  # noqa: PLC0415

    archive = await PackageArchive.from_path(package["archive"])
    listed = (await archive.paths_json()).paths
    link = json.loads(await archive.read_file(_LINK) or b"{}") if package["noarch"] == "python" else {}
    points = (link.get("noarch") or {}).get("entry_points") or []
    return {"paths": [_row(one) for one in listed], "entry_points": list(points)}


def _row(one: Any) -> list[Any]:
    kind = "file" if one.path_type.hardlink else "link" if one.path_type.softlink else "folder"
    content = one.sha256.hex() if one.sha256 else None
    if content and one.prefix_placeholder is not None:
        content += f" {one.prefix_placeholder.placeholder}"
    return [str(one.relative_path), kind, content, one.size_in_bytes or 0]


async def _install_all(asked: dict[str, Any], current: list[str]) -> list[str]:
    found = []
    for package in asked["packages"]:
        current.append(package["name"])
        found.append(await _install(package, asked))
    return found


async def _install(package: dict[str, Any], asked: dict[str, Any]) -> str:
    """One package into a prefix of its own; a noarch one finds a Python there that has no files."""
    import rattler  # noqa: PLC0415

    archive, prefix = Path(package["archive"]), Path(package["folder"])
    record = await rattler.RepoDataRecord.from_package_archive(archive)
    record.url = archive.as_uri()
    record.channel = package["channel"]
    records = [record]
    (prefix / "conda-meta").mkdir(parents=True)
    packages = Path(asked["staging"]) / "pkgs"
    if package["lists_folders"]:
        _without_folders(archive, packages / archive.name.removesuffix(".tar.bz2").removesuffix(".conda"))
    stub = None
    if package["noarch"] == "python":
        known = asked["python"]
        records.append(_python(known, package["channel"]))
        stub = prefix / "conda-meta" / f"python-{known['version']}-{known['build']}.json"
        rattler.PrefixRecord(records[1], rattler.PrefixPaths()).write_to_path(stub, False)
    await rattler.install(
        records,
        prefix,
        cache_dir=packages,
        show_progress=False,
        execute_link_scripts=False,
        alternative_target_prefix=asked["target"],
    )
    if stub is not None:
        stub.unlink()
    written = list((prefix / "conda-meta").glob("*.json"))
    if len(written) != 1:
        raise ValueError(f"{len(written)} records instead of one")
    return written[0].read_text()


def _without_folders(archive: Path, extracted: Path) -> None:
    """Extract a package that lists folders where the installer looks for it, without those rows.

    rattler 0.28 tries to copy a listed folder as if it were a file. The caller makes the folders.
    """
    from rattler.package_streaming import extract  # noqa: PLC0415

    extract(archive, extracted)
    listed = extracted / _PATHS
    tree = json.loads(listed.read_bytes())
    tree["paths"] = [row for row in tree["paths"] if row.get("path_type") != "directory"]
    listed.write_text(json.dumps(tree))


def _python(python: dict[str, str], channel: str) -> Any:
    import rattler  # noqa: PLC0415

    known = rattler.PackageRecord(
        name="python",
        version=python["version"],
        build=rattler.BuildString(python["build"]),
        build_number=0,
        subdir="noarch",
        python_site_packages_path=python["site_packages"],
    )
    return rattler.RepoDataRecord(known, "python-0-0.conda", f"{channel}/noarch/python-0-0.conda", channel)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
