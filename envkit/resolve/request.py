"""Parse what a user typed into a Request. All errors are reported at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from envkit.facts.model import Facts
from envkit.ground.errors import ConflictError, Faults, UsageError
from envkit.ground.platforms import ARM, PLATFORMS, SPELLINGS
from envkit.ground.sizes import parse_size
from envkit.ground.text import similar
from envkit.ground.versions import Constraint, is_version, key, minor, parse_constraint
from envkit.resolve.companions import COMPANION_PACKAGES
from envkit.resolve.elsewhere import refuse
from envkit.resolve.gpus import Card, arm_host, named, others
from envkit.resolve.model import SOURCES, Request, WantedPackage
from envkit.resolve.wanted import asks, bare, card, operating_system, permissions

FIELDS = (
    "torch",
    "cuda",
    "cudnn",
    "python",
    "driver",
    "gpu",
    "os",
    "platform",
    "source",
    "cpu",
    "max_size",
    "supported_only",
    "allow_forward_compat",
    "template",
    "with",
    "torchvision",
    "torchaudio",
)
Fields = Mapping[str, "str | Sequence[str] | bool | None"]

_LOCAL = re.compile(r"cu(?:da)?([0-9]{2,3})", re.IGNORECASE)
# Names that people write in front of a version.
# For example `torch==2.4`, `pytorch 2.4`, `cudnn9`, `CUDA 12.6`, `py310`, `python >=3.10`.
_TORCH = re.compile(r"(?:(?:py)?torch[\s-]*(?=[0-9<>!~=])|v(?=[0-9]))", re.IGNORECASE)
_CUDNN = re.compile(r"(?:cudnn[\s=-]*(?=[0-9])|v(?=[0-9]))", re.IGNORECASE)
_CUDA = re.compile(r"(?:cuda[\s=-]*|v)(?=[0-9])", re.IGNORECASE)
_PYTHON = re.compile(r"(?:py|cp|python)[-_ ]?3\.?([0-9]{1,2})", re.IGNORECASE)
_PYTHON_NAME = re.compile(r"(?:py|python)[\s-]*(?=[<>!~=])", re.IGNORECASE)
_PACKAGE = re.compile(r"(?P<name>[A-Za-z_-]+)\s*(?:==?(?!=))?\s*(?P<version>(?:[<>!~=].*|v?[0-9].*)?)")
# 12080 for CUDA 12.8, as the driver's interface has it, and torch's message ("found version 12080").
_API_VERSION = re.compile(r"(1[0-9])0([0-9])0")
_LAST_DRIVER = 999  # larger major versions are of something else
_FIRST_DRIVER = 100  # no driver has a smaller major version; such a number is the CUDA version of nvidia-smi


def parse(fields: Fields, facts: Facts, *, name: Callable[[str], str] = "--{}".format) -> Request:
    """Read a request; `name` returns the name of a field for errors (`--cuda`, `request.cuda`).

    The keys are those of FIELDS; `gpu` is a list. A missing key and None mean "the newest that is compatible with the
    rest". The key `today` is the ISO date for which support is judged, by default the date of the facts.

    Raises:
        UsageError: with every error of the request, the first as its message.
        ConflictError: a value is for another vendor or system, or a GPU contradicts the platform.
    """
    refuse(fields, name)
    faults = Faults()
    torch, local_cuda, local_cpu = _split_local(_version(_text(fields, "torch"), _TORCH))
    texts = {
        "torch": torch,
        "cuda": _cuda(_text(fields, "cuda") or local_cuda),
        "cudnn": _version(_text(fields, "cudnn"), _CUDNN),
        "python": _python(_text(fields, "python")),
    }
    understood: dict[str, str] = {}
    versions = {
        field: None if text is None else faults.take(parse_constraint, text, name(field))
        for field, text in texts.items()
    }
    python = versions["python"]
    if python is not None:
        faults.take(_check_python, python, name("python"))
    driver = _text(fields, "driver")
    if driver is not None:
        faults.take(_check_driver, driver, name("driver"))
        printed = faults.take(_driver_of_cuda, driver, facts, name("driver"))
        if printed is not None:
            branch = f"R{key(printed)[0]}, {printed} or newer"
            cuda = "the CUDA version that" if _dotted(driver) == driver else f"CUDA {_dotted(driver)}, which"
            understood["driver"] = f"{driver} is {cuda} nvidia-smi prints for driver branch {branch}"
            driver = printed
    gpus = tuple(_texts(fields, "gpu"))
    cards = [row for typed in gpus if (row := faults.take(card, typed, facts, name("gpu"))) is not None]
    os_text = _text(fields, "os")
    os_row = None if os_text is None else faults.take(operating_system, os_text, facts, name("os"))
    if os_text is not None and os_row is not None and bare(os_text):
        understood["os"] = f"newest supported {os_text}: {os_row.title}"
    for own in cards:
        if meant := others(own, facts.gpus):
            understood["gpus"] = f"{own.typed} is read as {named(own)}, not as {' or '.join(meant)}"
    arm = [own for own in cards if arm_host(own.typed, own.gpu)]
    if arm and _text(fields, "platform") is None:
        understood["platform"] = f"{arm[0].typed} has an Arm CPU"
    typed_platform = (_text(fields, "platform") or (ARM.name if arm else Request().platform)).lower()
    platform = faults.take(_choice, SPELLINGS.get(typed_platform, typed_platform), PLATFORMS, name("platform"))
    source = faults.take(_choice, _text(fields, "source") or Request().source, SOURCES, name("source"))
    max_size = _text(fields, "max_size")
    if max_size is not None:
        faults.take(_check_size, max_size, name("max-size"))
    cpu = bool(fields.get("cpu")) or local_cpu
    if cpu:
        for field in ("cuda", "cudnn", "driver", "gpu"):
            if fields.get(field):
                faults.note(_cpu_clash(field, name))
    packages = _packages(fields, name, faults)
    faults.refuse()
    if arm and platform != ARM.name:
        raise _not_arm(arm[0], name)
    return Request(
        torch=versions["torch"],
        cuda=versions["cuda"],
        cudnn=versions["cudnn"],
        python=python,
        driver=driver,
        gpus=gpus,
        os=os_row.id if os_row else None,
        platform=platform or Request().platform,
        source=source or Request().source,
        cpu=cpu,
        max_size=max_size,
        supported_only=bool(fields.get("supported_only")),
        allow_forward_compat=bool(fields.get("allow_forward_compat")),
        today=_text(fields, "today"),
        template=_text(fields, "template"),
        packages=packages,
        understood=understood,
    )


def _packages(fields: Fields, name: Callable[[str], str], faults: Faults) -> tuple[WantedPackage, ...]:
    """Return the packages that have to go with torch: of `--with torchaudio`, and of `--torchvision 0.21`."""
    wanted: dict[str, WantedPackage] = {}
    for text in _texts(fields, "with"):
        row = faults.take(_package, text, name("with"))
        if row is not None:
            wanted[row.package] = row
    for package in ("torchvision", "torchaudio"):
        version = _text(fields, package)
        if version is not None:
            row = faults.take(
                _package, version if version.startswith(package) else f"{package} {version}", name(package)
            )
            if row is not None:
                wanted[package] = row
    return tuple(wanted.values())


def _package(text: str, name: str) -> WantedPackage:
    """Read `torchaudio`, `torchvision==0.21.0` or `torchvision 0.21`.

    Raises:
        UsageError: it is another package, or its version is none.
    """
    match = _PACKAGE.fullmatch(text.strip())
    package = match["name"].lower().replace("_", "-") if match else ""
    if match is None or package not in COMPANION_PACKAGES:
        hint = f"use {', '.join(COMPANION_PACKAGES)}; for other packages envkit lock --with, or a definition"
        raise UsageError(f"{name}: {text!r:.60} is not a package that is chosen with torch", hint=hint)
    # A local version names a variant, which --cuda chooses.
    version = match["version"].strip().partition("+")[0]
    return WantedPackage(package, parse_constraint(version, name) if version else None)


def _not_arm(arm: Card, name: Callable[[str], str]) -> ConflictError:
    """Return the error for a platform that contradicts the Arm CPU of a product."""
    return ConflictError(
        f"{arm} has an Arm CPU, so no x86_64 image runs beside it", hint=f"{name('platform')} {ARM.name}"
    )


def words(request: Request) -> tuple[str, ...]:
    """Return the request as command-line arguments: `('--torch', '2.12', '--gpu', 'V100')`."""
    return (*(word for ask in asks(request) for word in ask.words), *permissions(request))


def changed(request: Request, field: str, value: str | None, position: int = 0) -> Request:
    """Return the request with one constraint set to another value, or left out with None.

    Raises:
        UsageError: the value is not a version.
    """
    new: Any = value
    if field in ("torch", "cuda", "cudnn", "python"):
        new = None if value is None else parse_constraint(value, f"--{field}")
    elif field == "gpu":
        field = "gpus"
        rest = [typed for index, typed in enumerate(request.gpus) if index != position]
        new = tuple(rest if value is None else [*rest, value])
        if not rest and "platform" in request.understood:  # it followed from the GPU that goes
            request = replace(request, platform=Request().platform, understood={})
    elif field == "with":
        field, new = "packages", tuple(row for index, row in enumerate(request.packages) if index != position)
    elif value is None:
        new = getattr(Request(), field)
    elif field == "allow_forward_compat":
        new = True
    return replace(request, **{field: new})


def _text(fields: Fields, field: str) -> str | None:
    value = fields.get(field)
    if value is None:
        return None
    return str(value).strip()


def _texts(fields: Fields, field: str) -> Sequence[str]:
    value = fields.get(field)
    if not value or isinstance(value, bool):
        return ()
    return [value.strip()] if isinstance(value, str) else [text.strip() for text in value]


def _version(text: str | None, before: re.Pattern[str]) -> str | None:
    """Remove the package's name in front of a version: `torch==2.4` -> `==2.4`, `v2.4.0` -> `2.4.0`."""
    return None if text is None else before.sub("", text, count=1)


