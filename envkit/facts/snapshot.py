"""Generate the snapshot that envkit loads, from the YAML tables that people edit.

    python -m envkit.facts.snapshot            write envkit/facts/snapshot.json; changed facts get the next version
    python -m envkit.facts.snapshot --check    exit 1 if it is out of date

The same tables always give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envkit.facts import edited, model, tables
from envkit.facts.builds import build_rows
from envkit.facts.companions import companion_rows
from envkit.ground.versions import build_key, key

PATH = Path(__file__).parent / "snapshot.json"

HEAD = "torch_releases"
"""The table whose header has the version and the date of all tables."""
_VERSION = re.compile(r"(?m)^version: '([0-9]{1,9})'$")

Row = dict[str, Any]


def version_of(text: str) -> int:
    """Return the version of all tables from the text of the `HEAD` table; 0 if it has none."""
    match = _VERSION.search(text)
    return int(match.group(1)) if match else 0


def with_version(text: str, version: int) -> str:
    """Return the text of the `HEAD` table with another version."""
    return _VERSION.sub(f"version: '{version}'", text, count=1)


def tree() -> dict[str, Any]:
    """Return the normalized tables as a JSON-ready tree."""
    rows = {
        "releases": release_rows(),
        "builds": build_rows(),
        "companions": companion_rows(),
        "toolkits": toolkit_rows(),
        "compat": compat_rows(),
        "forward": forward_rows(),
        "gpus": gpu_rows(),
        "oses": os_rows(),
        "pythons": python_rows(),
        "cudnns": cudnn_rows(),
        "cuda_images": image_rows(),
        "base_images": base_rows(),
        "package_needs": need_rows(),
        "installers": installer_rows(),
        "traps": trap_rows(),
    }
    return {
        "schema": tables.SCHEMA,
        "version": int(edited.read(HEAD)["version"]),
        "collected": edited.read(HEAD)["collected"],
        "capabilities_left_out": edited.read("gpu_arch")["left_out"],
        "tables": {table.name: tables.encode(table, rows[table.name]) for table in tables.TABLES},
        "sources": dict(sorted(edited.read("sources")["sources"].items())),
    }


def digest(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 (hex) of the canonical JSON of a snapshot without its version."""
    # The version is raised when the digest changes, so it cannot be part of it.
    content = {name: value for name, value in content.items() if name != "version"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def text(content: dict[str, Any]) -> str:
    """Return the snapshot's text: JSON with one row per line, the checksum on line 1 and the digest on line 2."""
    lines = [f'"digest":"{digest(content)}",', f'"schema":{_json(content["schema"])},']
    lines.append(f'"version":{_json(content["version"])},')
    lines.append(f'"collected":{_json(content["collected"])},')
    lines.append(f'"capabilities_left_out":{_json(content["capabilities_left_out"])},')
    lines.append('"tables":{')
    encoded = content["tables"]
    for name, table in encoded.items():
        lines.append(f'"{name}":{{"columns":{_json(table["columns"])},"rows":[')
        lines.extend(_comma([_json(row) for row in table["rows"]]))
        lines.append("]}" if name == list(encoded)[-1] else "]},")
    lines.append('},"sources":{')
    lines.extend(_comma([f"{_json(name)}:{_json(source)}" for name, source in content["sources"].items()]))
    lines.append("}}")
    rest = "\n".join(lines) + "\n"
    return f'{{"checksum":"{tables.checksum(rest.encode())}",\n{rest}'


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _comma(lines: list[str]) -> list[str]:
    return [f"{line}," for line in lines[:-1]] + lines[-1:]


def release_rows() -> tuple[model.Release, ...]:
    """Return one row per torch release."""
    rows = [
        model.Release(
            torch=row["torch"],
            released=_released(row),
            torchvision=row["torchvision"],
            torchaudio=row["torchaudio"],
            triton=row["triton"] and row["triton"]["pin"],
            setuptools=row["setuptools"] and row["setuptools"]["pin"],
            numpy2_ok=row["numpy2_ok"],
            compile_max_python=row.get("compile_max_python"),
            default_cuda=row["pypi"]["cuda"],
            note=row.get("note"),
            refs=tuple(row["refs"]),
        )
        for row in edited.rows("torch_releases")
    ]
    return tuple(sorted(rows, key=lambda row: key(row.torch)))


def _released(row: Row) -> str | None:
    """Return the announced day; if only a month was announced, the day on which its build matrix went live."""
    announced: str | None = row["released"]
    # `2025-06-03`, or `2025-06` if only the month is known
    if announced and len(announced) == len("2025-06-03"):
        return announced
    return row["matrix_live"] or announced


def toolkit_rows() -> tuple[model.ToolkitDriver, ...]:
    """Return toolkits by version."""
    rows = [
        model.ToolkitDriver(
            toolkit=row["toolkit"],
            linux_min=row["linux_min"],
            confidence=row.get("confidence"),
            refs=tuple(row["refs"]),
        )
        for row in edited.read("cuda_drivers")["toolkits"]
    ]
    return tuple(sorted(rows, key=lambda row: key(row.toolkit)))


def compat_rows() -> tuple[model.MinorCompat, ...]:
    """Return the minimum drivers of minor-version compatibility by CUDA major."""
    rows = [
        model.MinorCompat(cuda_major=int(row["cuda_major"]), linux_min=row["linux_min"], refs=tuple(row["refs"]))
        for row in edited.read("cuda_drivers")["minor_compat"]
    ]
    return tuple(sorted(rows, key=lambda row: row.cuda_major))


def forward_rows() -> tuple[model.ForwardCompat, ...]:
    """Return forward compatibility packages by toolkit."""
    table = edited.read("cuda_drivers")["forward_compat"]
    rows = [
        model.ForwardCompat(
            toolkit=row["toolkit"],
            branches=tuple(sorted(row["branches"], key=key)),
            refs=tuple(dict.fromkeys([*row["refs"], *table["refs"]])),
        )
        for row in table["image_branches"]
    ]
    return tuple(sorted(rows, key=lambda row: key(row.toolkit)))


def gpu_rows() -> tuple[model.Gpu, ...]:
    """Return compute capabilities, ascending."""
    rows = [
        model.Gpu(
            capability=row["capability"],
            family=row["family"],
            products=tuple(row["products"]),
            first_cuda=row["first_cuda"],
            last_cuda=row["last_cuda"],
            min_driver_branch=_number(row["min_driver_branch"]),
            last_driver_branch=_number(row["last_driver_branch"]),
            amp=dict(sorted(row["amp"].items())),
            inferred=_inferred(row),
            integrated=row.get("integrated", False),
            data_center=tuple(row.get("data_center", ())),
            arm_host=tuple(row.get("arm_host", ())),
            note=row.get("note"),
            refs=tuple(row["refs"]),
        )
        for row in edited.rows("gpu_arch")
    ]
    return tuple(sorted(rows, key=lambda row: key(row.capability)))


def os_rows() -> tuple[model.Os, ...]:
    """Return operating systems in the order of the file; the first is the default."""
    return tuple(
        model.Os(
            id=row["id"],
            title=row["title"],
            family=row["family"],
            glibc=row["glibc"],
            pythons=tuple(row["pythons"]),
            image=row["image"],
            codename=row["codename"],
            cuda_image_suffix=row["cuda_suffix"],
            eol=row["eol"],
            platforms=tuple(row["platforms"]),
            aliases=tuple(row.get("aliases", ())),
            mirrors_ended=row.get("mirrors_ended", False),
            refs=tuple(row["refs"]),
        )
        for row in edited.rows("oses")
    )


def python_rows() -> tuple[model.PythonSeries, ...]:
    """Return minor versions of Python, ascending."""
    rows = [
        model.PythonSeries(
            python=row["python"], bugfix_until=row["bugfix_until"], eol=row["eol"], refs=tuple(row["refs"])
        )
        for row in edited.rows("pythons")
    ]
    return tuple(sorted(rows, key=lambda row: key(row.python)))


def cudnn_rows() -> tuple[model.Cudnn, ...]:
    """Return rows of cuDNN's support matrix by version, CUDA major and driver."""
    rows = [
        model.Cudnn(
            cudnn=row["cudnn"],
            cuda_major=row["cuda_major"],
            cuda_minors=tuple(row["cuda_minors"]),
            linux_min_driver=row["linux_min_driver"],
            capabilities=tuple(row["capabilities"]),
            confidence=row.get("confidence"),
            refs=tuple(row["refs"]),
        )
        for row in edited.rows("cudnn_cuda")
    ]
    return tuple(sorted(rows, key=lambda row: (key(row.cudnn), row.cuda_major, key(row.linux_min_driver or "0"))))


def image_rows() -> tuple[model.CudaImage, ...]:
    """Return nvidia/cuda images by toolkit, with their explicit tags."""
    listed = edited.read("docker_tag_list")
    tags: dict[str, list[str]] = {}
    for tag in (*listed["supported"], *listed["unsupported"]):
        tags.setdefault(tag.split("-", 1)[0], []).append(tag)
    rows = [
        model.CudaImage(
            cuda=row["cuda"],
            cudnn_tag_part=row["cudnn_tag_part"],
            oses=tuple(sorted(row["oses"])),
            tags=tuple(sorted(tags.get(row["cuda"], ()))),
            status=row["status"],
            refs=tuple(row["refs"]),
        )
        for row in edited.rows("docker_tags")
    ]
    return tuple(sorted(rows, key=lambda row: key(row.cuda)))


def base_rows() -> tuple[model.BaseImage, ...]:
    """Return the images that people build on, by name and tag."""
    rows = [
        model.BaseImage(
            **{field: row[field] for field in ("image", "tag", "torch", "build", "cuda", "python", "os")},
            confidence=row.get("confidence"),
            note=row.get("note"),
            refs=tuple(row["refs"]),
        )
        for row in edited.rows("base_images")
    ]
    return tuple(sorted(rows, key=lambda row: (row.image, row.tag)))


def need_rows() -> tuple[model.PackageNeeds, ...]:
    """Return what packages of the Python index need, by name."""
    rows = [
        model.PackageNeeds(
            package=row["package"],
            deb=tuple(row["deb"]),
            rpm=tuple(row["rpm"]),
            programs=tuple(row.get("programs", ())),
            pages=tuple(row["pages"]),
            indexes=tuple(row.get("indexes", ())),
            confidence=row.get("confidence"),
            note=row.get("note"),
            refs=tuple(row["refs"]),
        )
        for row in edited.rows("package_needs")
    ]
    return tuple(sorted(rows, key=lambda row: row.package))


def installer_rows() -> tuple[model.Installer, ...]:
    """Return Miniconda installers by conda version, Python and architecture."""
    table = edited.read("conda_installers")["miniconda"]
    rows = [
        model.Installer(
            file=row["file"],
            url=table["url"].format(file=row["file"]),
            python=row["python"],
            conda=row["conda"],
            arch=row["arch"],
            sha256=row["sha256"],
            refs=tuple(row["refs"]),
        )
        for row in table["rows"]
    ]
    return tuple(sorted(rows, key=lambda row: (build_key(row.conda), key(row.python), row.arch)))


def trap_rows() -> tuple[model.Trap, ...]:
    """Return known traps by ID."""
    rows = [
        model.Trap(
            id=row["id"],
            title=row["title"],
            when=dict(sorted(row["when"].items())),
            effect=row["effect"],
            fix=row["fix"],
            severity=row["severity"],
            confidence=row.get("confidence"),
            refs=tuple(row["refs"]),
        )
        for row in edited.rows("traps")
    ]
    return tuple(sorted(rows, key=lambda row: row.id))


def _inferred(row: Row) -> tuple[str, ...]:
    return tuple(sorted(part for part, level in row.get("confidence", {}).items() if level == "inferred"))


def _number(value: str | None) -> int | None:
    return None if value is None else int(value)


def _with_raised_version() -> str | None:
    """Raise the version in the `HEAD` table if the facts changed, and return the new snapshot; None if it can stay.

    Changed facts need a higher version than the existing snapshot, so that facts with the same version are the same.
    """
    try:
        existing = json.loads(PATH.read_bytes())
        version, existing_digest = int(existing["version"]), existing["digest"]
    # Without a readable snapshot there is nothing to compare with: the version of the tables stays.
    except (OSError, ValueError, KeyError):
        return None
    content = tree()
    needed = version if existing_digest == digest(content) else version + 1
    if content["version"] >= needed:
        return None
    head = edited.DATA / f"{HEAD}.yaml"
    head.write_text(with_version(head.read_text(encoding="utf-8"), needed), encoding="utf-8", newline="\n")
    edited.read.cache_clear()
    sys.stdout.write(f"{head.name}: version {needed}\n")
    return text(tree())


def main(arguments: list[str]) -> int:
    """Write the snapshot, or compare it with `--check`; return the exit code."""
    new_text = text(tree())
    if arguments == ["--check"]:
        is_current = PATH.exists() and PATH.read_text(encoding="utf-8") == new_text
        stale = f"{PATH.name} is out of date: run python -m envkit.facts.snapshot\n"
        sys.stdout.write(f"{PATH.name} is up to date\n" if is_current else stale)
        return 0 if is_current else 1
    if arguments:
        sys.stderr.write("usage: python -m envkit.facts.snapshot [--check]\n")
        return 2
    new_text = _with_raised_version() or new_text
    PATH.write_text(new_text, encoding="utf-8", newline="\n")
    sys.stdout.write(f"{PATH.name}: {len(new_text)} bytes\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
