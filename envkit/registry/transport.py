"""HTTP for registries and downloads: limits, redirects that leak nothing, and errors that say what to do.

The only module of the embedded engine that knows `requests`.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import http.cookiejar
import re
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote, urlsplit, urlunsplit

import requests
import requests.adapters
import urllib3
import urllib3.connection
import urllib3.exceptions

from envkit import __version__
from envkit.ground import sockets
from envkit.ground.addresses import (
    HERE,
    NAMED,
    Reach,
    RefusedAddressError,
    is_loopback,
    reachable_from,
    redirect_target,
    refusal,
    written_reach,
)
from envkit.ground.errors import EngineError, EnvironmentProblem, EnvkitError, TimeLimitError, UsageError
from envkit.ground.text import neutral
from envkit.registry.retry import RETRIED, Policy, TransientError, retry_after

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from requests import PreparedRequest, Response

PIECE = 1 << 20  # bytes that are read at once
_CONNECT_S = 15.0  # several tries of TCP, which repeats after 1, 3 and 7 s
_HANDSHAKE_S = 5.0  # a server of this machine answers at once
_HOPS = 5  # a registry redirects a blob once or twice; more is a circle
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}
_FOREIGN = (requests.RequestException, urllib3.exceptions.HTTPError, http.client.HTTPException, OSError, ValueError)
_DRIP = 1024  # bytes per second; less than this over the silence limit counts as silence


class Body:
    """Bytes to send, in pieces; `requests` sends its length ahead."""

    def __init__(self, pieces: Iterator[bytes], size: int) -> None:
        self._pieces, self._size = pieces, size

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def __len__(self) -> int:
        return self._size


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What a server answered; a context manager that gives the connection back."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    url: str
    _response: Response
    _policy: Policy
    reach: Reach = Reach.PUBLIC  # how far away the server is

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._response.close()

    def pieces(self) -> Iterator[bytes]:
        """The contents as they come, at most 1 MiB each.

        Raises:
            TransientError: the connection broke, or brings next to nothing.
        """
        window, brought = time.monotonic(), 0
        while True:
            self._policy.check()
            try:
                # What has come so far: `read` waits for a whole piece, so a slow server would look silent.
                piece = self._response.raw.read1(PIECE)
            except _FOREIGN as error:
                raise _lost(self.url, error, self._policy) from error
            if not piece:
                return
            yield piece
            brought += len(piece)
            now = time.monotonic()
            if now - window > self._policy.silence_s:
                if brought < _DRIP * self._policy.silence_s:
                    raise TransientError(_silent(self.url, self._policy))
                window, brought = now, 0

    def read(self, limit: int) -> bytes:
        """The whole contents, which may have `limit` bytes.

        Raises:
            EngineError: it is longer.
            TransientError: the connection broke or ended early.
        """
        data, end = bytearray(), time.monotonic() + self._policy.total_s
        for piece in self.pieces():
            data += piece
            if time.monotonic() > end:
                raise TransientError(_slow(self.url, "a document", self._policy.total_s))
            if len(data) > limit:
                raise EngineError(f"{shown(self.url)} answers with more than {limit} bytes", hint="check the address")
        # A connection that a proxy closes early looks like the end of the answer.
        length = self.headers.get("content-length", "")
        if length.isdigit() and len(data) < int(length) and self._response.request.method != "HEAD":
            raise TransientError(_away(self.url, "the answer was cut"))
        return bytes(data)

    def cut(self) -> None:
        """Wake a thread that waits for these contents; it gets a TransientError."""
        with contextlib.suppress(*_FOREIGN, AttributeError):
            self._response.raw.shutdown()

    def next_url(self) -> str | None:
        """Where its Location header leads, None where there is none."""
        location = self.headers.get("location")
        return self.leads_to(location) if location else None

    def leads_to(self, location: str) -> str:
        """The URL that this answer names.

        Raises:
            EngineError: no server may lead there.
        """
        return follow(self.url, location, self.reach)

    def said(self) -> str:
        """What a registry's error document or another short answer says, on one line."""
        try:
            text = self.read(1 << 16).decode(errors="replace")
        except (TransientError, EngineError):  # a limit of the whole command is raised through
            return ""
        return neutral(" ".join(text.split()))[:300]


