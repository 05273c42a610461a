"""What becomes of URLs: logins, redirects, and what a message may show."""

import pytest

from envkit.errors import EngineError
from envkit.oci.transport import follow, is_address, same_host, shown, split_login


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


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("/b?c=d", "https://a.example.com/b?c=d"),
        ("https://cdn.example.net/b", "https://cdn.example.net/b"),
    ],
)
def test_redirects(location: str, target: str) -> None:
    assert follow("https://a.example.com/x", location) == target


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("", "to no address"),
        ("file:///etc/passwd", "to no address"),
        ("https://[::1", "to no address"),
        ("https://b.example.com:65536/", "to no address"),
        ("http://a.example.com/", "to an unencrypted address"),
        ("https://127.0.0.1/", "into a private network"),
        ("https://169.254.169.254/latest", "into a private network"),
        ("https://[::1]/", "into a private network"),
        ("https://localhost/", "into a private network"),
    ],
)
def test_redirects_that_are_refused(location: str, why: str) -> None:
    with pytest.raises(EngineError) as caught:
        follow("https://a.example.com/x", location)
    assert f"https://a.example.com/x redirects {why}" in caught.value.message


def test_inside_a_private_network_redirects_may_stay() -> None:
    assert follow("http://127.0.0.1:5000/x", "http://127.0.0.1:5001/y") == "http://127.0.0.1:5001/y"


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
