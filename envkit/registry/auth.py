"""Authentication: find the login of a registry, and parse its challenges (WWW-Authenticate, RFC 9110, 11.6.1).

Logins come from the files of other container clients, or from the credential helpers in them. The first file with a
login for the registry is used, in this order:

1. `$REGISTRY_AUTH_FILE` (podman, buildah, skopeo), which has to exist if it is set
2. `$DOCKER_CONFIG/config.json`, else `~/.docker/config.json` (Docker)
3. `$XDG_RUNTIME_DIR/containers/auth.json` (podman login)
4. `$XDG_CONFIG_HOME/containers/auth.json`, else `~/.config/containers/auth.json`

In a file, `credHelpers` take precedence over `credsStore`, and that over `auths`; among the keys of `auths`, one with
the repository or a part of it (`registry.example.com/team`, containers-auth.json(5)) precedes that of the registry.

Logins are excluded from `repr`, so they do not get into messages.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from envkit.ground.errors import EngineError, EnvironmentProblem
from envkit.ground.process import ask
from envkit.image.name import login_keys, repository_keys

if TYPE_CHECKING:
    from collections.abc import Mapping

_HELPER_PATIENCE_S = 15.0  # enough for a key store; a helper that prompts the user would wait forever
_HELPER_NAME = re.compile(r"[A-Za-z0-9._-]+")
_TOKEN_USER = "<token>"  # noqa: S105 - the user name that helpers return with an identity token
_MAX_FILE = 1 << 20  # bytes of a login file
_PODMAN = "containers/auth.json"
# Bearer realm="https://auth.example.com/token",service="registry.example.com",scope="repository:team/train:pull"
_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER = re.compile(rf'\s*({_WORD})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|({_WORD}))\s*(?:,|$)')
# A word before `=` is a parameter, not the next scheme.
_SCHEME = re.compile(rf"\s*,?\s*({_WORD})(?:\s+(?!=)|\s*,|\s*$)")
_MAX_HEADER = 8192  # characters of a WWW-Authenticate header
_COUNTRY, _SHORT = 2, 3  # lengths of a country code, and at most of a label such as `co` before it
# Below these, each customer of a host has a name. Their registries name themselves as the token server.
_SHARED = (
    ".amazonaws.com", ".azurecontainerapps.io", ".azurecr.io", ".azurewebsites.net", ".cloudapp.net", ".fly.dev",
    ".github.io", ".gitlab.io", ".herokuapp.com", ".jfrog.io", ".ngrok-free.app", ".ngrok.app", ".ngrok.io",
    ".onrender.com", ".pages.dev", ".pkg.dev", ".run.app", ".trycloudflare.com", ".ts.net", ".vercel.app",
    ".workers.dev",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A user name and password, or an identity token for a token server."""

    user: str = field(repr=False)
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    def basic(self) -> str:
        """Return the value of an Authorization header."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


@dataclass(frozen=True, slots=True)
class StoredLogin:
    """A login and its file."""

    login: Login
    path: Path


def login_files(environ: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Return the files that are searched for a login, in order; they may not exist."""
    env = os.environ if environ is None else environ
    # Without a home folder, no file is found there.
    home = Path(env.get("HOME") or "/nonexistent")
    paths = [
        Path(env.get("DOCKER_CONFIG") or home / ".docker") / "config.json",
        Path(env.get("XDG_CONFIG_HOME") or home / ".config") / _PODMAN,
    ]
    if env.get("XDG_RUNTIME_DIR"):
        paths.insert(1, Path(env["XDG_RUNTIME_DIR"]) / _PODMAN)
    if env.get("REGISTRY_AUTH_FILE"):
        paths.insert(0, Path(env["REGISTRY_AUTH_FILE"]))
    return tuple(paths)


def find_login(registry: str, repository: str, environ: Mapping[str, str] | None = None) -> StoredLogin | None:
    """Return the login for a repository of a registry; None if there is none.

    Raises:
        EngineError: a file is damaged, or its credential helper is missing, hangs or has invalid output.
    """
    env = os.environ if environ is None else environ
    for path in login_files(env):
        tree = _read(path)
        if tree is None and str(path) == env.get("REGISTRY_AUTH_FILE"):
            raise EngineError(f"REGISTRY_AUTH_FILE is {path}, which does not exist", hint="unset REGISTRY_AUTH_FILE")
        login = _in_file(path, tree, registry, repository) if tree is not None else None
        if login is not None:
            return StoredLogin(login, path)
    return None


def _in_file(path: Path, tree: dict[str, Any], registry: str, repository: str) -> Login | None:
    keys = login_keys(registry)
    for key in keys:
        helper = _table(path, tree, "credHelpers").get(key)
        if helper is not None:
            return _ask_helper(path, helper, key)
    store = tree.get("credsStore")
    if store:
        # Each lookup starts a program, so only the two forms of keys that current clients write are tried.
        for key in keys[:2]:
            login = _ask_helper(path, store, key)
            if login is not None:
                return login
    auths = _table(path, tree, "auths")
    for key in (*repository_keys(registry, repository), *keys):
        # With a credential store, `docker login` leaves an empty object here.
        if auths.get(key):
            return _stored(path, key, auths[key])
    return None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            tree = json.loads(file.read(_MAX_FILE))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise EngineError(
            f"{path}, which may hold registry logins, cannot be read: {error.strerror}", hint=f"chmod u+r {path}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise EngineError(
            f"{path} is not JSON, so no registry login can be read", hint=f"fix or remove {path}"
        ) from error
    if not isinstance(tree, dict):
        raise _damaged(path, "it is not a JSON object")
    return tree


