"""Options that several commands share."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envkit.cli import shell_values
from envkit.cli.console import MODES, StepTimer, reporter_for, tell
from envkit.cli.declare import Section, argument, flag, group, option, quiet_option, verbose_option, verbosity
from envkit.ground import engine_names
from envkit.ground.errors import ConflictError, UsageError, masked
from envkit.ground.text import neutral
from envkit.pipeline.resolving import AUTO, fields_here

if TYPE_CHECKING:
    from envkit.facts.model import Facts
    from envkit.ground.settings import Settings
    from envkit.pipeline.deadline import Deadline
    from envkit.pipeline.resolving import Asked
    from envkit.plan.definition import Definition

STDOUT = "-"
PATH = click.Path(path_type=Path)
TIERS = ("quick", "standard", "deep")
REQUEST_FIELDS = (
    "torch", "cuda", "cudnn", "python", "driver", "gpu", "os", "platform", "source", "cpu", "max_size",
    "supported_only", "allow_forward_compat", "with_", "torchvision",
)  # fmt: skip
_LONGEST_S = 366 * 86400.0  # a year; the timers of the system overflow above a few billion seconds
_NOTED = "envkit.ground.settings.noted"  # a key of `click.Context.meta`, which a command shares with its group

# A request: the constraints on an image.


def definition_argument() -> Any:
    """Declare the field `definition` as the optional argument DEFINITION."""
    return argument(required=False, shell_complete=shell_values.definitions)


def definitions_argument() -> Any:
    """Declare the field `definitions` as the argument DEFINITION, of which there may be several."""
    return argument(nargs=-1, metavar="[DEFINITION]...", shell_complete=shell_values.definitions)


def facts_option(section: Section) -> Any:
    """Declare a field as the option `--facts FILE` in a section of the help."""
    return option(
        section,
        "--facts FILE",
        shell_complete=shell_values.files,
        help="YAML file that adds to or overrides the compatibility data.",
    )


def preset_option() -> Any:
    """Declare a field as the option `--preset NAME`."""
    return option(
        Section.GENERAL,
        "--preset NAME",
        shell_complete=shell_values.presets,
        help="Download from the mirrors of tuna, aliyun, sjtu or ustc.",
    )


def allow_source_option() -> Any:
    """Declare a field as the option `--allow-source NAME`."""
    return option(
        Section.BUILD,
        "--allow-source NAME",
        multiple=True,
        help="Build this package from source, in a sandbox, if it has no wheel. Repeatable.",
    )


def skip_impossible_option() -> bool:
    """Declare a field as the option `--skip-impossible` of a matrix file."""
    return flag(
        Section.MANY, "--skip-impossible", help="Skip combinations of the matrix that have no compatible versions."
    )


def allow_cpu_option() -> bool:
    """Declare a field as the option `--allow-cpu`."""
    return flag(
        Section.CHECKS, "--allow-cpu", help="Exit 0 for a CUDA image without a GPU (still reported as NOT VERIFIED)."
    )


def engine_option() -> Any:
    """Declare a field as the option `--runner` of a command that reads images and runs none."""
    return option(
        Section.INPUT,
        "--runner",
        type=click.Choice((engine_names.AUTO, *engine_names.STORES)),
        default="auto",
        help="Engine that plain names refer to.",
    )


def _no_amd(context: click.Context, option: click.Parameter, value: str | None) -> None:
    del context, option
    if value is not None:
        from envkit.resolve.wanted import NO_AMD, NO_AMD_HINT

        raise ConflictError(f"--rocm: {NO_AMD}", hint=NO_AMD_HINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """The options of a request, as typed."""

    torch: str | None = option(
        Section.REQUEST,
        "--torch VERSION",
        shell_complete=shell_values.torches,
        help="torch version: exact (2.7.1), a prefix (2.7.*) or '>=2.6,<2.8'.",
    )
    cuda: str | None = option(
        Section.REQUEST,
        "--cuda VERSION",
        shell_complete=shell_values.cudas,
        help="CUDA runtime version: 11.8, cu118, 12.* or '>=12.1,<13'.",
    )
    cudnn: str | None = option(Section.REQUEST, "--cudnn VERSION", help="cuDNN version: 9.10, 9.* or '>=9.5'.")
    python: str | None = option(Section.REQUEST, "--python VERSION", help="Python version: 3.11, or '>=3.10,<3.13'.")
    with_: tuple[str, ...] = option(
        Section.REQUEST,
        "--with PACKAGE",
        multiple=True,
        help="Choose a torch for torchaudio, 'torchvision==0.21.*', torchtext or torchcodec; "
        "add another package to the image: 'einops>=0.7'. Repeatable.",
    )
    torchvision: str | None = option(
        Section.REQUEST, "--torchvision VERSION", help="The same as --with torchvision==VERSION."
    )
    driver: str | None = option(
        Section.REQUEST, "--driver VERSION", help="NVIDIA driver of the machine that runs the image; auto: this host's."
    )
    gpu: tuple[str, ...] = option(
        Section.REQUEST,
        "--gpu NAME",
        multiple=True,
        shell_complete=shell_values.gpus,
        help='GPU of that machine: A100, "RTX 4090", sm_86; auto: this host\'s. Repeatable.',
    )
    here: bool = flag(Section.REQUEST, "--here", help="Use this machine's GPUs and driver: --gpu auto --driver auto.")
    os: str | None = option(
        Section.REQUEST,
        "--os NAME",
        shell_complete=shell_values.systems,
        help="OS of the image: debian12, ubuntu22.04, rockylinux9. [debian12]",
    )
    platform: str | None = option(
        Section.REQUEST,
        "--platform NAME",
        shell_complete=shell_values.platforms,
        help="Platform of the image: linux-64 or linux-aarch64. [linux-64]",
    )
    source: str | None = option(
        Section.REQUEST,
        "--source NAME",
        shell_complete=shell_values.sources,
        help="Source of torch: auto, pytorch, pypi, conda-forge or conda-pytorch. [auto]",
    )
    cpu: bool = flag(Section.REQUEST, "--cpu", help="Use a build without CUDA.")
    max_size: str | None = option(
        Section.REQUEST, "--max-size SIZE", help="Maximum download size of torch and its dependencies: 3GB."
    )
    supported_only: bool = flag(
        Section.REQUEST,
        "--supported-only",
        help="Use only a Python that is not end-of-life and one of the two newest minor versions of torch.",
    )
    allow_forward_compat: bool = flag(
        Section.REQUEST,
        "--allow-forward-compat",
        help="Accept a CUDA version that needs a cuda-compat package in the image (data center GPUs only).",
    )
    # Not supported: the error explains it to users of AMD GPUs, with or without a value.
    rocm: None = option(Section.REQUEST, "--rocm", is_flag=False, flag_value="", hidden=True, callback=_no_amd)
    template: str | None = option(
        Section.REQUEST,
        "--template NAME",
        shell_complete=shell_values.templates,
        help="Build method: miniconda, or wheels (venv on the system Python); or your own miniconda-NAME or "
        "wheels-NAME. [miniconda]",
    )
    facts_file: str | None = facts_option(Section.REQUEST)

    @property
    def is_empty(self) -> bool:
        """Whether none of these options constrains the image; `--facts` does not count."""
        return not any(getattr(self, name) for name in (*REQUEST_FIELDS, "here", "template"))

    def fields(self, facts: Facts) -> dict[str, Any]:
        """Return the request's fields, with `auto` replaced by the driver and GPUs of this host.

        Problems with this host's values become notes on stderr; with `-v` the values do, too.

        Raises:
            EnvironmentProblem: `auto` was typed and this host has no NVIDIA driver or GPU.
        """
        typed = {name.rstrip("_"): getattr(self, name) for name in (*REQUEST_FIELDS, "template")}
        return fields_here(typed, facts, note, here=self.here, detail=note if verbosity().verbose else None)

    def facts(self) -> Facts:
        """Load the facts, overridden by the rows from `--facts`, ENVKIT_FACTS or the settings file.

        Raises:
            UsageError: the settings or the rows are invalid.
        """
        return load_facts(self.facts_file)

    def asked(self, definition: str | None, *, allow_source: Sequence[str] = ()) -> Asked:
        """Return what these options ask for, over a definition or a project's file, with more sources.

        Raises:
            UsageError, EnvironmentProblem: as `fields` and `facts`.
        """
        from envkit.pipeline.resolving import asked

        facts = self.facts()
        return asked(definition, self.fields(facts), facts, note, allow_source=allow_source)

    def lock_command(self, definition: str | None, file: str | None, **more: str | Sequence[str] | None) -> str:
        """Return the `envkit lock` command that solves the same request into a file.

        Args:
            definition: as typed.
            file: path of the lock; None = envkit.lock.
            more: additional options of `envkit lock` by name.
        """
        words = ["envkit", "lock", *([definition] if definition else [])]
        typed = {name.rstrip("_"): getattr(self, name) for name in (*REQUEST_FIELDS, "template")} | more
        for name, value in typed.items():
            if not value or (name, value) == ("base", AUTO):
                continue
            for text in (value,) if isinstance(value, str | bool) else value:
                flag = f"--{name.replace('_', '-')}"
                words += [flag] if text is True else [flag, str(text)]
        words += ["--here"] if self.here else []
        words += ["--facts", self.facts_file] if self.facts_file else []
        return shlex.join([*words, "-o", file or "envkit.lock"])


def load_definition(name: str, facts: Facts) -> Definition:
    """Load a shipped image, a definition or a project file; lines that are left out become notes on stderr.

    Raises:
        UsageError: nothing has this name, or the file has errors.
    """
    from envkit.pipeline.resolving import definition_of

    return definition_of(name, facts, note)


def load_facts(facts_file: str | None) -> Facts:
    """Load the facts, overridden by the rows from `--facts`, ENVKIT_FACTS or the settings file.

    Raises:
        UsageError: the settings or the rows are invalid.
    """
    from envkit.ground import settings
    from envkit.pipeline.resolving import facts_of

    return facts_of(noted(settings.load({"facts": facts_file}, os.environ, Path.cwd())))


# Settings.


def load_settings(flags: Mapping[str, str | None] | None = None, *, host: bool = False) -> Settings:
    """Load the settings for the current folder, with notes on what its file sets and must not set.

    Args:
        flags: values of options.
        host: they are for an environment of this machine, not for builds.

    Raises:
        UsageError: a settings file, a variable or a flag is invalid.
    """
    from envkit.ground import settings

    use = settings.Use.HOST if host else settings.Use.BUILDS
    loaded = noted(settings.load(flags or {}, os.environ, Path.cwd(), use=use))
    if loaded.sources_note is not None:
        note(loaded.sources_note)
    return loaded


def noted(settings: Settings) -> Settings:
    """Print notes on ignored settings of this folder's file; with `-v` also every value that is not a default."""
    for text in settings.notes:
        note(text)
    if verbosity().verbose:
        given = {key: value for key, value in settings.values.items() if value.origin != "default" and value.text}
        for key, value in given.items():
            _tell_once(f"setting {key} = {neutral(masked(str(value.text)))} ({value.origin})")
    return settings


