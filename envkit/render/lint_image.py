"""Lint rules on the image: layers, user, environment, entry point, CUDA."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envkit.plan.variables import read_requirement
from envkit.render.dockerfile import command
from envkit.render.lint_model import Context, Hit, Rule, error

_SYSTEM_FOLDERS = ("/proc", "/sys", "/dev")
# The values that the NVIDIA container toolkit accepts, without `all`.
_CAPABILITIES = frozenset(["compute", "compat32", "graphics", "utility", "video", "display", "ngx"])
_CREATES_ENV = re.compile(r"conda (?:env )?create\b")
# Variables that a definition may not set, except those that templates set (PATH, NVIDIA_REQUIRE_CUDA) or that D40 and
# D44 check.
_FORBIDDEN = ("LD_PRELOAD", "LD_AUDIT", "NVIDIA_DISABLE_REQUIRE", "BASH_ENV", "ENV", "PYTHONSTARTUP", "PYTHONHOME")


def _variables(context: Context) -> dict[str, tuple[int, str]]:
    """Return the variables of the last stage with their lines."""
    return {name: (item.line, value) for item in context.parsed.final("ENV") for name, value in item.pairs}


def stages(context: Context) -> Iterator[Hit]:
    """D15: a build stage and a final one; the environment is copied to the path where it was created."""
    if context.parsed.last_stage < 1:
        yield error(0, "there is only one stage")
    # An environment contains absolute paths, such as those in shebangs, so it works only where it was created.
    copies = [item for item in context.parsed.final("COPY") if "--from=build" in item.flags]
    if not any(item.text.split() == ["/opt/env", "/opt/env"] for item in copies):
        yield error(0, "the final stage does not copy /opt/env to /opt/env")


def cleaned(context: Context) -> Iterator[Hit]:
    """D16: conda's package cache is removed in the step that fills it, or is in a cache mount."""
    for item in context.parsed.of("RUN"):
        creates = _CREATES_ENV.search(item.text)
        if creates is None:
            continue
        cached = any("target=/opt/conda/pkgs" in flag for flag in item.flags)
        if not cached and "conda clean -afy" not in item.text:
            yield error(item.line, f"{creates.group()} without conda clean in the same step")
        if "seal.py" not in item.text:
            yield error(item.line, f"{creates.group()} without seal.py in the same step")


def cache_mounts(context: Context) -> Iterator[Hit]:
    """D17: cache mounts have an id and are locked."""
    for item in context.parsed.of("RUN"):
        for flag in item.flags:
            # Without an id, all Dockerfiles that mount this path share one cache. Locked, one build at a time uses it.
            if "type=cache" in flag and not ("sharing=locked" in flag and "id=envkit-" in flag):
                yield error(item.line, "a cache mount without id or sharing=locked")


def folders(context: Context) -> Iterator[Hit]:
    """D23: WORKDIR is absolute and outside the kernel's file systems; no cd, sudo or su in a RUN."""
    for item in context.parsed.of("WORKDIR"):
        if not item.text.startswith("/") or item.text.startswith(_SYSTEM_FOLDERS):
            yield error(item.line, f"WORKDIR {item.text} is not absolute or is a folder of the kernel")
    for item in context.parsed.of("RUN"):
        if re.search(r"(?:^|[;&]\s*)(?:cd|sudo|su)\s", item.text):
            yield error(item.line, "RUN with cd, sudo or su")


def surprises(context: Context) -> Iterator[Hit]:
    """D24: no ONBUILD, MAINTAINER or SHELL; only the plan's ports and volumes; one CMD, ENTRYPOINT and HEALTHCHECK."""
    for item in context.parsed.of("ONBUILD", "MAINTAINER", "SHELL"):
        yield error(item.line, f"{item.keyword} is not allowed")
    plan = context.plan()
    for item in context.parsed.of("EXPOSE"):
        if item.text.split() != plan.get("ports"):
            yield error(item.line, f"EXPOSE {item.text} differs from the plan")
    for item in context.parsed.of("VOLUME"):
        if command(item.text) != plan.get("volumes"):
            yield error(item.line, f"VOLUME {item.text} differs from the plan")
    for keyword in ("CMD", "ENTRYPOINT", "HEALTHCHECK"):
        for item in context.parsed.of(keyword)[1:]:
            yield error(item.line, f"a second {keyword}")


