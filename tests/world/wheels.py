"""Download wheels from this machine's Python index, and convert them to conda packages."""

import configparser
import email
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Collection
from email.message import Message
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from tests.world import conda_package
from tests.world.conda_package import PLACEHOLDER, Metadata
from tests.world.places import UnavailableError, cache, say
from tests.world.python_package import BUILD_TAG, SHORT

TORCH = "2.13.0"
_WANTED = (f"torch=={TORCH}", "numpy", "pip", "setuptools", "wheel")
_CONDA_NAMES = {"torch": "pytorch", "typing-extensions": "typing_extensions"}


def fetch() -> list[Path]:
    """Return the wheels of torch's CPU build and its dependencies, downloaded once; raises UnavailableError."""
    folder = cache("wheels")
    done = folder / ".complete"
    if not done.exists() or done.read_text() != repr(_WANTED):
        index = _cpu_index()
        say(f"pip download {' '.join(_WANTED)}")
        _pip("download", "--quiet", "--only-binary", ":all:", "--dest", str(folder), *index, *_WANTED)
        done.write_text(repr(_WANTED))
    return sorted(folder.glob("*.whl"))


def install_torch() -> None:
    """Install torch's CPU build and numpy into the running interpreter; raises UnavailableError."""
    index = _cpu_index()
    say(f"pip install torch=={TORCH} numpy")
    _pip("install", "--quiet", *index, f"torch=={TORCH}", "numpy")


def convert(wheel: Path, channel: Path, stage: Path, offered: Collection[str]) -> Path:
    """Convert a wheel to a conda package; `offered` has the canonical names of the channel's future packages."""
    name, version, _, tags = parse_wheel_filename(wheel.name)
    pure = all(tag.platform == "any" for tag in tags)
    shutil.rmtree(stage, ignore_errors=True)
    site = stage / ("site-packages" if pure else f"lib/python{SHORT}/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        executable = [member.filename for member in archive.infolist() if (member.external_attr >> 16) & 0o111]
    for member in executable:
        if (site / member).is_file():
            (site / member).chmod(0o755)
    dist_info = next(site.glob("*.dist-info"))
    message = email.message_from_string((dist_info / "METADATA").read_text())
    (dist_info / "INSTALLER").write_text("conda\n")
    entry_points = _entry_points(dist_info)
    if not pure:
        _move_data(next(iter(site.glob("*.data")), None), stage, site)
        for entry in entry_points:
            _write_script(stage / "bin", entry)
        conda_package.compile_modules(stage)
    limits = re.sub(r"\s", "", message.get("Requires-Python") or ">=3.8") if pure else f"{SHORT}.*"
    depends = [f"python {limits}"] + ([] if pure else ["__glibc >=2.28,<3.0.a0"])
    depends += ["numpy"] if name == "torch" else []
    depends += _depends(message, offered)
    build = "py_0" if pure else f"cpu_generic_{BUILD_TAG}_0" if name == "torch" else f"{BUILD_TAG}_0"
    metadata = Metadata(
        conda_name(name), version.public, build, tuple(dict.fromkeys(depends)),
        noarch="python" if pure else None, entry_points=tuple(entry_points) if pure else (),
        license=message.get("License-Expression") or "",
    )  # fmt: skip
    return conda_package.write(metadata, stage, channel)


def conda_name(name: str) -> str:
    """Return conda-forge's name for a distribution."""
    return _CONDA_NAMES.get(canonicalize_name(name), canonicalize_name(name))


def _cpu_index() -> list[str]:
    """Return the pip options that select torch's CPU build. They are tried with --dry-run, before a large download."""
    setting = os.environ.get("ENVKIT_PYTORCH_INDEX", "").rstrip("/")
    for options in [[], ["--extra-index-url", f"{setting}/cpu"]] if setting else [[]]:
        report = _pip("install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps", "--report", "-", *options,
                      _WANTED[0])  # fmt: skip
        item = json.loads(report)["install"][0]
        if item["metadata"]["version"].endswith("+cpu"):
            return options
    raise UnavailableError(
        f"the Python index here has torch {TORCH} only with CUDA; set one with CPU builds: ENVKIT_PYTORCH_INDEX=URL"
    )


def _pip(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-color", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["failed without any output"]
        raise UnavailableError(f"pip {arguments[0]}: {lines[-1]}")
    return done.stdout


def _depends(message: Message, offered: Collection[str]) -> list[str]:
    specs = []
    for text in message.get_all("Requires-Dist") or []:
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        if canonicalize_name(requirement.name) in offered:
            limits = re.sub(r"\s", "", str(requirement.specifier))
            specs.append(f"{conda_name(requirement.name)} {limits}".strip())
    return sorted(specs)


def _entry_points(dist_info: Path) -> list[str]:
    parser = configparser.ConfigParser(delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names of commands keep their case
    parser.read(dist_info / "entry_points.txt")
    return (
        [f"{key} = {value}" for key, value in parser["console_scripts"].items()] if "console_scripts" in parser else []
    )


def _write_script(folder: Path, entry: str) -> None:
    command, target = (part.strip() for part in entry.split("="))
    module, function = target.split("[", maxsplit=1)[0].strip().split(":")
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / command
    script.write_text(f"#!{PLACEHOLDER}/bin/python\nimport sys\n\nfrom {module} import {function.split('.')[0]}\n\n"
                      f"sys.exit({function}())\n")  # fmt: skip
    script.chmod(0o755)


def _move_data(data: Path | None, stage: Path, site: Path) -> None:
    """Move the `.data` folders of a wheel to where an installer puts them."""
    if data is None:
        return
    targets = {"scripts": stage / "bin", "data": stage, "headers": stage / "include", "purelib": site, "platlib": site}
    for kind, target in targets.items():
        if (data / kind).is_dir():
            shutil.copytree(data / kind, target, dirs_exist_ok=True)
    shutil.rmtree(data)
