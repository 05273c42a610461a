"""`envkit run` and `envkit shell`: run the user's command or a shell in an image."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envkit.cli import shell_values
from envkit.cli.declare import Section, SectionCommand, argument, group, new_command, option
from envkit.cli.image_names import IMAGE
from envkit.cli.options import PATH, ProgressOptions, noted, progress_options
from envkit.ground.errors import UsageError, VerificationError

if TYPE_CHECKING:
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Settings
    from envkit.ground.state import LastBuilt
    from envkit.image.name import ImageName
    from envkit.pipeline.printing import Printed
    from envkit.pipeline.running import RunRequest
    from envkit.plan.model import BuildPlan
    from envkit.verify.record import Record

PRINTED = ("docker", "podman", "compose", "srun", "apptainer")
_HERE = "here"  # --print without a value
_HELP = """Run a command in IMAGE (default: the image that was built last) with GPUs, folders, ports and your user.

\b
envkit run -- python train.py                       the current folder is the workspace
envkit run . -- python train.py                     the same in an image for the project in this folder
envkit run train:1 --data /datasets -- python train.py --data /data
envkit run                                          run the image's own command, such as Jupyter
envkit run --print                                  print the `docker run` command instead

IMAGE is a name in an engine, oci:DIR, docker-archive:FILE or registry:HOST/NAME:TAG; or a definition, or a project's
file or folder (., ./train): its image for this machine is built, verified quickly and kept until the project asks for
another one. The workspace is mounted
read-write at the image's working directory, data folders read-only. The root file system is read-only, /tmp is
writable, all capabilities are dropped, and ports are published on 127.0.0.1. An image that was not built on this
machine gets no folder unless --workspace names one, or --key names the public key of a signer of the image.

Signals are forwarded to the command. The exit code is that of the command (128+n for signal n, 127 not found, 126 not
executable), or if it cannot start: 2 usage, 8 no such image, 9 no engine, or a port is in use.
"""
_SHELL_HELP = """Open a shell in IMAGE (default: the image that was built last), as `envkit run` does with a terminal.

\b
envkit shell
envkit shell .                                      in an image for the project in this folder
envkit shell train:1 --data /datasets
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """The options of a container in which a command of the user runs: folders, variables, GPUs, network."""

    workspace: str | None = option(
        Section.CONTAINER,
        "--workspace DIR",
        shell_complete=shell_values.folders,
        help="Folder to mount read-write as the working directory, or none. [.]",
    )
    data: tuple[str, ...] = option(
        Section.CONTAINER,
        "--data DIR[:TARGET]",
        multiple=True,
        help="Folder to mount read-only, at /data by default; repeatable.",
    )
    env: tuple[str, ...] = option(
        Section.CONTAINER,
        "-e",
        "--env NAME[=VALUE]",
        multiple=True,
        help="Set or pass an environment variable; repeatable.",
    )
    gpus: str | None = option(
        Section.CONTAINER,
        "--gpus all|none|LIST",
        help="GPUs for the container: all, none, or device numbers or UUIDs. [all, if there are any]",
    )
    shm_size: str | None = option(Section.CONTAINER, "--shm-size SIZE", help="Size of /dev/shm: 8GB. [the image's]")
    network: str | None = option(
        Section.CONTAINER,
        "--network",
        type=click.Choice(["default", "host", "none"]),
        help="Network of the container. [the engine's; bubblewrap, proot: the host's, or none for unknown images]",
    )
    runner: str | None = option(
        Section.CONTAINER,
        "--runner",
        type=click.Choice(["auto", "docker", "podman", "bubblewrap", "proot"]),
        help="Runner of the container.",
    )

    @property
    def typed(self) -> tuple[str, ...]:
        """The options that were given."""
        return tuple(f"--{field.name.replace('_', '-')}" for field in fields(self) if getattr(self, field.name))

    def request(self, image: ImageName | None, argv: tuple[str, ...], *, terminal: bool, **more: Any) -> RunRequest:
        """Return the request; `more` are further fields of it.

        Raises:
            UsageError: --shm-size is not a size, or below 1 MiB.
        """
        from envkit.ground.sizes import parse_size
        from envkit.pipeline.running import RunRequest

        shm_mb = None if self.shm_size is None else parse_size(self.shm_size, "--shm-size") >> 20
        if shm_mb == 0:
            raise UsageError(f"--shm-size {self.shm_size} is below 1 MiB", hint="--shm-size 8GB")
        return RunRequest(
            image=image,
            argv=argv,
            workspace=self.workspace,
            data=self.data,
            env=self.env,
            gpus=self.gpus,
            shm_mb=shm_mb,
            network=self.network,
            terminal=terminal,
            **more,
        )


