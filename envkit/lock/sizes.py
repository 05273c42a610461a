"""Sizes of files that are not in an index: requested from the server, without downloading the files."""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import IO, TYPE_CHECKING
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
from envkit.ground.addresses import Reach, RefusedAddressError, is_loopback, led, led_from, refusal
from envkit.ground.errors import EnvironmentProblem, UsageError
from envkit.lock.places import authorization, without_login

if TYPE_CHECKING:
    from http.client import HTTPMessage

_PATIENCE_S = 30.0  # for the headers of one file
_TRIES = 4  # with half a second, one and two in between
_LONGEST_PAUSE_S = 30.0  # whatever a server asks for
_AT_ONCE = 8  # requests; some servers refuse many more from one client
_PASSING = frozenset({408, 429, 500, 502, 503, 504})


def ask(urls: Sequence[str], *, index: str | None, ca_bundle: str | None) -> dict[str, int]:
    """Bytes of each file. Transient failures are tried four times with growing pauses.

    Args:
        urls: files; https, or loopback http. The index leads to them, so none is nearer than itself.
        index: the index they were found in, whose login goes to its own host and to no other.
        ca_bundle: PEM file.

    Raises:
        EnvironmentProblem: a server does not answer, or does not tell the size.
        UsageError: the PEM file cannot be read.
    """
    context = ssl.create_default_context()
    if ca_bundle:
        try:
            context.load_verify_locations(ca_bundle)
        except OSError as error:
            raise UsageError(
                f"ca_bundle: {ca_bundle}: {error.strerror or error}", hint="envkit config shows where it is set"
            ) from error
    over, reach = threading.Event(), sockets.reach_of_url(index) if index else Reach.PUBLIC
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            sizes = pool.map(lambda url: _size(url, _sent(url, index), _opener(url, reach, context), over), urls)
            return dict(zip(urls, sizes, strict=True))
        except BaseException:
            over.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _size(url: str, headers: dict[str, str], opener: OpenerDirector, over: threading.Event) -> int:
    # A server that does not know HEAD may know how to send one byte.
    for method, more in (("HEAD", {}), ("GET", {"Range": "bytes=0-0"})):
        asked = Request(url, method=method, headers=headers | more)  # noqa: S310 - http and https alone
        answer = _headers(asked, opener, over)
        if answer is None:
            continue
        total = (answer.get("Content-Range") or answer.get("Content-Length") or "").rpartition("/")[2]
        # 1 may be the length of the range that was asked for.
        if total.isascii() and total.isdigit() and int(total) > 1:
            return int(total)
    raise EnvironmentProblem(
        f"{without_login(url)}: the server does not send the file size; a lock needs it",
        hint="use an index that does: ENVKIT_PYTHON_INDEX=URL",
    )


def _headers(request: Request, opener: OpenerDirector, over: threading.Event) -> HTTPMessage | None:
    """The headers of an answer; None when the server refuses the method. Once it is over, nothing is tried again."""
    for left in reversed(range(_TRIES)):
        pause = 2.0 ** (_TRIES - left - 1) / 2
        try:
            with opener.open(request, timeout=_PATIENCE_S) as answer:
                headers: HTTPMessage = answer.headers
                return headers
        except HTTPError as error:
            if error.code in (HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED):
                return None
            if error.code not in _PASSING or not left or over.is_set():
                raise _away(request, f"HTTP {error.code} {error.reason}") from error
            after = error.headers.get("Retry-After", "")
            pause = min(float(after), _LONGEST_PAUSE_S) if after.isascii() and after.isdigit() else pause
        except RefusedAddressError as error:
            raise _away(request, f"{error}: refused") from error
        except (URLError, TimeoutError, ConnectionError) as error:
            # A certificate does not get better on the next try.
            if not left or over.is_set() or isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError):
                raise _away(request, str(getattr(error, "reason", error))) from error
        over.wait(pause)
    raise AssertionError("the last attempt returns or raises")


def _opener(url: str, reach: Reach, context: ssl.SSLContext) -> OpenerDirector:
    """What asks for one file: of addresses where a server at such a distance may lead, with heads that end in time.

    Raises:
        EnvironmentProblem: the file itself lies elsewhere.
    """
    allowed, name = led_from(reach), urlsplit(url).hostname or ""
    why = refusal(name, allowed)
    if why is not None:
        raise _away(Request(url), f"{name} {why}: refused")  # noqa: S310 - nothing is asked

    class Plain(http.client.HTTPConnection):
        response_class = sockets.Response

        def connect(self) -> None:
            if self._tunnel_host:  # type: ignore[attr-defined]  # this is the way to a proxy, which finds the address
                super().connect()
            else:
                self.sock, _ = sockets.connect(self.host, self.port, allowed, self.timeout)

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
                led(req.full_url, newurl, reach)
            except RefusedAddressError as error:
                raise RefusedAddressError(f"it redirects to {without_login(newurl)}, {error}") from error
            redirected = super().redirect_request(req, fp, code, msg, headers, newurl)
            if redirected is not None and urlsplit(newurl).netloc != urlsplit(req.full_url).netloc:
                redirected.remove_header("Authorization")
            return redirected

    proxies = ProxyHandler({}) if is_loopback(url) else ProxyHandler()  # those set are for other hosts
    return build_opener(proxies, PlainHandler(), SecureHandler(context=context), Redirects())


def _away(request: Request, why: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"{without_login(request.full_url)}: {why}", hint="envkit config shows which mirrors and certificates are set"
    )


def _sent(url: str, index: str | None) -> dict[str, str]:
    login = authorization(url, index)
    return {"Accept-Encoding": "identity", "User-Agent": "envkit"} | ({"Authorization": login} if login else {})
