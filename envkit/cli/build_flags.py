"""The options of `envkit build` as one frozen dataclass, and the requests that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envkit.cli import shell_values
from envkit.cli.declare import Section, option
from envkit.cli.options import (
    DocumentOptions,
    ProgressOptions,
    RegistryFlags,
    RequestOptions,
    allow_source_option,
    applied,
    document_options,
    exclude,
    group,
    load_settings,
    preset_option,
    progress_options,
    registry_options,
    request_options,
    timeout_option,
)
from envkit.cli.record_output import ReportTarget, report_option
from envkit.fleet import REPORT_SCHEMA
from envkit.ground.errors import UsageError

if TYPE_CHECKING:
    from envkit.engines.model import BuildOptions
    from envkit.ground.settings import Settings
    from envkit.pipeline.asking import Asked
    from envkit.pipeline.pushing import PushAfterBuild
    from envkit.plan.model import BuildPlan

SCHEMA = "envkit.build/1"
_PUSH_EXAMPLE = "envkit build -t registry.example.com/team/train:1.0 --push"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyFlags:
    """The options for builds of several images."""

    every: bool  # --all
    matrix: Path | None
    jobs: int | None
    resume: bool
    skip_impossible: bool
    scheduler: str | None


_many_options = applied(
    (
        option(
            Section.MANY, "--all", "every", is_flag=True, help="Build every image in ./images, or every shipped image."
        ),
        option(
            Section.MANY,
            "--matrix",
            metavar="FILE",
            type=click.Path(path_type=Path),
            help="Build every combination of a matrix file.",
        ),
        option(
            Section.MANY,
            "--jobs",
            type=click.IntRange(min=1),
            metavar="N",
            help="Parallel builds. [from CPUs, memory and disk]",
        ),
        option(
            Section.MANY, "--resume", is_flag=True, help="Build only what failed or was not reached in the last run."
        ),
        option(
            Section.MANY,
            "--skip-impossible",
            is_flag=True,
            help="Skip combinations of the matrix that have no compatible versions.",
        ),
        option(
            Section.MANY,
            "--scheduler",
            metavar="ADDRESS",
            help="Build on the workers of a Dask cluster: tcp://HOST:PORT.",
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFlags:
    """The options of `envkit build`."""

    definitions: tuple[str, ...]
    many: ManyFlags = group(ManyFlags)
    request: RequestOptions = group(RequestOptions)
    plan_file: Path | None
    locked: str | None
    no_lock: bool
    engine: str | None
    base: str
    allow_source: tuple[str, ...]
    output: str | None
    push: bool
    registry: RegistryFlags = group(RegistryFlags)
    compression: str
    offline: bool
    tags: tuple[str, ...]
    labels: tuple[str, ...]
    no_cache: bool
    network: str | None
    preset: str | None
    secrets: tuple[str, ...]
    timeout: float | None
    progress: ProgressOptions = group(ProgressOptions)
    no_verify: bool
    allow_cpu: bool
    document: DocumentOptions = group(DocumentOptions)
    reports: tuple[ReportTarget, ...]

    @property
    def builds_several(self) -> bool:
        """Whether the command builds several images, or builds on a cluster."""
        many = self.many
        return len(self.definitions) > 1 or many.every or many.matrix is not None or many.scheduler is not None

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
            # With --push these two belong to the push (envkit.pipeline.pushing).
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

    def push_after(self, settings: Settings) -> PushAfterBuild:
        """Return the registry tags that the image is pushed to after the build.

        Raises:
            UsageError: a tag does not name a registry, there is no tag, or --output is given, too.
        """
        from envkit.pipeline.pushing import PushAfterBuild, RegistryOptions, parse_name, targets_of_names

        if not self.push:
            return PushAfterBuild(settings=settings)
        exclude(push=self.push, output=self.output)
        if not self.tags:
            raise UsageError("--push needs a tag to push to", hint=_PUSH_EXAMPLE)
        return PushAfterBuild(
            settings=settings,
            targets=targets_of_names([parse_name(tag, "-t") for tag in self.tags]),
            options=RegistryOptions(replace_tag=self.registry.replace_tag, mount_from=tuple(self.registry.mount_from)),
        )


build_options = applied(
    (
        request_options,
        _many_options,
        option(
            Section.INPUT,
            "--plan",
            "plan_file",
            metavar="FILE",
            type=click.Path(path_type=Path),
            help="Build this plan.json; no other request flags are allowed.",
        ),
        option(
            Section.LOCK,
            "--locked",
            metavar="FILE",
            shell_complete=shell_values.files,
            help="Install this lock. [envkit.lock if it fits, else solve now]",
        ),
        option(
            Section.LOCK,
            "--no-lock",
            is_flag=True,
            help="Solve inside the build, without hashes, if only the engine has network access.",
        ),
        option(
            Section.BUILD,
            "--engine",
            metavar="NAME",
            shell_complete=shell_values.engines,
            help="Engine: auto, docker, buildkit, podman or embedded. [auto]",
        ),
        option(
            Section.BUILD,
            "--base",
            metavar="IMAGE",
            default="auto",
            help="Base image, or bootstrap:debian/bookworm. [auto]",
        ),
        allow_source_option,
        option(
            Section.PUBLISH,
            "--output",
            metavar="DEST",
            help="Embedded engine: oci:DIR, docker-archive:FILE, sif:FILE, docker-daemon or registry:REF. "
            "[an OCI layout in the state folder]",
        ),
        option(
            Section.PUBLISH,
            "--push",
            is_flag=True,
            help="Push to every -t HOST/NAME:TAG; tags are set after verification.",
        ),
        registry_options,
        option(
            Section.PUBLISH,
            "--compression",
            type=click.Choice(["gzip", "zstd"]),
            default="gzip",
            help="Embedded engine: compression of the layers. [gzip]",
        ),
        option(
            Section.BUILD,
            "--offline",
            is_flag=True,
            help="Embedded engine: use cached files only and list what is missing.",
        ),
        option(
            Section.PUBLISH,
            "-t",
            "--tag",
            "tags",
            multiple=True,
            metavar="NAME:TAG",
            help="Name of the image; repeatable.",
        ),
        option(
            Section.PUBLISH, "--label", "labels", multiple=True, metavar="KEY=VALUE", help="Add a label; repeatable."
        ),
        option(
            Section.BUILD, "--no-cache", is_flag=True, help="Rebuild every step, including a bootstrapped base image."
        ),
        option(
            Section.BUILD,
            "--network",
            metavar="NAME",
            shell_complete=shell_values.networks,
            help="Network for build steps: auto, default, host or none. [auto]",
        ),
        preset_option,
        option(
            Section.BUILD,
            "--secret",
            "secrets",
            multiple=True,
            metavar="ID=FILE",
            help="Secret file for BuildKit's secret mounts; repeatable.",
        ),
        timeout_option("Time limit of the build, not counting verification."),
        progress_options("Show the engine's output while it builds."),
        option(Section.CHECKS, "--no-verify", is_flag=True, help="Skip verification; print the image ID instead."),
        option(
            Section.CHECKS,
            "--allow-cpu",
            is_flag=True,
            help="Exit 0 for a CUDA image without a GPU (still reported as NOT VERIFIED).",
        ),
        document_options(f"the result (schema {SCHEMA}; several images: {REPORT_SCHEMA})", "--metadata-file"),
        report_option,
    )
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
