"""Request from servers what indexes do not have: the sizes of files, and pages of links. No wheel is downloaded."""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import IO, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
)

from envkit.ground import sockets
from envkit.ground.addresses import Reach, RefusedAddressError, is_loopback, reachable_from, redirect_target, refusal
from envkit.ground.errors import EnvironmentProblem, UsageError
from envkit.ground.sizes import shown_size
from envkit.lock.index_locations import authorization, without_login

_T = TypeVar("_T")
_TIMEOUT_S = 30.0  # for the headers of one file
_TRIES = 4  # with pauses of 0.5, 1 and 2 seconds
_LONGEST_PAUSE_S = 30.0  # even if Retry-After is longer
_WORKERS = 8  # parallel requests; some servers refuse many more from one client
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})


def ask(urls: Sequence[str], *, index: str | None, ca_bundle: str | None) -> dict[str, int]:
    """Return the size of each file in bytes. Transient failures are retried three times with growing pauses.

    Args:
        urls: files; https, or loopback http. Their addresses must be ones that the index may lead to.
        index: the index that lists them, whose login is sent only to its own host.
        ca_bundle: PEM file.

    Raises:
        EnvironmentProblem: a server does not answer, or does not send the size.
        UsageError: the PEM file cannot be read.
    """
    context = _trusting(ca_bundle)
    stop, reach = threading.Event(), sockets.reach_of_url(index) if index else Reach.PUBLIC
    with ThreadPoolExecutor(_WORKERS) as pool:
        try:
            sizes = pool.map(
                lambda url: _size(url, _request_headers(url, index), _opener(url, reach, context), stop), urls
            )
            return dict(zip(urls, sizes, strict=True))
        # Ctrl-C too: queued requests are dropped and running ones are not retried, so the end of the
        # `with` does not wait for all of them.
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class NoPageError(EnvironmentProblem):
    """A server answers that it has no such page."""


def page(url: str, *, accept: str, most: int, ca_bundle: str | None, patient: bool = True) -> tuple[bytes, str, str]:
    """Return a page that the user names, its media type, and its URL after redirects. Failures are retried as in `ask`.

    Args:
        url: https, or loopback http; it may contain a login.
        accept: media types.
        most: bytes.
        ca_bundle: PEM file.
        patient: retry transient failures.

    Raises:
        NoPageError: the server has no such page.
        EnvironmentProblem: the server does not answer, the page is larger, or it ends before its announced length.
        UsageError: the PEM file cannot be read.
    """

    def read(answer: http.client.HTTPResponse) -> tuple[bytes, str, str]:
        data = answer.read(most + 1)
        announced = answer.headers.get("Content-Length", "")
        if len(data) > most:
            raise _unreachable(request, f"the page has more than {shown_size(most, 'MiB')}")
        if announced.isdigit() and int(announced) > len(data):
            raise _unreachable(request, f"the page is cut short: {len(data)} of {announced} bytes")
        return data, answer.headers.get_content_type(), answer.url

    plain = without_login(url)
    headers = _request_headers(plain, url) | {"Accept": accept}
    request = Request(plain, headers=headers)  # noqa: S310 - only http and https
    opener = _opener(plain, sockets.reach_of_url(plain), _trusting(ca_bundle))
    stop = threading.Event()
    if not patient:
        stop.set()
    found = _answered(request, opener, stop, read)
    if found is None:
        raise _unreachable(request, "the server refuses the method GET")
    return found


