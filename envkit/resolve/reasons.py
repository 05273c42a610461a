"""The reasons of an answer: one sentence per field."""

from __future__ import annotations

from envkit.facts.model import Build, Facts, Os
from envkit.ground.sizes import shown_size
from envkit.ground.versions import key, minor
from envkit.resolve.choice import Choice, compile_supported
from envkit.resolve.companions import companion, conda_version, left_out
from envkit.resolve.forward import FORWARD
from envkit.resolve.gpus import named, sm
from envkit.resolve.index import WHEEL_SOURCES
from envkit.resolve.model import Download, Driver, Request
from envkit.resolve.pitfalls import Advice, Chosen, triton_gone
from envkit.resolve.rules import code

_SOURCES = {
    "pytorch": "the PyTorch wheel index",
    "pypi": "the Python index's default wheel",
    "conda-forge": "conda-forge",
    "conda-pytorch": "the pytorch conda channel",
}
_HOW = {
    "native": "natively",
    "minor-compatible": "by minor-version compatibility",
    FORWARD: "by forward compatibility",
}
_UNKNOWN = "unknown for this build"
_NOT_READ = "the compatibility data has no file sizes for this source"
REQUESTED = "requested"
"""Begins the reason of each value from the request; a caller that knows the origin of the request replaces it."""


def reasons(
    request: Request, chosen: Chosen, choice: Choice, *, driver: Driver | None, system: Os, careful: Advice
) -> dict[str, str]:
    """Return field of the answer -> why; every field has a reason."""
    build, release = chosen.build, chosen.release
    wheel = build.source in WHEEL_SOURCES
    bundled = "comes with this build" if wheel else "set by the conda package"
    of_release = "the release for this torch"
    paired = f"{of_release}; {release.note}" if release and release.note else of_release
    return {
        "torch": _torch(request, chosen, choice),
        "cuda": _cuda(request, chosen, choice),
        "cudnn": bundled if build.cudnn else _absent(chosen),
        "nccl": bundled if build.nccl else _absent(chosen),
        "triton": _triton(chosen),
        "python": _python(request, chosen),
        "pythons": _UNKNOWN if build.pythons is None else "Python versions that all these packages support",
        "torchvision": _companion(chosen, "torchvision", paired),
        "torchaudio": _companion(chosen, "torchaudio", of_release),
        "files": "versions as the file names of this source have them" if wheel else "conda packages",
        "source": _source(request, chosen),
        "index": _index(chosen),
        "channels": "conda channels to install from" if build.channels else "wheels need no conda channel",
        "selector": "selects the CUDA build" if build.selector else "nothing to select",
        "local_version": "pins the build, so no other index can satisfy it"
        if build.local_version
        else "file names of this source have none",
        "driver": _read_as(request, _driver(chosen, driver)),
        "gpus": _gpus(request, chosen),
        "gpu_archs": _archs(chosen),
        "ptx": "also included as PTX, which drivers compile for newer GPUs" if build.ptx else "no PTX in this build",
        "glibc": _glibc(chosen, system),
        "platform": request.understood.get("platform")
        or (REQUESTED if request.platform != Request().platform else "default"),
        "os": request.understood.get("os")
        or (f"{REQUESTED}: {system.title}" if request.os else f"default: {system.title}"),
        "pins": "; ".join(careful.pins.values()) or f"none needed by torch {build.torch}",
        "warnings": f"compatibility data of {chosen.sieve.index.facts.collected}",
    }


def download(build: Build, facts: Facts) -> Download:
    """Return the bytes that pip downloads for a build, with an explanation."""
    return Download(
        torch=build.wheel_size, pulled=build.pulled_size, total=build.download_size, why=_size(build, facts)
    )


def _size(build: Build, facts: Facts) -> str:
    if build.wheel_size is not None and build.pulled_size is not None:
        pulled = shown_size(build.pulled_size)
        return f"torch {shown_size(build.wheel_size)}, its requirements {pulled} as of the release date"
    if build.wheel_size is not None:
        return f"torch {shown_size(build.wheel_size)}; the size of its requirements is unknown"
    other = _measured(build, facts)
    if other is None or other.download_size is None:
        return f"unknown: {_NOT_READ}"
    named = "its wheel" if other.cuda == build.cuda else f"its CUDA {other.cuda} wheel"
    size = shown_size(other.download_size)
    return f"unknown: {_NOT_READ}; from the Python index, {named} and its requirements are {size}"


