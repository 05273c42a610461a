"""The login of a registry, from the container client's own configuration file or the program it names.

Nothing here ends up in a message: a login has no text form.
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

from envkit.build.embedded.reference import login_keys
from envkit.engine.process import ask
from envkit.errors import EngineError, SurroundingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

_HELPER_PATIENCE_S = 15.0
_HELPER_NAME = re.compile(r"[A-Za-z0-9._-]+")
_TOKEN_USER = "<token>"  # noqa: S105 - what helpers write in place of a user when the secret is an identity token
_MAX_FILE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A user's password, or an identity token that a token server exchanges."""

    user: str = field(repr=False)
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    def basic(self) -> str:
        """The value of an Authorization header."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def config_file(environ: Mapping[str, str] | None = None) -> Path:
    """The configuration file of container clients: DOCKER_CONFIG/config.json, else ~/.docker/config.json."""
    env = os.environ if environ is None else environ
    return Path(env.get("DOCKER_CONFIG") or Path(env.get("HOME") or "/nonexistent") / ".docker") / "config.json"


def find_login(registry: str, environ: Mapping[str, str] | None = None) -> Login | None:
    """The login of a registry; None where the user has none.

    Raises:
        EngineError: the file is damaged, or the program it names is missing, hangs or answers nonsense.
    """
    path = config_file(environ)
    tree = _read(path)
    if tree is None:
        return None
    for key in login_keys(registry):
        helper = _table(path, tree, "credHelpers").get(key)
        if helper is not None:
            return _ask_helper(path, helper, key)
    store = tree.get("credsStore")
    if store:
        for key in login_keys(registry)[:2]:
            found = _ask_helper(path, store, key)
            if found is not None:
                return found
    auths = _table(path, tree, "auths")
    for key in login_keys(registry):
        if auths.get(key):
            return _stored(path, key, auths[key])
    return None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            tree = json.loads(file.read(_MAX_FILE))
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        return None
    except OSError as error:
        raise EngineError(
            f"{path}, which may hold registry logins, cannot be read: {error.strerror}", hint=f"chmod u+r {path}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise EngineError(
            f"{path} is not JSON, so no registry login can be read", hint=f"mend or remove {path}"
        ) from error
    if not isinstance(tree, dict):
        raise _damaged(path, "it is not a table")
    return tree


def _table(path: Path, tree: dict[str, Any], key: str) -> dict[str, Any]:
    found = tree.get(key) or {}
    if not isinstance(found, dict):
        raise _damaged(path, f"{key} is not a table")
    return found


def _stored(path: Path, key: str, row: object) -> Login | None:
    if not isinstance(row, dict):
        raise _damaged(path, f"auths.{key} is not a table")
    token, auth = row.get("identitytoken"), row.get("auth")
    user, password = row.get("username"), row.get("password")
    if isinstance(auth, str) and auth:
        try:
            text = base64.b64decode(auth, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise _damaged(path, f"auths.{key}.auth is not base64 text") from error
        user, colon, password = text.partition(":")
        password = password.rstrip("\0")
        if not colon:
            raise _damaged(path, f"auths.{key}.auth holds no user and password")
    if isinstance(token, str) and token:
        return Login(user=user if isinstance(user, str) else "", identity_token=token)
    if isinstance(user, str) and user and isinstance(password, str):
        return Login(user=user, password=password)
    return None


def _ask_helper(path: Path, helper: object, key: str) -> Login | None:
    """The login that a credential helper keeps (the docker-credential-* protocol)."""
    if not isinstance(helper, str) or not _HELPER_NAME.fullmatch(helper):
        raise _damaged(path, f"{helper!r:.80} is not a credential helper's name")
    program = f"docker-credential-{helper}"
    hint = f"install {program}, or remove it from {path} and log in again"
    try:
        answer = ask([program, "get"], patience_s=_HELPER_PATIENCE_S, stdin=key.encode())
    except SurroundingsError as error:
        raise EngineError(f"{path} names {program} for the login of {key}, but: {error.message}", hint=hint) from error
    if answer.code:
        # The protocol has no other sign of an empty answer.
        if "credentials not found" in (answer.out + answer.err).lower():
            return None
        raise EngineError(f"{program}, named in {path}, ended with code {answer.code} for {key}", hint=hint)
    try:
        tree = json.loads(answer.out)
        user, secret = tree["Username"], tree["Secret"]
    except (ValueError, KeyError, TypeError, RecursionError):
        user = secret = None
    if not isinstance(user, str) or not isinstance(secret, str):
        raise EngineError(f"{program}, named in {path}, gave no login for {key} that can be read", hint=hint) from None
    if user == _TOKEN_USER:
        return Login(user="", identity_token=secret)
    return Login(user=user, password=secret)


def _damaged(path: Path, why: str) -> EngineError:
    return EngineError(f"{path}: {why}, so no registry login can be read", hint=f"mend {path}, or log in again")
