"""A container registry (OCI distribution specification 1.0): manifests, blobs, uploads, and its ways to log in."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from envkit.ground.addresses import is_loopback
from envkit.ground.errors import EngineError, EnvkitError, IntegrityError
from envkit.ground.text import neutral
from envkit.image import spec
from envkit.image.reference import Reference, api
from envkit.registry.auth import Challenge, Found, find_login, login_files, parse_challenges, trusted_realm
from envkit.registry.retry import TransientError, persist
from envkit.registry.transport import Answer, Body, Transport, is_address, same_host, speaks_tls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Result = TypeVar("Result")
MAX_MANIFEST = 4 << 20  # what registries accept
# One header: proxies that merge repeated ones have made registries answer with an older kind of manifest.
_ACCEPT = f"{spec.MANIFEST}, {spec.DOCKER_MANIFEST}, {spec.INDEX}, {spec.DOCKER_INDEX}"
_FOUND, _CREATED, _ACCEPTED, _PARTIAL = 200, 201, 202, 206
_BAD_REQUEST, _UNAUTHORIZED, _FORBIDDEN, _MISSING, _TOO_LARGE, _UNSATISFIABLE = 400, 401, 403, 404, 413, 416
_MAX_TOKEN = 1 << 20  # bytes of a token server's answer
# What registries say of a manifest that is not the one its digest or its own JSON says; a whole one never meets these.
_DAMAGED = re.compile(r"DIGEST_INVALID|MANIFEST_INVALID|MANIFEST_UNVERIFIED|MANIFEST_BLOB_UNKNOWN")
Parameters = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A manifest or index as the registry gave it, with the digest of its bytes."""

    data: bytes
    media_type: str
    digest: str


