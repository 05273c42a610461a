"""The table of CPU architectures: their names in conda, container images, Debian, wheels and the kernel."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """A platform that images are built for, by all of its names."""

    name: str  # conda's, and envkit's own: 'linux-64'
    machine: str  # of `uname -m` and of wheels: 'x86_64'
    architecture: str  # of container images, Go and Debian: 'amd64'
    loader: str  # of `ldconfig -p`: 'x86-64'
    variant: str | None = None  # beside the architecture in container images: 'v8'
    spellings: tuple[str, ...] = ()  # others that people and tools write

    @property
    def oci(self) -> str:
        """The platform as container engines write it: `linux/amd64`."""
        return f"linux/{self.architecture}"


X86 = Platform(
    name="linux-64", machine="x86_64", architecture="amd64", loader="x86-64", spellings=("x64", "linux-x86_64")
)
ARM = Platform(
    name="linux-aarch64", machine="aarch64", architecture="arm64", loader="AArch64", variant="v8", spellings=("sbsa",)
)
PLATFORMS = (X86.name, ARM.name)
_BY_NAME = {one.name: one for one in (X86, ARM)}
SPELLINGS = {
    text: one.name
    for one in (X86, ARM)
    for text in (
        one.machine, one.architecture, one.name, one.oci, *one.spellings,
        *((f"{one.oci}/{one.variant}",) if one.variant else ()),
    )
}  # fmt: skip
"""Every way to write a platform, in small letters -> its name."""


def platform(name: str) -> Platform:
    """Return a platform by conda's name; `SPELLINGS` has the others.

    Raises:
        KeyError: the platform is unknown.
    """
    return _BY_NAME[name]


def of_machine(machine: str) -> Platform | None:
    """Return the platform of a machine as its kernel or a container engine names it, None where images run on none."""
    return next((known for known in _BY_NAME.values() if machine.lower() in (known.machine, known.architecture)), None)


def here() -> str:
    """Return this machine's platform as container images name it: `linux/amd64`, `linux/s390x`."""
    machine = os.uname().machine
    matching = of_machine(machine)
    return f"linux/{machine}" if matching is None else matching.oci
