"""A client for container registries (OCI distribution specification 1.0): manifests, blobs, uploads and logins."""

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
from envkit.image.name import Reference, api
from envkit.registry.auth import Challenge, StoredLogin, find_login, login_files, parse_challenges, trusted_realm
from envkit.registry.retry import TransientError, persist
from envkit.registry.transport import Answer, Body, Transport, is_address, same_host, speaks_tls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Result = TypeVar("Result")
MAX_MANIFEST = 4 << 20  # bytes, the limit of registries
# A single header, because registries behind proxies that merge repeated headers returned older kinds of manifests.
_ACCEPT = f"{spec.MANIFEST}, {spec.DOCKER_MANIFEST}, {spec.INDEX}, {spec.DOCKER_INDEX}"
_FOUND, _CREATED, _ACCEPTED, _PARTIAL = 200, 201, 202, 206
_BAD_REQUEST, _UNAUTHORIZED, _FORBIDDEN, _MISSING, _TOO_LARGE, _UNSATISFIABLE = 400, 401, 403, 404, 413, 416
_MAX_TOKEN = 1 << 20  # bytes of a token server's response
# Error codes for a manifest that was changed in transit; an intact one causes none of them.
_DAMAGED = re.compile(r"DIGEST_INVALID|MANIFEST_INVALID|MANIFEST_UNVERIFIED|MANIFEST_BLOB_UNKNOWN")
Parameters = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A manifest or index of a registry, with the digest of its bytes."""

    data: bytes
    media_type: str
    digest: str


class Registry:
    """A registry; safe for use from several threads. Logins are looked up when it first requires one.

    Connections use TLS. Only a registry on this machine without TLS is used over plain HTTP.
    """

    def __init__(self, name: str, transport: Transport, environ: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.transport = transport
        self._environ = environ
        self._lock = threading.Lock()
        self._known_root: str | None = None
        self._logins: dict[str, StoredLogin | None] = {}  # by repository
        self._granted: dict[tuple[str, ...], str] = {}  # scopes -> Authorization header

    @classmethod
    def of(cls, reference: Reference, transport: Transport) -> Self:
        """Return the registry of a reference."""
        return cls(reference.registry, transport)

    @property
    def root(self) -> str:
        """The root URL of the API."""
        with self._lock:
            if self._known_root is None:
                self._known_root = api(self.name, tls=not is_loopback(self.name) or speaks_tls(self.name))
            return self._known_root

    def manifest(self, reference: Reference) -> Manifest | None:
        """Return the manifest of a tag or digest; None if there is none.

        Raises:
            IntegrityError: the bytes do not match the requested or the announced digest.
            EngineError: the registry refuses.
            EnvironmentProblem: it cannot be reached.
        """

        def ask() -> Manifest | None:
            path = f"{reference.repository}/manifests/{reference.tag_or_digest}"
            with self.request("GET", path, pull_scopes(reference.repository), headers={"Accept": _ACCEPT}) as answer:
                if answer.status == _MISSING:
                    return None
                self.expect(answer, (_FOUND,), f"reading {reference}")
                data = answer.read(MAX_MANIFEST)
                kind = answer.headers.get("content-type", "").partition(";")[0].strip()
                digest, announced = spec.sha256(data), answer.headers.get("docker-content-digest")
            # A registry may announce a digest of another algorithm, such as sha512.
            for expected in (reference.digest, announced):
                if expected and expected.startswith("sha256:") and expected != digest:
                    raise IntegrityError(
                        f"the manifest of {reference} has the digest {digest}, not {expected}",
                        hint="run it again; if it repeats, the registry or a proxy in front of it is damaged",
                    )
            return Manifest(data=data, media_type=kind, digest=digest)

        return self.persist(ask)

    def blob(self, repository: str, digest: str, offset: int = 0) -> Answer:
        """Request a blob from `offset` on; the status is 200 or 206, or 416 past its end.

        Does not retry. The caller reads and closes the answer.

        Raises:
            TransientError: a retry may succeed.
            EngineError: the registry has no such blob, or refuses.
        """
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        answer = self.request("GET", f"{repository}/blobs/{digest}", pull_scopes(repository), headers=headers)
        good = (_FOUND, _PARTIAL, _UNSATISFIABLE) if offset else (_FOUND,)
        if answer.status not in good:
            with answer:
                self.expect(answer, good, f"fetching {digest} from {self.name}/{repository}")
        return answer

    def read_blob(self, repository: str, digest: str, limit: int = MAX_MANIFEST) -> bytes:
        """Return a blob of at most `limit` bytes; the digest is not checked.

        Raises:
            EngineError: it is larger, or the registry does not have it or refuses.
            EnvironmentProblem: the registry cannot be reached.
        """

        def ask() -> bytes:
            with self.blob(repository, digest) as answer:
                return answer.read(limit)

        return self.persist(ask)

    def blob_size(self, repository: str, digest: str) -> int | None:
        """Return the size of a blob in bytes; None if the registry does not have it, -1 if the size is unknown."""

        def ask() -> int | None:
            # The scopes of an upload, so that the same token is valid for sending the blob.
            with self.request("HEAD", f"{repository}/blobs/{digest}", push_scopes(repository)) as answer:
                if answer.status == _MISSING:
                    return None
                self.expect(answer, (_FOUND,), f"asking {self.name}/{repository} for {digest}")
                length = answer.headers.get("content-length", "")
                return int(length) if length.isdigit() else -1

        return self.persist(ask)

    def try_upload(self, repository: str) -> None:
        """Check that the registry accepts blobs for a repository: start an upload and cancel it.

        Raises:
            EngineError: it refuses.
            EnvironmentProblem: it cannot be reached.
        """
        url = self.persist(lambda: self.start_upload(repository))
        if url is not None:
            with contextlib.suppress(TransientError, EnvkitError), self.request("DELETE", url, push_scopes(repository)):
                pass  # uploads that are not canceled expire

    def start_upload(self, repository: str, digest: str | None = None, source: str | None = None) -> str | None:
        """Return the upload URL of a blob; None if the registry mounted it from `source`. No retries."""
        query = f"?{urlencode({'mount': digest, 'from': source})}" if digest and source else ""
        scopes = (*push_scopes(repository), *(pull_scopes(source) if query and source else ()))
        with self.request("POST", f"{repository}/blobs/uploads/{query}", scopes) as answer:
            # 201: the blob was mounted. 202: an ordinary upload has started; registries may answer a mount that way,
            # too.
            self.expect(answer, (_CREATED, _ACCEPTED), f"pushing to {self.name}/{repository}")
            if answer.status == _CREATED:
                return None
            return answer.leads_to(answer.headers.get("location", ""))

    def put_manifest(self, reference: Reference, data: bytes, media_type: str) -> None:
        """Store a manifest by the digest of the reference, or by its tag if it has no digest.

        Raises:
            IntegrityError: the registry received other bytes.
            EngineError: it refuses.
            EnvironmentProblem: it cannot be reached.
        """

        def put() -> None:
            path = f"{reference.repository}/manifests/{reference.tag_or_digest}"
            headers = {"Content-Type": media_type}
            with self.request("PUT", path, push_scopes(reference.repository), headers=headers, body=data) as answer:
                if answer.status == _BAD_REQUEST and _DAMAGED.search(text := answer.message()):
                    raise IntegrityError(
                        f"pushing {reference}: the registry received other bytes ({_errors(text)})",
                        hint="run it again; if it repeats, a proxy on the way to the registry changes data",
                    )
                # The specification requires 201; Docker's client accepts all 2xx.
                self.expect(answer, (_CREATED, _FOUND, _ACCEPTED), f"pushing {reference}")
                announced = answer.headers.get("docker-content-digest", "")
                if announced.startswith("sha256:") and announced != spec.sha256(data):
                    raise IntegrityError(
                        f"pushing {reference}: the registry stored {announced} instead of {spec.sha256(data)}",
                        hint="run it again; if it repeats, a proxy on the way to the registry changes data",
                    )

        self.persist(put)

    def persist(self, work: Callable[[], Result], *, tries: int | None = None) -> Result:
        """Call `envkit.registry.retry.persist` with the limits of the transport; `tries` overrides theirs."""
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
        """Send a request to a path below /v2/ or to a URL from the registry, with a login if it requires one.

        The login is sent only to the registry's own host. A `Body` can be sent only once, so first send another request
        with the same scopes, which logs in.
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
            reply = answer.message() if method != "HEAD" else ""  # responses to HEAD have no body
        granted = self._authorize(parse_challenges(header), scopes, known, reply)
        return self.transport.send(method, url, headers=headers, authorization=granted, body=body, led_by=led_by)

    def expect(self, answer: Answer, good: tuple[int, ...], doing: str) -> None:
        """Raise the error of a response.

        Raises:
            EngineError: its status is not one of `good`.
        """
        if answer.status in good:
            return
        message = "" if answer.headers.get("content-length") == "0" else _errors(answer.message())
        text = f"{doing}: the registry answers {answer.status}" + (f": {message}" if message else "")
        if answer.status in (_UNAUTHORIZED, _FORBIDDEN):
            raise EngineError(text, hint=f"docker login {self.name}   # and check the repository's name")
        if answer.status == _TOO_LARGE:
            raise EngineError(text, hint="ask the registry's administrators for a higher blob size limit")
        if answer.status == _MISSING:
            raise EngineError(text, hint="check the image's name and tag")
        raise EngineError(text, hint="run it again; if it repeats, ask the registry's administrators")

    def _authorize(self, offered: tuple[Challenge, ...], scopes: tuple[str, ...], stale: str | None, reply: str) -> str:
        """Return an Authorization header for the challenges of the registry."""
        # Before the lock, which `root` takes, too.
        root = self.root
        with self._lock:
            # Hold the lock while a token is fetched, so that threads that need the same token wait for it.
            # Of `repository:team/train:pull,push`.
            repository = scopes[0].split(":")[1]
            if repository not in self._logins:
                self._logins[repository] = find_login(self.name, repository, self._environ)
            stored = self._logins[repository]
            known = self._granted.get(scopes)
            if known and known != stale:  # another thread has logged in meanwhile
                return known
            for challenge in offered:
                if challenge.scheme == "bearer" and challenge.parameters.get("realm"):
                    header = f"Bearer {self.persist(functools.partial(self._token, challenge, scopes, stored, root))}"
                # After a refusal, the same user name and password would be refused again.
                elif challenge.scheme == "basic" and stored is not None and stored.login.user and not stale:
                    header = stored.login.basic()
                else:
                    continue
                self._granted[scopes] = header
                return header
        raise self._login_error(stored, reply)

    def _login_error(self, stored: StoredLogin | None, reply: str) -> EngineError:
        """Return the error for a missing or rejected login."""
        files = " or ".join(str(path) for path in login_files(self._environ))
        return EngineError(
            f"{self.name} requires a login"
            + (f" and rejects the one in {stored.path}" if stored else f", and none was found in {files}")
            + (f": {_errors(reply)}" if reply else ""),
            hint=f"docker login {self.name}",
        )

    def _token(self, challenge: Challenge, scopes: tuple[str, ...], stored: StoredLogin | None, root: str) -> str:
        """Request a token from the token server in a challenge.

        Source: the distribution project's "Token Authentication Specification".
        """
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
        query: Parameters = tuple(
            (key, challenge.parameters[key]) for key in ("service",) if key in challenge.parameters
        )
        wanted = dict.fromkeys((*scopes, *challenge.parameters.get("scope", "").split()))
        query += tuple(("scope", scope) for scope in _merged(tuple(wanted)))
        # An identity token is exchanged by POST, as Docker's client does (the distribution project's "OAuth2 Token
        # Authentication").
        if login is not None and login.identity_token:
            form = {"grant_type": "refresh_token", "refresh_token": login.identity_token, "client_id": "envkit"}
            form |= {"service": challenge.parameters.get("service", ""), "scope": " ".join(_merged(tuple(wanted)))}
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            answer = self.transport.send("POST", realm, headers=headers, body=urlencode(form).encode(), led_by=root)
        else:
            sign = "&" if urlsplit(realm).query else "?"
            basic = login.basic() if login is not None else None
            answer = self.transport.send("GET", f"{realm}{sign}{urlencode(query)}", authorization=basic, led_by=root)
        with answer:
            if answer.status in (_UNAUTHORIZED, _FORBIDDEN):
                raise self._login_error(stored, answer.message())
            if answer.status != _FOUND:
                self.expect(answer, (_FOUND,), f"logging in to {self.name}")
            try:
                tree = json.loads(answer.read(_MAX_TOKEN))
                token = tree.get("token") or tree.get("access_token")  # the names in the specification and in OAuth 2
            except (ValueError, AttributeError, RecursionError):
                token = None
        # The token becomes part of a header, where a line break would start another header.
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise EngineError(f"logging in to {self.name}: the token server returned no token", hint="run it again")
        return token


def pull_scopes(repository: str) -> tuple[str, ...]:
    """Return the token scopes for pulling from a repository."""
    return (f"repository:{repository}:pull",)


def push_scopes(repository: str) -> tuple[str, ...]:
    """Return the token scopes for pulling from and pushing to a repository."""
    return (f"repository:{repository}:pull,push",)


def _merged(scopes: tuple[str, ...]) -> tuple[str, ...]:
    """Merge scopes of the same repository."""
    merged: dict[str, set[str]] = {}
    for scope in scopes:
        name, _, actions = scope.rpartition(":")
        merged.setdefault(name, set()).update(actions.split(","))
    return tuple(f"{name}:{','.join(sorted(actions))}" for name, actions in merged.items())


def _errors(text: str) -> str:
    """Return the messages of a registry's error document, or the text itself if it is not one."""
    try:
        rows = json.loads(text)["errors"]
        messages = "; ".join(f"{row.get('code', '')} {row.get('message', '')}".strip() for row in rows)
        return neutral(messages)[:300]  # JSON escapes can decode to control characters
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return text[:300]
