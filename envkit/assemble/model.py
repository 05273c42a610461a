"""The values that pass through the assembly of a layer."""

from __future__ import annotations

from dataclasses import dataclass

from envkit.plan.model import PREFIX

# Part of every cache key. It changes with any change of the bytes that a writer makes from the same input.
WRITER_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """An entry's data inside an open zip file, with what the zip promises about it."""

    descriptor: int
    origin: str  # the file and the entry, for messages
    offset: int
    packed: int  # bytes in the zip
    size: int  # bytes when inflated
    crc: int  # CRC-32 of the inflated bytes
    deflated: bool  # False: stored as it is


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A regular file of a layer: its parts follow one another."""

    path: str  # relative to the image's root
    size: int  # bytes
    executable: bool
    parts: tuple[bytes | Slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """What one package leaves in the image."""

    name: str
    version: str
    files: tuple[File, ...]
    folders: tuple[str, ...]  # named by the package itself, empty ones among them


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """Where a package's parts belong in the image."""

    python: str  # '3.11'
    prefix: str = PREFIX
    headers: str | None = None  # relative to the prefix; None is what a virtual environment has

    @property
    def root(self) -> str:
        """The prefix without its leading slash, as the paths of a layer are."""
        return self.prefix.strip("/")

    @property
    def site_packages(self) -> str:
        """The folder of modules, relative to the image's root."""
        return f"{self.root}/lib/python{self.python}/site-packages"

    @property
    def headers_folder(self) -> str:
        """The folder that holds one folder of C headers per package, relative to the image's root."""
        return f"{self.root}/{self.headers or f'include/site/python{self.python}'}"

    @property
    def interpreter(self) -> str:
        """What scripts name in their first line."""
        return f"/{self.root}/bin/python"