class Transport:
    """Connections of one run. May be used from several threads."""

    def __init__(self, *, ca_bundle: str | None = None, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self._ca_bundle = ca_bundle
        self._sessions: dict[frozenset[Reach], requests.Session] = {}  # a pool of connections for each rule
        self._lock = threading.Lock()
        self._met: dict[str, Reach] = {}  # hosts that were connected to without a proxy

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for session in self._sessions.values():
            session.close()

    def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        authorization: str | None = None,
        body: Body | bytes | None = None,
        led_by: str | None = None,
    ) -> Answer:
        """One request. A login in the URL becomes a header; `authorization` never leaves the URL's own host.

        Redirects are followed for GET and HEAD.

        Args:
            method: of HTTP.
            url: where to.
            headers: to send.
            authorization: the header of that name.
            body: to send.
            led_by: the URL of the server that named `url`; None = the user did.

        Raises:
            TransientError: no connection, a break, silence, or a status that asks for patience.
            EnvironmentProblem: the certificate is not trusted.
            EngineError: a server leads where none may.
            UsageError: the user named an address that nothing comes from.
        """
        target, own = split_login(url)
        secret, allowed = authorization or own, NAMED
        if led_by is not None:
            follow(led_by, url, self.reach(led_by))
            allowed = reachable_from(self.reach(led_by))
        origin = target
        for _ in range(_HOPS):
            answer = self._once(
                method,
                target,
                dict(headers or {}),
                secret if same_host(origin, target) else None,
                body,
                allowed=allowed,
            )
            if answer.status not in _REDIRECTS or method not in ("GET", "HEAD"):
                return answer
            with answer:
                target = answer.leads_to(answer.headers.get("location", ""))
                # A redirect may narrow where the next one leads, and never widens it.
                allowed &= reachable_from(answer.reach)
        raise EngineError(f"{shown(url)} redirects more than {_HOPS} times", hint="check the address")

    def reach(self, url: str) -> Reach:
        """How far away a URL's server is. A name counts as public until a connection has shown where it leads."""
        name = urlsplit(url).hostname or ""
        written = written_reach(name)
        return self._met.get(name, Reach.PUBLIC) if written is None else written

    def _once(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        secret: str | None,
        body: Body | bytes | None,
        *,
        allowed: frozenset[Reach],
    ) -> Answer:
        # Bytes as the server keeps them: with another encoding the length, and the ranges of a resumed download,
        # would be those of the compressed answer.
        sent = {"User-Agent": f"envkit/{__version__}", "Accept-Encoding": "identity", **headers}
        if secret:
            sent["Authorization"] = secret
        try:
            response = self._session(HERE & allowed if is_loopback(url) else allowed, url).request(
                method,
                url,
                headers=sent,
                data=body or None,
                stream=True,
                # `send` follows them, and judges where each one leads.
                allow_redirects=False,
                verify=self._ca_bundle,
                timeout=(self.policy.within(_CONNECT_S), self.policy.within(self.policy.silence_s)),
            )
        except RefusedAddressError as error:
            raise _refused(error, user=allowed == NAMED) from error
        except requests.exceptions.SSLError as error:
            raise _untrusted(url, error) from error
        except _FOREIGN as error:
            if "certificate verify failed" in str(error):
                raise _untrusted(url, error) from error
            raise _lost(url, error, self.policy) from error
        response_headers = {name.lower(): value for name, value in response.headers.items()}
        answer = Answer(response.status_code, response_headers, url, response, self.policy, self.reach(url))
        if answer.status in RETRIED:
            with answer:
                said = answer.said() if method != "HEAD" else ""
                final = EngineError(
                    f"{host(url)} answers {answer.status} {neutral(response.reason or '')[:60]}"
                    + (f": {said}" if said else ""),
                    hint="try again later; the server is overloaded or limits the request rate",
                )
                wait = retry_after(answer.headers.get("retry-after"), time.time())
                raise TransientError(final, wait_s=wait)
        return answer

    def _session(self, allowed: frozenset[Reach], url: str) -> requests.Session:
        """Connections that keep to a rule.

        Raises:
            RefusedAddressError: the URL breaks it as it is written, before a proxy or a name's address matters.
        """
        name = urlsplit(url).hostname or ""
        why = refusal(name, allowed)
        if why is not None:
            raise RefusedAddressError(f"{name} {why}")
        with self._lock:
            if allowed not in self._sessions:
                self._sessions[allowed] = _session(_Adapter(allowed, self._met))
            return self._sessions[allowed]


