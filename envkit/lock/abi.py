"""Check that compiled extensions of torch were built for the lock's torch, CUDA and C++ ABI. Pure.

An extension that was compiled for another torch fails with an undefined symbol when it is imported, long after the
build. What it was built for is in the lock's row of its source, or, for a wheel from an index, in the local part of its
version (`2.7.4+cu12torch2.6cxx11abiTRUE`, `0.6.3+pt26cu126`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from envkit.ground.platforms import X86
from envkit.ground.versions import key
from envkit.lock.model import BUILT, Lock

if TYPE_CHECKING:
    from envkit.facts.model import Build
    from envkit.resolve.model import Resolution

# `torch2.6` or `pt26`; with a letter before it, `pt` is part of another word.
_TORCH = re.compile(r"torch(\d+)\.(\d+)|(?:^|[._-]|(?<=\d))pt(\d)(\d+)")
# Only the major of `cu126` is kept: CUDA's libraries are compatible within a major version.
_CUDA = re.compile(r"cu(?:da)?(\d\d)\d?")
# Of the address of a page: `torch-2.6.0+cu124.html`, `cu121/torch2.1.0`, `torch-2.4/cu124`, `py310_cu121_pyt210`.
_PAGE_TORCH = re.compile(r"(?:^|[/_.-])torch-?(\d+)\.(\d+)|_pyt(\d)(\d+)\d(?=$|[/_])")
_PAGE_CUDA = re.compile(r"(?:^|[/+_])(?:cu(\d\d)(\d)|(cpu))(?=$|[/._])")
_ABI = re.compile(r"cxx11abi(true|false)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one extension was built for, according to its metadata; None = unknown."""

    torch: str | None  # '2.6', or whole: '2.6.0+cu126'
    cuda: str | None  # '12', or '12.6'
    cxx11_abi: str | None  # 'true' | 'false'


def claim_of(version: str) -> Claim | None:
    """Parse the local part of a version; None if it names no torch, so it is not an extension of torch."""
    local = version.partition("+")[2].lower()
    torch = _TORCH.search(local)
    if torch is None:
        return None
    cuda, cxx11 = _CUDA.search(local), _ABI.search(local)
    numbers = [number for number in torch.groups() if number is not None]
    return Claim(torch=".".join(numbers), cuda=cuda[1] if cuda else None, cxx11_abi=cxx11[1] if cxx11 else None)


def claim_of_cuda(version: str) -> Claim | None:
    """Parse the local part of a version that names a CUDA alone: `2.4.0+cu124`; None if it names none."""
    match = re.fullmatch(rf"{_CUDA.pattern}(?:[._].*)?", version.partition("+")[2].lower())
    return Claim(torch=None, cuda=match[1], cxx11_abi=None) if match else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What the wheels of a page were built for, according to its address; None = unknown."""

    torch: str | None  # minor version: '2.6'
    device: str | None  # CUDA: '12.4', or 'cpu'


def claim_of_page(url: str) -> Page:
    """Parse the address of a page of wheels."""
    path = unquote(urlsplit(url).path)
    torch, device = _PAGE_TORCH.search(path), _PAGE_CUDA.search(path)
    numbers = [number for number in torch.groups() if number is not None] if torch else []
    return Page(
        torch=".".join(numbers) or None,
        device=None if device is None else device[3] or f"{device[1]}.{device[2]}",
    )


def of_torch(torch: Resolution | Build) -> str | None:
    """Return the C++ ABI of a torch: 'true', 'false', or None if it is unknown.

    PyTorch's wheels for x86_64 got the new ABI together with manylinux 2.28 (2.6 with CUDA 12.6, all since 2.7):
    manylinux2014 has a compiler without it. conda-forge's compilers have it.
    """
    if torch.source == "conda-forge":
        return "true"
    if torch.source == "conda-pytorch" or torch.platform != X86.name or torch.glibc is None:
        return None
    return "true" if key(torch.glibc) >= key("2.28") else "false"


def fits(version: str, torch: str, cuda: str | None) -> bool:
    """Return whether a wheel of this version can be in a lock with this torch and CUDA, as far as its version says."""
    claim = claim_of(version)
    return claim is None or not any(_against(version, claim, torch, cuda))


def faults(lock: Lock) -> tuple[str, ...]:
    """Return an error for each wheel that was built for another torch, CUDA or C++ ABI than the lock's."""
    claims = dict(_claims(lock))
    torch = _torch_of(lock)
    cuda = dict(lock.request).get("cuda")
    lines = [
        line
        for wheel, claim in claims.items()
        for line in _against(wheel, claim, torch, cuda if isinstance(cuda, str) else None)
    ]
    return (*lines, *_among(claims))


def _claims(lock: Lock) -> Iterator[tuple[str, Claim]]:
    for source in lock.sources:
        if source.torch is not None:
            claim = Claim(torch=source.torch, cuda=source.cuda, cxx11_abi=source.cxx11_abi)
            yield f"{source.name} {source.version}", claim
    for wheel in lock.wheels:
        wheel_claim = claim_of(wheel.version) if wheel.source != BUILT else None
        if wheel_claim is not None:
            yield f"{wheel.name} {wheel.version}", wheel_claim


def _torch_of(lock: Lock) -> str | None:
    rows = [row.version for row in lock.wheels if row.name == "torch"]
    rows += [row.version for row in lock.conda if row.name in ("pytorch", "libtorch")]
    return rows[0] if rows else None


def _against(wheel: str, claim: Claim, torch: str | None, cuda: str | None) -> Iterator[str]:
    if torch is None:
        yield f"{wheel} was built for torch {claim.torch}, but the lock has no torch"
        return
    if claim.torch is not None and not _begins(torch, claim.torch):
        yield f"{wheel} was built for torch {claim.torch}, but the lock has torch {torch}"
    if claim.cuda is not None and (cuda is None or not _begins(cuda, claim.cuda)):
        yield f"{wheel} was built for CUDA {claim.cuda}, but the lock is for {f'CUDA {cuda}' if cuda else 'the CPU'}"


def _among(claims: dict[str, Claim]) -> Iterator[str]:
    """Yield an error if extensions have different C++ ABIs: all must have that of torch."""
    known = {wheel: claim.cxx11_abi for wheel, claim in claims.items() if claim.cxx11_abi is not None}
    if len(set(known.values())) > 1:
        yield "extensions of torch with different C++ ABIs: " + ", ".join(
            f"{wheel} has cxx11abi {value}" for wheel, value in known.items()
        )


def _begins(version: str, prefix: str) -> bool:
    """Return whether a version such as `2.6.0+cu126` equals the prefix, or begins with it up to a dot: `2.6`."""
    return version == prefix or f"{version.partition('+')[0]}.".startswith(f"{prefix}.")