def casing(context: Context) -> Iterator[Hit]:
    """D25: keywords in upper case; stage names in lower case and unique."""
    for item in context.parsed.instructions:
        if item.written != item.keyword:
            yield error(item.line, f"{item.written} is not in upper case")
    seen: set[str] = set()
    for item in context.parsed.of("FROM"):
        name = item.text.split(" AS ")[-1] if " AS " in item.text else ""
        if name != name.lower() or name in seen:
            yield error(item.line, f"the stage name {name} is not in lower case or is used twice")
        seen |= {name} - {""}


def user(context: Context) -> Iterator[Hit]:
    """D28: the last USER is numeric and not root."""
    users = context.parsed.final("USER")
    if not users:
        yield error(0, "the final stage has no USER")
    elif not re.fullmatch(r"[1-9][0-9]*:[0-9]+", users[-1].text):
        yield error(users[-1].line, f"USER {users[-1].text} is not a numeric uid:gid, or root")


def home(context: Context) -> Iterator[Hit]:
    """D30, D31: HOME and caches are set, and no bytecode is written at run time."""
    variables = _variables(context)
    for name in ("HOME", "XDG_CACHE_HOME", "TORCH_HOME", "TRITON_CACHE_DIR", "MPLCONFIGDIR", "NUMBA_CACHE_DIR"):
        if name not in variables:
            yield error(0, f"{name} is not set")
    if variables.get("PYTHONDONTWRITEBYTECODE", (0, ""))[1] != "1":
        yield error(0, "PYTHONDONTWRITEBYTECODE is not 1")


def activation(context: Context) -> Iterator[Hit]:
    """D32: the environment is active without the entry point."""
    variables = _variables(context)
    line, path = variables.get("PATH", (0, ""))
    if not path.startswith("/opt/env/bin:"):
        yield error(line, "PATH does not begin with /opt/env/bin")
    if "CONDA_PREFIX" not in variables and "VIRTUAL_ENV" not in variables:
        yield error(0, "neither CONDA_PREFIX nor VIRTUAL_ENV is set")


def commands(context: Context) -> Iterator[Hit]:
    """D34, D35: ENTRYPOINT and CMD in JSON form, without `conda run`."""
    instructions = context.parsed.final("ENTRYPOINT", "CMD")
    for item in instructions:
        words = command(item.text)
        if words is None:
            yield error(item.line, f"{item.keyword} is not in JSON form")
        elif words[:2] == ["conda", "run"] or "conda run" in item.text:
            yield error(item.line, "conda run does not forward signals")
    if not any(item.keyword == "ENTRYPOINT" for item in instructions):
        yield error(0, "there is no ENTRYPOINT")


def init(context: Context) -> Iterator[Hit]:
    """D36: tini is process 1 if the system or conda has it; the stop signal is SIGTERM."""
    installed = "".join(map(context.text, ("system.txt", "environment.yml", "explicit.txt")))
    for item in context.parsed.final("ENTRYPOINT"):
        words = command(item.text) or [""]
        if not words[0].endswith("/tini") and "tini" in installed:
            yield error(item.line, "tini is installed but not used")
    for item in context.parsed.final("STOPSIGNAL"):
        if item.text != "SIGTERM":
            yield error(item.line, f"STOPSIGNAL {item.text} is not SIGTERM")