def note(text: str) -> None:
    """Print a note to stderr; the same note is printed once per run."""
    _tell_once(f"note: {text}")


def _tell_once(line: str) -> None:
    context = click.get_current_context(silent=True)
    known = context.meta.setdefault(_NOTED, set()) if context else set()
    if line not in known:
        known.add(line)
        tell(line)


# Progress and the time limit.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressOptions:
    """How progress is shown on stderr."""

    progress: str = option(
        Section.GENERAL,
        "--progress",
        type=click.Choice(MODES),
        default="auto",
        help="Progress output on stderr. [auto]",
    )
    quiet: bool = quiet_option()
    verbose: bool = verbose_option()

    @property
    def mode(self) -> str:
        """The mode of the reporter; `-q` is `--progress quiet`."""
        return "quiet" if self.quiet else self.progress

    def reporter(self) -> StepTimer:
        """Return the reporter of this command."""
        return StepTimer(reporter_for(self.mode, verbose=self.verbose))


def progress_options(verbose: str = "Show full output while it runs.") -> ProgressOptions:
    """Declare a field as `--progress`, `-q` and `-v`; `verbose` is the help of `-v`."""
    return group(ProgressOptions, verbose={"help": verbose})


class Seconds(click.FloatRange):
    """A number of seconds from 1 to a year; `nan` is refused."""

    def __init__(self) -> None:
        super().__init__(min=1, max=_LONGEST_S)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):  # passes the check of the range, because every comparison with it is false
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return seconds


