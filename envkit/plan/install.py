"""Install a resolution without an image: a command, or a fragment for the file of another tool.

Every format pins the resolved build exactly: by its local version and index for wheels, by its build string for conda.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from envkit.ground.errors import UsageError
from envkit.ground.platforms import platform
from envkit.plan import family
from envkit.resolve.companions import COMPANION_PACKAGES
from envkit.resolve.companions import COMPANIONS as DEFAULT_COMPANIONS

if TYPE_CHECKING:
    from envkit.resolve.model import Resolution

COMPANIONS = COMPANION_PACKAGES
"""What a command installs beside torch, where an answer has a file of it."""
_NAME = "train"
"""The name of new environments and projects."""
# A blank before the range is conda's: `torchaudio >=2.3,<3`.
_WHEEL_SPEC = re.compile(r"(?P<name>[A-Za-z0-9._-]+) ?(?P<constraint>[<>=!~].*)?")
# `pytorch=2.7.1=cuda*`, `cuda-version=12.6`, `setuptools>=77`, `torchaudio >=2.3,<3`, `cpuonly`
_CONDA_SPEC = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(?:=(?P<version>[^=<>!~]+)(?:=(?P<build>.+))?| ?(?P<constraint>[<>=!~].*))?"
)


def command(resolution: Resolution) -> str:
    """Return the one command that installs a resolution into the active environment."""
    return conda(resolution) if _is_conda(resolution) else pip(resolution)


def unnamed_companions(resolution: Resolution) -> tuple[str, ...]:
    """Return the companions that the command for a conda channel leaves out, because no fact pairs them with torch.

    The channel has them, and its solver pairs them. Of a wheel that is left out the resolution's warnings say why.
    """
    named = {_split(spec)[0] for spec in _family(resolution)}
    return tuple(name for name in DEFAULT_COMPANIONS if name not in named) if _is_conda(resolution) else ()


def requirements_of(resolution: Resolution) -> tuple[str, ...]:
    """Return torch, its companions and the resolver's pins, as wheels' requirements or conda's specs."""
    return tuple(spec for part in parts(resolution) for spec in part)


def parts(resolution: Resolution, companions: tuple[str, ...] = COMPANIONS) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the requirements that come from the index of the variant, and those that may come from another index."""
    return _family(resolution, companions), family.extra_specs(resolution, ())


def _family(resolution: Resolution, companions: tuple[str, ...] = COMPANIONS) -> tuple[str, ...]:
    """Return what comes from the variant's index, if it has one: torch, its companions and pinned CUDA libraries."""
    wheels = () if _is_conda(resolution) else family.wheel_pins(resolution)
    return (*family.specs(resolution, companions), *wheels)


def pip(resolution: Resolution) -> str:
    """Return a `pip install` command."""
    return _installs("pip install", resolution)


def requirements(resolution: Resolution) -> str:
    """Return the lines of a requirements.txt.

    The index of the variant is an extra one: the local version in each pin keeps other indexes from satisfying it.
    """
    extra = [f"--extra-index-url {resolution.index}"] if _index(resolution) else []
    return _lines(*extra, *requirements_of(resolution))


def dockerfile(resolution: Resolution) -> str:
    """Return a RUN instruction."""
    if _is_conda(resolution):
        words = " ".join(map(shlex.quote, _conda_words(resolution)))
        return f"RUN {_virtual(resolution)}conda install --yes --name base {words} && conda clean --all --yes\n"
    return "RUN " + _installs("pip install --no-cache-dir", resolution).replace(" && ", " \\\n && ") + "\n"


def uv(resolution: Resolution) -> str:
    """Return a pyproject.toml that uv locks for the resolved platform on any machine."""
    specs = requirements_of(resolution)
    target = f"sys_platform == 'linux' and platform_machine == '{platform(resolution.platform).machine}'"
    lines = [
        "[project]",
        f"name = {_text(_NAME)}",
        # PEP 621 requires a version.
        'version = "0"',
        f"requires-python = {_text(f'=={resolution.python}.*')}",
        "dependencies = [",
        *(f"    {_text(spec)}," for spec in specs),
        "]",
        "",
        "[tool.uv]",
        f"environments = [{_text(target)}]",
    ]
    if _index(resolution):
        label = f"pytorch-{(resolution.local_version or '+torch')[1:]}"
        # `explicit` leaves all other packages to the default index.
        own = [_split(spec)[0] for spec in _family(resolution)]
        lines += ["", "[tool.uv.sources]", *(f"{name} = {{ index = {_text(label)} }}" for name in own)]
        lines += ["", "[[tool.uv.index]]", f"name = {_text(label)}", f"url = {_text(resolution.index)}"]
        lines += ["explicit = true"]
    return _lines(*lines)


def conda(resolution: Resolution) -> str:
    """Return a `conda create` command."""
    words = (*_conda_words(resolution), f"python={resolution.python}")
    return f"{_virtual(resolution)}conda create --name {_NAME} " + " ".join(map(shlex.quote, words))


