"""Image definitions: a YAML file such as those in `images/`, read strictly into a frozen `Definition`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from envkit.ground import foreign, paths, strictyaml
from envkit.ground.errors import UsageError, shown
from envkit.ground.platforms import PLATFORMS, SPELLINGS, X86
from envkit.ground.sizes import parse_size
from envkit.ground.text import similar
from envkit.ground.versions import parse_constraint
from envkit.plan import conda_specs, copying, features, names, source_spec
from envkit.plan.fields import Fields
from envkit.plan.listed import Listed, listed_in, with_listed
from envkit.plan.model import Smoke
from envkit.plan.requirements import Target
from envkit.resolve.model import SOURCES

SCHEMA = "envkit.image/1"
NUMPY = "numpy"
COMPANIONS = (NUMPY, "torchvision", "torchaudio")
FLAVORS = ("runtime", "devel")
TIERS = ("quick", "standard", "deep")
KINDS = ("miniconda", "wheels")
# What people type in place of a definition: `torch=2.7`, `cuda==12.6`, and `12.6` alone.
_PINNED = re.compile(r"(torch|cuda|cudnn|python|driver)={1,2}([\w.*]+)")
_VERSION = re.compile(r"\d+(\.\d+)+")

# Every key with its meaning, in the order in which people write them; docs/images.md shows this table.
KEYS = {
    "schema": f"always {SCHEMA}",
    "title": "what the image is for, in one line",
    "extends": "a shipped image or a file in this folder to inherit values from (one level)",
    "request": "constraints for the resolver (see below)",
    "template": "miniconda, wheels, or your own template named miniconda-NAME or wheels-NAME",
    "flavor": "runtime (slim) or devel (CUDA toolkit and compilers)",
    "companions": f"packages installed with torch: {', '.join(COMPANIONS)}; torchvision==0.21.* chooses its torch",
    "features": f"predefined additions: {', '.join(features.NAMES)}",
    "conda": "additional conda-forge packages (miniconda template)",
    "pip": "additional packages from the Python index, wheels only",
    "constraints": "versions of packages that other packages require: numpy<2 (see below)",
    "allow_source": "packages that envkit may build from source in a sandbox (see docs/source.md)",
    "find_links": "pages that link to more wheels, as pip's --find-links (see below)",
    "indexes": "more package indexes, searched before the Python index (see below)",
    "package_indexes": "packages that come from an index of their own: NAME: URL (see below)",
    "requirements": "requirements files in this folder, read as if their lines were under pip (see below)",
    "apt": "additional system packages on Debian and Ubuntu",
    "rpm": "additional system packages on Rocky Linux, UBI and CentOS",
    "env": "environment variables of the image",
    "labels": "labels of the image",
    "user": "numeric uid:gid the image runs as",
    "workdir": "working folder",
    "entrypoint": "command that always runs, after the init process and after the environment is activated",
    "command": "default arguments, or the default command",
    "copy": "list of {from, to}: files and folders to copy into the image (see below)",
    "bytecode": "false to leave modules as sources, which starts Python more slowly (default: true)",
    "ports": "ports that programs of the image listen on: 8888, 53/udp",
    "volumes": "folders that are meant as mount points",
    "smoke": "how the image is verified (see below)",
}
REQUEST_KEYS = {
    "torch": "version, prefix or specifier",
    "cuda": "CUDA runtime version",
    "cudnn": "cuDNN version",
    "python": "Python version",
    "driver": "NVIDIA driver version of the machines that will run the image",
    "gpus": "list of GPUs: A100, 'RTX 4090', sm_86",
    "os": "operating system id, such as debian12",
    "platform": " or ".join(PLATFORMS),
    "source": ", ".join(SOURCES),
    "cpu": "true for an image without CUDA",
    "max_size": "largest download of torch and its requirements: 3GB",
    "supported_only": "true for a Python before its end of life and a torch of the two newest minor versions",
    "allow_forward_compat": "true to accept a CUDA that the driver runs only with a cuda-compat package in the image",
}
SMOKE_KEYS = {
    "tier": f"which checks run: {', '.join(TIERS)}",
    "shm_mb": "size of /dev/shm in MiB",
    "num_workers": "workers of the data loader check",
    "prefetch_factor": "batches that each worker prefetches",
    "batch_mb": "size of one batch in MiB",
    "pin_memory": "whether the loader pins its batches",
    "compile": "torch.compile: required, optional or absent",
}


_LISTS = (
    "features",
    "conda",
    "pip",
    "constraints",
    "allow_source",
    "find_links",
    "indexes",
    "apt",
    "rpm",
    "requirements",
    "copy",
    "ports",
    "volumes",
)
_MAPPINGS = ("request", "env", "labels", "package_indexes")

NO_FLAGS: Mapping[str, Any] = MappingProxyType({})
"""The values of flags if none is given."""

RequestValue = str | tuple[str, ...] | bool
"""The value of one constraint of a request, as it was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One image as its author defined it; `KEYS` describes each field. Values are checked but kept as written."""

    name: str  # the file's name without its suffix
    where: str  # the file's path, for errors
    title: str
    request: tuple[tuple[str, RequestValue], ...] = ()  # constraints, by the field names of envkit.resolve.request
    template: str = "miniconda"
    flavor: str = "runtime"
    companions: tuple[str, ...] = ("numpy", "torchvision")
    # Those that the file names, with the versions it gives: without one of them, the plan is refused.
    asked_companions: tuple[tuple[str, str], ...] = ()
    features: tuple[str, ...] = ()
    conda: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    allow_source: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    package_indexes: tuple[tuple[str, str], ...] = ()  # normalized name (PEP 503), URL
    requirements: tuple[str, ...] = ()  # files, relative to `folder`
    listed: Listed = field(default_factory=Listed)  # the contents of these files
    apt: tuple[str, ...] = ()
    rpm: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    user: str = "1000:1000"
    workdir: str = "/workspace"
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] | None = None  # None: the features' command, else python
    copy: tuple[tuple[str, str], ...] = ()  # from (relative to `folder`) and to (absolute, or below workdir)
    ports: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    bytecode: bool = True
    folder: str = ""  # of the file; empty: the current folder
    smoke: Smoke = field(default_factory=Smoke)


def shipped() -> dict[str, Path]:
    """Return the files of the definitions that come with envkit, by name."""
    return {path.stem: path for path in sorted(paths.data_folder("images").glob("*.yaml"))}


def load(name_or_path: str, given: Mapping[str, Any] = NO_FLAGS) -> Definition:
    """Return a shipped definition by its name, or the definition in a file; `given` is as for `parse`.

    Raises:
        UsageError: the name or file does not exist, or the definition has errors; all of them are reported.
    """
    known = shipped()
    if name_or_path in known:
        path = known[name_or_path]
    elif "/" in name_or_path or name_or_path.endswith((".yaml", ".yml")):
        path = Path(name_or_path)
    else:
        raise UsageError(f"unknown image definition {name_or_path!r:.100}", hint=_suggested(name_or_path, list(known)))
    where = f"images/{path.name}" if path.parent == paths.data_folder("images") else str(path)
    return parse(strictyaml.text_of(path), where=where, folder=path.parent, given=given)


def _suggested(typed: str, known: list[str]) -> str:
    """Return the hint for an unknown definition: a similar name, or the option if it looks like a version."""
    if pinned := _PINNED.fullmatch(typed):
        return f"versions are options: --{pinned[1]} {pinned[2]}"
    if _VERSION.fullmatch(typed):
        return f"versions are options: --cuda {typed}, --torch {typed} or --python {typed}"
    near = similar(typed, known)
    suggestion = f"did you mean {near[0]}? " if near else ""
    return f"{suggestion}use one of {', '.join(known)}, or the path of a file, such as ./train.yaml"


def parse(text: str, *, where: str, folder: Path, given: Mapping[str, Any] = NO_FLAGS) -> Definition:
    """Return the definition in a text.

    Args:
        text: of the file.
        where: names it in errors.
        folder: searched for what `extends` and `requirements` name.
        given: the flags that will override its request: markers of requirements files are for their Python and
            platform.

    Raises:
        UsageError: as `load`.
    """
    faults: list[str] = []
    tree = strictyaml.read(text, where)
    values = _values(tree, where, faults)
    parent = values.pop("extends", None)
    if parent is not None and not faults:
        path = shipped().get(parent, folder / f"{parent}.yaml" if not parent.endswith(".yaml") else folder / parent)
        try:
            text = foreign.text(path, root=None if parent in shipped() else folder)
        except UsageError as error:
            raise UsageError(f"{where}: extends: {parent!r}: {error.message}", hint=error.hint) from error
        first = _values(strictyaml.read(text, str(path)), str(path), faults)
        if "extends" in first:
            faults.append(
                f"{where}: extends: {parent!r} already extends {first['extends']!r}; only one level is allowed"
            )
        values = _merged(first, values)
    if "title" not in values and tree is not None:
        faults.append(f"{where}: title: missing; describe in one line what the image is for")
    listed = listed_in(
        values.get("requirements", ()),
        folder,
        target=target_of(values.get("request", {}), given),
        faults=faults,
        at=f"{where}: requirements",
    )
    listed = _with_conda(values, listed, where)
    values["request"] = with_listed(values.get("request", {}), listed, faults)
    if faults:
        raise UsageError(
            faults[0], details=shown(faults[1:]), hint="`envkit help images` lists every key and its meaning"
        )
    values["smoke"] = Smoke(**values.get("smoke", {}))
    for key in _MAPPINGS:
        values[key] = tuple(sorted(values.get(key, {}).items()))
    return Definition(name=Path(where).stem, where=where, listed=listed, folder=str(folder), **values)


def _with_conda(values: dict[str, Any], listed: Listed, where: str) -> Listed:
    """Write conda specs in their plain form, and return `listed` with the constraints of the one for torch."""
    if "conda" not in values:
        return listed
    values["conda"], of_torch = conda_specs.split(values["conda"], f"{where}: conda")
    return replace(listed, settings=(*listed.settings, *of_torch))


def target_of(request: Mapping[str, Any], given: Mapping[str, Any]) -> Target:
    """Return what markers are evaluated for: the platform and the exact Python that flags, or else a request, name."""
    asked = {**request, **{key: value for key, value in given.items() if value}}
    platform = SPELLINGS.get(str(asked.get("platform", "")).lower(), X86.name)
    return Target(python=_exact_python(given) or _exact_python(request), platform=platform)


def _exact_python(request: Mapping[str, Any]) -> str | None:
    """Return the Python minor version that a request fixes, for markers; None if it does not fix one."""
    # `3.11`, `==3.11.*`, `3.11.7`; a range such as `>=3.10` decides no marker.
    match = re.fullmatch(r"(?:==)?\s*(3\.[0-9]+)(?:\.[0-9*]+)?", str(request.get("python", "")))
    return match.group(1) if match else None


def overlaid(definition: Definition, tree: Mapping[str, Any], where: str) -> Definition:
    """Return a definition with some keys of its schema overridden, as a file that extends it would.

    Args:
        definition: the definition to change; its name stays.
        tree: the keys with their values, as `envkit.ground.strictyaml` returns them.
        where: the name of the tree in errors.

    Raises:
        UsageError: a key or a value is invalid; all errors are reported.
    """
    if not tree:
        return definition
    faults: list[str] = []
    values = _values({"schema": SCHEMA, **tree}, where, faults)
    if faults:
        raise UsageError(
            faults[0], details=shown(faults[1:]), hint="`envkit help images` lists every key and its meaning"
        )
    of_torch = _with_conda(values, Listed(), where)
    if of_torch.settings:
        values["request"] = with_listed(values.get("request", {}), of_torch, faults)
        values["listed"] = replace(definition.listed, settings=(*definition.listed.settings, *of_torch.settings))
    own = {key: dict(getattr(definition, key)) for key in _MAPPINGS}
    own |= {key: getattr(definition, key) for key in _LISTS}
    merged = _merged({key: own[key] for key in values if key in own}, values)
    for key in _MAPPINGS:
        if key in merged:
            merged[key] = tuple(sorted(merged[key].items()))
    return replace(definition, **merged)


def kind_of(template: str) -> str | None:
    """Return how a template installs packages, from its name: `miniconda`, `wheels`, or None for any other name."""
    return next((kind for kind in KINDS if template == kind or template.startswith(f"{kind}-")), None)


def check_template(value: str) -> str | None:
    """Return why a template's name is refused, None if it is fine."""
    if not re.fullmatch(r"[a-z0-9]+(?:[-_][a-z0-9]+)*", value) or kind_of(value) is None:
        return "is not a template name; use miniconda, wheels, or a name that begins with miniconda- or wheels-"
    return None


