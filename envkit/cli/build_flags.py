"""The options of `envkit build` as one frozen dataclass, and the requests that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envkit.cli import shell_values
from envkit.cli.declare import Section, flag, group, option
from envkit.cli.options import (
    PATH,
    DocumentOptions,
    ProgressOptions,
    RegistryFlags,
    RequestOptions,
    allow_cpu_option,
    allow_source_option,
    definitions_argument,
    document_options,
    exclude,
    load_settings,
    preset_option,
    progress_options,
    skip_impossible_option,
    timeout_option,
)
from envkit.cli.record_output import ReportTarget, report_option
from envkit.fleet import REPORT_SCHEMA
from envkit.ground.errors import UsageError
from envkit.ground.settings import ENGINES, either

if TYPE_CHECKING:
    from envkit.engines.model import BuildOptions
    from envkit.ground.settings import Settings
    from envkit.pipeline.publish import Push
    from envkit.pipeline.resolving import Asked
    from envkit.plan.model import BuildPlan

SCHEMA = "envkit.build/1"
_PUSH_EXAMPLE = "envkit build -t registry.example.com/team/train:1.0 --push"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyFlags:
    """The options for builds of several images."""

    every: bool = flag(Section.MANY, "--all", help="Build every image in ./images, or every shipped image.")
    matrix: Path | None = option(
        Section.MANY, "--matrix FILE", type=PATH, help="Build every combination of a matrix file."
    )
    jobs: int | None = option(
        Section.MANY, "--jobs N", type=click.IntRange(min=1), help="Parallel builds. [from CPUs, memory and disk]"
    )
    resume: bool = flag(Section.MANY, "--resume", help="Build only what failed or was not reached in the last run.")
    skip_impossible: bool = skip_impossible_option()
    scheduler: str | None = option(
        Section.MANY, "--scheduler ADDRESS", help="Build on the workers of a Dask cluster: tcp://HOST:PORT."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFlags:
    """The options of `envkit build`."""

    definitions: tuple[str, ...] = definitions_argument()
    request: RequestOptions = group(RequestOptions)
    many: ManyFlags = group(ManyFlags)
    plan_file: Path | None = option(
        Section.INPUT, "--plan FILE", type=PATH, help="Build this plan.json; no other request flags are allowed."
    )
    locked: str | None = option(
        Section.LOCK,
        "--locked FILE",
        shell_complete=shell_values.files,
        help="Install this lock. [envkit.lock if it fits, else solve now]",
    )
    no_lock: bool = flag(
        Section.LOCK, "--no-lock", help="Solve inside the build, without hashes, if only the engine has network access."
    )
    engine: str | None = option(
        Section.BUILD,
        "--engine NAME",
        shell_complete=shell_values.engines,
        help=f"Engine: {either(ENGINES)}. [auto]",
    )
    base: str = option(
        Section.BUILD, "--base IMAGE", default="auto", help="Base image, or bootstrap:debian/bookworm. [auto]"
    )
    allow_source: tuple[str, ...] = allow_source_option()
    output: str | None = option(
        Section.PUBLISH,
        "--output DEST",
        help="Embedded engine: oci:DIR, docker-archive:FILE, sif:FILE, docker-daemon or registry:REF. "
        "[an OCI layout in the state folder]",
    )
    push: bool = flag(
        Section.PUBLISH, "--push", help="Push to every -t HOST/NAME:TAG; tags are set after verification."
    )
    registry: RegistryFlags = group(RegistryFlags)
    compression: str = option(
        Section.PUBLISH,
        "--compression",
        type=click.Choice(["gzip", "zstd"]),
        default="gzip",
        help="Embedded engine: compression of the layers. [gzip]",
    )
    offline: bool = flag(
        Section.BUILD, "--offline", help="Embedded engine: use cached files only and list what is missing."
    )
    tags: tuple[str, ...] = option(
        Section.PUBLISH, "-t", "--tag NAME:TAG", multiple=True, help="Name of the image; repeatable."
    )
    labels: tuple[str, ...] = option(
        Section.PUBLISH, "--label KEY=VALUE", multiple=True, help="Add a label; repeatable."
    )
    no_cache: bool = flag(Section.BUILD, "--no-cache", help="Rebuild every step, including a bootstrapped base image.")
    network: str | None = option(
        Section.BUILD,
        "--network NAME",
        shell_complete=shell_values.networks,
        help="Network for build steps: auto, default, host or none. [auto]",
    )
    preset: str | None = preset_option()
    secrets: tuple[str, ...] = option(
        Section.BUILD, "--secret ID=FILE", multiple=True, help="Secret file for BuildKit's secret mounts; repeatable."
    )
    timeout: float | None = timeout_option("Time limit of the build, not counting verification.")
    progress: ProgressOptions = progress_options("Show the engine's output while it builds.")
    no_verify: bool = flag(Section.CHECKS, "--no-verify", help="Skip verification; print the image ID instead.")
    allow_cpu: bool = allow_cpu_option()
    document: DocumentOptions = document_options(
        f"the result (schema {SCHEMA}; several images: {REPORT_SCHEMA})", "--metadata-file"
    )
    reports: tuple[ReportTarget, ...] = report_option()

    @property
    def builds_several(self) -> bool:
        """Whether the command builds several images, or builds on a cluster."""
        many = self.many
        return len(self.definitions) > 1 or many.every or many.matrix is not None or many.scheduler is not None

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            UsageError: images are named in two ways, or an option for several images is given with one.
        """
        many = self.many
        selectors = {"names": self.definitions, "--all": many.every, "--matrix": many.matrix}
        given = [name for name, value in selectors.items() if value]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} each select the images to build", hint="give one of them")
        if self.builds_several:
            return
        several = {"--jobs": many.jobs, "--resume": many.resume, "--skip-impossible": many.skip_impossible}
        for name, value in several.items():
            if value:
                raise UsageError(f"{name} is for several images", hint="envkit build a b c, --all, or --matrix FILE")

    def check_several(self) -> None:
        """Refuse options that several images cannot share.

        Raises:
            UsageError: such an option was given.
        """
        single = {
            "-t": (self.tags, "--output registry:HOST/NAME gives each image its own tag"),
            "--plan": (self.plan_file, "name several images by their definitions, or by a matrix"),
            "--locked": (self.locked, "leave it out: every image's lock is solved, equal ones once"),
            "--offline": (self.offline, "for each image: envkit lock, then envkit build --locked FILE --offline"),
            "--report": (
                [target for target in self.reports if target.kind != "html"],
                "-o FILE and --report html=FILE cover all images",
            ),
            "--push": (self.push, "--output registry:HOST/NAME pushes each image"),
        }
        for name, (value, hint) in single.items():
            if value:
                raise UsageError(f"{name} is for one image", hint=hint)

    @property
    def definition(self) -> str | None:
        """The definition of a single image, None for the default image."""
        return self.definitions[0] if self.definitions else None

    def settings(self) -> Settings:
        """Load the settings, overridden by the options."""
        own = {"engine": self.engine, "build_network": self.network, "preset": self.preset}
        return load_settings({**own, "facts": self.request.facts_file})

    def options(self, settings: Settings) -> BuildOptions:
        """Return the options of the build, which are the same for every image.

        Raises:
            UsageError: an option is invalid.
        """
        from envkit.assemble.outputs import check_output
        from envkit.engines.labels import labels_asked
        from envkit.engines.model import BuildOptions

        options = BuildOptions(
            tags=self.tags,
            labels=labels_asked(settings, self.labels),
            base=self.base,
            output=self.output,
            offline=self.offline,
            compression=self.compression,
            # With --push these two belong to the push (envkit.pipeline.publish).
            replace_tag=self.registry.replace_tag and not self.push,
            mount_from=() if self.push else self.registry.mount_from,
            no_cache=self.no_cache,
            timeout_s=self.timeout,
            network=settings.get("build_network") or "auto",
            secrets=tuple(_secret(text) for text in self.secrets),
        )
        check_output(options)
        return options

    def asked(self) -> Asked | None:
        """Return what the one image is made from; None for a plan that is given."""
        if self.plan_file is not None:
            return None
        return self.request.asked(self.definition, allow_source=self.allow_source)

    def plan(self, asked: Asked | None) -> BuildPlan:
        """Return the plan of the one image.

        Raises:
            UsageError: the plan or the definition is invalid, or both are given.
            ConflictError: no combination satisfies the request.
        """
        if asked is not None:
            return asked.plan()
        if self.definition is not None or self.allow_source or not self.request.is_empty:
            raise UsageError(
                "--plan cannot be combined with a definition or its flags",
                hint="leave out the definition and its flags",
            )
        from envkit.plan.store import read_plan

        assert self.plan_file is not None
        return read_plan(self.plan_file)

    def push_after(self, settings: Settings) -> Push:
        """Return the registry tags that the image is pushed to after the build.

        Raises:
            UsageError: a tag does not name a registry, there is no tag, or --output is given, too.
        """
        from envkit.pipeline.publish import Push, parse_name, targets_of_names

        if not self.push:
            return Push(settings=settings)
        exclude(push=self.push, output=self.output)
        if not self.tags:
            raise UsageError("--push needs a tag to push to", hint=_PUSH_EXAMPLE)
        return Push(
            settings=settings,
            targets=targets_of_names([parse_name(tag, "-t") for tag in self.tags]),
            replace_tag=self.registry.replace_tag,
            mount_from=tuple(self.registry.mount_from),
        )


def _secret(text: str) -> tuple[str, Path]:
    ident, sign, file = text.partition("=")
    path = Path(file)
    # BuildKit's client takes `id=ID,src=FILE`, so a comma would begin another field.
    if not sign or not ident.replace("-", "").replace("_", "").isalnum() or "," in file:
        raise UsageError("--secret must be ID=FILE", hint="--secret netrc=$HOME/.netrc")
    if not path.is_file():
        raise UsageError(f"--secret {ident}: {file} is not a file", hint="--secret netrc=$HOME/.netrc")
    return ident, path.absolute()
