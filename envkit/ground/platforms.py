"""CPU architectures, with their names in conda, container images, Debian, wheels and the kernel."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """A platform that images are built for, with all of its names."""

    name: str  # in conda and envkit: 'linux-64'
    machine: str  # in `uname -m` and wheels: 'x86_64'
    architecture: str  # in container images, Go and Debian: 'amd64'
    loader: str  # in `ldconfig -p`: 'x86-64'
    variant: str | None = None  # after the architecture in container images: 'v8'
    spellings: tuple[str, ...] = ()  # other names that people and tools use

    @property
    def oci(self) -> str:
        """The name in container engines: `linux/amd64`."""
        return f"linux/{self.architecture}"


X86 = Platform(
    name="linux-64", machine="x86_64", architecture="amd64", loader="x86-64", spellings=("x64", "linux-x86_64")
)
ARM = Platform(
    name="linux-aarch64", machine="aarch64", architecture="arm64", loader="AArch64", variant="v8", spellings=("sbsa",)
)
PLATFORMS = (X86.name, ARM.name)
_BY_NAME = {known.name: known for known in (X86, ARM)}
SPELLINGS = {
    text: known.name
    for known in (X86, ARM)
    for text in (
        known.machine, known.architecture, known.name, known.oci, *known.spellings,
        *((f"{known.oci}/{known.variant}",) if known.variant else ()),
    )
}  # fmt: skip
"""Every name of a platform, in lower case -> its conda name."""


def platform(name: str) -> Platform:
    """Return a platform by its conda name; `SPELLINGS` maps other names to it.

    Raises:
        KeyError: the platform is unknown.
    """
    return _BY_NAME[name]


def of_machine(machine: str) -> Platform | None:
    """Return a platform by the name of the kernel or a container engine, None if envkit does not support it."""
    return next((known for known in _BY_NAME.values() if machine.lower() in (known.machine, known.architecture)), None)


def here() -> str:
    """Return this machine's platform by its name in container images: `linux/amd64`, `linux/s390x`."""
    machine = os.uname().machine
    matching = of_machine(machine)
    return f"linux/{machine}" if matching is None else matching.oci