def _python(text: str | None) -> str | None:
    """Return a Python version in plain form: `py310`, `cp310` and `python3.10` -> `3.10`."""
    match = _PYTHON.fullmatch(text) if text else None
    return f"3.{match.group(1)}" if match else _version(text, _PYTHON_NAME)


def _cuda(text: str | None) -> str | None:
    """Return a CUDA version as builds name it, by major and minor number: `cu118`, `cuda11.8`, `11.8.0` -> `11.8`."""
    if text is None:
        return None
    match = _LOCAL.fullmatch(text)
    if match:
        digits = match.group(1)
        return f"{digits[:-1]}.{digits[-1]}"
    text = _dotted(_CUDA.sub("", text, count=1))
    if re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", text):
        return text.rpartition(".")[0]
    return text


def _split_local(text: str | None) -> tuple[str | None, str | None, bool]:
    """Split off torch's local version: `2.7.1+cu126` -> ('2.7.1', 'cu126', False), `+cpu` -> (..., None, True)."""
    if text is None or "+" not in text:
        return text, None, False
    release, _, local = text.partition("+")
    if local == "cpu":
        return release, None, True
    return (release, local, False) if _LOCAL.fullmatch(local) else (text, None, False)


def _dotted(version: str) -> str:
    """Return 12.8 for 12080, and other texts unchanged."""
    match = _API_VERSION.fullmatch(version)
    return f"{match[1]}.{match[2]}" if match else version