def cuda_once(context: Context) -> Iterator[Hit]:
    """D39: the base has no CUDA libraries, because torch includes them, unless the toolkit is requested."""
    if context.plan().get("flavor") == "devel":
        return
    for item in context.parsed.of("FROM"):
        if re.search(r"nvidia/cuda:\S*(?:runtime|devel|cudnn)", item.text):
            yield error(item.line, "the base has its own CUDA libraries")


def loader(context: Context) -> Iterator[Hit]:
    """D40: LD_LIBRARY_PATH is not set, except to an empty value that clears an inherited one."""
    for item in context.parsed.of("ENV"):
        for name, value in item.pairs:
            if name == "LD_LIBRARY_PATH" and value:
                yield error(item.line, f"LD_LIBRARY_PATH is set to {value}")


def devices(context: Context) -> Iterator[Hit]:
    """D43: GPU access is set, with valid driver capabilities."""
    variables = _variables(context)
    cuda = (context.plan().get("resolution") or {}).get("cuda")
    line, visible = variables.get("NVIDIA_VISIBLE_DEVICES", (0, ""))
    if visible != ("all" if cuda else "void"):
        yield error(line, f"NVIDIA_VISIBLE_DEVICES is {visible!r}")
    line, text = variables.get("NVIDIA_DRIVER_CAPABILITIES", (0, ""))
    if cuda and (not set(text.split(",")) <= _CAPABILITIES or "compute" not in text):
        yield error(line, f"NVIDIA_DRIVER_CAPABILITIES is {text!r}")


def requirement(context: Context) -> Iterator[Hit]:
    """D44, D45: the container toolkit can parse NVIDIA_REQUIRE_CUDA completely; CUDA_VERSION is not set."""
    variables = _variables(context)
    if "NVIDIA_REQUIRE_CUDA" in variables:
        line, value = variables["NVIDIA_REQUIRE_CUDA"]
        if read_requirement(value) is None:
            yield error(line, f"NVIDIA_REQUIRE_CUDA={value} cannot be parsed by the container toolkit")
    elif (context.plan().get("resolution") or {}).get("cuda"):
        yield error(0, "NVIDIA_REQUIRE_CUDA is not set")
    if "CUDA_VERSION" in variables:
        yield error(
            variables["CUDA_VERSION"][0], "with CUDA_VERSION, the container toolkit treats this as a legacy image"
        )


def forbidden(context: Context) -> Iterator[Hit]:
    """D46: no variable that disables the driver check or loads code into every program."""
    for item in context.parsed.of("ENV"):
        for name, _ in item.pairs:
            if name in _FORBIDDEN:
                yield error(item.line, f"{name} is not allowed")


def overrides(context: Context) -> Iterator[Hit]:
    """D47: CONDA_OVERRIDE_* is set where conda solves, for the resolved CUDA, and not in the image."""
    for item in context.parsed.final("ENV"):
        for name, _ in item.pairs:
            if name.startswith("CONDA_OVERRIDE_"):
                yield error(item.line, f"{name} in the image")
    cuda = (context.plan().get("resolution") or {}).get("cuda")
    solves = [item.line for item in context.parsed.of("RUN") if "conda env create" in item.text]
    before = {
        name: value
        for item in context.parsed.of("ENV")
        if solves and item.line < solves[0]
        for name, value in item.pairs
    }
    override = before.get("CONDA_OVERRIDE_CUDA")
    if solves and override != cuda:
        yield error(solves[0], f"the environment is solved with CONDA_OVERRIDE_CUDA={override} for CUDA {cuda}")


RULES: dict[str, Rule] = {
    "D15": stages,
    "D16": cleaned,
    "D17": cache_mounts,
    "D23": folders,
    "D24": surprises,
    "D25": casing,
    "D28": user,
    "D30": home,
    "D32": activation,
    "D34": commands,
    "D36": init,
    "D39": cuda_once,
    "D40": loader,
    "D43": devices,
    "D44": requirement,
    "D46": forbidden,
    "D47": overrides,
}
