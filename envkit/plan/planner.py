"""Make a BuildPlan from a definition, flags and facts. Equal inputs give equal plans; only files to copy are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from envkit.facts.model import Facts, Os
from envkit.ground.errors import ConflictError, Faults, UsageError, shown
from envkit.ground.records import Location
from envkit.plan import bases, copying, family, features, variables
from envkit.plan.definition import CUDA_KEYS, Definition, check_template, drop_contradicted, kind_of
from envkit.plan.features import Feature
from envkit.plan.listed import unmet
from envkit.plan.model import PREFIX, BuildPlan
from envkit.plan.names import distribution
from envkit.resolve import request as requests
from envkit.resolve.candidates import Limit
from envkit.resolve.companions import COMPANION_PACKAGES
from envkit.resolve.conflict import Unresolvable
from envkit.resolve.model import Request, Resolution
from envkit.resolve.reasons import REQUESTED
from envkit.resolve.resolver import resolve

Given = Mapping[str, "str | Sequence[str] | bool | None"]
"""The values of flags, by the field names of `envkit.resolve.request`; None and () mean not given."""

DEFAULT = "default"
ENTRY = "/usr/share/envkit/entry.sh"
CPU_FROM_CONDA = (
    "CPU images use conda-forge, so one solver chooses all packages; --source pytorch has newer torch releases"
)


def plan_of(definition: Definition, given: Given, facts: Facts, limit: Limit | None = None) -> BuildPlan:
    """Return the plan of a definition, with flags overriding its request.

    Args:
        definition: the image.
        given: values of flags.
        facts: to resolve against.
        limit: the torch and Python that the packages allow, chosen among the candidates of the request.

    Raises:
        UsageError: the definition, a flag or their combination is invalid.
        ConflictError: no combination satisfies the request; the error carries the conflict.
    """
    request, kind, warnings = request_of(definition, given, facts)
    asked = replace(request, template=kind)
    try:
        resolved = resolve(limit.of(asked) if limit else asked, facts)
    except Unresolvable as error:
        error.details = (*_places(definition, error.conflict.clash), *error.details)
        raise
    answer = _with_origins(resolved, definition, given)
    if limit is not None:
        answer = replace(answer, reasons=answer.reasons | dict(limit.reasons))
    definition = replace(definition, companions=_companions(definition, request))
    _require_listed(definition, answer)
    resolution = _installed(replace(answer, warnings=(*answer.warnings, *warnings)), definition.companions)
    plan = _plan(definition, resolution, request, kind, facts)
    return (
        replace(plan, title=_title(resolution))
        if _TITLE_FIELDS & {key for key, value in given.items() if value}
        else plan
    )


# A definition's title may mention these fields; a flag for one of them makes the title wrong.
_TITLE_FIELDS = frozenset({"torch", "cuda", "cudnn", "python", "gpu", "driver", "os", "source", "cpu"})


def _title(resolution: Resolution) -> str:
    computes = f"with CUDA {resolution.cuda}" if resolution.cuda else "on the CPU"
    return f"PyTorch {resolution.torch} {computes}, Python {resolution.python}, {resolution.os}"


def _with_origins(answer: Resolution, definition: Definition, given: Given) -> Resolution:
    """Name the definition as the origin of each value that it requests and no flag overrides."""
    own = {field for field, _ in definition.request if not given.get(field)}
    origin = f"from {definition.where}"
    return replace(
        answer,
        reasons={
            field: reason.replace(REQUESTED, origin, 1) if field in own and reason.startswith(REQUESTED) else reason
            for field, reason in answer.reasons.items()
        },
    )


def _companions(definition: Definition, request: Request) -> tuple[str, ...]:
    """Return the companions of a definition, including those that its requirements files and the flags name."""
    return _unique([*definition.companions, *(wanted.package for wanted in request.packages)])


def _wanted(definition: Definition) -> list[str]:
    """Return the companions that a definition and its requirements files name, as values of `--with`."""
    ranges: dict[str, list[str]] = {
        name: [version] if version else []
        for name, version in definition.asked_companions
        if name in COMPANION_PACKAGES
    }
    for entry in definition.listed.settings:
        if entry.field in COMPANION_PACKAGES and not entry.line.constraint:
            ranges.setdefault(entry.field, []).extend([entry.value] if entry.value else [])
    return [f"{name}{_joined(values)}" for name, values in ranges.items()]


def _places(definition: Definition, clash: Sequence[str]) -> Iterator[str]:
    """Yield where a definition or its requirements files name the packages of a clash."""
    for wanted in _wanted(definition):
        package = re.split(r"[^a-z]", wanted, maxsplit=1)[0]
        if not any(ask.startswith(f"--with {package}") for ask in clash):
            continue
        own = dict(definition.asked_companions)
        if package in own:
            yield f"{definition.where}: companions: {package}{own[package]}"
        lines = (entry.line for entry in definition.listed.settings if entry.field == package)
        yield from (f"{line.where}: {line.text!r:.120}" for line in lines if not line.constraint)


def _joined(values: Sequence[str]) -> str:
    """Return constraints as one; a version without an operator, which only stands alone, is kept as the first is."""
    return ",".join(dict.fromkeys(values)) if all(value[0] in "<>=!~" for value in values) else f" {values[0]}"


def _require_listed(definition: Definition, answer: Resolution) -> None:
    """Refuse a resolution that contradicts a requirements file, because of a flag or a companion of another torch."""
    absent = {"torchvision", "torchaudio"}.difference(definition.companions)
    lines = unmet(
        (entry for entry in definition.listed.settings if not (entry.line.constraint and entry.field in absent)), answer
    )
    if lines:
        raise ConflictError(
            lines[0],
            details=shown(lines[1:]),
            hint=f"change the line, or what {definition.where} and the flags request",
        )


def _installed(resolution: Resolution, companions: tuple[str, ...]) -> Resolution:
    """Return the resolution without companions that are not installed: verification expects what the plan lists."""
    absent = [name for name in ("torchvision", "torchaudio") if name not in companions]
    return replace(
        resolution,
        **dict.fromkeys(absent),  # type: ignore[arg-type] # both may be None
        warnings=tuple(text for text in resolution.warnings if text.partition(" ")[0] not in absent),
    )


def request_of(definition: Definition, given: Given, facts: Facts) -> tuple[Request, str, tuple[str, ...]]:
    """Return the request of a definition with flags overriding it, how its template installs, and warnings.

    Raises:
        UsageError: a value is invalid; the message names the flag or the definition's field.
    """
    typed = {field: value for field, value in given.items() if value not in (None, (), [], False)}
    asked: dict[str, Any] = dict(definition.request)
    asked = drop_contradicted(asked, cpu=bool(typed.get("cpu")), cuda=bool(CUDA_KEYS & typed.keys()))
    asked |= typed
    template = str(typed.get("template", definition.template))
    why = check_template(template)
    if why:
        raise UsageError(f"{'--template' if 'template' in typed else definition.where}: {template!r} {why}")
    kind = kind_of(template) or template
    asked["template"] = template
    asked["with"] = [*_wanted(definition), *asked.get("with", ())]
    warnings: tuple[str, ...] = ()
    if asked.get("cpu") and kind == "miniconda" and asked.get("source", "auto") == "auto":
        asked["source"] = "conda-forge"
        warnings = (CPU_FROM_CONDA,)
    request = requests.parse({**asked, "template": kind}, facts, name=_origins(definition, typed))
    return replace(request, template=template), kind, warnings


def _origins(definition: Definition, typed: Mapping[str, object]) -> Callable[[str], str]:
    """Return a function that names a field in errors by its origin: the flag, or the key of the definition."""

    def name(field: str) -> str:
        inside = {"gpu": "request.gpus", "template": "template"}.get(field, f"request.{field.replace('-', '_')}")
        return f"--{field}" if field.replace("-", "_") in typed else f"{definition.where}: {inside}"

    return name


def _plan(definition: Definition, resolution: Resolution, request: Request, kind: str, facts: Facts) -> BuildPlan:
    system = bases.os_row(resolution.os, facts)
    chosen = features.rows(definition.features)
    conda = kind == "miniconda"
    devel = definition.flavor == "devel"
    _check(definition, resolution, chosen, system, kind)
    interpreter, runs, makes = (None, (), ()) if conda else bases.system_python(system, resolution.python)
    deb = system.family == "deb"
    own = definition.apt if deb else definition.rpm
    from_features = [name for feature in chosen for name in (feature.deb if deb else feature.rpm)]
    compilers = COMPILERS[system.family] if devel else ()
    toolkit = devel and resolution.cuda is not None
    constraints = _unique([*definition.listed.constraints, *definition.constraints])
    wheels = _unique([*definition.listed.specs, *definition.pip])
    # conda's packages are solved first, so what pip is asked for limits those of the same name.
    limits = (*constraints, *wheels) if conda else constraints
    extra = family.extra_specs(resolution, definition.companions)
    extra = tuple(family.constrained(spec, limits, conda=conda) for spec in extra)
    torch = family.specs(resolution, definition.companions)
    if resolution.source not in family.CONDA_SOURCES:
        torch += family.wheel_pins(resolution)
    listed = [name for feature in chosen for name in (feature.conda if conda else feature.wheels)]
    # torch.utils.cpp_extension compiles with ninja.
    listed += ["ninja"] if devel else []
    pip = [_numbered(name, resolution) for feature in chosen for name in feature.pip]
    # -g: signals reach the whole process group, so also the children of a shell. Only conda and Debian have tini;
    # the RPM systems do not (docs/images.md).
    needed = needs_of((*wheels, *pip, *([] if conda else listed)), system.family, facts)
    init = [f"{PREFIX}/bin/tini", "-g", "--"] if conda else ["/usr/bin/tini", "-g", "--"] if deb else []
    env = variables.image_variables(resolution, kind=kind, devel=devel, features=chosen)
    # Virtual packages of the machine that will run the image; conda would detect those of the build stage.
    overrides = {"CONDA_OVERRIDE_GLIBC": system.glibc}
    if resolution.cuda:
        overrides["CONDA_OVERRIDE_CUDA"] = resolution.cuda
    return BuildPlan(
        name=definition.name,
        title=definition.title,
        resolution=resolution,
        template=request.template or kind,
        flavor=definition.flavor,
        os_family=system.family,
        base=bases.devel_image(resolution, system, facts) if toolkit else system.image,
        build_base=system.image,
        installer=bases.installer(resolution.platform, system.glibc, facts) if conda else None,
        family=torch if conda else (*torch, *extra),
        channels=family.channels(resolution) if conda else (),
        solve_env=tuple(sorted(overrides.items())) if conda else (),
        interpreter=interpreter,
        conda=_unique(
            [
                "tini",
                *extra,
                *(family.constrained(package, limits, conda=True) for package in (*listed, *definition.conda)),
            ]
        )
        if conda
        else (),
        pip=_unique([*pip, *([] if conda else listed), *wheels]),
        constraints=constraints,
        allow_source=_unique(definition.allow_source),
        find_links=_unique([*definition.listed.of("find_links"), *definition.find_links]),
        indexes=_unique([*definition.listed.of("indexes"), *definition.indexes]),
        package_indexes=definition.package_indexes,
        bytecode=definition.bytecode,
        system=_unique(
            [
                *runs,
                *([] if conda or not deb else ["tini"]),
                *compilers,
                *from_features,
                *own,
                *(name for names in needed.values() for name in names),
            ]
        ),
        build_system=_unique([*(_fetchers(system) if conda else ()), *makes]),
        env=tuple(sorted((env | dict(definition.env)).items())),
        labels=definition.labels,
        features=tuple(feature.name for feature in chosen),
        user=definition.user if ":" in definition.user else f"{definition.user}:{definition.user}",
        workdir=definition.workdir,
        entrypoint=(*init, "/bin/bash", ENTRY, *definition.entrypoint),
        cmd=_command(definition, chosen),
        smoke=definition.smoke,
        facts_digest=facts.digest,
        copy=copying.planned(
            definition.copy, workdir=definition.workdir, folder=Path(definition.folder), where=definition.where
        ),
        ports=_unique(
            [port for feature in chosen for port in feature.ports] + [_port(text) for text in definition.ports]
        ),
        volumes=definition.volumes,
        folder=str(Path(definition.folder).resolve()),
    )


def needs_of(specs: Sequence[str], os_family: str, facts: Facts) -> dict[str, tuple[str, ...]]:
    """Return the packages of the Python index that need system packages, with programs that they run, and these.

    Args:
        specs: requirements that a project names.
        os_family: `deb` or `rpm`.
        facts: which package needs which.
    """
    rows = {row.package: (*row.deb, *row.programs) if os_family == "deb" else row.rpm for row in facts.package_needs}
    return {name: rows[name] for name in map(distribution, specs) if rows.get(name)}


def completed(plan: BuildPlan, brought: Collection[str], facts: Facts) -> tuple[BuildPlan, dict[str, tuple[str, ...]]]:
    """Return a plan with the system packages that its wheels need to be imported, and what it gets for which of them.

    Args:
        plan: has those of the packages that it names.
        brought: normalized names of all wheels of its lock.
        facts: which package needs which.
    """
    rows = {row.package: row.deb if plan.os_family == "deb" else row.rpm for row in facts.package_needs}
    system, added = list(plan.system), dict[str, tuple[str, ...]]()
    for name in sorted(brought):
        more = tuple(one for one in rows.get(name, ()) if one not in system)
        system += more
        added |= {name: more} if more else {}
    return (replace(plan, system=tuple(system)) if added else plan), added


def _port(text: str) -> str:
    number, _, protocol = text.partition("/")
    return f"{int(number)}/{protocol or 'tcp'}"


def _fetchers(system: Os) -> tuple[str, ...]:
    """Return the system packages that download the Miniconda installer."""
    if system.family == "deb":
        return ("ca-certificates", "curl")
    # The images of an OS whose mirrors are offline have curl. On the others, one of two conflicting packages provides
    # curl, so it is requested by its path.
    return () if system.mirrors_ended else ("/usr/bin/curl",)


COMPILERS = {"deb": ("build-essential", "git"), "rpm": ("gcc", "gcc-c++", "make", "git")}


def _check(definition: Definition, resolution: Resolution, chosen: tuple[Feature, ...], system: Os, kind: str) -> None:
    faults = Faults()
    at = Location(definition.where, faults)
    if kind == "wheels" and definition.conda:
        packages = ", ".join(definition.conda)
        at.add("conda", f"the wheels template cannot install conda packages ({packages})")
    foreign, here = ("rpm", "apt") if system.family == "deb" else ("apt", "rpm")
    if getattr(definition, foreign) and not getattr(definition, here):
        at.add(foreign, f"{system.id} uses other package names; list the packages under {here}")
    for feature in chosen:
        if feature.needs_cuda and resolution.cuda is None:
            at.add("features", f"{feature.name} needs CUDA, but this is a CPU image")
    faults.refuse("change the definition, or the option (--template, --os, --cpu) that overrides it")


def _command(definition: Definition, chosen: tuple[Feature, ...]) -> tuple[str, ...]:
    if definition.cmd is not None:
        return definition.cmd
    return next((feature.cmd for feature in chosen if feature.cmd), () if definition.entrypoint else ("python",))


def _numbered(name: str, resolution: Resolution) -> str:
    return name.replace("{cuda}", (resolution.cuda or "").partition(".")[0])


def _unique(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