def environment(resolution: Resolution) -> str:
    """Return an environment.yml."""
    is_conda = _is_conda(resolution)
    lines = [f"name: {_NAME}", "channels:", *(f"  - {channel}" for channel in _channels(resolution)), "dependencies:"]
    lines.append(f"  - python={resolution.python}")
    if is_conda:
        return _lines(*lines, *(f"  - {_text(spec)}" for spec in requirements_of(resolution)))
    extra = [f"      - --extra-index-url {resolution.index}"] if _index(resolution) else []
    specs = [f"      - {_text(spec)}" for spec in requirements_of(resolution)]
    return _lines(*lines, "  - pip", "  - pip:", *extra, *specs)


def pixi(resolution: Resolution) -> str:
    """Return a pixi.toml; `system-requirements` make it solvable on a machine without a GPU."""
    lines = ["[workspace]", f"name = {_text(_NAME)}", f"channels = {json.dumps(list(_channels(resolution)))}"]
    lines += [f"platforms = [{_text(resolution.platform)}]", "", "[system-requirements]"]
    lines += [f"cuda = {_text(resolution.cuda)}"] if resolution.cuda else []
    lines += [f'libc = {{ family = "glibc", version = {_text(resolution.glibc)} }}'] if resolution.glibc else []
    if not resolution.cuda and not resolution.glibc:
        del lines[-2:]
    lines += ["", "[dependencies]", f"python = {_text(f'{resolution.python}.*')}"]
    if _is_conda(resolution):
        return _lines(*lines, *map(_pixi_conda, requirements_of(resolution)))
    lines += ["", "[pypi-dependencies]"]
    own = _family(resolution)
    for spec in requirements_of(resolution):
        name, version = _split(spec)
        index = f", index = {_text(resolution.index)}" if _index(resolution) and spec in own else ""
        lines.append(f"{name} = {{ version = {_text(version)}{index} }}")
    return _lines(*lines)


FORMATS: Mapping[str, Callable[[Resolution], str]] = {
    "pip": pip,
    "uv": uv,
    "conda": conda,
    "pixi": pixi,
    "dockerfile": dockerfile,
    "requirements": requirements,
    "environment": environment,
}
CONDA_FORMATS = frozenset({"conda"})
WHEEL_FORMATS = frozenset({"pip", "uv", "requirements"})


def text_of(resolution: Resolution, form: str) -> str:
    """Return a resolution in one of `FORMATS`, ending with a newline.

    Raises:
        UsageError: the format installs conda packages and the resolution has wheels, or vice versa.
    """
    is_conda = _is_conda(resolution)
    if form in CONDA_FORMATS and not is_conda:
        raise _other_source(form, resolution, "conda-forge")
    if form in WHEEL_FORMATS and is_conda:
        raise _other_source(form, resolution, "pytorch")
    return FORMATS[form](resolution).rstrip("\n") + "\n"


def _other_source(form: str, resolution: Resolution, source: str) -> UsageError:
    return UsageError(
        f"--format {form} cannot install the packages of source {resolution.source}",
        hint=f"add --source {source}, or use --format environment",
    )


def _is_conda(resolution: Resolution) -> bool:
    return resolution.source in family.CONDA_SOURCES


def _index(resolution: Resolution) -> bool:
    """Return whether the wheels need their own index; those of the Python index come from the client's default one."""
    return resolution.source == "pytorch" and resolution.index is not None


def _installs(verb: str, resolution: Resolution) -> str:
    """Return the install from the variant's index, after that of pinned packages that this index may not have."""
    if not _index(resolution):
        return f"{verb} " + shlex.join(requirements_of(resolution))
    others = family.extra_specs(resolution, ())
    first = f"{verb} {shlex.join(others)} && " if others else ""
    return f"{first}{verb} {shlex.join(_family(resolution))} --index-url {resolution.index}"


def _conda_words(resolution: Resolution) -> tuple[str, ...]:
    named = [word for channel in _channels(resolution) for word in ("--channel", channel)]
    # Without this option, conda adds the channels of its configuration, such as Anaconda's defaults.
    return (*named, "--override-channels", *requirements_of(resolution))


def _virtual(resolution: Resolution) -> str:
    """Return the variable that lets conda solve for CUDA on a machine without a driver."""
    return f"CONDA_OVERRIDE_CUDA={resolution.cuda} " if resolution.cuda else ""


def _channels(resolution: Resolution) -> tuple[str, ...]:
    return family.channels(resolution)


def _pixi_conda(spec: str) -> str:
    match = _CONDA_SPEC.fullmatch(spec)
    assert match, spec
    if match["version"] is None:
        return f"{match['name']} = {_text(match['constraint'] or '*')}"
    version = f"=={match['version']}" if match["build"] else f"{match['version']}.*"
    build = f", build = {_text(match['build'])}" if match["build"] else ""
    return f"{match['name']} = {{ version = {_text(version)}{build} }}"


def _split(spec: str) -> tuple[str, str]:
    """Split `numpy<2` into name and constraint; `*` without one."""
    match = _WHEEL_SPEC.fullmatch(spec)
    assert match, spec
    return match["name"], match["constraint"] or "*"


def _text(value: str | None) -> str:
    """Return a string quoted in a form that is the same in TOML and YAML."""
    return json.dumps(value, ensure_ascii=False)


def _lines(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)