def _measured(build: Build, facts: Facts) -> Build | None:
    """Return a build of the same torch and kind (CUDA or CPU) with a known size; None without one."""
    same = [
        other for other in facts.builds
        if other.torch == build.torch and other.platform == build.platform and other.download_size is not None
        and (other.cuda is None) == (build.cuda is None)
    ]  # fmt: skip
    return max(same, key=lambda other: key(other.cuda or "0"), default=None)


def _torch(request: Request, chosen: Chosen, choice: Choice) -> str:
    build = chosen.build
    of = f" matching {request.torch.text}" if request.torch else ""
    if request.torch is not None and request.torch.text == build.torch:
        return REQUESTED
    if choice.not_native is not None and choice.not_native.torch != build.torch:
        newer = choice.not_native
        how = _HOW[chosen.sieve.modes[newer.cuda or ""] or ""]
        return (
            f"newest{of} that driver {request.driver} runs natively; torch {newer.torch} (CUDA {newer.cuda}) would run "
            f"{how} only"
        )
    if request.cuda is not None and build.cuda and _ended(chosen):
        return f"last release{of} with CUDA {build.cuda} {_builds(chosen)}"
    if choice.incomplete is not None:
        newer = choice.incomplete
        runtime = f"CUDA {newer.cuda}" if newer.cuda else "CPU"
        return f"newest{of} with complete data; torch {newer.torch} for {runtime} is not fully documented"
    if chosen.sieve.index.rank[build.torch] == 0:
        return "newest release"
    return f"newest{of} compatible with the rest"


def _ended(chosen: Chosen) -> bool:
    build, index = chosen.build, chosen.sieve.index
    line = (build.source, build.cuda or "")
    return index.last.get(line) == build.torch and index.newest.get(build.source) != build.torch


def _builds(chosen: Chosen) -> str:
    """Return "builds", or where they are if another source has newer ones for this CUDA."""
    build, last = chosen.build, chosen.sieve.index.last
    newer = any(
        cuda == build.cuda and source != build.source and key(torch) > key(build.torch)
        for (source, cuda), torch in last.items()
    )
    return (
        {"pypi": "on the Python index", "conda-forge": "on conda-forge"}.get(build.source, "wheels")
        if newer
        else "builds"
    )


def _cuda(request: Request, chosen: Chosen, choice: Choice) -> str:
    build = chosen.build
    if build.cuda is None:
        return "none: CPU build requested"
    return _newest_cuda(request, chosen) + _natively(request, choice)


def _natively(request: Request, choice: Choice) -> str:
    """Return the clause that names the native alternative of an answer that is not native."""
    native = choice.native
    if native is None:
        return ""
    return f"; driver {request.driver} runs torch {native.torch} with CUDA {native.cuda} natively"


def _newest_cuda(request: Request, chosen: Chosen) -> str:
    build = chosen.build
    if request.cuda is not None and request.cuda.text == build.cuda:
        return REQUESTED
    of = f" matching {request.cuda.text}" if request.cuda else ""
    if chosen.sieve.wanted.driver:
        return f"newest{of} for this torch; versions with native driver support are preferred"
    return f"newest{of} for torch {build.torch} that is compatible with the rest"


def _absent(chosen: Chosen) -> str:
    return "none: CPU build" if chosen.build.cuda is None else _UNKNOWN


def _triton(chosen: Chosen) -> str:
    if chosen.build.triton is None:
        return _absent(chosen) if chosen.release and chosen.release.triton else "this torch needs none"
    if triton_gone(chosen):
        return f"torch {chosen.build.torch} has none for Python {chosen.python}"
    return "required by this torch"


def _python(request: Request, chosen: Chosen) -> str:
    build, sieve, python = chosen.build, chosen.sieve, chosen.python
    if request.python is not None and request.python.text == python:
        return REQUESTED
    of = f" matching {request.python.text}" if request.python else ""
    if sieve.wanted.wheels and sieve.wanted.os:
        return f"newest{of} that {sieve.wanted.os.title} has and this torch supports"
    newer = [
        name
        for name in sieve.known_pythons(build)
        if key(name) > key(python) and sieve.may_be(name) and sieve.complete(build, name)
    ]
    if not newer:
        return f"newest{of} that this build supports" + (
            " with the packages requested" if sieve.wanted.packages else ""
        )
    if not compile_supported(newer[0], chosen.release):
        return f"newest{of} that torch.compile in this torch supports"
    why = f"{' and '.join(newer)} {'are' if newer[1:] else 'is'} new in torch {minor(build.torch)}"
    return f"newest well-supported Python{of}; {why}"