class _Adapter(requests.adapters.HTTPAdapter):
    """Connections to addresses of a rule alone. Behind a proxy, which finds the addresses itself, URLs are judged."""

    def __init__(self, allowed: frozenset[Reach], met: dict[str, Reach]) -> None:
        self.direct = allowed == HERE  # proxies of the environment are for other hosts than this one
        self._allowed, self._met = allowed, met
        super().__init__(pool_connections=16, pool_maxsize=16, max_retries=0)

    def init_poolmanager(self, *arguments: Any, **named: Any) -> None:
        super().init_poolmanager(*arguments, **named)
        self.poolmanager.pool_classes_by_scheme = _pools(self._allowed, self._met)

    def proxy_manager_for(self, proxy: str, **named: Any) -> urllib3.ProxyManager:
        manager: urllib3.ProxyManager = super().proxy_manager_for(proxy, **named)
        manager.pool_classes_by_scheme = _pools(None, self._met)
        return manager


def _pools(allowed: frozenset[Reach] | None, met: dict[str, Reach]) -> dict[str, type[urllib3.HTTPConnectionPool]]:
    """Kinds of pools whose connections keep to a rule, None for the way to a proxy, and whose answers come in time."""

    class Judged:
        host: str
        port: int
        timeout: float | None

        def _new_conn(self) -> socket.socket:
            if allowed is None:
                return super()._new_conn()  # type: ignore[misc,no-any-return]  # of the class it is mixed into
            try:
                connection, met[self.host] = sockets.connect(self.host, self.port, allowed, self.timeout)
            except socket.gaierror as error:
                raise urllib3.exceptions.NameResolutionError(self.host, self, error) from error  # type: ignore[arg-type]
            except TimeoutError as error:
                raise urllib3.exceptions.ConnectTimeoutError(self, f"{self.host} timed out") from error
            except OSError as error:
                raise urllib3.exceptions.NewConnectionError(self, str(error)) from error  # type: ignore[arg-type]
            return connection

    class Plain(Judged, urllib3.connection.HTTPConnection):
        response_class = sockets.Response

    class Secure(Judged, urllib3.connection.HTTPSConnection):
        response_class = sockets.Response

    class PlainPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(urllib3.HTTPSConnectionPool):
        ConnectionCls = Secure

    return {"http": PlainPool, "https": SecurePool}


def split_login(url: str) -> tuple[str, str | None]:
    """A URL without its login, and the Authorization header that the login stands for."""
    parts = urlsplit(url)
    if parts.username is None:
        return url, None
    plain = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    text = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return plain, "Basic " + base64.b64encode(text.encode()).decode()


_CONDA_TOKEN = re.compile(r"/t/[^/]+")


def shown(url: str) -> str:
    """A URL as messages may show it: no login, no token of a conda server, no query, which may hold a signature."""
    parts = urlsplit(url)
    path = _CONDA_TOKEN.sub("/t/***", parts.path)
    return neutral(urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, "", "")))[:300]


def host(url: str) -> str:
    """Host and port of a URL."""
    return urlsplit(url).netloc.rpartition("@")[2]


def speaks_tls(address: str) -> bool:
    """Whether a server of this machine, 'host[:port]', answers a TLS handshake. Nothing is sent to it."""
    parts = urlsplit(f"//{address}")
    context = ssl.create_default_context()
    # This only tells the protocol; every request verifies the certificate.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        endpoint = (parts.hostname or "", parts.port or _PORTS["https"])
        with socket.create_connection(endpoint, _HANDSHAKE_S) as plain:
            context.wrap_socket(plain, server_hostname=endpoint[0]).close()
            return True
    except (OSError, ValueError):
        return False


