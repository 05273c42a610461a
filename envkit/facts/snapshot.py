"""Makes the snapshot that envkit loads from the YAML tables that people edit.

    python -m envkit.facts.snapshot            writes envkit/facts/snapshot.json; changed facts get the next version
    python -m envkit.facts.snapshot --check    exit 1 when it is not in step with the YAML

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
from envkit.ground.versions import key

PATH = Path(__file__).parent / "snapshot.json"

HEAD = "torch_releases"
"""The table whose head has the version and the date of all tables."""
_VERSION = re.compile(r"(?m)^version: '([0-9]{1,9})'$")

Row = dict[str, Any]


def version_of(text: str) -> int:
    """The version of all tables, from the text of the table with the head; 0 where it has none."""
    match = _VERSION.search(text)
    return int(match.group(1)) if match else 0


def with_version(text: str, version: int) -> str:
    """The text of the table with the head, with another version."""
    return _VERSION.sub(f"version: '{version}'", text, count=1)


def tree() -> dict[str, Any]:
    """The normalized tables as a JSON-ready tree."""
    rows = {
        "releases": release_rows(),
        "builds": build_rows(),
        "toolkits": toolkit_rows(),
        "compat": compat_rows(),
        "forward": forward_rows(),
        "gpus": gpu_rows(),
        "oses": os_rows(),
        "pythons": python_rows(),
        "cudnns": cudnn_rows(),
        "cuda_images": image_rows(),
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
    """SHA-256 (hex) of the canonical JSON of a snapshot's rows and sources: without its version."""
    content = {name: value for name, value in content.items() if name != "version"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def text(content: dict[str, Any]) -> str:
    """The snapshot's text: JSON with one row per line, its checksum on the first and its digest on the second."""
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
    """One row per torch release."""
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
    """The announced day; where only a month was announced, the day its build matrix went live."""
    announced: str | None = row["released"]
    if announced and len(announced) == len("2025-06-03"):
        return announced
    return row["matrix_live"] or announced


def toolkit_rows() -> tuple[model.ToolkitDriver, ...]:
    """Toolkits by version."""
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
    """Floors of minor-version compatibility by CUDA major."""
    rows = [
        model.MinorCompat(cuda_major=int(row["cuda_major"]), linux_min=row["linux_min"], refs=tuple(row["refs"]))
        for row in edited.read("cuda_drivers")["minor_compat"]
    ]
    return tuple(sorted(rows, key=lambda row: row.cuda_major))


def forward_rows() -> tuple[model.ForwardCompat, ...]:
    """Forward compatibility packages by toolkit."""
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
    """Compute capabilities, ascending."""
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
            note=row.get("note"),
            refs=tuple(row["refs"]),
        )
        for row in edited.rows("gpu_arch")
    ]
    return tuple(sorted(rows, key=lambda row: key(row.capability)))


def os_rows() -> tuple[model.Os, ...]:
    """Operating systems in the order of the file: the first is the usual choice."""
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
    """Minor versions of Python, ascending."""
    rows = [
        model.PythonSeries(
            python=row["python"], bugfix_until=row["bugfix_until"], eol=row["eol"], refs=tuple(row["refs"])
        )
        for row in edited.rows("pythons")
    ]
    return tuple(sorted(rows, key=lambda row: key(row.python)))


def cudnn_rows() -> tuple[model.Cudnn, ...]:
    """Support matrix rows of cuDNN by version, CUDA major and driver."""
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
    """nvidia/cuda images by toolkit, with the explicit tags of each."""
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


def installer_rows() -> tuple[model.Installer, ...]:
    """Miniconda installers by conda version, Python and machine."""
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
    return tuple(sorted(rows, key=lambda row: (conda_key(row.conda), key(row.python), row.arch)))


def conda_key(conda: str) -> tuple[tuple[int, ...], int]:
    """Sort key of an installer's conda version with its build number: '26.5.3-1'."""
    version, _, build = conda.partition("-")
    return key(version), int(build or 0)


def trap_rows() -> tuple[model.Trap, ...]:
    """Known traps by id."""
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


def _number(text_or_none: str | None) -> int | None:
    return None if text_or_none is None else int(text_or_none)


def _raised() -> str | None:
    """The snapshot with a raised version, which the table gets as well; None where the version may stay.

    Facts that differ from those of the snapshot have a higher version than it, so that two sets of facts with the same
    version are the same.
    """
    try:
        before = json.loads(PATH.read_bytes())
        was, digested = int(before["version"]), before["digest"]
    except (OSError, ValueError, KeyError):
        return None
    content = tree()
    least = was if digested == digest(content) else was + 1
    if content["version"] >= least:
        return None
    head = edited.DATA / f"{HEAD}.yaml"
    head.write_text(with_version(head.read_text(encoding="utf-8"), least), encoding="utf-8", newline="\n")
    edited.read.cache_clear()
    sys.stdout.write(f"{head.name}: version {least}\n")
    return text(tree())


def main(arguments: list[str]) -> int:
    """Write the snapshot, or with `--check` compare it; returns the exit code."""
    made = text(tree())
    if arguments == ["--check"]:
        same = PATH.exists() and PATH.read_text(encoding="utf-8") == made
        sys.stdout.write("in step\n" if same else f"{PATH.name} is stale: run python -m envkit.facts.snapshot\n")
        return 0 if same else 1
    if arguments:
        sys.stderr.write("usage: python -m envkit.facts.snapshot [--check]\n")
        return 2
    made = _raised() or made
    PATH.write_text(made, encoding="utf-8", newline="\n")
    sys.stdout.write(f"{PATH.name}: {len(made)} bytes\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
