"""HTTP for registries and downloads: limits, redirects that leak no logins, and errors with a next step.

The only module of the embedded engine that imports `requests`.
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

PIECE = 1 << 20  # maximum bytes per read
_CONNECT_S = 15.0  # several attempts of TCP, which repeats after 1, 3 and 7 s
_HANDSHAKE_S = 5.0  # a server on this machine answers at once
_HOPS = 5  # registries redirect a blob once or twice; more redirects are a loop
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}
# `Answer` reads from urllib3 directly, so the errors of the libraries below requests arrive as they are.
_FOREIGN = (requests.RequestException, urllib3.exceptions.HTTPError, http.client.HTTPException, OSError, ValueError)
_DRIP = 1024  # bytes per second; a lower rate over the silence limit counts as silence


class Body:
    """Bytes to send in pieces; `requests` takes Content-Length from `len`."""

    def __init__(self, pieces: Iterator[bytes], size: int) -> None:
        self._pieces, self._size = pieces, size

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def __len__(self) -> int:
        return self._size


# Compared by identity: `download` keeps the answers that are being read in a set.
@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A response of a server; a context manager that releases the connection."""

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
        """Yield the contents as they are received, at most 1 MiB each.

        Raises:
            TransientError: the connection broke or is too slow.
        """
        window, received = time.monotonic(), 0
        while True:
            self._policy.check()
            try:
                # `read1` returns what has arrived. `read` waits for a full piece, so slow servers would seem silent.
                piece = self._response.raw.read1(PIECE)
            except _FOREIGN as error:
                raise _connection_error(self.url, error, self._policy) from error
            if not piece:
                return
            yield piece
            received += len(piece)
            now = time.monotonic()
            if now - window > self._policy.silence_s:
                if received < _DRIP * self._policy.silence_s:
                    raise TransientError(_silent(self.url, self._policy))
                window, received = now, 0

    def read(self, limit: int) -> bytes:
        """Return the whole contents, at most `limit` bytes.

        Raises:
            EngineError: the contents are longer.
            TransientError: the connection broke or ended early.
        """
        data, end = bytearray(), time.monotonic() + self._policy.total_s
        for piece in self.pieces():
            data += piece
            if time.monotonic() > end:
                raise TransientError(_slow(self.url, "a document", self._policy.total_s))
            if len(data) > limit:
                raise EngineError(f"{shown(self.url)} answers with more than {limit} bytes", hint="check the address")
        # If a proxy closes the connection early, that looks like the end of the response.
        length = self.headers.get("content-length", "")
        if length.isdigit() and len(data) < int(length) and self._response.request.method != "HEAD":
            raise TransientError(_unreachable(self.url, "the response was cut short"))
        return bytes(data)

    def cut(self) -> None:
        """Interrupt a thread that is reading the contents; it gets a TransientError."""
        # At its end, an answer has no connection: closed (ValueError), or back in the pool (RuntimeError).
        with contextlib.suppress(*_FOREIGN, AttributeError, RuntimeError):
            self._response.raw.shutdown()

    def next_url(self) -> str | None:
        """Return the URL of the Location header; None if there is none."""
        location = self.headers.get("location")
        return self.leads_to(location) if location else None

    def leads_to(self, location: str) -> str:
        """Resolve a URL that this response contains.

        Raises:
            EngineError: servers may not redirect there.
        """
        return follow(self.url, location, self.reach)

    def message(self) -> str:
        """Return the text of an error document or another short response on one line."""
        try:
            text = self.read(1 << 16).decode(errors="replace")
        except (TransientError, EngineError):  # not TimeLimitError, the deadline of the whole command
            return ""
        return neutral(" ".join(text.split()))[:300]