def _trusting(ca_bundle: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca_bundle:
        try:
            context.load_verify_locations(ca_bundle)
        except OSError as error:
            raise UsageError(
                f"ca_bundle: {ca_bundle}: {error.strerror or error}", hint="envkit config shows where it is set"
            ) from error
    return context


def _size(url: str, headers: dict[str, str], opener: OpenerDirector, stop: threading.Event) -> int:
    # A server that does not support HEAD may support a range of one byte.
    for method, more in (("HEAD", {}), ("GET", {"Range": "bytes=0-0"})):
        request = Request(url, method=method, headers=headers | more)  # noqa: S310 - only http and https
        answer = _answered(request, opener, stop, lambda answer: answer.headers)
        if answer is None:
            continue
        total = (answer.get("Content-Range") or answer.get("Content-Length") or "").rpartition("/")[2]
        # 1 may be the length of the requested range.
        if total.isascii() and total.isdigit() and int(total) > 1:
            return int(total)
    raise EnvironmentProblem(
        f"{without_login(url)}: the server does not send the file size, which a lock needs",
        hint="use an index that does: ENVKIT_PYTHON_INDEX=URL",
    )


def _answered(
    request: Request, opener: OpenerDirector, stop: threading.Event, read: Callable[[http.client.HTTPResponse], _T]
) -> _T | None:
    """Return what is read of an answer; None if the server refuses the method. After `stop` nothing is retried."""
    for left in reversed(range(_TRIES)):
        pause = 2.0 ** (_TRIES - left - 1) / 2
        try:
            with opener.open(request, timeout=_TIMEOUT_S) as answer:
                return read(answer)
        except HTTPError as error:
            if error.code in (HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED):
                return None
            if error.code not in _TRANSIENT or not left or stop.is_set():
                missing = error.code in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE, HTTPStatus.FORBIDDEN)
                raise _unreachable(request, f"HTTP {error.code} {error.reason}", missing=missing) from error
            # Retry-After may also be a date (RFC 9110), which is ignored.
            after = error.headers.get("Retry-After", "")
            pause = min(float(after), _LONGEST_PAUSE_S) if after.isascii() and after.isdigit() else pause
        except RefusedAddressError as error:
            raise _unreachable(request, f"{error}: refused") from error
        except (URLError, TimeoutError, ConnectionError) as error:
            # A certificate error is not transient.
            if not left or stop.is_set() or isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError):
                raise _unreachable(request, str(getattr(error, "reason", error))) from error
        stop.wait(pause)
    raise AssertionError("the last attempt returns or raises")


def _opener(url: str, reach: Reach, context: ssl.SSLContext) -> OpenerDirector:
    """Return an opener that connects only to addresses that a server at this reach may lead to.

    The time limit is for all response headers together, as in `envkit.ground.sockets.Response`.

    Raises:
        EnvironmentProblem: the file's own address is not allowed.
    """
    allowed, name = reachable_from(reach), urlsplit(url).hostname or ""
    why = refusal(name, allowed)
    if why is not None:
        raise _unreachable(Request(url), f"{name} {why}: refused")  # noqa: S310 - no request is sent

    class Plain(http.client.HTTPConnection):
        response_class = sockets.Response

        def connect(self) -> None:
            if self._tunnel_host:  # type: ignore[attr-defined]  # a proxy, which resolves the file's host itself
                super().connect()
            else:
                self.sock, _ = sockets.connect(self.host, self.port, allowed, self.timeout)

    # HTTPSConnection.connect calls super().connect(), which is that of Plain here, and then starts TLS.
    class Secure(http.client.HTTPSConnection, Plain):
        pass

    class PlainHandler(HTTPHandler):
        def http_open(self, req: Request) -> http.client.HTTPResponse:
            return self.do_open(Plain, req)

    class SecureHandler(HTTPSHandler):
        def https_open(self, req: Request) -> http.client.HTTPResponse:
            return self.do_open(Secure, req, context=context)

    class Redirects(HTTPRedirectHandler):
        def redirect_request(  # noqa: PLR0917 - as urllib calls it
            self, req: Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
        ) -> Request | None:
            try:
                redirect_target(req.full_url, newurl, reach)
            except RefusedAddressError as error:
                raise RefusedAddressError(f"it redirects to {without_login(newurl)}, {error}") from error
            redirected = super().redirect_request(req, fp, code, msg, headers, newurl)
            # urllib copies all headers to the new request, which may go to another host.
            if redirected is not None and urlsplit(newurl).netloc != urlsplit(req.full_url).netloc:
                redirected.remove_header("Authorization")
            return redirected

    proxies = ProxyHandler({}) if is_loopback(url) else ProxyHandler()  # a proxy cannot reach this machine's loopback
    return build_opener(proxies, PlainHandler(), SecureHandler(context=context), Redirects())


def _unreachable(request: Request, why: str, *, missing: bool = False) -> EnvironmentProblem:
    return (NoPageError if missing else EnvironmentProblem)(
        f"{without_login(request.full_url)}: {why}", hint="envkit config shows which mirrors and certificates are set"
    )


def _request_headers(url: str, index: str | None) -> dict[str, str]:
    login = authorization(url, index)
    # Without compression, Content-Length is the size of the file itself.
    return {"Accept-Encoding": "identity", "User-Agent": "envkit"} | ({"Authorization": login} if login else {})
