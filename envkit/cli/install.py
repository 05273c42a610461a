"""`envkit install`: install torch for this machine into a virtual environment."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

import click

from envkit.cli.console import tell
from envkit.cli.declare import Section, flag, group, new_command, option
from envkit.cli.options import PATH, RequestOptions, load_settings, note, preset_option


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallFlags:
    """The options of `envkit install`."""

    venv: Path | None = option(
        Section.INSTALL, "--venv DIR", type=PATH, help="Virtual environment; created if missing."
    )
    dry_run: bool = flag(Section.INSTALL, "--dry-run", help="Print the commands without running them.")
    verify: bool = flag(
        Section.INSTALL, "--verify", help="Run the smoke benchmark with the environment's Python afterwards."
    )
    torch_only: bool = flag(Section.INSTALL, "--torch-only", help="Do not install torchvision and torchaudio.")
    allow_source: bool = flag(
        Section.INSTALL,
        "--allow-source",
        help="Also install packages that have no wheel. This runs their build scripts as you.",
    )
    preset: str | None = preset_option()
    request: RequestOptions = group(RequestOptions)


@new_command("install", InstallFlags)
def command(flags: InstallFlags) -> int:
    """Install torch, torchvision and torchaudio for this machine's GPU and driver, using uv.

    Installs into the active virtual or conda environment, or into --venv. The system Python is never changed. Only
    wheels are installed, and no configuration of the current folder applies. Each command is printed before it runs.

    \b
    envkit install --dry-run
    envkit install --venv .venv --verify
    envkit install --cpu
    """  # noqa: D301 - click reads "\b" as "do not join these lines"
    from envkit.ground.settings import NO_BUNDLE
    from envkit.pipeline import installing

    environment = installing.environment_of(flags.venv, os.environ)
    facts = flags.request.facts()
    resolution = installing.resolution_here(flags.request.fields(facts), environment, facts, note)
    settings = load_settings({"preset": flags.preset}, host=True)
    mirrors = settings.mirrors()
    click.echo(
        f"torch {resolution.torch}, {f'CUDA {resolution.cuda}' if resolution.cuda else 'CPU'}, "
        f"Python {resolution.python}"
    )
    for warning in resolution.warnings:
        tell(f"warning: {warning}")
    steps = installing.steps(
        resolution, environment, mirrors, torch_only=flags.torch_only, allow_source=flags.allow_source
    )
    bundle = None if mirrors.ca_bundle == NO_BUNDLE else mirrors.ca_bundle
    for step in steps:
        click.echo(f"$ {step.shown(os.environ)}")
        if not flags.dry_run:
            installing.run(step, bundle)
    command = (
        f"envkit verify --runner host {shlex.quote(str(environment.python))}{'' if resolution.cuda else ' --allow-cpu'}"
    )
    click.echo(f"$ {command}" if flags.verify else f"verify: {command}")
    if not flags.verify or flags.dry_run:
        return 0
    from envkit.cli.verify import verify_python

    return verify_python(str(environment.python), allow_cpu=resolution.cuda is None)