class Transport:
    """The connections of one run. Safe for use from several threads."""

    def __init__(self, *, ca_bundle: str | None = None, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self._ca_bundle = ca_bundle
        # Connections are pooled. One that was allowed for one request must not serve another that may not reach its
        # network.
        self._sessions: dict[frozenset[Reach], requests.Session] = {}  # one for each set of allowed networks
        self._lock = threading.Lock()
        self._met: dict[str, Reach] = {}  # hosts of direct connections (without a proxy)

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
        """Send one request. A login in the URL becomes a header.

        Redirects are followed for GET and HEAD. `authorization` is sent only to the host of the URL.

        Args:
            method: the HTTP method.
            url: the URL.
            headers: the headers.
            authorization: the Authorization header.
            body: the body.
            led_by: the URL of the server that gave `url`; None = the user gave it.

        Raises:
            TransientError: no connection, a broken or silent connection, or a status that is retried.
            EnvironmentProblem: the certificate is not trusted.
            EngineError: a server redirects to an address that is not allowed.
            UsageError: the user gave an address that is not allowed.
        """
        target, own = split_login(url)
        secret, allowed = authorization or own, NAMED
        if led_by is not None:
            # Only for its checks: `url` is already absolute.
            follow(led_by, url, self.reach(led_by))
            allowed = reachable_from(self.reach(led_by))
        origin = target
        for _ in range(_HOPS):
            answer = self._once(
                method,
                target,
                dict(headers or {}),
                # The storage behind a redirect must not learn the login, and S3 refuses one beside a signed URL.
                secret if same_host(origin, target) else None,
                body,
                allowed=allowed,
            )
            if answer.status not in _REDIRECTS or method not in ("GET", "HEAD"):
                return answer
            with answer:
                target = answer.leads_to(answer.headers.get("location", ""))
                # A redirect can restrict the networks for the next redirect, but never extend them.
                allowed &= reachable_from(answer.reach)
        raise EngineError(f"{shown(url)} redirects more than {_HOPS} times", hint="check the address")

    def reach(self, url: str) -> Reach:
        """Return the network of a URL's server. A host name counts as public until a connection has resolved it."""
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
        # Without compression: with it, the length and the ranges of resumed downloads would be those of the compressed
        # response.
        sent = {"User-Agent": f"envkit/{__version__}", "Accept-Encoding": "identity", **headers}
        if secret:
            sent["Authorization"] = secret
        try:
            # Requests to this machine go to the session without proxies (`_Adapter.direct`).
            response = self._session(HERE & allowed if is_loopback(url) else allowed, url).request(
                method,
                url,
                headers=sent,
                data=body or None,
                stream=True,
                # `send` follows redirects after checking each address.
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
            raise _connection_error(url, error, self.policy) from error
        response_headers = {name.lower(): value for name, value in response.headers.items()}
        answer = Answer(response.status_code, response_headers, url, response, self.policy, self.reach(url))
        if answer.status in RETRIED:
            with answer:
                message = answer.message() if method != "HEAD" else ""
                final = EngineError(
                    f"{host(url)} answers {answer.status} {neutral(response.reason or '')[:60]}"
                    + (f": {message}" if message else ""),
                    hint="try again later; the server is overloaded or limits the request rate",
                )
                wait = retry_after(answer.headers.get("retry-after"), time.time())
                raise TransientError(final, wait_s=wait)
        return answer

    def _session(self, allowed: frozenset[Reach], url: str) -> requests.Session:
        """Return the session for a set of allowed networks.

        Raises:
            RefusedAddressError: the URL itself is not allowed, whatever its name resolves to.
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
    """Allows only connections to certain networks. Proxies resolve names themselves, so there only URLs are checked."""

    def __init__(self, allowed: frozenset[Reach], met: dict[str, Reach]) -> None:
        self.direct = allowed == HERE  # the proxies in the environment are not for this host
        self._allowed, self._met = allowed, met
        # 16 covers the parallel transfers: 6 downloads of wheels, 6 of conda packages, and 4 uploads. `retry.persist`
        # retries instead of the adapter, because it knows the state of a transfer.
        super().__init__(pool_connections=16, pool_maxsize=16, max_retries=0)

    def init_poolmanager(self, *arguments: Any, **named: Any) -> None:
        super().init_poolmanager(*arguments, **named)
        self.poolmanager.pool_classes_by_scheme = _pools(self._allowed, self._met)

    def proxy_manager_for(self, proxy: str, **named: Any) -> urllib3.ProxyManager:
        manager: urllib3.ProxyManager = super().proxy_manager_for(proxy, **named)
        manager.pool_classes_by_scheme = _pools(None, self._met)
        return manager


def _pools(allowed: frozenset[Reach] | None, met: dict[str, Reach]) -> dict[str, type[urllib3.HTTPConnectionPool]]:
    """Return pool classes that connect only to certain networks and limit the time for the head of a response.

    With None, for connections to a proxy, all networks are allowed.
    """

    class Checked:
        host: str
        port: int
        timeout: float | None

        def _new_conn(self) -> socket.socket:
            if allowed is None:
                return super()._new_conn()  # type: ignore[misc,no-any-return]  # of urllib3's connection class
            try:
                connection, reach = sockets.connect(self.host, self.port, allowed, self.timeout)
                # The farthest so far: pooled connections stay open after the name resolves to another address.
                met[self.host] = max(reach, met.get(self.host, reach))
            except socket.gaierror as error:
                raise urllib3.exceptions.NameResolutionError(self.host, self, error) from error  # type: ignore[arg-type]
            except TimeoutError as error:
                raise urllib3.exceptions.ConnectTimeoutError(self, f"{self.host} timed out") from error
            except OSError as error:
                raise urllib3.exceptions.NewConnectionError(self, str(error)) from error  # type: ignore[arg-type]
            return connection

    class Plain(Checked, urllib3.connection.HTTPConnection):
        response_class = sockets.Response

    class Secure(Checked, urllib3.connection.HTTPSConnection):
        response_class = sockets.Response

    class PlainPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(urllib3.HTTPSConnectionPool):
        ConnectionCls = Secure

    return {"http": PlainPool, "https": SecurePool}


def split_login(url: str) -> tuple[str, str | None]:
    """Return a URL without its login, and the login as an Authorization header."""
    parts = urlsplit(url)
    if parts.username is None:
        return url, None
    plain = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    text = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return plain, "Basic " + base64.b64encode(text.encode()).decode()


_CONDA_TOKEN = re.compile(r"/t/[^/]+")


def shown(url: str) -> str:
    """Return a URL for messages: without login, conda token, and query, which can contain a signature."""
    parts = urlsplit(url)
    path = _CONDA_TOKEN.sub("/t/***", parts.path)
    return neutral(urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, "", "")))[:300]


def host(url: str) -> str:
    """Return host and port of a URL."""
    return urlsplit(url).netloc.rpartition("@")[2]


def speaks_tls(address: str) -> bool:
    """Return whether a server on this machine, 'host[:port]', answers a TLS handshake. No request is sent."""
    parts = urlsplit(f"//{address}")
    context = ssl.create_default_context()
    # This only detects the protocol; requests verify the certificate.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        endpoint = (parts.hostname or "", parts.port or _PORTS["https"])
        with socket.create_connection(endpoint, _HANDSHAKE_S) as plain:
            context.wrap_socket(plain, server_hostname=endpoint[0]).close()
            return True
    except (OSError, ValueError):
        return False


def is_address(url: str) -> bool:
    """Return whether a text is an absolute http or https URL."""
    try:
        parts = urlsplit(url)
        return parts.scheme in _PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an incomplete IPv6 address, a port above 65535
        return False


def same_host(url: str, other: str) -> bool:
    """Return whether two URLs have the same scheme, host and port."""
    return _origin(url) == _origin(other)


def follow(origin: str, location: str, reach: Reach) -> str:
    """Resolve a URL from a server: a redirect, an upload URL, or a token server.

    Args:
        origin: the URL of the response.
        location: the URL in it.
        reach: the network of the server.

    Raises:
        EngineError: the URL is invalid or not allowed (`envkit.ground.addresses.redirect_target`).
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
    # Registries need no cookies, and all hosts and threads share the session.
    session.cookies.set_policy(http.cookiejar.DefaultCookiePolicy(allowed_domains=[]))
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


def _no_login(request: PreparedRequest) -> PreparedRequest:
    """Keep `requests` from adding a login of ~/.netrc."""
    return request


def _connection_error(url: str, error: BaseException, policy: Policy) -> TransientError:
    # The libraries wrap each other's errors in several ways, so search the texts of the whole chain.
    text = " ".join(map(str, _chain(error)))
    kinds: tuple[type[Any], ...] = (requests.Timeout, urllib3.exceptions.TimeoutError, TimeoutError)
    if sockets.SLOW_HEAD in text:
        return TransientError(_slow(url, "the head of its response", policy.silence_s))
    if isinstance(error, kinds) or "timed out" in text:
        return TransientError(_silent(url, policy))
    if "Name or service not known" in text or "name resolution" in text.lower() or "NameResolution" in text:
        return TransientError(_unreachable(url, "its name cannot be resolved"))
    if "Connection refused" in text:
        return TransientError(_unreachable(url, "connection refused"))
    message = f"the connection to {host(url)} broke"
    return TransientError(EnvironmentProblem(message, hint="run it again; if it repeats, check proxies in between"))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _unreachable(url: str, why: str) -> EnvironmentProblem:
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
    # The first text is urllib3's, the second OpenSSL's.
    why = "it is for another host" if "doesn't match" in text or "Hostname mismatch" in text else ""
    for sign, what in (("not yet valid", "it is not valid yet"), ("expired", "it is expired")):
        if sign in text:
            why = f"{what}, or this machine's clock is wrong ({time.strftime('%Y-%m-%d', time.gmtime())})"
            hint = "date -u   # if the clock is right, the server needs a new certificate"
    return EnvironmentProblem(f"the certificate of {host(url)} is not trusted" + (f": {why}" if why else ""), hint=hint)