def _driver_of_cuda(driver: str, facts: Facts, name: str) -> str | None:
    """Return the oldest driver that prints this CUDA version in nvidia-smi; None if the text is a driver version.

    Raises:
        UsageError: no toolkit of the facts has that CUDA version, so its driver is unknown.
    """
    if not is_version(driver):
        return None
    driver = _dotted(driver)
    if key(driver)[0] >= _FIRST_DRIVER:
        return None
    drivers = [row.linux_min for row in facts.toolkits if row.linux_min and minor(row.toolkit) == minor(driver)]
    if not drivers:
        raise UsageError(
            f"{name}: {driver!r} is not a driver version; it looks like the CUDA version that nvidia-smi prints",
            hint="nvidia-smi --query-gpu=driver_version --format=csv,noheader prints the driver version",
        )
    return min(drivers, key=key)


def _check_python(python: Constraint, name: str) -> None:
    for operator, number in python.clauses:
        parts = number.split(".")
        if operator in ("=", "==") and len(parts) > 2:  # noqa: PLR2004 - major.minor
            raise UsageError(
                f"{name}: {python.text!r} names a patch release; builds are made per Python minor version",
                hint=f"write {name} {'.'.join(parts[:2])}",
            )


def _check_driver(driver: str, name: str) -> None:
    if not is_version(driver) or (key(driver)[0] > _LAST_DRIVER and not _API_VERSION.fullmatch(driver)):
        raise UsageError(f"{name}: {driver!r} is not a driver version", hint="write it as 550.54.15, or auto")


def _check_size(text: str, name: str) -> None:
    if parse_size(text, name) == 0:
        raise UsageError(f"{name}: {text!r} does not allow any download", hint=f"{name} 3GB")


def _choice(text: str, allowed: Sequence[str], name: str) -> str:
    if text in allowed:
        return text
    close = similar(text, allowed, cutoff=0.4)
    hint = f"did you mean {close[0]}?" if close else f"use one of {', '.join(allowed)}"
    raise UsageError(f"{name}: unknown value {text!r}", hint=hint)


def _cpu_clash(field: str, name: Callable[[str], str]) -> UsageError:
    return UsageError(
        f"{name('cpu')} and {name(field)} contradict each other: a CPU build has no CUDA",
        hint=f"leave out {name('cpu')} or {name(field)}",
    )