def _companion(chosen: Chosen, name: str, of_release: str) -> str:
    """Return why an answer has this version of a companion, or none."""
    build, index = chosen.build, chosen.sieve.index
    packages = {package.package: package.version for package in chosen.sieve.wanted.packages}
    if build.source not in WHEEL_SOURCES:
        if conda_version(build, name) is None and name in packages:
            return f"{REQUESTED}: conda's solver chooses its version"
        return of_release if conda_version(build, name) else _UNKNOWN
    wanted = packages.get(name)
    wheel = companion(build, name, chosen.python, index, wanted)
    if wheel is None:
        return f"{name} {left_out(build, name, chosen.python, index)}"
    if wanted is not None:
        return f"{REQUESTED}: {name} {wanted}"
    if chosen.release and getattr(chosen.release, name) != wheel.version:
        return f"the newest that fits torch {build.torch}"
    # Without an upper bound, a release goes with later releases of torch too, as the last torchaudio does.
    return "its last release" if wheel.torch.startswith(">=") and name == "torchaudio" else of_release


def _source(request: Request, chosen: Chosen) -> str:
    source = chosen.build.source
    if request.source != "auto":
        return f"{REQUESTED}: {_SOURCES[source]}"
    if source == "pytorch":
        return f"{_SOURCES[source]}: the version names its CUDA, so it is preferred"
    if source == "pypi":
        return f"{_SOURCES[source]}: the PyTorch index has no such build"
    return f"{_SOURCES[source]}: no wheel has this combination"


def _index(chosen: Chosen) -> str:
    match chosen.build.source:
        case "pytorch":
            return "the wheel index of this CUDA" if chosen.build.cuda else "the wheel index of CPU builds"
        case "pypi":
            return "none: the client's default index"
        case _:
            return "none: conda packages"


def _driver(chosen: Chosen, driver: Driver | None) -> str:
    build = chosen.build
    if driver is None:
        return "none: CPU build"
    need = f"CUDA {build.cuda} ships with {driver.native}; the minimum is {driver.minimum}"
    for card in chosen.sieve.wanted.cards:
        branch = card.gpu.min_driver_branch
        if branch and key(str(branch)) > key(driver.minimum):
            need += f"; {card} needs {branch} or newer"
    if driver.given is None:
        return need
    how = _HOW[driver.mode or ""]
    if driver.package is not None:
        how = f"{how} with {driver.package}, on data center GPUs"
    return f"{driver.given} runs it {how}; {need}"


def _read_as(request: Request, reason: str) -> str:
    understood = request.understood.get("driver")
    return f"{understood}; {reason}" if understood else reason


def _gpus(request: Request, chosen: Chosen) -> str:
    cards = chosen.sieve.wanted.cards
    if not cards:
        return "none requested"
    kinds = {"cubin": "runs on compiled code", "ptx": "runs on PTX", "unknown": "may not run: no source lists the code"}
    runs = "; ".join(f"{named(card)} {kinds[code(chosen.build, card.gpu) or 'ptx']}" for card in cards)
    understood = request.understood.get("gpus")
    return f"{runs}; {understood}" if understood else runs


def _archs(chosen: Chosen) -> str:
    build = chosen.build
    if build.cuda is None:
        return "none: CPU build"
    if not build.archs:
        return _UNKNOWN
    doubt = " (inferred)" if build.confidence == "inferred" else ""
    low, high = sm(min(build.archs, key=key)), sm(max(build.archs, key=key))
    return f"compiled code for {low} to {high}{doubt}; also runs on later minor versions of that major"


def _glibc(chosen: Chosen, system: Os) -> str:
    if chosen.build.glibc is None:
        return f"{_UNKNOWN}; {system.id} has {system.glibc}, enough for every known build"
    return f"minimum for this build; {system.id} has {system.glibc}"