def _values(tree: Any, where: str, faults: list[str]) -> dict[str, Any]:
    top = Fields(tree, where, KEYS, faults)
    if not isinstance(tree, dict):
        return {}
    if "schema" not in top:
        faults.append(f"{where}: schema: missing; write `schema: {SCHEMA}`")
    return read_fields(top, faults)


def read_fields(top: Fields, faults: list[str]) -> dict[str, Any]:
    """Read every key of a definition; `envkit.plan.shape` derives the JSON Schema from these calls."""
    top.choice("schema", (SCHEMA,))
    values: dict[str, Any] = {
        "title": top.text("title", names.text),
        "extends": top.text("extends", _parent),
        "request": _request(top.child("request", REQUEST_KEYS), faults) if "request" in top else None,
        "template": top.text("template", check_template),
        "flavor": top.choice("flavor", FLAVORS),
        "companions": None if (asked := _companions(top)) is None else tuple(name for name, _ in asked),
        "asked_companions": asked,
        "features": top.choices("features", features.NAMES),
        "conda": top.words("conda", conda_specs.check),
        "pip": top.words("pip", names.pip_spec),
        "constraints": top.words("constraints", names.constraint),
        "allow_source": top.words("allow_source", source_spec.fault),
        "find_links": top.words("find_links", names.package_source),
        "indexes": top.words("indexes", names.package_source),
        "package_indexes": top.pairs("package_indexes", names.package_index),
        "apt": top.words("apt", names.deb_package),
        "rpm": top.words("rpm", names.rpm_package),
        "env": top.pairs("env", names.variable),
        "labels": top.pairs("labels", names.label),
        "user": top.text("user", names.user),
        "workdir": top.text("workdir", names.workdir),
        "entrypoint": top.command("entrypoint", names.command),
        "cmd": top.command("command", names.command),
        "requirements": top.words("requirements", names.text),
        "copy": _copy(top),
        "bytecode": top.flag("bytecode"),
        "ports": top.words("ports", names.port),
        "volumes": top.words("volumes", copying.volume),
        "smoke": _smoke(top.child("smoke", SMOKE_KEYS)) if "smoke" in top else None,
    }
    return {key: value for key, value in values.items() if value is not None}


