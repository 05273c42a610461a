"""envkit as a library: resolve, plan, lock, build and verify, as the commands of the same names do.

    from envkit import api

    plan = api.plan("train.yaml", gpu=["A100"])
    lock = api.lock(plan)
    api.write_lock(lock, "envkit.lock")
    result = api.build(plan, locked="envkit.lock")
    print(result.record.verdict)

Every function returns a frozen value and prints nothing. Errors are those of the command line: subclasses of
`EnvkitError` with a `message`, a `hint` and the `exit_code` of the command. Messages name options (`--cuda`), which are
the arguments of the same names. A definition may be a project file (`requirements.txt`); lines that are left out
become warnings (`warnings`). `settings` has the keys that `envkit config` lists; they override variables and files.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack

from envkit.assemble.outputs import check_output
from envkit.checks.catalog import select
from envkit.engines.builder import with_default_tag
from envkit.engines.labels import labels_asked
from envkit.engines.model import BuildOptions, BuiltImage
from envkit.ground import settings as known_settings
from envkit.ground.errors import (
    ConflictError,
    EngineError,
    EnvironmentProblem,
    EnvkitError,
    IntegrityError,
    LockError,
    TimeLimitError,
    UsageError,
)
from envkit.ground.paths import state_dir
from envkit.ground.progress import Reporter, Silent
from envkit.ground.text import similar
from envkit.image.name import image_name
from envkit.lock.model import Lock
from envkit.lock.store import read_lock as _read_lock
from envkit.lock.store import write_lock as _write_lock
from envkit.lock.values import parse_moment
from envkit.pipeline import building, choosing, verification
from envkit.pipeline.building import BuildRequest, BuildResult, Watcher
from envkit.pipeline.building import build as build_image
from envkit.pipeline.deadline import Deadline
from envkit.pipeline.locking import LockRequest, lock_alone, probe_of
from envkit.pipeline.publish import Push
from envkit.pipeline.resolving import asked, facts_of, fields_here, resolution_of
from envkit.pipeline.verification import VerifyRequest
from envkit.plan.model import BuildPlan
from envkit.resolve.conflict import Unresolvable
from envkit.resolve.model import Resolution
from envkit.verify.driver import Options as VerifyOptions
from envkit.verify.record import Record

__all__ = [
    "BuildOptions",
    "BuildPlan",
    "BuildResult",
    "BuiltImage",
    "ConflictError",
    "EngineError",
    "EnvironmentProblem",
    "EnvkitError",
    "IntegrityError",
    "Lock",
    "LockError",
    "Record",
    "Reporter",
    "Resolution",
    "TimeLimitError",
    "Unresolvable",
    "UsageError",
    "VerifyOptions",
    "Wanted",
    "build",
    "lock",
    "plan",
    "plan_and_lock",
    "read_lock",
    "resolve",
    "verify",
    "write_lock",
]

SettingValues = Mapping[str, "str | Path"]
_FLAGS = ("cpu", "supported_only", "allow_forward_compat")  # the keys of `Wanted` that are bool; the others are strings
_SILENT = Silent()


class Wanted(TypedDict, total=False):
    """The constraints on an image. Every key is optional; anything left out becomes the newest compatible version.

    Versions are strings, because the number 12.10 would be 12.1.
    """

    torch: str  # exact (2.7.1), a prefix (2.7.*) or '>=2.6,<2.8'
    cuda: str  # CUDA runtime: 11.8, cu118, 12.* or '>=12.1,<13'
    cudnn: str
    python: str  # 3.11, or '>=3.10,<3.13'
    driver: str  # NVIDIA driver of the machine that runs the image; 'auto': this host's
    gpu: str | Sequence[str]  # GPUs of that machine: 'A100', 'RTX 4090', 'sm_86'; 'auto': this host's
    os: str  # OS of the image: debian12, ubuntu22.04, rockylinux9
    platform: str  # linux-64 or linux-aarch64
    source: str  # auto, pytorch, pypi, conda-forge or conda-pytorch
    template: str  # miniconda or wheels, or your own template miniconda-NAME or wheels-NAME
    cpu: bool  # use a build without CUDA
    max_size: str  # maximum download size of torch and its dependencies: '3GB'
    supported_only: bool  # use only a Python that is not end-of-life and one of the two newest minor versions of torch
    allow_forward_compat: bool  # accept a CUDA version that needs a cuda-compat package in the image


def resolve(
    definition: str | Path | None = None,
    *,
    here: bool = False,
    settings: SettingValues | None = None,
    **wanted: Unpack[Wanted],
) -> Resolution:
    """Find compatible versions of torch, CUDA, driver, GPU, Python and OS. Opens no socket.

    Args:
        definition: a shipped image (`cu126`), the path of an image definition, or a project file or folder that
            `envkit init` can read; `wanted` overrides its request. None: only `wanted`.
        here: resolve for this machine, the same as `gpu="auto", driver="auto"`.
        settings: `facts` names a file with your own rows.
        wanted: see `Wanted`.

    Returns:
        The newest compatible combination. `reasons` explains the value of each field; `to_json()` is the document of
        `envkit resolve --json` without its `facts`, `download` and `support`.

    Raises:
        UsageError: the definition or a value is invalid.
        Unresolvable: nothing is compatible; its `conflict` has the smallest set of clashing constraints, and changes
            that resolve. It is a ConflictError.
        EnvironmentProblem: `auto` or `here` is given, and this machine has no NVIDIA driver or GPU.
    """
    facts = facts_of(_settings(settings, _SILENT))
    fields = fields_here(_fields(wanted), facts, warnings.warn, here=here)
    return resolution_of(_name(definition), fields, facts, warnings.warn)[0]


def plan(
    definition: str | Path | None = None,
    *,
    here: bool = False,
    settings: SettingValues | None = None,
    **wanted: Unpack[Wanted],
) -> BuildPlan:
    """Return the plan of an image: everything that determines its content. Opens no socket.

    Args:
        definition: as for `resolve`; None: the image `default`.
        here: as for `resolve`.
        settings: as for `resolve`.
        wanted: see `Wanted`; overrides the definition.

    Returns:
        The plan. Equal requests give equal plans; `digest` identifies the image, `canonical()` is the plan.json of
        `envkit render --only plan`.

    Raises:
        UsageError, ConflictError, EnvironmentProblem: as for `resolve`; a ConflictError also if a requirements file of
            the definition contradicts the resolution.
    """
    facts = facts_of(_settings(settings, _SILENT))
    fields = fields_here(_fields(wanted), facts, warnings.warn, here=here)
    return asked(_name(definition), fields, facts, warnings.warn).plan()


def lock(
    plan: BuildPlan,
    *,
    base: str = "auto",
    old: Lock | None = None,
    update: Sequence[str] = (),
    as_of: str | None = None,
    settings: SettingValues | None = None,
    reporter: Reporter = _SILENT,
) -> Lock:
    """Solve a plan's packages, each with its URL, SHA-256 and size in bytes. Downloads no package.

    Args:
        plan: as returned by `plan`.
        base: the base image, `bootstrap:debian/bookworm`, or `none` for a lock of the packages only.
        old: the current lock; its versions are kept wherever the plan allows them. None: every package is the newest.
        update: packages to update, with what must move with them; `old` is kept for the others.
        as_of: ignore anything published after this date (UTC) or RFC 3339 time.
        settings: mirrors, indexes, `engine`, `facts`.
        reporter: receives the steps.

    Returns:
        The lock. `size` is the download size in bytes; `write_lock` writes the file that `build` and `envkit build`
        install.

    Raises:
        UsageError: the base, the date or a setting is invalid, or `old` has no package of a name in `update`.
        LockError: `update` has names, and `old` is of another image.
        ConflictError: the plan's packages cannot be solved.
        EngineError: the registry does not have the base, or refuses access.
        EnvironmentProblem: an index, a channel or the registry does not respond.
        TimeLimitError: a solver did not finish in time.
    """
    request = LockRequest(
        plan=plan,
        settings=_settings(settings, reporter),
        base=base,
        as_of=parse_moment(as_of, "as_of") if as_of is not None else None,
        update=tuple(update),
        old=old,
    )
    return lock_alone(request, reporter)


def plan_and_lock(
    definition: str | Path | None = None,
    *,
    base: str = "auto",
    old: Lock | None = None,
    update: Sequence[str] = (),
    as_of: str | None = None,
    settings: SettingValues | None = None,
    reporter: Reporter = _SILENT,
    **wanted: Unpack[Wanted],
) -> tuple[BuildPlan, Lock]:
    """Choose torch and Python with the packages that require them, and solve the lock, as `envkit lock` does.

    `plan` opens no socket, so it takes the newest torch that the hardware allows, and `lock` solves that plan as it is.

    Args:
        definition: as for `plan`.
        base: as for `lock`.
        old: as for `lock`; its torch and Python are kept, too, if the request allows them.
        update: as for `lock`; with torch among them, torch is chosen again.
        as_of: as for `lock`.
        settings: as for `lock`.
        reporter: receives the steps.
        wanted: see `Wanted`; overrides the definition. `gpu="auto", driver="auto"` is this machine.

    Returns:
        The plan with the newest torch that the packages allow, and its lock.

    Raises:
        UsageError, LockError, ConflictError, EngineError, EnvironmentProblem, TimeLimitError: as for `plan` and `lock`.
    """
    loaded = _settings(settings, reporter)
    facts = facts_of(loaded)
    fields = fields_here(_fields(wanted), facts, warnings.warn, here=False)
    whole = asked(_name(definition), fields, facts, warnings.warn)
    moment = parse_moment(as_of, "as_of") if as_of is not None else None
    request = LockRequest(plan=whole.plan(), settings=loaded, base=base, as_of=moment, update=tuple(update), old=old)
    return choosing.solve(
        whole,
        lambda plan: lock_alone(replace(request, plan=plan), reporter),
        lambda plan: probe_of(loaded, plan, moment),
        reporter,
        old=old,
        update=update,
    )


def read_lock(path: str | Path) -> Lock:
    """Read a lock file.

    Raises:
        LockError: the file does not exist.
        UsageError: it is not a lock.
        IntegrityError: its seal does not match, or an artifact has no SHA-256.
    """
    return _read_lock(Path(path))


def write_lock(lock: Lock, path: str | Path) -> bool:
    """Write a lock file atomically; return whether it changed.

    Raises:
        OSError: the file cannot be written.
    """
    return _write_lock(Path(path), lock)


def build(
    plan: BuildPlan,
    *,
    locked: str | Path | None = None,
    options: BuildOptions | None = None,
    verify: bool = True,
    allow_cpu: bool = False,
    settings: SettingValues | None = None,
    reporter: Reporter = _SILENT,
) -> BuildResult:
    """Build an image and verify it, as `envkit build` does.

    Args:
        plan: as returned by `plan`.
        locked: a lock file; None: `envkit.lock` in this folder if it fits, else a lock that is solved now.
        options: tags, labels, `output` and more; mirrors and folders come from the settings.
        verify: whether to verify the image after the build.
        allow_cpu: exit code 0 for a CUDA image without a GPU, which is still reported as NOT_VERIFIED.
        settings: `engine`, `runner`, mirrors, indexes.
        reporter: receives the steps and the engine's output.

    Returns:
        The image (`image.id`, `image.place`, `image.size` in bytes) and the record of its verification. A failed
        verification raises nothing: see `record.verdict` and `record.exit_code`.

    Raises:
        UsageError: an option or a setting is invalid.
        LockError: the lock is missing or belongs to another plan.
        EngineError: the build, a pull or a push failed.
        EnvironmentProblem: no engine or runner works here, or a source does not respond.
        IntegrityError: a download does not match its hash in the lock.
        TimeLimitError: the build took longer than `options.timeout_s`.
    """
    loaded = _settings(settings, reporter)
    checked = _build_options(options or BuildOptions(), loaded)
    engine = building.engine_name(loaded, checked)
    if verify:
        verification.check_runner(loaded)
    request = BuildRequest(
        plan=plan,
        options=with_default_tag(plan, building.options_here(checked, loaded, plan.name)),
        settings=loaded,
        engine=engine,
        locked=None if locked is None else str(locked),
        verify=verify,
        allow_cpu=allow_cpu,
    )
    # The phase is always the same, because only the command line's reporter knows the current step.
    deadline = Deadline(checked.timeout_s, lambda: "build")
    result = build_image(request, Push(settings=loaded), reporter, deadline, Watcher())
    if result.record is not None:
        verification.keep_record(result.record, state_dir())
    return result


def verify(
    image: str | None = None,
    *,
    plan: BuildPlan | None = None,
    tier: str | None = None,
    gpus: str | None = None,
    options: VerifyOptions | None = None,
    settings: SettingValues | None = None,
    reporter: Reporter = _SILENT,
) -> Record:
    """Run the smoke benchmark inside an image and judge the result, as `envkit verify` does.

    Args:
        image: a name or ID in an engine, `oci:DIR`, `docker-archive:FILE` or `registry:HOST/NAME:TAG`; None: the image
            that was built last.
        plan: the plan of the image; None: the plan that was kept when it was built on this machine.
        tier: quick, standard or deep; None: the plan's.
        gpus: all, none or device numbers; None: all, if there are any.
        options: which checks run (`only`, `skip`), `allow_cpu`, `require_gpu`, `timeout_s` in seconds.
        settings: `runner`, `run_memory`.
        reporter: receives the steps, and each check when it starts.

    Returns:
        The record: `verdict`, `exit_code` (0 verified, 5 not verified, 6 failed, 9 fault of the machine), and
        `tree`, the document of `envkit verify --json`. It is also kept in the state folder.

    Raises:
        UsageError: no image is named and none was built on this machine, or a check, a tier or an option is unknown.
        EngineError: an engine or a registry does not provide the image.
        EnvironmentProblem: no runner works here.
        TimeLimitError: the verification took longer than `options.timeout_s`.
    """
    chosen = options or VerifyOptions()
    verification.check_gpu_rules(allow_cpu=chosen.allow_cpu, require_gpu=chosen.require_gpu)
    # The result is not needed: this refuses unknown checks before the image is looked up.
    select(tier or "quick", chosen.only, chosen.skip)
    loaded = _settings(settings, reporter)
    typed = None if image is None else image_name(image)
    name, engine, own = verification.named_or_last(typed, plan, loaded)
    chosen = replace(chosen, argv=chosen.argv or tuple(sys.argv))
    request = VerifyRequest(image=name, options=chosen, plan=own, engine=engine, gpus=gpus, tier=tier)
    with ExitStack() as until:
        record = verification.verify(verification.subject_of(request, loaded, reporter, until), reporter)
    verification.keep_record(record, state_dir())
    return record


def _settings(given: SettingValues | None, reporter: Reporter) -> known_settings.Settings:
    known = {setting.key for setting in known_settings.SETTINGS}
    for key in given or {}:
        if key not in known:
            near = similar(key, known)
            raise UsageError(
                f"unknown setting {key!r:.80}",
                hint=f"did you mean {near[0]}?" if near else "envkit config lists the settings",
            )
    loaded = known_settings.load({key: str(value) for key, value in (given or {}).items()}, os.environ, Path.cwd())
    for note in (*loaded.notes, *([loaded.sources_note] if loaded.sources_note else [])):
        reporter.note(note)
    return loaded


def _name(definition: str | Path | None) -> str | None:
    """Return a definition as the command line takes it; a `Path` is never the name of a shipped image."""
    if not isinstance(definition, Path):
        return definition
    return str(definition) if definition.is_absolute() else f"./{definition}"


def _fields(wanted: Wanted) -> dict[str, object]:
    """Return the fields of the request after checking their names and types.

    Raises:
        TypeError: an argument is unknown.
        UsageError: a value that must be a string is not.
    """
    # Only type checkers enforce `Unpack[Wanted]`; Python itself accepts any keyword.
    for key, value in wanted.items():
        if key not in Wanted.__annotations__:
            raise TypeError(f"unexpected keyword argument {key!r}")
        texts = [value] if key != "gpu" or isinstance(value, str) else list(value)  # type: ignore[call-overload]
        if key not in _FLAGS and not all(isinstance(text, str) or value is None for text in texts):
            raise UsageError(f"--{key}: {value!r:.80} is not a string", hint=f'{key}="12.6"' if key == "cuda" else None)
    # A string is one GPU, although it is a sequence, too.
    gpu = wanted.get("gpu")
    return {**wanted, "gpu": (gpu,) if isinstance(gpu, str) else tuple(gpu or ())}


def _build_options(options: BuildOptions, settings: known_settings.Settings) -> BuildOptions:
    """Return the options after the same checks as on the command line.

    Raises:
        UsageError: a label, the compression or the output is invalid.
    """
    if options.compression not in ("gzip", "zstd"):
        raise UsageError(f"compression {options.compression!r:.80} is not one of gzip, zstd", hint="leave it out")
    check_output(options)
    labels = labels_asked(settings, [f"{key}={value}" for key, value in options.labels])
    return replace(options, labels=labels, network=settings.get("build_network") or options.network)
