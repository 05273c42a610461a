"""Why each field of an answer has its value, in a sentence per field."""

from __future__ import annotations

from envkit.facts.model import Os
from envkit.ground.versions import key, minor
from envkit.resolve.choice import Choice, companion, companion_version, compile_supported
from envkit.resolve.gpus import sm
from envkit.resolve.index import WHEEL_SOURCES
from envkit.resolve.model import Driver, Request
from envkit.resolve.pitfalls import Advice, Chosen, triton_gone
from envkit.resolve.rules import code

_SOURCES = {
    "pytorch": "the PyTorch wheel index",
    "pypi": "the Python index's default wheel",
    "conda-forge": "conda-forge",
    "conda-pytorch": "the pytorch conda channel",
}
_UNKNOWN = "not known for this build"


def reasons(
    request: Request, chosen: Chosen, choice: Choice, *, driver: Driver | None, system: Os, careful: Advice
) -> dict[str, str]:
    """Field of the answer -> why; every field has one."""
    build, release = chosen.build, chosen.release
    wheel = build.source in WHEEL_SOURCES
    bundled = "comes with this build" if wheel else "given by the conda package"
    beside = "the release that goes with this torch"
    paired = f"{beside}; {release.note}" if release and release.note else beside
    return {
        "torch": _torch(request, chosen, choice),
        "cuda": _cuda(request, chosen, choice),
        "cudnn": bundled if build.cudnn else _absent(chosen),
        "nccl": bundled if build.nccl else _absent(chosen),
        "triton": _triton(chosen),
        "python": _python(request, chosen),
        "pythons": _UNKNOWN if build.pythons is None else "Pythons that all of these packages have",
        "torchvision": _without(chosen, "torchvision") or (paired if build.torchvision else _UNKNOWN),
        "torchaudio": _without(chosen, "torchaudio") or _torchaudio(chosen, beside),
        "source": _source(request, chosen),
        "index": _index(chosen),
        "channels": "the channels that hold it" if build.channels else "wheels come from no conda channel",
        "selector": "selects the CUDA build" if build.selector else "nothing to select",
        "local_version": "pins the build: no other index can satisfy it"
        if build.local_version
        else "file names of this source carry none",
        "driver": _read_as(request, _driver(chosen, driver)),
        "gpus": _gpus(chosen),
        "gpu_archs": _archs(chosen),
        "ptx": "also shipped as PTX, which newer GPUs can compile" if build.ptx else "no PTX in this build",
        "glibc": _glibc(chosen, system),
        "platform": "asked for" if request.platform != Request().platform else "the default",
        "os": request.understood.get("os")
        or (f"asked for: {system.title}" if request.os else f"the default: {system.title}"),
        "pins": "; ".join(careful.pins.values()) or f"torch {build.torch} needs none",
        "warnings": f"what is known on {chosen.sieve.index.facts.collected}",
    }


def _torch(request: Request, chosen: Chosen, choice: Choice) -> str:
    build = chosen.build
    of = f" of {request.torch.text}" if request.torch else ""
    if request.torch is not None and request.torch.text == build.torch:
        return "asked for"
    if choice.strained is not None and choice.strained.torch != build.torch:
        newer = choice.strained
        return (
            f"newest{of} that driver {request.driver} runs natively; torch {newer.torch} (CUDA {newer.cuda}) would run "
            "by minor-version compatibility only"
        )
    if request.cuda is not None and build.cuda and _ended(chosen):
        return f"newest{of} with CUDA {build.cuda}, which ended with it"
    if choice.unproven is not None:
        newer = choice.unproven
        runtime = f"CUDA {newer.cuda}" if newer.cuda else "CPU"
        return f"newest{of} that is proven to fit; no source shows all of torch {newer.torch} for {runtime}"
    if chosen.sieve.index.rank[build.torch] == 0:
        return "newest torch known"
    return f"newest{of} that fits the rest"


def _ended(chosen: Chosen) -> bool:
    build, index = chosen.build, chosen.sieve.index
    line = (build.source, build.cuda or "")
    return index.last.get(line) == build.torch and index.newest.get(build.source) != build.torch


def _cuda(request: Request, chosen: Chosen, choice: Choice) -> str:
    build = chosen.build
    if build.cuda is None:
        return "none: a CPU build was asked for"
    return _newest_cuda(request, chosen) + _natively(request, choice)


def _natively(request: Request, choice: Choice) -> str:
    """The native alternative of an answer that is only minor-compatible."""
    native = choice.native
    if native is None:
        return ""
    return f"; driver {request.driver} runs torch {native.torch} with CUDA {native.cuda} natively"