def _table(path: Path, tree: dict[str, Any], key: str) -> dict[str, Any]:
    table = tree.get(key) or {}
    if not isinstance(table, dict):
        raise _damaged(path, f"{key} is not a JSON object")
    return table


def _stored(path: Path, key: str, row: object) -> Login | None:
    if not isinstance(row, dict):
        raise _damaged(path, f"auths.{key} is not a JSON object")
    token, auth = row.get("identitytoken"), row.get("auth")
    user, password = row.get("username"), row.get("password")
    if isinstance(auth, str) and auth:
        try:
            text = base64.b64decode(auth, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise _damaged(path, f"auths.{key}.auth is not base64 text") from error
        user, colon, password = text.partition(":")
        # As Docker reads it: some writers pad the password with NUL.
        password = password.rstrip("\0")
        if not colon:
            raise _damaged(path, f"auths.{key}.auth has no user and password")
    if isinstance(token, str) and token:
        return Login(user=user if isinstance(user, str) else "", identity_token=token)
    if isinstance(user, str) and user and isinstance(password, str):
        return Login(user=user, password=password)
    return None


def _ask_helper(path: Path, helper: object, key: str) -> Login | None:
    """Return the login of a credential helper (the docker-credential-* protocol)."""
    # The name becomes part of a program's name: with a slash, it would be the path of any program.
    if not isinstance(helper, str) or not _HELPER_NAME.fullmatch(helper):
        raise _damaged(path, f"{helper!r:.80} is not a valid name of a credential helper")
    program = f"docker-credential-{helper}"
    hint = f"install {program}, or remove it from {path} and log in again"
    try:
        answer = ask([program, "get"], patience_s=_HELPER_PATIENCE_S, stdin=key.encode())
    except EnvironmentProblem as error:
        raise EngineError(
            f"{path} has {program} as the credential helper of {key}: {error.message}", hint=hint
        ) from error
    if answer.code:
        # The protocol reports a missing login only with this text.
        if "credentials not found" in (answer.out + answer.err).lower():
            return None
        raise EngineError(f"{program} (from {path}) ended with exit code {answer.code} for {key}", hint=hint)
    try:
        tree = json.loads(answer.out)
        user, secret = tree["Username"], tree["Secret"]
    except (ValueError, KeyError, TypeError, RecursionError):
        user = secret = None
    if not isinstance(user, str) or not isinstance(secret, str):
        raise EngineError(f"{program} (from {path}) returned no valid login for {key}", hint=hint) from None
    if user == _TOKEN_USER:
        return Login(user="", identity_token=secret)
    return Login(user=user, password=secret)


def _damaged(path: Path, why: str) -> EngineError:
    return EngineError(f"{path}: {why}, so no registry login can be read", hint=f"fix {path}, or log in again")


# Challenges of registries.


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """A challenge of a registry; the scheme and the names of parameters are in lower case."""

    scheme: str  # 'bearer' | 'basic' | ...
    parameters: Mapping[str, str]


def parse_challenges(header: str) -> tuple[Challenge, ...]:
    """Return the challenges of a header, up to the first one that is invalid."""
    challenges: list[Challenge] = []
    text, at = header[:_MAX_HEADER], 0
    while at < len(text) and (scheme := _SCHEME.match(text, at)):
        at = scheme.end()
        parameters: dict[str, str] = {}
        while pair := _PARAMETER.match(text, at):
            quoted, plain = pair[2], pair[3]
            parameters.setdefault(pair[1].lower(), re.sub(r"\\(.)", r"\1", quoted) if plain is None else plain)
            at = pair.end()
        challenges.append(Challenge(scheme=scheme[1].lower(), parameters=parameters))
    return tuple(challenges)


def trusted_realm(registry: str, realm: str) -> bool:
    """Return whether a login for the registry at one URL may be sent to the token server at another.

    The server has to be the same host or in the same domain (auth.example.com for registry.example.com), unless hosts
    of that domain have different owners. It has to use HTTPS if the registry does.
    """
    here, there = urlsplit(registry), urlsplit(realm)
    if there.scheme not in ("http", "https") or not there.hostname or there.username:
        return False
    if there.scheme == "http" and here.scheme != "http":
        return False
    ours, theirs = here.hostname or "", there.hostname
    if ours == theirs:
        return True
    # As for Docker Hub: registry-1.docker.io and auth.docker.io.
    domain = _domain(ours)
    return domain is not None and (theirs == domain or theirs.endswith(f".{domain}"))


def _domain(host: str) -> str | None:
    """Return the registrable domain of a host; None for an address, or a name without a domain of its own."""
    labels = host.split(".")
    if ":" in host or labels[-1].isdigit() or len(labels) < _COUNTRY or host.endswith(_SHARED):
        return None
    # Domains below `co.uk` and similar ones have different owners.
    shared = len(labels[-1]) == _COUNTRY and len(labels[-2]) <= _SHORT
    kept = 3 if shared else 2
    return ".".join(labels[-kept:]) if len(labels) >= kept else None
