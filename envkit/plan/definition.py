"""Image definitions: a YAML file such as those in `images/`, read strictly into a frozen `Definition`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

from envkit.ground import foreign, paths, records, schemas, strictyaml
from envkit.ground.errors import Faults, UsageError
from envkit.ground.platforms import PLATFORMS, SPELLINGS, X86
from envkit.ground.records import Doc, Each, Location, choice, choices, command, flag, pairs, part, text, words
from envkit.ground.sizes import parse_size
from envkit.ground.text import similar
from envkit.ground.versions import parse_constraint
from envkit.plan import conda_specs, copying, features, names, source_spec
from envkit.plan.listed import Listed, listed_in, with_listed
from envkit.plan.model import Smoke
from envkit.plan.requirements import Target
from envkit.resolve.model import SOURCES

SCHEMA = "envkit.image/1"
NUMPY = "numpy"
COMPANIONS = (NUMPY, "torchvision", "torchaudio")
FLAVORS = ("runtime", "devel")
KINDS = ("miniconda", "wheels")
# What people type in place of a definition: `torch=2.7`, `cuda==12.6`, and `12.6` alone.
_PINNED = re.compile(r"(torch|cuda|cudnn|python|driver)={1,2}([\w.*]+)")
_VERSION = re.compile(r"\d+(\.\d+)+")
_HINT = "`envkit help images` lists every key and its meaning"

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

Texts = tuple[str, ...]
Pairs = tuple[tuple[str, str], ...]
RequestValue = str | tuple[str, ...] | bool
"""The value of one constraint of a request, as it was written."""


class Constraints:
    """The keys of `request`: constraints for the resolver, by the field names of envkit.resolve.request."""

    torch: Annotated[str, _VERSIONS, Doc("version, prefix or specifier")]
    cuda: Annotated[str, _VERSIONS, Doc("CUDA runtime version")]
    cudnn: Annotated[str, _VERSIONS, Doc("cuDNN version")]
    python: Annotated[str, _VERSIONS, Doc("Python version")]
    driver: Annotated[str, text(_driver), Doc("NVIDIA driver version of the machines that will run the image")]
    gpu: Annotated[tuple[str, ...], words(names.text), Doc("list of GPUs: A100, 'RTX 4090', sm_86", key="gpus")]
    os: Annotated[str, text(names.text), Doc("operating system id, such as debian12")]
    platform: Annotated[str, choice(*PLATFORMS), Doc(" or ".join(PLATFORMS))]
    source: Annotated[str, choice(*SOURCES), Doc(", ".join(SOURCES))]
    cpu: Annotated[bool, flag(), Doc("true for an image without CUDA")]
    max_size: Annotated[str, text(_size), Doc("largest download of torch and its requirements: 3GB")]
    supported_only: Annotated[
        bool, flag(), Doc("true for a Python before its end of life and a torch of the two newest minor versions")
    ]
    allow_forward_compat: Annotated[
        bool, flag(), Doc("true to accept a CUDA that the driver runs only with a cuda-compat package in the image")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One image as its author defined it. Values are checked but kept as written; docs/images.md shows the keys."""

    name: str  # the file's name without its suffix
    where: str  # the file's path, for errors
    schema: ClassVar[
        Annotated[str, choice(SCHEMA), Doc(f"always {SCHEMA}", missing=f"missing; write `schema: {SCHEMA}`")]
    ]
    title: Annotated[str, text(names.text), Doc("what the image is for, in one line")]
    extends: ClassVar[
        Annotated[
            str, text(_parent), Doc("a shipped image or a file in this folder to inherit values from (one level)")
        ]
    ]
    request: Annotated[
        tuple[tuple[str, RequestValue], ...], part(Constraints), Doc("constraints for the resolver (see below)")
    ] = ()
    template: Annotated[
        str, text(check_template), Doc("miniconda, wheels, or your own template named miniconda-NAME or wheels-NAME")
    ] = "miniconda"
    flavor: Annotated[str, choice(*FLAVORS), Doc("runtime (slim) or devel (CUDA toolkit and compilers)")] = "runtime"
    companions: Annotated[
        Texts,
        words(_companion),
        Doc(f"packages installed with torch: {', '.join(COMPANIONS)}; torchvision==0.21.* chooses its torch"),
    ] = ("numpy", "torchvision")
    # Those that the file names, with the versions it gives: without one of them, the plan is refused.
    asked_companions: Pairs = ()
    features: Annotated[Texts, choices(*features.NAMES), Doc(f"predefined additions: {', '.join(features.NAMES)}")] = ()
    conda: Annotated[Texts, words(conda_specs.check), Doc("additional conda-forge packages (miniconda template)")] = ()
    pip: Annotated[Texts, words(names.pip_spec), Doc("additional packages from the Python index, wheels only")] = ()
    constraints: Annotated[
        Texts, words(names.constraint), Doc("versions of packages that other packages require: numpy<2 (see below)")
    ] = ()
    allow_source: Annotated[
        Texts,
        words(source_spec.fault),
        Doc("packages that envkit may build from source in a sandbox (see docs/source.md)"),
    ] = ()
    find_links: Annotated[
        Texts, words(names.package_source), Doc("pages that link to more wheels, as pip's --find-links (see below)")
    ] = ()
    indexes: Annotated[
        Texts, words(names.package_source), Doc("more package indexes, searched before the Python index (see below)")
    ] = ()
    # Normalized name (PEP 503), URL.
    package_indexes: Annotated[
        Pairs, pairs(names.package_index), Doc("packages that come from an index of their own: NAME: URL (see below)")
    ] = ()
    # Files, relative to `folder`.
    requirements: Annotated[
        Texts,
        words(names.text),
        Doc("requirements files in this folder, read as if their lines were under pip (see below)", after="command"),
    ] = ()
    listed: Listed = field(default_factory=Listed)  # the contents of these files
    apt: Annotated[Texts, words(names.deb_package), Doc("additional system packages on Debian and Ubuntu")] = ()
    rpm: Annotated[
        Texts, words(names.rpm_package), Doc("additional system packages on Rocky Linux, UBI and CentOS")
    ] = ()
    env: Annotated[Pairs, pairs(names.variable), Doc("environment variables of the image")] = ()
    labels: Annotated[Pairs, pairs(names.label), Doc("labels of the image")] = ()
    user: Annotated[str, text(names.user), Doc("numeric uid:gid the image runs as")] = "1000:1000"
    workdir: Annotated[str, text(names.workdir), Doc("working folder")] = "/workspace"
    entrypoint: Annotated[
        Texts,
        command(names.command),
        Doc("command that always runs, after the init process and after the environment is activated"),
    ] = ()
    # None: the features' command, else python.
    cmd: Annotated[
        Texts | None, command(names.command), Doc("default arguments, or the default command", key="command")
    ] = None
    # From (relative to `folder`) and to (absolute, or below workdir).
    copy: Annotated[
        Pairs, _COPIES, Doc("list of {from, to}: files and folders to copy into the image (see below)")
    ] = ()
    bytecode: Annotated[
        bool, flag(), Doc("false to leave modules as sources, which starts Python more slowly (default: true)")
    ] = True
    ports: Annotated[Texts, words(names.port), Doc("ports that programs of the image listen on: 8888, 53/udp")] = ()
    volumes: Annotated[Texts, words(copying.volume), Doc("folders that are meant as mount points")] = ()
    folder: str = ""  # of the file; empty: the current folder
    smoke: Annotated[Smoke, part(Smoke), Doc("how the image is verified (see below)")] = field(default_factory=Smoke)


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
    faults = Faults()
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
            faults.add(where, f"extends: {parent!r} already extends {first['extends']!r}; only one level is allowed")
        values = _merged(first, values)
    if "title" not in values and tree is not None:
        faults.add(where, "title: missing; describe in one line what the image is for")
    listed = listed_in(
        values.get("requirements", ()),
        folder,
        target=target_of(values.get("request", {}), given),
        faults=faults,
        at=f"{where}: requirements",
    )
    listed = _with_conda(values, listed, where)
    values["request"] = with_listed(values.get("request", {}), listed, faults)
    faults.refuse(_HINT)
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
    faults = Faults()
    values = _values({"schema": SCHEMA, **tree}, where, faults)
    faults.refuse(_HINT)
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