class Registry:
    """One registry. Logins are looked up when it first asks for one; may be used from several threads.

    A registry on this machine is spoken to by TLS where it offers that, else in the clear; any other one by TLS alone.
    """

    def __init__(self, name: str, transport: Transport, environ: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.transport = transport
        self._environ = environ
        self._lock = threading.Lock()
        self._known_root: str | None = None
        self._logins: dict[str, Found | None] = {}  # by repository
        self._granted: dict[tuple[str, ...], str] = {}  # scopes -> Authorization header

    @classmethod
    def of(cls, reference: Reference, transport: Transport) -> Self:
        """The registry of a reference."""
        return cls(reference.registry, transport)

    @property
    def root(self) -> str:
        """The URL below which its API is."""
        with self._lock:
            if self._known_root is None:
                self._known_root = api(self.name, tls=not is_loopback(self.name) or speaks_tls(self.name))
            return self._known_root

    def manifest(self, reference: Reference) -> Manifest | None:
        """What the registry holds under a tag or digest; None when there is nothing.

        Raises:
            IntegrityError: the bytes have another digest than was asked for or announced.
            EngineError: the registry refuses.
            EnvironmentProblem: it cannot be reached.
        """

        def ask() -> Manifest | None:
            path = f"{reference.repository}/manifests/{reference.tag_or_digest}"
            with self.request("GET", path, _pull(reference.repository), headers={"Accept": _ACCEPT}) as answer:
                if answer.status == _MISSING:
                    return None
                self.expect(answer, (_FOUND,), f"reading {reference}")
                data = answer.read(MAX_MANIFEST)
                kind = answer.headers.get("content-type", "").partition(";")[0].strip()
                digest, announced = spec.sha256(data), answer.headers.get("docker-content-digest")
            for promised in (reference.digest, announced):
                if promised and promised.startswith("sha256:") and promised != digest:
                    raise IntegrityError(
                        f"the manifest of {reference} has the digest {digest}, not {promised}",
                        hint="run it again; if it repeats, the registry or a proxy in front of it is damaged",
                    )
            return Manifest(data=data, media_type=kind, digest=digest)

        return self.persist(ask)

    def blob(self, repository: str, digest: str, offset: int = 0) -> Answer:
        """The contents of a blob from `offset` on: status 200 or 206, or 416 past its end.

        One try; the caller reads and closes it.

        Raises:
            TransientError: it may be tried again.
            EngineError: the registry has no such blob, or refuses.
        """
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        answer = self.request("GET", f"{repository}/blobs/{digest}", _pull(repository), headers=headers)
        good = (_FOUND, _PARTIAL, _UNSATISFIABLE) if offset else (_FOUND,)
        if answer.status not in good:
            with answer:
                self.expect(answer, good, f"fetching {digest} from {self.name}/{repository}")
        return answer

    def blob_size(self, repository: str, digest: str) -> int | None:
        """Bytes of a blob that the registry holds, None when it does not hold it; -1 when it does not say."""

        def ask() -> int | None:
            with self.request("HEAD", f"{repository}/blobs/{digest}", _push(repository)) as answer:
                if answer.status == _MISSING:
                    return None
                self.expect(answer, (_FOUND,), f"asking {self.name}/{repository} for {digest}")
                length = answer.headers.get("content-length", "")
                return int(length) if length.isdigit() else -1

        return self.persist(ask)

    def try_upload(self, repository: str) -> None:
        """See that the registry takes blobs for a repository: begin an upload and give it up.

        Raises:
            EngineError: it refuses.
            EnvironmentProblem: it cannot be reached.
        """
        url = self.persist(lambda: self.start_upload(repository))
        if url is not None:
            with contextlib.suppress(TransientError, EnvkitError), self.request("DELETE", url, _push(repository)):
                pass  # one that stays is forgotten by the registry in time

    def start_upload(self, repository: str, digest: str | None = None, source: str | None = None) -> str | None:
        """Where to send a blob; None when the registry took it over from the repository `source`. One try."""
        query = f"?{urlencode({'mount': digest, 'from': source})}" if digest and source else ""
        scopes = (*_push(repository), *(_pull(source) if query and source else ()))
        with self.request("POST", f"{repository}/blobs/uploads/{query}", scopes) as answer:
            self.expect(answer, (_CREATED, _ACCEPTED), f"pushing to {self.name}/{repository}")
            if answer.status == _CREATED:
                return None
            return answer.leads_to(answer.headers.get("location", ""))

    def put_manifest(self, reference: Reference, data: bytes, media_type: str) -> None:
        """Store a manifest under the reference's digest, or under its tag where it has none.

        Raises:
            IntegrityError: other bytes reached the registry.
            EngineError: it refuses.
            EnvironmentProblem: it cannot be reached.
        """

        def put() -> None:
            path = f"{reference.repository}/manifests/{reference.tag_or_digest}"
            headers = {"Content-Type": media_type}
            with self.request("PUT", path, _push(reference.repository), headers=headers, body=data) as answer:
                if answer.status == _BAD_REQUEST and _DAMAGED.search(said := answer.said()):
                    raise IntegrityError(
                        f"pushing {reference}: the registry received other bytes ({_errors(said)})",
                        hint="run it again; if it repeats, a proxy on the way to the registry changes data",
                    )
                self.expect(answer, (_CREATED, _FOUND, _ACCEPTED), f"pushing {reference}")
                announced = answer.headers.get("docker-content-digest", "")
                if announced.startswith("sha256:") and announced != spec.sha256(data):
                    raise IntegrityError(
                        f"pushing {reference}: the registry took {announced} for {spec.sha256(data)}",
                        hint="run it again; if it repeats, a proxy on the way to the registry changes data",
                    )

        self.persist(put)

    def persist(self, work: Callable[[], Result], *, tries: int | None = None) -> Result:
        """Call `envkit.registry.retry.persist` with this registry's limits; `tries` replaces theirs."""
        policy = self.transport.policy
        return persist(work, policy if tries is None else replace(policy, tries=tries))

    def request(
        self,
        method: str,
        path: str,
        scopes: tuple[str, ...],
        *,
        headers: Mapping[str, str] | None = None,
        body: Body | bytes | None = None,
    ) -> Answer:
        """One request below /v2/, or to a whole URL that the registry gave; logs in when it is asked to.

        Only the registry's own host sees the login. A `Body` is sent once: see that a login is there before it.
        """
        url = path if "://" in path else f"{self.root}/v2/{quote(path, safe='/:@?=&%._-~+')}"
        own = same_host(url, self.root)
        known = self._granted.get(scopes) if own else None
        led_by = self.root if url == path else None
        answer = self.transport.send(method, url, headers=headers, authorization=known, body=body, led_by=led_by)
        if answer.status != _UNAUTHORIZED or not own or isinstance(body, Body):
            return answer
        with answer:
            header = answer.headers.get("www-authenticate", "")
            reply = answer.said() if method != "HEAD" else ""  # an answer to HEAD has no body
        granted = self._authorize(parse_challenges(header), scopes, known, reply)
        return self.transport.send(method, url, headers=headers, authorization=granted, body=body, led_by=led_by)

    def expect(self, answer: Answer, good: tuple[int, ...], doing: str) -> None:
        """Check a status.

        Raises:
            EngineError: it is not one of `good`.
        """
        if answer.status in good:
            return
        said = "" if answer.headers.get("content-length") == "0" else _errors(answer.said())
        text = f"{doing}: the registry answers {answer.status}" + (f": {said}" if said else "")
        if answer.status in (_UNAUTHORIZED, _FORBIDDEN):
            raise EngineError(text, hint=f"docker login {self.name}   # and check the repository's name")
        if answer.status == _TOO_LARGE:
            raise EngineError(text, hint="ask the registry's administrators for a higher blob size limit")
        if answer.status == _MISSING:
            raise EngineError(text, hint="check the image's name and tag")
        raise EngineError(text, hint="run it again; if it repeats, ask the registry's administrators")

    def _authorize(self, offered: tuple[Challenge, ...], scopes: tuple[str, ...], stale: str | None, reply: str) -> str:
        """An Authorization header that the registry should take."""
        root = self.root
        with self._lock:
            # The lock is held while a token is fetched: threads that need the same one wait for it instead of asking.
            repository = scopes[0].split(":")[1]
            if repository not in self._logins:
                self._logins[repository] = find_login(self.name, repository, self._environ)
            stored = self._logins[repository]
            known = self._granted.get(scopes)
            if known and known != stale:  # another thread was faster
                return known
            for challenge in offered:
                if challenge.scheme == "bearer" and challenge.parameters.get("realm"):
                    header = f"Bearer {self.persist(functools.partial(self._token, challenge, scopes, stored, root))}"
                # Not after a refusal: the same user and password would be refused again.
                elif challenge.scheme == "basic" and stored is not None and stored.login.user and not stale:
                    header = stored.login.basic()
                else:
                    continue
                self._granted[scopes] = header
                return header
        raise self._unwelcome(stored, reply)

    def _unwelcome(self, stored: Found | None, reply: str) -> EngineError:
        """The registry or its token server does not take the login, or there is none."""
        looked = " or ".join(str(path) for path in login_files(self._environ))
        return EngineError(
            f"{self.name} requires a login"
            + (f" and rejects the one in {stored.path}" if stored else f", and none was found in {looked}")
            + (f": {_errors(reply)}" if reply else ""),
            hint=f"docker login {self.name}",
        )

    def _token(self, challenge: Challenge, scopes: tuple[str, ...], stored: Found | None, root: str) -> str:
        """A token from the server that the registry names (distribution's token authentication)."""
        realm, login = challenge.parameters["realm"], stored.login if stored else None
        if not is_address(realm):
            raise EngineError(
                f"{self.name} requires a login at {neutral(realm)[:200]!r}, which is not a URL",
                hint="check the registry's address",
            )
        if login is not None and not trusted_realm(root, realm):
            raise EngineError(
                f"{self.name} redirects the login to another host, {neutral(urlsplit(realm).netloc)[:200]}: refused",
                hint=f"docker logout {self.name}   # to continue without a login",
            )
        asked: Parameters = tuple(
            (key, challenge.parameters[key]) for key in ("service",) if key in challenge.parameters
        )
        wanted = dict.fromkeys((*scopes, *challenge.parameters.get("scope", "").split()))
        asked += tuple(("scope", scope) for scope in _merged(tuple(wanted)))
        if login is not None and login.identity_token:
            form = {"grant_type": "refresh_token", "refresh_token": login.identity_token, "client_id": "envkit"}
            form |= {"service": challenge.parameters.get("service", ""), "scope": " ".join(_merged(tuple(wanted)))}
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            answer = self.transport.send("POST", realm, headers=headers, body=urlencode(form).encode(), led_by=root)
        else:
            sign = "&" if urlsplit(realm).query else "?"
            basic = login.basic() if login is not None else None
            answer = self.transport.send("GET", f"{realm}{sign}{urlencode(asked)}", authorization=basic, led_by=root)
        with answer:
            if answer.status in (_UNAUTHORIZED, _FORBIDDEN):
                raise self._unwelcome(stored, answer.said())
            if answer.status != _FOUND:
                self.expect(answer, (_FOUND,), f"logging in to {self.name}")
            try:
                tree = json.loads(answer.read(_MAX_TOKEN))
                token = tree.get("token") or tree.get("access_token")  # distribution's own name, and that of OAuth 2
            except (ValueError, AttributeError, RecursionError):
                token = None
        # It becomes part of a header: a line break in it would begin another one.
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise EngineError(f"logging in to {self.name}: the token server returned no token", hint="run it again")
        return token


def _pull(repository: str) -> tuple[str, ...]:
    return (f"repository:{repository}:pull",)


def _push(repository: str) -> tuple[str, ...]:
    return (f"repository:{repository}:pull,push",)


def _merged(scopes: tuple[str, ...]) -> tuple[str, ...]:
    """Scopes without those that another one includes."""
    merged: dict[str, set[str]] = {}
    for scope in scopes:
        name, _, actions = scope.rpartition(":")
        merged.setdefault(name, set()).update(actions.split(","))
    return tuple(f"{name}:{','.join(sorted(actions))}" for name, actions in merged.items())


def _errors(text: str) -> str:
    """The messages of a registry's error document; the text itself when it is something else."""
    try:
        rows = json.loads(text)["errors"]
        said = "; ".join(f"{row.get('code', '')} {row.get('message', '')}".strip() for row in rows)
        return neutral(said)[:300]  # what JSON wrote as an escape is a control character now
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return text[:300]
