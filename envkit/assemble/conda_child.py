"""Read and install conda packages in a separate process: a JSON request on stdin, a JSON reply on stdout.

`conda_unpack` reads and unpacks archives, and py-rattler installs only files that were unpacked and compared, so it
never follows links of an archive. The threads of its runtime can outlive the interpreter, so this process exits without
finalizing. A crash caused by an archive ends this process, not the build.

    {"command": "describe", "packages": [{"archive"}]}                      -> {"listings": [{"paths", "entry_points"}]}
    {"command": "install", "packages": [{"archive", "folder", ...}], ...}   -> {"records": [text of conda-meta]}
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from envkit.assemble import conda_unpack
from envkit.ground import store
from envkit.ground.errors import IntegrityError

_KINDS = {"hardlink": "file", "softlink": "link", "directory": "folder"}


def main() -> int:
    """Answer the request on stdin; failures are replies, too."""
    request = json.load(sys.stdin)
    # Modes of the installed files must not depend on the user's umask.
    os.umask(0o022)
    try:
        import rattler  # noqa: F401, PLC0415 - without it, no request can be answered
    except ImportError as error:
        reply: dict[str, Any] = {"fault": "missing", "message": str(error)}
    else:
        reply = _reply(request)
    json.dump(reply, sys.stdout)
    return 0


def _reply(request: dict[str, Any]) -> dict[str, Any]:
    current: list[str] = []
    try:
        if request["command"] == "describe":
            return {"listings": _describe_all(request["packages"], current)}
        # Locked until the end, so no other run removes the folder as abandoned.
        with store.locked(Path(request["staging"]), shared=True):
            return {"records": asyncio.run(_install_all(request, current))}
    except IntegrityError as error:
        return {"fault": "refused", "message": error.message, "package": current[-1] if current else ""}
    except Exception as error:  # noqa: BLE001 - the caller words the error
        chain = [error, error.__cause__, error.__context__]
        text = " ".join(str(cause) or type(cause).__name__ for cause in chain if cause is not None)
        # py-rattler's errors have a text and no errno.
        full = "No space left" in text or "quota exceeded" in text
        return {"fault": "full" if full else "other", "message": text, "package": current[-1] if current else ""}


def _describe_all(packages: list[dict[str, Any]], current: list[str]) -> list[dict[str, Any]]:
    listings = []
    for package in packages:
        current.append(package["name"])
        listings.append(_describe(Path(package["archive"]), is_python=package["noarch"] == "python"))
    return listings


def _describe(archive: Path, *, is_python: bool) -> dict[str, Any]:
    wanted = (conda_unpack.PATHS, conda_unpack.LINK) if is_python else (conda_unpack.PATHS,)
    documents = conda_unpack.documents(archive, wanted)
    rows = conda_unpack.rows_of(documents.get(conda_unpack.PATHS))
    link = documents.get(conda_unpack.LINK)
    noarch = link.get("noarch") if isinstance(link, dict) else None
    points = (noarch.get("entry_points") if isinstance(noarch, dict) else None) or []
    if not isinstance(points, list) or not all(isinstance(point, str) for point in points):
        raise IntegrityError(f"{conda_unpack.LINK}: entry_points is not a list of strings")
    return {"paths": [_row(row) for row in rows], "entry_points": points}


def _row(row: dict[str, Any]) -> list[Any]:
    # The installer replaces the placeholder in the file, so files with equal hashes but different placeholders differ.
    content = row.get("sha256") or None
    if content and row.get("prefix_placeholder") is not None:
        content += f" {row['prefix_placeholder']}"
    return [row["_path"], _KINDS[row["path_type"]], content, row.get("size_in_bytes") or 0]


async def _install_all(request: dict[str, Any], current: list[str]) -> list[str]:
    records = []
    for package in request["packages"]:
        current.append(package["name"])
        records.append(await _install(package, request))
    return records


async def _install(package: dict[str, Any], request: dict[str, Any]) -> str:
    """Install one package into its own prefix; for noarch Python packages it has a record of Python without files."""
    import rattler  # noqa: PLC0415

    archive, prefix = Path(package["archive"]), Path(package["folder"])
    packages = Path(request["staging"]) / "pkgs"
    _unpack(archive, packages / archive.name.removesuffix(".tar.bz2").removesuffix(".conda"))
    record = await rattler.RepoDataRecord.from_package_archive(archive)
    # No file is at this URL: the installer has to take the unpacked package from the cache, or fails.
    record.url = (Path(request["staging"]) / "unpacked" / archive.name).as_uri()
    record.channel = package["channel"]
    records = [record]
    (prefix / "conda-meta").mkdir(parents=True)
    stub = None
    if package["noarch"] == "python":
        python = request["python"]
        records.append(_python(python, package["channel"]))
        stub = prefix / "conda-meta" / f"python-{python['version']}-{python['build']}.json"
        rattler.PrefixRecord(records[1], rattler.PrefixPaths()).write_to_path(stub, False)
    await rattler.install(
        records,
        prefix,
        cache_dir=packages,
        show_progress=False,
        execute_link_scripts=False,
        alternative_target_prefix=request["target"],
    )
    if stub is not None:
        stub.unlink()
    written = list((prefix / "conda-meta").glob("*.json"))
    if len(written) != 1:
        raise ValueError(f"{len(written)} records instead of one")
    return written[0].read_text()


def _unpack(archive: Path, extracted: Path) -> None:
    """Unpack a package where the installer looks for it, and remove the folders from its list.

    rattler 0.28 tries to copy a listed folder as if it were a file. The layer writer makes the folders.
    """
    rows = conda_unpack.unpack(archive, extracted)
    kept = [row for row in rows if row["path_type"] != "directory"]
    if len(kept) < len(rows):
        listed = extracted / conda_unpack.PATHS
        listed.write_text(json.dumps({**json.loads(listed.read_bytes()), "paths": kept}))


def _python(python: dict[str, str], channel: str) -> Any:
    import rattler  # noqa: PLC0415

    record = rattler.PackageRecord(
        name="python",
        version=python["version"],
        build=rattler.BuildString(python["build"]),
        build_number=0,
        subdir="noarch",
        python_site_packages_path=python["site_packages"],
    )
    return rattler.RepoDataRecord(record, "python-0-0.conda", f"{channel}/noarch/python-0-0.conda", channel)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