def timeout_option(text: str = "Time limit of the whole command.") -> Any:
    """Declare a field as the option `--timeout`; `text` is its help."""
    return option(Section.GENERAL, "--timeout SECONDS", type=Seconds(), help=text)


def deadline_of(timeout: float | None, reporter: StepTimer) -> Deadline:
    """Return the deadline that `--timeout` sets, counted from now."""
    from envkit.pipeline.deadline import Deadline

    return Deadline(timeout, lambda: reporter.current)


# Documents.


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOptions:
    """Where the JSON document of a command goes."""

    as_json: bool = flag(Section.OUTPUT, "--json")
    out_file: str | None = option(Section.OUTPUT, "-o FILE", shell_complete=shell_values.files)

    def target(self) -> str | None:
        """Return where the document goes: a file, `-` for stdout, None for nowhere.

        Raises:
            UsageError: both options were given, or the file is a folder, or a link to another file.
        """
        if self.as_json and self.out_file is not None:
            raise UsageError(
                f"--json prints to stdout and -o {self.out_file} writes a file",
                hint=f"leave --json out, or -o {self.out_file}",
            )
        if self.out_file is not None and self.out_file != STDOUT and Path(self.out_file).is_dir():
            hint = f"-o {self.out_file.rstrip('/')}/record.json"
            raise UsageError(f"-o {self.out_file} is a folder", hint=hint)
        # Who made a checkout could have put the link there. /dev/stdout is one, too, but leads to no file of a folder.
        if self.out_file is not None and Path(self.out_file).is_symlink() and not self.out_file.startswith("/dev/"):
            real = Path(self.out_file).resolve()
            raise UsageError(f"-o {self.out_file} is a link to {real}", hint=f"name the file itself: -o {real}")
        return STDOUT if self.as_json else self.out_file


def document_options(what: str, *names: str) -> DocumentOptions:
    """Declare a field as `--json` and `-o FILE`.

    Args:
        what: the document, for the help: 'the record (schema envkit.verify/1)'.
        names: further names of `-o`.
    """
    return group(
        DocumentOptions,
        as_json={"help": f"Print {what} to stdout."},
        out_file={"names": ("-o", *names), "help": f"Write {what} to FILE."},
    )


# Registries.


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryFlags:
    """The options of a push to a registry."""

    replace_tag: bool = flag(Section.PUBLISH, "--replace-tag", help="Overwrite a tag that points to another image.")
    mount_from: tuple[str, ...] = option(
        Section.PUBLISH,
        "--mount-from REPOSITORY",
        multiple=True,
        help="Reuse layers of this repository in the same registry; repeatable.",
    )


def exclude(**given: object) -> None:
    """Refuse options that contradict each other.

    Raises:
        UsageError: more than one was given.
    """
    typed = [f"--{name.replace('_', '-')}" for name, value in given.items() if value]
    if len(typed) > 1:
        raise UsageError(f"{' and '.join(typed)} contradict each other", hint="give one of them")