def _newest_cuda(request: Request, chosen: Chosen) -> str:
    build = chosen.build
    if request.cuda is not None and request.cuda.text == build.cuda:
        return "asked for"
    of = f" of {request.cuda.text}" if request.cuda else ""
    if chosen.sieve.wanted.driver:
        return f"newest{of} for this torch, with one the driver runs natively before others"
    return f"newest{of} that torch {build.torch} has and that fits the rest"


def _absent(chosen: Chosen) -> str:
    return "none: a CPU build" if chosen.build.cuda is None else _UNKNOWN


def _triton(chosen: Chosen) -> str:
    if chosen.build.triton is None:
        return _absent(chosen) if chosen.release and chosen.release.triton else "this torch asks for none"
    if triton_gone(chosen):
        return f"torch {chosen.build.torch} leaves it out on Python {chosen.python}"
    return "what this torch asks for"


def _python(request: Request, chosen: Chosen) -> str:
    build, sieve, python = chosen.build, chosen.sieve, chosen.python
    if request.python is not None and request.python.text == python:
        return "asked for"
    of = f" of {request.python.text}" if request.python else ""
    if sieve.wanted.wheels and sieve.wanted.os:
        return f"newest{of} that {sieve.wanted.os.title} itself has and this torch supports"
    passed = [
        name
        for name in sieve.known_pythons(build)
        if key(name) > key(python) and (sieve.pythons is None or name in sieve.pythons)
    ]
    if not passed:
        return f"newest{of} this build has"
    if not compile_supported(passed[0], chosen.release):
        return f"newest{of} that torch.compile of this torch supports"
    return f"newest{of} that has settled: {' and '.join(passed)} came with torch {minor(build.torch)} only"


def _without(chosen: Chosen, name: str) -> str | None:
    """Why a companion is left out; None where it is not."""
    version = companion_version(chosen.build, name, chosen.sieve.index)
    if not version or companion(chosen.build, name, chosen.python, chosen.sieve.index):
        return None
    return f"left out: {name} {version} has no wheel for Python {chosen.python}"


def _torchaudio(chosen: Chosen, beside: str) -> str:
    audio = chosen.build.torchaudio
    if audio is None:
        return _UNKNOWN
    return beside if minor(audio) == minor(chosen.build.torch) or key(audio) < key("2") else "its last release"


def _source(request: Request, chosen: Chosen) -> str:
    source = chosen.build.source
    if request.source != "auto":
        return f"asked for: {_SOURCES[source]}"
    if source == "pytorch":
        return f"{_SOURCES[source]}: says its CUDA in the version, so it comes first"
    if source == "pypi":
        return f"{_SOURCES[source]}: the PyTorch index has no such build"
    return f"{_SOURCES[source]}: no wheel has this combination"


def _index(chosen: Chosen) -> str:
    match chosen.build.source:
        case "pytorch":
            return "the wheel index of this CUDA" if chosen.build.cuda else "the wheel index of CPU builds"
        case "pypi":
            return "none: the client's own Python index"
        case _:
            return "none: conda packages"


def _driver(chosen: Chosen, driver: Driver | None) -> str:
    build = chosen.build
    if driver is None:
        return "none: a CPU build"
    need = f"CUDA {build.cuda} ships with {driver.native} and runs from {driver.minimum} on"
    for card in chosen.sieve.wanted.cards:
        branch = card.gpu.min_driver_branch
        if branch and key(str(branch)) > key(driver.minimum):
            need += f"; {card} itself needs {branch} or newer"
    if driver.given is None:
        return need
    how = "natively" if driver.mode == "native" else "by minor-version compatibility"
    return f"{driver.given} runs it {how}; {need}"


def _read_as(request: Request, reason: str) -> str:
    understood = request.understood.get("driver")
    return f"{understood}; {reason}" if understood else reason


def _gpus(chosen: Chosen) -> str:
    cards = chosen.sieve.wanted.cards
    if not cards:
        return "none asked for"
    kinds = {"cubin": "compiled code", "ptx": "PTX"}
    return "; ".join(f"{card} runs on {kinds[code(chosen.build, card.gpu) or 'ptx']}" for card in cards)


def _archs(chosen: Chosen) -> str:
    build = chosen.build
    if build.cuda is None:
        return "none: a CPU build"
    if not build.archs:
        return _UNKNOWN
    doubt = " (inferred)" if build.confidence == "inferred" else ""
    low, high = sm(min(build.archs, key=key)), sm(max(build.archs, key=key))
    return f"compiled code for {low} to {high}{doubt}; runs on the same major from that minor on"


def _glibc(chosen: Chosen, system: Os) -> str:
    if chosen.build.glibc is None:
        return f"{_UNKNOWN}; {system.id} has {system.glibc}, at least what any known build needs"
    return f"lowest this build accepts; {system.id} has {system.glibc}"
