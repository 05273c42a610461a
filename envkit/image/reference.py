"""Names of images: in registries, as every container client reads them, and in files.

    HOST/NAME[:TAG][@DIGEST]        an image of a registry; `registry:` before it says so where it could be another's
    oci:DIR[:TAG]   oci:DIR@DIGEST  an image of an OCI layout
    docker-archive:FILE[:TAG]       an image of an archive that `docker save` wrote

Any other text is the name of an engine's image.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from envkit.ground.addresses import is_loopback, refusal_of_image
from envkit.ground.errors import UsageError

LAYOUT, ARCHIVE, REGISTRY = "oci", "docker-archive", "registry"
PREFIX = f"{REGISTRY}:"
HUB = "docker.io"
_HUB_API = "registry-1.docker.io"
_HUB_KEY = "https://index.docker.io/v1/"  # under which `docker login` keeps the login of Docker Hub
_HOST = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9-]+)*|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?"
)
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_NAME = 255  # characters, as registries limit it
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """An image's name; `tag` is `latest` where neither tag nor digest is written."""

    registry: str  # 'host[:port]'; 'docker.io' for Docker Hub
    repository: str
    tag: str | None
    digest: str | None

    @property
    def place(self) -> str:
        """Registry and repository."""
        return f"{self.registry}/{self.repository}"

    @property
    def asked(self) -> str:
        """What a registry is asked for: the digest where there is one."""
        return self.digest or self.tag or "latest"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.place}{tag}" + (f"@{self.digest}" if self.digest else "")

    def at(self, digest: str) -> Reference:
        """The same repository, by digest."""
        return replace(self, digest=digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReference:
    """Where an image lies and which one of that place is meant."""

    kind: str  # LAYOUT or ARCHIVE
    path: Path
    tag: str | None = None
    digest: str | None = None  # of the manifest

    def __str__(self) -> str:
        """The reference as it is typed."""
        chosen = f":{self.tag}" if self.tag else f"@{self.digest}" if self.digest else ""
        return f"{self.kind}:{self.path}{chosen}"


def is_digest(text: object) -> bool:
    """Whether a value is a SHA-256 digest as registries write it."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def parse_reference(text: str, *, what: str | None = None) -> Reference:
    """The reference that a text names. A first part with a dot, a port, or `localhost` is a registry.

    Raises:
        UsageError: it is not a reference; `what` begins the message.
    """
    fault = f"{what or repr(text[:200])} is not an image's name"
    hint = "write HOST/NAME:TAG, in lower case: registry.example.com/team/train:1.0"
    rest, sign, digest = text.partition("@")
    if "/" in digest:  # USER:PASSWORD@HOST/NAME, which is not repeated
        raise UsageError(
            f"an image's name holds no login: ...@{digest!r:.100}",
            hint="docker login HOST, or podman login HOST; envkit reads what they keep",
        )
    if sign and not _DIGEST.fullmatch(digest):
        raise UsageError(f"{fault}: {digest!r:.100} is not a sha256 digest", hint="NAME@sha256:<64 digits>")
    first, _, below = rest.partition("/")
    named = names_registry(rest)
    why = refusal_of_image(rest) if named else None
    registry, rest = (first, below) if named else (HUB, rest)
    repository, colon, tag = rest.rpartition(":")
    if not colon:
        repository, tag = rest, ""
    written = repository
    if registry in (HUB, f"index.{HUB}", _HUB_API):
        registry = HUB
        # Only Docker Hub has this rule: `debian` is short for `library/debian`.
        repository = repository if "/" in repository else f"library/{repository}"
    port = registry.rpartition(":")[2]
    if not _HOST.fullmatch(registry) or (port.isdigit() and int(port) > _MAX_PORT):
        raise UsageError(f"{fault}: {registry!r:.100} is not a registry's host", hint=hint)
    if why is not None:
        raise UsageError(f"{fault}: {why}", hint=hint)
    if not _REPOSITORY.fullmatch(repository) or len(repository) > _MAX_NAME:
        raise UsageError(f"{fault}: {written!r:.100} is not a repository", hint=hint)
    if colon and not _TAG.fullmatch(tag):
        raise UsageError(f"{fault}: {tag!r:.140} is not a tag", hint=hint)
    return Reference(
        registry=registry, repository=repository, tag=tag or (None if digest else "latest"), digest=digest or None
    )


def is_remote(text: str) -> bool:
    """Whether a text names an image by its registry."""
    return text.startswith(PREFIX)


def parse_remote(text: str) -> Reference:
    """The image that `registry:HOST/NAME[:TAG|@DIGEST]` names.

    Raises:
        UsageError: it names none.
    """
    return parse_reference(text.removeprefix(PREFIX).removeprefix("//"), what=repr(text[:200]))


def is_file_reference(text: str) -> bool:
    """Whether a reference names a file or a folder instead of an engine's image."""
    return text.startswith((f"{LAYOUT}:", f"{ARCHIVE}:"))


def parse_file(text: str) -> FileReference | None:
    """A reference of one of the two kinds, None for any other text.

    A path that exists is taken whole, so that a colon in a folder's name is not read as a tag.
    """
    kind, sign, rest = text.partition(":")
    if not sign or kind not in (LAYOUT, ARCHIVE) or not rest:
        return None
    if Path(rest).exists():
        return FileReference(kind=kind, path=Path(rest))
    path, at, digest = rest.rpartition("@")
    if at and path and is_digest(digest):
        return FileReference(kind=kind, path=Path(path), digest=digest)
    # A tag may hold a colon of its own (a full name, registry:port and all), so the shortest path that exists wins.
    for colon in (match.start() for match in re.finditer(":", rest)):
        if colon and Path(rest[:colon]).exists():
            return FileReference(kind=kind, path=Path(rest[:colon]), tag=rest[colon + 1 :])
    return FileReference(kind=kind, path=Path(rest))


def names_registry(text: str) -> bool:
    """Whether a name begins with a registry, so that no image goes to a public one by an omission."""
    first, slash, _ = text.partition("/")
    return bool(slash) and ("." in first or ":" in first or first == "localhost")


def api(registry: str, *, tls: bool) -> str:
    """The root of a registry's API. Plain HTTP is for this machine alone, and only where it speaks no TLS."""
    if is_loopback(registry) and not tls:
        return f"http://{registry}"
    return f"https://{_HUB_API if registry == HUB else registry}"


def login_keys(registry: str) -> tuple[str, ...]:
    """Under which keys a client's configuration file may keep the login of a registry."""
    if registry == HUB:
        return (_HUB_KEY, HUB, f"index.{HUB}", _HUB_API)
    return (
        registry,
        f"https://{registry}",
        f"https://{registry}/",
        # Older clients wrote the address of the API.
        f"https://{registry}/v1/",
        f"https://{registry}/v2/",
    )


def repository_keys(registry: str, repository: str) -> tuple[str, ...]:
    """Under which keys a login for a part of a registry may be kept, the narrowest first."""
    parts = repository.split("/")
    return tuple(f"{registry}/{'/'.join(parts[:end])}" for end in range(len(parts), 0, -1))
