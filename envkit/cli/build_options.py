"""The flags of `envkit build` that say how and whereto, and those for several images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from envkit.cli.console import MODES
from envkit.cli.documents import document_options
from envkit.cli.limit import limit_option
from envkit.fleet import REPORT_SCHEMA

BUILD_SCHEMA = "envkit.build/1"

F = TypeVar("F", bound=Callable[..., Any])

_SEVERAL = (
    click.option(
        "--all", "every", is_flag=True, help="Every image of ./images, else every one that comes with envkit."
    ),
    click.option(
        "--matrix", metavar="FILE", type=click.Path(path_type=Path), help="Every combination of a matrix file."
    ),
    click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Several images: builds at once. [by room]"),
    click.option("--resume", is_flag=True, help="Several images: only what failed or was not reached the last time."),
    click.option(
        "--skip-impossible", is_flag=True, help="Matrix: build the others where some combinations do not exist."
    ),
    click.option("--scheduler", metavar="ADDRESS", help="Build on the workers of a Dask cluster: tcp://HOST:PORT."),
    click.option(
        "--cross-check",
        metavar="N|all",
        help="With --scheduler: build so many images a second time on another worker; their digests have to agree. [1]",
    ),
)
_OPTIONS = (
    click.option("--template", metavar="NAME", help="miniconda, wheels, or your own miniconda-NAME or wheels-NAME."),
    click.option(
        "--plan", "plan_file", type=click.Path(path_type=Path), help="Build this plan.json; flags add nothing."
    ),
    click.option("--locked", metavar="FILE", help="Install this lock. [envkit.lock where it fits, else solved now]"),
    click.option(
        "--no-lock",
        is_flag=True,
        help="Solve inside the build, without hashes: for machines where only the engine reaches the indexes.",
    ),
    click.option("--engine", metavar="NAME", help="auto, docker, buildkit, podman or embedded. [auto]"),
    click.option("--base", metavar="IMAGE", default="auto", help="Base image, or bootstrap:debian/bookworm. [auto]"),
    click.option(
        "--output",
        metavar="PLACE",
        help="Embedded engine: oci:DIR, docker-archive:FILE, docker-daemon or registry:REF. "
        "[a layout in the state folder]",
    ),
    click.option("--push", is_flag=True, help="Push it to each -t HOST/NAME:TAG, which moves once it is proved."),
    click.option("--replace-tag", is_flag=True, help="The tag in a registry may be another image's, and moves."),
    click.option(
        "--mount-from",
        multiple=True,
        metavar="REPOSITORY",
        help="Repository of the same registry that has layers of this image already; repeatable.",
    ),
    click.option(
        "--compression", type=click.Choice(["gzip", "zstd"]), default="gzip", help="Embedded engine: of layers. [gzip]"
    ),
    click.option("--offline", is_flag=True, help="Embedded engine: download nothing; what no cache holds is named."),
    click.option("-t", "--tag", "tags", multiple=True, metavar="NAME:TAG", help="Name of the image; repeatable."),
    click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="A further label; repeatable."),
    click.option("--no-cache", is_flag=True, help="Build every step anew, a bootstrapped base image too."),
    click.option("--network", metavar="NAME", help="Network of build steps: auto, default, host or none. [auto]"),
    click.option(
        "--secret",
        "secrets",
        multiple=True,
        metavar="ID=FILE",
        help="A secret file for BuildKit's secret mounts; repeatable.",
    ),
    limit_option("Time limit, verification not included."),
    click.option("--progress", type=click.Choice(MODES), default="auto", help="Talk on stderr. [auto]"),
    click.option("-v", "--verbose", is_flag=True, help="Show the engine's output while it builds."),
    click.option("--no-verify", is_flag=True, help="Do not run the smoke benchmark; print the image's id instead."),
    click.option("--allow-cpu", is_flag=True, help="Exit 0 although a CUDA image met no GPU; the record says so."),
    document_options(f"what was built (schema {BUILD_SCHEMA}, of several images {REPORT_SCHEMA})", "--metadata-file"),
)


def build_options(command: F) -> F:
    """Add the flags to a command."""
    for option in reversed((*_SEVERAL, *_OPTIONS)):
        command = option(command)
    return command