def _values(tree: Any, where: str, faults: Faults) -> dict[str, Any]:
    """Return the values of the keys that a definition has, by the names of their fields."""
    values = records.some(tree, Definition, Location(where, faults))
    values.pop("schema", None)
    if "companions" in values:
        # Each is a name, and for those that torch decides a constraint or an empty text.
        matches = [match for match in map(_COMPANION.fullmatch, values["companions"]) if match]
        values["companions"] = tuple(match["name"] for match in matches)
        values["asked_companions"] = tuple((match["name"], match["range"] or "") for match in matches)
    return values


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of image definitions. A definition that extends another may leave out its title."""
    body = records.schema(Definition, ("schema",))
    title_or_parent = [{"required": ["title"]}, {"required": ["extends"]}]
    return schemas.document(SCHEMA, "An image definition of envkit", {**body, "anyOf": title_or_parent})


_COMPANION = re.compile(r"(?P<name>[a-z]+)\s*(?P<range>[<>=!~].*)?")


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


class _Copy:
    source: Annotated[str, text(lambda _: None), Doc(key="from")]
    target: Annotated[str, text(lambda _: None), Doc(key="to")]


def _copies(value: Any, at: Location, path: str) -> Pairs | None:
    if not isinstance(value, list):
        at.no_list(path, value)
        return None
    copies = []
    for index, item in enumerate(value):
        under = at.under(f"{path}[{index}]")
        row = records.some(item, _Copy, under)
        missing = [key for key in ("from", "to") if isinstance(item, Mapping) and key not in item]
        if missing:
            at.faults.add(under.path, f"{missing[0]} is missing")
        elif len(row) < len(("from", "to")):
            continue
        elif why := copying.check(row["source"], row["target"]):
            at.faults.add(under.path, why)
        else:
            copies.append((row["source"], row["target"]))
    return tuple(copies)


_COPIES = Each(_copies, schemas.listed(schemas.closed(dict.fromkeys(("from", "to"), schemas.TEXT), ("from", "to"))))


def _versions(value: Any, at: Location, path: str) -> str | None:
    if why := text(names.text)(value):
        at.faults.add(path, why)
        return None
    try:
        parse_constraint(value, path)
    except UsageError as error:
        at.faults.say(f"{error.message}; {error.hint}")
    return str(value)


_VERSIONS = Each(_versions, schemas.TEXT)


def _driver(value: str) -> str | None:
    return None if _DRIVER.fullmatch(value) else "is not a driver version"


# `550`, `550.54`, `550.54.15`
_DRIVER = re.compile(r"[0-9]+(?:\.[0-9]+){0,2}")


def _size(value: str) -> str | None:
    try:
        most = parse_size(value, "max_size")
    except UsageError:
        return "is not a size; write a number and a unit: 3GB"
    return None if most else "allows no download; write 3GB"


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
