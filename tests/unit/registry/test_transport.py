"""What becomes of URLs: logins, redirects, and what a message may show."""

from typing import Any

import pytest

from envkit.ground import sockets
from envkit.ground.addresses import NAMED, Reach
from envkit.ground.errors import EngineError
from envkit.registry.transport import _pools, follow, is_address, same_host, shown, split_login


def test_a_login_leaves_the_url() -> None:
    url, header = split_login("https://us%40er:pa%3Ass@index.example.com:8443/a?b=c")
    assert url == "https://index.example.com:8443/a?b=c"
    assert header == "Basic dXNAZXI6cGE6c3M="
    assert split_login("https://index.example.com/a") == ("https://index.example.com/a", None)


def test_messages_show_no_login_and_no_signature() -> None:
    assert (
        shown("https://conda.example.com/t/word/conda-forge/a.conda")
        == "https://conda.example.com/t/***/conda-forge/a.conda"
    )
    assert shown("https://user:word@index.example.com/a.whl?X-Signature=word#word") == "https://index.example.com/a.whl"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("https://a.example.com/x", "https://a.example.com:443/y", True),
        ("https://a.example.com/x", "https://a.example.com:444/x", False),
        ("https://a.example.com/x", "http://a.example.com/x", False),
        ("https://a.example.com/x", "https://b.example.com/x", False),
        ("https://a.example.com/x", "https://a.example.com@b.example.com/x", False),
    ],
)
def test_same_host(one: str, other: str, *, same: bool) -> None:
    assert same_host(one, other) is same


def test_where_a_server_may_lead() -> None:
    assert follow("https://a.example.com/x", "/b?c=d", Reach.PUBLIC) == "https://a.example.com/b?c=d"


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("", "a.example.com points to an empty address, which is not an http or https address"),
        (
            "https://b.example.com:65536/",
            "points to https://b.example.com:65536/, which is not an http or https address",
        ),
        ("https://127.0.0.1/?q=word", "points to https://127.0.0.1/, which is an address of this machine"),
        ("https://user:word@b.example.com/", "points to https://b.example.com/, which contains a login"),
    ],
)
def test_where_no_server_may_lead(location: str, words: str) -> None:
    with pytest.raises(EngineError) as caught:
        follow("https://a.example.com/x", location, Reach.PUBLIC)
    assert words in caught.value.message
    assert "word@" not in caught.value.message


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("https://auth.example.com/token", True),
        ("http://[::1]:5000/token", True),
        ("https://auth.example.com:65536/token", False),
        ("https://auth.example.com:word/token", False),
        ("https://[::1/token", False),
        ("https:///token", False),
        ("/token", False),
        ("ftp://auth.example.com/token", False),
    ],
)
def test_what_can_be_asked_for(url: str, *, whole: bool) -> None:
    assert is_address(url) is whole


@pytest.mark.requirement("R9")
def test_a_host_that_was_public_once_stays_public_when_its_name_resolves_to_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reaches = iter((Reach.PUBLIC, Reach.LOOPBACK))
    monkeypatch.setattr(sockets, "connect", lambda *_: (None, next(reaches)))
    met: dict[str, Reach] = {}
    connection: Any = _pools(NAMED, met)["https"].ConnectionCls("rebound.example.com", 443)
    connection._new_conn()
    connection._new_conn()
    assert met == {"rebound.example.com": Reach.PUBLIC}