class WithCommand(SectionCommand):
    """A command whose words after `--` are the command line of another program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Store the words after `--` as the parameter `argv`."""
        # click drops the `--`, so IMAGE and the command could not be told apart.
        at = args.index("--") if "--" in args else len(args)
        argv = tuple(args[at + 1 :])
        if at < len(args) and not argv:
            raise click.UsageError("no command follows --", ctx=ctx)
        try:
            rest = super().parse_args(ctx, args[:at])
        except click.UsageError as error:
            if at < len(args) or not error.message.startswith("Got unexpected extra argument"):
                raise
            plain = not any(word.startswith("-") for word in args[:1])
            raise UsageError(
                error.message.removesuffix(".").replace("Got", "got", 1),
                hint=f"{ctx.command_path} -- {shlex.join(args) if plain else 'COMMAND'}",
            ) from error
        ctx.params["argv"] = argv
        return rest


class _Printed(click.ParamType):  # type: ignore[type-arg]
    """The optional value of --print. Click also takes a following IMAGE for it, which the error explains."""

    name = "form"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return one of PRINTED, or `here`."""
        del param, ctx
        if value not in (*PRINTED, _HERE):
            raise UsageError(
                f"--print {value!r:.200} is not one of {', '.join(PRINTED)}",
                hint=f"put the image first: envkit run {value} --print",
            )
        return str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFlags:
    """The options of `envkit run` and `envkit shell`."""

    image: ImageName | None = argument(required=False, type=IMAGE, shell_complete=shell_values.images)
    argv: tuple[str, ...]  # the words after --, from `WithCommand`
    session: SessionOptions = group(SessionOptions)
    ports: tuple[str, ...] = option(
        Section.CONTAINER,
        "-p",
        "--port [HOST:]PORT",
        multiple=True,
        help="Publish a port on 127.0.0.1, or none. [the image's ports]",
    )
    user: str | None = option(
        Section.CONTAINER, "--user UID:GID|image", help="User in the container. [the calling user]"
    )
    ssh_key: Path | None = option(
        Section.CONTAINER,
        "--ssh PUB",
        type=PATH,
        help="Public key that may log in to the SSH server of the image. [~/.ssh/id_*.pub]",
    )
    key_files: tuple[Path, ...] = option(
        Section.SIGNATURES,
        "--key PUB",
        multiple=True,
        type=PATH,
        help="Trust an image in a registry that this key signed like one built here; repeatable.",
    )
    printed: str | None = option(
        Section.OUTPUT,
        "--print [FORM]",
        is_flag=False,
        flag_value=_HERE,
        type=_Printed(),
        help=f"Print the command line instead: {', '.join(PRINTED)}. [the runner's]",
    )
    progress: ProgressOptions = progress_options()


@new_command("run", RunFlags, cls=WithCommand, help=_HELP)
def command(flags: RunFlags) -> int:
    """See `_HELP`."""
    return _run(flags, opens_shell=False)


@new_command("shell", RunFlags, cls=WithCommand, help=_SHELL_HELP)
def shell(flags: RunFlags) -> int:
    """See `_SHELL_HELP`."""
    if flags.argv:
        raise UsageError("envkit shell takes no command", hint=f"envkit run -- {shlex.join(flags.argv)}")
    return _run(flags, opens_shell=True)


def _run(flags: RunFlags, *, opens_shell: bool) -> int:
    from envkit.ground.text import neutral
    from envkit.pipeline.machine import settings_here
    from envkit.pipeline.running import ready
    from envkit.run.attach import attach

    settings = noted(settings_here(_runner(flags)))
    with ExitStack() as until:
        with closing(flags.progress.reporter()) as reporter:
            attested = _attested(flags, reporter) if flags.key_files else None
            request, last = own_image(_request(flags, opens_shell=opens_shell), settings, reporter)
            if flags.printed is not None:
                from envkit.pipeline.printing import printed

                return _print(printed(request, flags.printed, settings, reporter, attested=attested, last=last))
            prepared = ready(request, settings, reporter, until, attested=attested, last=last)
        if flags.progress.mode != "quiet":
            for line in prepared.lines:
                click.echo(neutral(line), err=True)
        # `attach` may replace this process by the engine's client, and buffered output would be lost.
        sys.stdout.flush()
        docker = settings.get("docker_cli") or "docker"
        return attach(prepared.runner, prepared.session, reporter, secrets=prepared.secrets, docker=docker)


def own_image(request: RunRequest, settings: Settings, reporter: Reporter) -> tuple[RunRequest, LastBuilt | None]:
    """Return a request whose image is a project as one without an image, and the project's image; others unchanged.

    The image is built and verified if that was not done yet. The folder of the project becomes the workspace.

    Raises:
        VerificationError: the image failed its verification, whose report is printed to stderr.
        EnvkitError: the image cannot be built.
    """
    # First, because what builds an image takes half a second to import.
    # An image may have a name that is no path at all, so not `Path.exists`, which raises for some of them.
    if request.image is None or not (os.path.exists(name := request.image.typed) or _is_shipped(name)):  # noqa: PTH110
        return request, None
    from envkit.pipeline import project_image

    if not project_image.is_project(name) and not (
        _is_shipped(name) and not project_image.is_image(request.image, settings)
    ):
        return request, None
    from envkit.cli.options import load_facts

    found = project_image.image_of(
        name, load_facts(None), settings, reporter, lambda plan, target: _announce(plan, target, reporter)
    )
    if found.record is not None:
        reporter.close()
        _judged(found.record, name, is_usable=found.is_usable)
    workspace = request.workspace or str(project_image.folder_of(name))
    return replace(request, image=None, workspace=workspace), found.image


def _is_shipped(name: str) -> bool:
    """Return whether a name is that of a definition that comes with envkit: `jupyter`. An image may have it as well."""
    from envkit.ground.paths import data_folder

    return "/" not in name and os.path.isfile(data_folder("images") / f"{name}.yaml")  # noqa: PTH113 - as above


def _announce(plan: BuildPlan, target: str, reporter: Reporter) -> None:
    resolution = plan.resolution
    runtime = f"CUDA {resolution.cuda}" if resolution.cuda else "CPU"
    reporter.note(f"{plan.title}: torch {resolution.torch}, {runtime}, Python {resolution.python}, {target}")


def _judged(record: Record, name: str, *, is_usable: bool) -> None:
    """Print the verdict on a new image in one line, or the whole report if it failed.

    Raises:
        VerificationError: it failed.
    """
    from envkit.cli.console import color, columns, tell
    from envkit.ground.paths import state_dir
    from envkit.pipeline.verification import keep_record
    from envkit.report.reading import counted, headline
    from envkit.report.text import render_text

    file, summary = keep_record(record, state_dir()), record.tree["summary"]
    if is_usable:
        tell(f"{headline(summary)}: {counted(summary)} in {record.tree['run']['duration_s']:.1f} s")
        return
    click.echo(render_text(record.tree, width=columns(sys.stderr) or 100, color=color(), path=file), nl=False, err=True)
    error = VerificationError(
        f"{name}: the image failed its verification, so nothing was run",
        hint=f"envkit run {record.tree['subject']['image']} -- COMMAND runs it all the same",
    )
    error.exit_code = record.exit_code
    raise error


def _attested(flags: RunFlags, reporter: Reporter) -> str:
    """Return the ID of the image in the registry, after checking that one of the keys signed an attestation of it.

    Raises:
        UsageError: no image in a registry is named, or a key cannot be read.
        NotVerifiedError, IntegrityError: none of the keys signed it.
    """
    from envkit.attest.inspection import inspection
    from envkit.attest.keys import read_public
    from envkit.cli.inspect import in_registry
    from envkit.image.name import InEngine, InRegistry

    name = flags.image.published() if isinstance(flags.image, InEngine) else flags.image
    if not isinstance(name, InRegistry):
        raise UsageError(
            "--key: only images in a registry have signatures", hint="envkit run --key PUB registry:HOST/NAME@DIGEST"
        )
    keys = [read_public(path) for path in flags.key_files]
    looked = in_registry(name.reference, keys, (), reporter)
    failure = inspection(looked, [key.id for key in keys]).failure(require_verified=False)
    if failure is not None:
        raise failure
    return looked.id


def _request(flags: RunFlags, *, opens_shell: bool) -> RunRequest:
    return flags.session.request(
        flags.image,
        flags.argv,
        # Docker refuses a terminal if stdin is not one, and output through a terminal has CRLF, which a file must not
        # get.
        terminal=sys.stdin.isatty() and sys.stdout.isatty(),
        shell=opens_shell,
        ports=flags.ports,
        user=flags.user,
        ssh_key=flags.ssh_key,
    )


def _runner(flags: RunFlags) -> str | None:
    """Return the requested runner; `--print docker` implies docker, if it answers here."""
    if flags.session.runner is None and flags.printed in ("docker", "podman"):
        return flags.printed
    return flags.session.runner


def _print(line: Printed) -> int:
    """Print a session to stdout, and to stderr what has to be done before it can be used."""
    if line.note is not None:
        click.echo(line.note, err=True)
    click.echo(line.text or shlex.join(line.words))
    return 0
