"""Names of images: text is parsed once, where a user, a document or the state folder gives it, and matched after that.

    registry:HOST/NAME[:TAG][@DIGEST]   an image of a registry
    oci:DIR[:TAG]   oci:DIR@DIGEST      an image of an OCI layout
    docker-archive:FILE[:TAG]           an image of an archive of `docker save`
    docker-daemon[:NAME[:TAG]] sif:FILE for an image that is to be made: loaded into Docker, or a SIF file

Any other text is a name or an ID in an engine; `HOST/NAME` is one, too, as for `docker run`. The commands that read
what was published (`attest`, `inspect`, `diff`) look for `HOST/NAME` in its registry instead. Names in registries have
the same meaning as for `docker pull`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from envkit.ground.addresses import is_loopback, refusal_of_image
from envkit.ground.errors import UsageError

LAYOUT, ARCHIVE, SIF, REGISTRY, DAEMON = "oci", "docker-archive", "sif", "registry", "docker-daemon"
PREFIX = f"{REGISTRY}:"
HUB = "docker.io"
# Docker Hub's API is at another host than its image names.
_HUB_API = "registry-1.docker.io"
_HUB_KEY = "https://index.docker.io/v1/"  # the key of Docker Hub in the file that `docker login` writes
# A DNS name or IPv4 address, or an IPv6 address in brackets, with an optional port: `registry.example.com:5000`,
# `[::1]:5000`.
_HOST = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9-]+)*|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?"
)
# `<name>` and tag of the OCI distribution specification, "Pulling manifests".
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_OUTPUTS = "--output oci:DIR, docker-archive:FILE, sif:FILE, docker-daemon or registry:HOST/NAME:TAG"
# Names that other tools use for these outputs.
_FOREIGN = {"docker": REGISTRY, "oci-layout": LAYOUT, "docker-tar": ARCHIVE, "daemon": DAEMON,
            "apptainer": SIF, "singularity": SIF}  # fmt: skip
_MAX_NAME = 255  # characters, the limit of registries
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The name of an image in a registry; `tag` is `latest` if the name has neither a tag nor a digest."""

    registry: str  # 'host[:port]'; 'docker.io' for Docker Hub
    repository: str
    tag: str | None
    digest: str | None

    @property
    def place(self) -> str:
        """Registry and repository."""
        return f"{self.registry}/{self.repository}"

    @property
    def tag_or_digest(self) -> str:
        """The digest if there is one, else the tag: the `<reference>` of the distribution specification."""
        return self.digest or self.tag or "latest"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.place}{tag}" + (f"@{self.digest}" if self.digest else "")

    def at(self, digest: str) -> Reference:
        """Return the reference with another digest."""
        return replace(self, digest=digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class InEngine:
    """An image in an engine's storage, or one that the embedded engine built under this name."""

    name: str  # NAME[:TAG], HOST/NAME[:TAG], or an ID

    @property
    def typed(self) -> str:
        """The name as typed."""
        return self.name

    @property
    def id(self) -> str | None:
        """The image's ID, if this is one: `sha256:` and 64 hexadecimal digits."""
        return self.name if is_digest(self.name) else None

    def published(self) -> InRegistry | None:
        """Return the name as one in the registry that it begins with; None if it begins with none.

        Raises:
            UsageError: it is not a valid name.
        """
        if registry_of(self.name) is None:
            return None
        return InRegistry(reference=parse_reference(self.name), typed=self.name)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class InRegistry:
    """An image in a registry."""

    kind: ClassVar[str] = REGISTRY
    reference: Reference
    typed: str = field(default="", compare=False)  # with or without the prefix

    def __post_init__(self) -> None:
        if not self.typed:
            object.__setattr__(self, "typed", f"{PREFIX}{self.reference}")

    @property
    def name(self) -> str:
        """The name as typed, without the prefix, as engines take it."""
        # registry://HOST/NAME is accepted, too: skopeo writes docker://HOST/NAME.
        return self.typed.removeprefix(PREFIX).removeprefix("//")

    def __str__(self) -> str:
        return self.typed


@dataclass(frozen=True, slots=True, kw_only=True)
class _InFile:
    """What layouts and archives have in common: a path, and what selects one of several images there."""

    kind: ClassVar[str]
    path: Path
    tag: str | None = None
    digest: str | None = None  # of the manifest
    typed: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.typed:
            object.__setattr__(self, "typed", str(self))

    def __str__(self) -> str:
        chosen = f":{self.tag}" if self.tag else f"@{self.digest}" if self.digest else ""
        return f"{self.kind}:{self.path}{chosen}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InLayout(_InFile):
    """An image of an OCI layout."""

    kind: ClassVar[str] = LAYOUT


@dataclass(frozen=True, slots=True, kw_only=True)
class InArchive(_InFile):
    """An image of an archive of `docker save`."""

    kind: ClassVar[str] = ARCHIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class InSif(_InFile):
    """A SIF file, which envkit makes for Apptainer and does not read."""

    kind: ClassVar[str] = SIF


@dataclass(frozen=True, slots=True, kw_only=True)
class OnHost:
    """A Python on this machine, which the host runner takes for an image."""

    typed: str = "host"  # a path, a command, or `host` for the Python that runs envkit

    def __str__(self) -> str:
        return self.typed


ImageName = InEngine | InRegistry | InLayout | InArchive | OnHost
"""An image that exists."""
OutputName = InEngine | InRegistry | InLayout | InArchive | InSif
"""An image that is to be made; in an engine, an empty name means none in addition to the tags."""


def image_name(text: str) -> ImageName:
    """Parse the name of an image; one without a prefix is an engine's.

    A path that exists is used as a whole, so that a colon in the name of a folder does not start a tag.

    Raises:
        UsageError: it is not a valid name in a registry.
    """
    kind, colon, rest = text.partition(":")
    if colon and kind == REGISTRY:
        return InRegistry(reference=parse_reference(rest.removeprefix("//"), what=repr(text[:200])), typed=text)
    if rest and kind in (LAYOUT, ARCHIVE):
        path, tag, digest = _in_file(rest)
        made = InLayout if kind == LAYOUT else InArchive
        return made(path=path, tag=tag, digest=digest, typed=text)
    return InEngine(name=text)


def published_name(text: str, *, or_file: bool = False) -> ImageName:
    """Parse the name of an image; `HOST/NAME` is in its registry.

    Args:
        text: the name.
        or_file: whether it may be the path of a file as well, which then stays a name without a registry.

    Raises:
        UsageError: it is not a valid name in a registry.
    """
    name = image_name(text)
    if not isinstance(name, InEngine) or (or_file and Path(text).exists()):
        return name
    return name.published() or name


def output_name(text: str) -> OutputName:
    """Parse the name of an image that is to be made, the value of `--output`: nothing has to exist at its path.

    Raises:
        UsageError: the value is invalid.
    """
    kind, colon, rest = text.partition(":")
    if kind in _FOREIGN:
        own = _FOREIGN[kind]
        raise UsageError(
            f"--output {text!r:.200}: unknown kind {kind!r}", hint=f"--output {own}{colon}{rest.removeprefix('//')}"
        )
    match kind:
        case "oci" if rest:
            return _new_layout(text, rest)
        case "docker-archive" if rest:
            return _new_archive(text, rest)
        case "sif" if rest:
            return InSif(path=_new_file(text, kind, rest, "image.sif"), typed=text)
        case "docker-daemon" if rest or not colon:
            return InEngine(name=_new_tag(text, rest) if rest else "")
        case "registry" if rest:
            return _new_in_registry(text, rest.removeprefix("//"))
    if kind in (LAYOUT, ARCHIVE, SIF, DAEMON, REGISTRY):
        raise UsageError(f"--output {text!r:.200}: a value is missing after the colon", hint=_OUTPUTS)
    raise UsageError(f"--output {text!r:.200}: unknown kind of output", hint=_OUTPUTS)


def _new_layout(text: str, rest: str) -> InLayout:
    folder, colon, tag = rest.rpartition(":")
    # A slash after the colon: it is part of a folder's name, and there is no tag.
    if not colon or "/" in tag:
        folder, tag = rest, ""
    elif not folder or not _TAG.fullmatch(tag):
        raise UsageError(f"--output {text!r:.200}: {tag!r:.140} is not a tag", hint="--output oci:DIR:TAG")
    return InLayout(path=_new_path(text, folder), tag=tag or None, typed=text)


def _new_archive(text: str, rest: str) -> InArchive:
    # The first colon: the name can contain more of them (HOST:PORT/NAME:TAG).
    file, _, name = rest.partition(":")
    path = _new_file(text, ARCHIVE, file, "image.tar")
    return InArchive(path=path, tag=_new_tag(text, name) if name else None, typed=text)


def _new_file(text: str, kind: str, typed: str, example: str) -> Path:
    path = _new_path(text, typed)
    if path.is_dir():
        raise UsageError(f"--output {text!r:.200}: {typed} is a folder", hint=f"--output {kind}:{typed}/{example}")
    return path


def _new_in_registry(text: str, name: str) -> InRegistry:
    reference = parse_reference(name, what=f"--output {text!r:.200}")
    if registry_of(name) is None:
        raise UsageError(
            f"--output {text!r:.200} has no registry", hint="--output registry:registry.example.com/team/train:1.0"
        )
    if reference.digest:
        raise UsageError(
            f"--output {text!r:.200} has a digest; use a tag, because the digest follows from the image",
            hint=f"--output registry:{reference.registry}/{reference.repository}:TAG",
        )
    return InRegistry(reference=reference, typed=text)


def _new_tag(text: str, name: str) -> str:
    reference = parse_reference(name, what=f"--output {text!r:.200}")
    if reference.digest:
        raise UsageError(f"--output {text!r:.200} has a digest", hint="use NAME:TAG")
    return name if name.endswith(f":{reference.tag}") else f"{name}:{reference.tag}"


def _new_path(text: str, typed: str) -> Path:
    if not typed or "\0" in typed:
        raise UsageError(f"--output {text!r:.200} has no valid path", hint=_OUTPUTS)
    return Path(typed)


def with_prefix(name: ImageName) -> str | None:
    """Return the name with the prefix that it seems to lack; None if it has one or may be an engine's image.

    An existing path lacks `oci:` or `docker-archive:`, and so does the name of a tar; a registry's name `registry:`.
    """
    if not isinstance(name, InEngine):
        return None
    path = Path(name.name)
    if path.is_dir():
        return f"{LAYOUT}:{name}"
    if path.exists() or name.name.endswith((".tar", ".tar.gz", ".tgz")):
        return f"{ARCHIVE}:{name}"
    return f"{PREFIX}{name}" if registry_of(name.name) is not None else None


def _in_file(rest: str) -> tuple[Path, str | None, str | None]:
    """Return the path, the tag and the digest of what follows `oci:` or `docker-archive:`."""
    if Path(rest).exists():
        return Path(rest), None, None
    path, at, digest = rest.rpartition("@")
    if at and path and is_digest(digest):
        return Path(path), None, digest
    # A tag can contain colons (a full name with a registry's port), so the shortest path that exists is used.
    for colon in (match.start() for match in re.finditer(":", rest)):
        if colon and Path(rest[:colon]).exists():
            return Path(rest[:colon]), rest[colon + 1 :], None
    return Path(rest), None, None


def is_digest(text: object) -> bool:
    """Return whether a value is a digest: `sha256:` and 64 hexadecimal digits."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def parse_reference(text: str, *, what: str | None = None) -> Reference:
    """Parse the name of an image. A first part with a dot or a port, or `localhost`, is a registry.

    Raises:
        UsageError: it is not a valid name; the message starts with `what`.
    """
    fault = f"{what or repr(text[:200])} is not a valid image name"
    hint = "use HOST/NAME:TAG in lower case: registry.example.com/team/train:1.0"
    rest, sign, digest = text.partition("@")
    if "/" in digest:  # USER:PASSWORD@HOST/NAME; the message must not show the password
        raise UsageError(
            f"an image name cannot contain a login: ...@{digest!r:.100}",
            hint="docker login HOST or podman login HOST; envkit uses these logins",
        )
    if sign and not _DIGEST.fullmatch(digest):
        raise UsageError(f"{fault}: {digest!r:.100} is not a sha256 digest", hint="NAME@sha256:<64 hexadecimal digits>")
    named = registry_of(rest)
    why = refusal_of_image(rest) if named else None
    registry, rest = (named, rest.removeprefix(f"{named}/")) if named else (HUB, rest)
    # The registry and its port are already removed, so a colon can only start a tag.
    repository, colon, tag = rest.rpartition(":")
    if not colon:
        repository, tag = rest, ""
    typed = repository  # messages show the name without the `library/` added below
    if registry in (HUB, f"index.{HUB}", _HUB_API):
        registry = HUB
        # Only on Docker Hub, `debian` is short for `library/debian`.
        repository = repository if "/" in repository else f"library/{repository}"
    port = registry.rpartition(":")[2]
    if not _HOST.fullmatch(registry) or (port.isdigit() and int(port) > _MAX_PORT):
        raise UsageError(f"{fault}: {registry!r:.100} is not a valid registry host", hint=hint)
    if why is not None:
        raise UsageError(f"{fault}: {why}", hint=hint)
    if not _REPOSITORY.fullmatch(repository) or len(repository) > _MAX_NAME:
        raise UsageError(f"{fault}: {typed!r:.100} is not a valid repository", hint=hint)
    if colon and not _TAG.fullmatch(tag):
        raise UsageError(f"{fault}: {tag!r:.140} is not a valid tag", hint=hint)
    return Reference(
        registry=registry, repository=repository, tag=tag or (None if digest else "latest"), digest=digest or None
    )


def registry_of(name: str) -> str | None:
    """Return the registry that a name starts with, by Docker's rule; None if it names none, which means Docker Hub."""
    first, slash, _ = name.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else None


def split_tag(name: str) -> tuple[str, str | None]:
    """Return a name without a digest as its repository and its tag; the tag is None if the name has none."""
    repository, colon, tag = name.rpartition(":")
    # In HOST:PORT/NAME, the colon starts a port.
    return (repository, tag) if colon and "/" not in tag else (name, None)


def pinned_digest(name: str) -> str | None:
    """Return the digest that a name ends with; None if there is none."""
    rest, _, digest = name.rpartition("@")
    return digest if rest and is_digest(digest) else None


def api(registry: str, *, tls: bool) -> str:
    """Return the root URL of a registry's API. Plain HTTP is used only for this machine, and only without TLS there."""
    if is_loopback(registry) and not tls:
        return f"http://{registry}"
    return f"https://{_HUB_API if registry == HUB else registry}"


def login_keys(registry: str) -> tuple[str, ...]:
    """Return the possible keys of a registry's login in a client's configuration file."""
    if registry == HUB:
        # Docker writes the first key, Podman the second. `auth` asks credential helpers only for the first two.
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
    """Return the possible keys of a login for a repository or a part of its path, most specific first."""
    parts = repository.split("/")
    return tuple(f"{registry}/{'/'.join(parts[:end])}" for end in range(len(parts), 0, -1))