_COMPANION = re.compile(r"(?P<name>[a-z]+)\s*(?P<range>[<>=!~].*)?")


def _companions(top: Fields) -> tuple[tuple[str, str], ...] | None:
    """Read companions: each a name, and for those that torch decides a constraint or an empty text."""
    words = top.words("companions", _companion)
    if words is None:
        return None
    return tuple((match["name"], match["range"] or "") for match in map(_COMPANION.fullmatch, words) if match)


def _companion(value: str) -> str | None:
    match = _COMPANION.fullmatch(value)
    if match is None or match["name"] not in COMPANIONS:
        return f"is not one of {', '.join(COMPANIONS)}, with or without a version as in torchvision==0.21.*"
    if match["range"] and match["name"] == NUMPY:
        return "has a version, which belongs under pip, conda or constraints"
    try:
        if match["range"]:
            parse_constraint(match["range"], "companions")
    except UsageError as error:
        return f"has a version that cannot be read: {error.message.partition(': ')[2]}"
    return None


def _copy(top: Fields) -> tuple[tuple[str, str], ...] | None:
    rows = top.rows("copy", ("from", "to"), lambda row: copying.check(row["from"], row["to"]))
    return None if rows is None else tuple((row["from"], row["to"]) for row in rows)


def _request(under: Fields, faults: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key in ("torch", "cuda", "cudnn", "python"):
        value = under.text(key, names.text)
        if value is None:
            continue
        try:
            parse_constraint(value, under.at(key))
        except UsageError as error:
            faults.append(f"{error.message}; {error.hint}")
        values[key] = value
    values |= {
        "driver": under.text("driver", lambda value: None if _DRIVER.fullmatch(value) else "is not a driver version"),
        "gpu": under.words("gpus", names.text),
        "os": under.text("os", names.text),
        "platform": under.choice("platform", PLATFORMS),
        "source": under.choice("source", SOURCES),
        "cpu": under.flag("cpu"),
        "max_size": under.text("max_size", _size),
        "supported_only": under.flag("supported_only"),
        "allow_forward_compat": under.flag("allow_forward_compat"),
    }
    return {key: value for key, value in values.items() if value is not None}


# `550`, `550.54`, `550.54.15`
_DRIVER = re.compile(r"[0-9]+(?:\.[0-9]+){0,2}")


def _size(value: str) -> str | None:
    try:
        most = parse_size(value, "max_size")
    except UsageError:
        return "is not a size; write a number and a unit: 3GB"
    return None if most else "allows no download; write 3GB"


def _smoke(under: Fields) -> dict[str, Any]:
    values = {
        "tier": under.choice("tier", TIERS),
        "shm_mb": under.number("shm_mb", 1, 1 << 20),
        "num_workers": under.number("num_workers", 0, 64),
        "prefetch_factor": under.number("prefetch_factor", 1, 64),
        "batch_mb": under.number("batch_mb", 1, 64),
        "pin_memory": under.flag("pin_memory"),
        "compile": under.choice("compile", ("required", "optional", "absent")),
    }
    return {key: value for key, value in values.items() if value is not None}


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return the parent's values overridden by the child's: mappings are merged, lists extended, the rest replaced."""
    merged = first | second
    for key in (*_MAPPINGS, "smoke"):
        if key in first and key in second:
            merged[key] = first[key] | second[key]
    for key in _LISTS:
        if key in first and key in second:
            merged[key] = tuple(dict.fromkeys((*first[key], *second[key])))
    if "request" in first and "request" in second:
        merged["request"] = _merged_request(first["request"], second["request"])
    return merged


def _merged_request(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    return drop_contradicted(first, cpu=second.get("cpu") is True, cuda=bool(CUDA_KEYS & second.keys())) | second


CUDA_KEYS = frozenset({"cuda", "cudnn", "driver", "gpu"})


def drop_contradicted(values: dict[str, Any], *, cpu: bool, cuda: bool) -> dict[str, Any]:
    """Return the earlier request without what a later one contradicts: CPU and CUDA exclude each other."""
    dropped = CUDA_KEYS if cpu else {"cpu"} if cuda else frozenset()
    return {key: value for key, value in values.items() if key not in dropped}


def _parent(value: str) -> str | None:
    return (
        None
        if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value)
        else "is neither a shipped image nor a file in this folder"
    )


assert set(SMOKE_KEYS) == {entry.name for entry in fields(Smoke)}