def is_address(url: str) -> bool:
    """Whether a text is a URL that can be asked for: whole, and http or https."""
    try:
        parts = urlsplit(url)
        return parts.scheme in _PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:  # half an IPv6 address, a port beyond 65535
        return False


def same_host(one: str, other: str) -> bool:
    """Whether two URLs have the same scheme, host and port."""
    return _origin(one) == _origin(other)


def follow(origin: str, location: str, reach: Reach) -> str:
    """Where a server leads to: a redirect, the place of an upload, or its token server.

    Args:
        origin: the URL that answered.
        location: what it names.
        reach: how far away the server is.

    Raises:
        EngineError: nowhere, or where no server may lead (`envkit.ground.addresses.redirect_target`).
    """
    try:
        return redirect_target(origin, location, reach)
    except RefusedAddressError as error:
        there = shown(location) if is_address(location) else neutral(location)[:200]
        raise EngineError(
            f"{host(origin)} points to {there or 'an empty address'}, {error}", hint="check the registry's address"
        ) from error


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme)


def _session(adapter: _Adapter) -> requests.Session:
    session = requests.Session()
    session.trust_env = not adapter.direct
    session.auth = _no_login
    session.cookies.set_policy(http.cookiejar.DefaultCookiePolicy(allowed_domains=[]))
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


def _no_login(request: PreparedRequest) -> PreparedRequest:
    """Stands where `requests` would otherwise add a login from ~/.netrc."""
    return request


def _lost(url: str, error: BaseException, policy: Policy) -> TransientError:
    # The libraries wrap each other's errors in several ways, so the texts of the whole chain decide.
    text = " ".join(map(str, _chain(error)))
    kinds: tuple[type[Any], ...] = (requests.Timeout, urllib3.exceptions.TimeoutError, TimeoutError)
    if sockets.SLOW_HEAD in text:
        return TransientError(_slow(url, "the head of its answer", policy.silence_s))
    if isinstance(error, kinds) or "timed out" in text:
        return TransientError(_silent(url, policy))
    if "Name or service not known" in text or "name resolution" in text.lower() or "NameResolution" in text:
        return TransientError(_away(url, "its name cannot be resolved"))
    if "Connection refused" in text:
        return TransientError(_away(url, "connection refused"))
    broke = f"the connection to {host(url)} broke"
    return TransientError(EnvironmentProblem(broke, hint="run it again; if it repeats, check proxies in between"))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _away(url: str, why: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"{host(url)} cannot be reached: {why}", hint=f"curl -I {shown(url)}   # check the network and proxies"
    )


def _silent(url: str, policy: Policy) -> TimeLimitError:
    return TimeLimitError(
        f"{host(url)} was silent for {policy.silence_s:g} s", hint=f"curl -I {shown(url)}   # check whether it answers"
    )


def _refused(error: RefusedAddressError, *, user: bool) -> EnvkitError:
    if user:
        return UsageError(f"{error}: refused", hint="use the server's own address")
    return EngineError(f"a server points to {error}: refused", hint="check the registry's or mirror's address")


def _slow(url: str, what: str, limit_s: float) -> TimeLimitError:
    return TimeLimitError(
        f"{host(url)} did not finish {what} within {limit_s:g} s",
        hint=f"curl -I {shown(url)}   # check whether it answers",
    )


def _untrusted(url: str, error: BaseException) -> EnvironmentProblem:
    text, hint = str(error), "ENVKIT_CA_BUNDLE=FILE.pem adds certificate authorities"
    why = "it is for another host" if "doesn't match" in text or "Hostname mismatch" in text else ""
    for sign, what in (("not yet valid", "it is not valid yet"), ("expired", "it is expired")):
        if sign in text:
            why = f"{what}, or this machine's clock is wrong ({time.strftime('%Y-%m-%d', time.gmtime())})"
            hint = "date -u   # if the clock is right, the server needs a new certificate"
    return EnvironmentProblem(f"the certificate of {host(url)} is not trusted" + (f": {why}" if why else ""), hint=hint)
