"""Which addresses are connected to: written in every way, resolved, named by a user, or named by a server."""

import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.ground import sockets
from envkit.ground.addresses import (
    HERE,
    NAMED,
    Reach,
    RefusedAddressError,
    is_loopback,
    mirror,
    reachable_from,
    redirect_target,
    refusal,
    refusal_of_image,
    written_reach,
)
from envkit.ground.errors import UsageError

OUTSIDE = frozenset({Reach.PUBLIC})
UNUSUAL = "is an IP address written in an unusual way"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8001", True),
        ("127.0.0.1:5000", True),
        ("localhost:5000", True),
        ("https://[::1]/simple", True),
        ("https://mirror.example/127.0.0.1", False),
        ("127.example.com:5000", False),
        ("http://127.0.0.1.example.com/", False),
        (None, False),
        ("", False),
    ],
)
def test_loopback(url: str | None, expected: bool) -> None:
    assert is_loopback(url) is expected


@pytest.mark.parametrize(
    ("host", "reach"),
    [
        ("127.0.0.1", Reach.LOOPBACK),
        ("127.1.2.3", Reach.LOOPBACK),
        ("::1", Reach.LOOPBACK),
        ("::ffff:127.0.0.1", Reach.LOOPBACK),
        ("64:ff9b::7f00:1", Reach.LOOPBACK),
        ("localhost", Reach.LOOPBACK),
        ("LOCALHOST.", Reach.LOOPBACK),
        ("registry.localhost", Reach.LOOPBACK),
        ("10.0.0.1", Reach.PRIVATE),
        ("172.16.0.1", Reach.PRIVATE),
        ("192.168.1.1", Reach.PRIVATE),
        ("100.64.0.1", Reach.PRIVATE),
        ("fd12::1", Reach.PRIVATE),
        ("2002:a00:1::", Reach.PRIVATE),
        ("169.254.169.254", Reach.NEVER),
        ("::ffff:169.254.169.254", Reach.NEVER),
        ("fe80::1", Reach.NEVER),
        ("fe80::1%eth0", Reach.NEVER),
        ("fd00:ec2::254", Reach.NEVER),
        ("100.100.100.200", Reach.NEVER),
        ("168.63.129.16", Reach.NEVER),
        ("0.0.0.0", Reach.NEVER),
        ("0.1.2.3", Reach.NEVER),
        ("::", Reach.NEVER),
        ("224.0.0.1", Reach.NEVER),
        ("240.0.0.1", Reach.NEVER),
        ("255.255.255.255", Reach.NEVER),
        ("2852039166", Reach.NEVER),
        ("8.8.8.8", Reach.PUBLIC),
        ("64:ff9b::808:808", Reach.PUBLIC),
        ("registry.example.com", None),
    ],
)
def test_how_far_away_a_host_is_as_it_is_written(host: str, reach: Reach | None) -> None:
    assert written_reach(host) is reach


@pytest.mark.parametrize(
    "host",
    ["2852039166", "0xa9fea9fe", "0xa9.254.169.254", "0251.0376.0251.0376", "127.1", "1.2.3", "a.0x7f", "1.2.3.4.5"],
)
def test_an_address_that_programs_read_differently_is_refused(host: str) -> None:
    assert refusal(host) == UNUSUAL


@pytest.mark.parametrize(
    ("host", "allowed", "found", "why"),
    [
        ("mirror.example.com", NAMED, None, None),
        ("mirror.example.com", NAMED, ["10.0.0.1"], None),
        ("mirror.example.com", NAMED, ["127.0.0.1"], None),
        ("mirror.example.com", NAMED, ["169.254.169.254"], "resolves to 169.254.169.254, a link-local address"),
        ("mirror.example.com", OUTSIDE, ["8.8.8.8", "127.0.0.1"], "resolves to 127.0.0.1, an address of this machine"),
        (
            "mirror.example.com",
            OUTSIDE,
            ["8.8.8.8", "10.0.0.1"],
            "resolves to 10.0.0.1, an address in a private network",
        ),
        ("localhost", OUTSIDE, None, "is an address of this machine"),
        ("localhost", HERE, ["8.8.8.8"], "resolves to 8.8.8.8, an address outside this machine"),
        ("10.0.0.1", OUTSIDE, None, "is an address in a private network"),
        ("169.254.169.254", NAMED, None, "is a link-local address"),
    ],
)
def test_what_is_refused(host: str, allowed: frozenset[Reach], found: list[str] | None, why: str | None) -> None:
    said = refusal(host, allowed, found)
    assert said is None if why is None else said is not None and said.startswith(why)


@pytest.mark.requirement("R12")
@given(st.text(max_size=30))
def test_no_host_breaks_it(host: str) -> None:
    refusal(host)
    refusal_of_image(host + "/a")


def resolved(*addresses: str) -> Any:
    return lambda _host, port, *_: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in addresses]


@pytest.mark.requirement("R9")
def test_one_bad_address_of_a_name_is_enough_and_nothing_is_connected_to() -> None:
    with pytest.raises(RefusedAddressError, match=r"^rebound\.example\.com resolves to 127\.0\.0\.1"):
        sockets.connect("rebound.example.com", 443, OUTSIDE, 1, resolve=resolved("8.8.8.8", "127.0.0.1"))


@pytest.mark.requirement("R9")
@pytest.mark.parametrize("addresses", [("8.8.8.8", "127.0.0.1"), ("10.0.0.1", "2001:4860::1")])
def test_a_name_with_a_public_address_leads_no_further_inwards_than_a_public_server(addresses: tuple[str, ...]) -> None:
    assert sockets.reach_of_url("https://mixed.example.com/", resolve=resolved(*addresses)) is Reach.PUBLIC


@pytest.mark.requirement("R9")
def test_a_connection_to_this_machine_counts_as_public_if_the_name_has_a_public_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket.socket, "connect", lambda *_: None)
    rows = resolved("127.0.0.1", "8.8.8.8")
    connection, reach = sockets.connect("mixed.example.com", 443, NAMED, 1, resolve=rows)
    connection.close()
    assert reach is Reach.PUBLIC


@pytest.mark.parametrize(
    ("reach", "allowed"),
    [
        (Reach.PUBLIC, {Reach.PUBLIC}),
        (Reach.PRIVATE, {Reach.PRIVATE, Reach.PUBLIC}),
        (Reach.LOOPBACK, {Reach.LOOPBACK, Reach.PRIVATE, Reach.PUBLIC}),
    ],
)
def test_a_server_leads_outwards_alone(reach: Reach, allowed: set[Reach]) -> None:
    assert reachable_from(reach) == allowed


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("/b?c=d", "https://a.example.com/b?c=d"),
        ("https://cdn.example.net/b", "https://cdn.example.net/b"),
    ],
)
def test_where_a_server_may_lead(location: str, target: str) -> None:
    assert redirect_target("https://a.example.com/x", location, Reach.PUBLIC) == target


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("", "which is not an http or https address"),
        ("file:///etc/passwd", "which is not an http or https address"),
        ("https://[::1", "which is not an http or https address"),
        ("https://b.example.com:65536/", "which is not an http or https address"),
        ("http://a.example.com/", "which is an unencrypted address"),
        ("http://169.254.169.254/latest", "which is an unencrypted address"),
        ("https://user@b.example.com/", "which contains a login"),
        ("https://127.0.0.1/", "which is an address of this machine"),
        ("https://2130706433/", f"which {UNUSUAL}"),
        ("https://169.254.169.254/latest", "which is a link-local address"),
        ("https://[::1]/", "which is an address of this machine"),
        ("https://localhost/", "which is an address of this machine"),
        ("https://10.0.0.1/", "which is an address in a private network"),
    ],
)
def test_where_no_server_may_lead(location: str, why: str) -> None:
    with pytest.raises(RefusedAddressError) as caught:
        redirect_target("https://a.example.com/x", location, Reach.PUBLIC)
    assert str(caught.value).startswith(why)


def test_inside_a_private_network_servers_may_lead_there_and_nowhere_nearer() -> None:
    assert (
        redirect_target("http://127.0.0.1:5000/x", "http://127.0.0.1:5001/y", Reach.LOOPBACK)
        == "http://127.0.0.1:5001/y"
    )
    assert redirect_target("https://a.example.com/", "https://10.0.0.2/", Reach.PRIVATE) == "https://10.0.0.2/"
    with pytest.raises(RefusedAddressError):
        redirect_target("https://a.example.com/", "https://127.0.0.1/", Reach.PRIVATE)
    with pytest.raises(RefusedAddressError):
        redirect_target("http://127.0.0.1:5000/x", "http://169.254.169.254/", Reach.LOOPBACK)


@pytest.mark.requirement("R9")
@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://mirror.example.com/", "is not an http or https URL"),
        ("https://mirror.example.com/a b", "is not an http or https URL"),
        ("https://user:word@mirror.example.com/", "the URL contains a login or a token"),
        ("https://mirror.example.com/t/word/conda-forge", "the URL contains a login or a token"),
        ("http://mirror.example.com/", "is plain http"),
        ("https://2852039166/c", f"2852039166 {UNUSUAL}"),
        ("https://169.254.169.254/c", "169.254.169.254 is a link-local address"),
        ("https://[::ffff:169.254.169.254]/c", "is not an http or https URL"),
        ("https://[fe80::1]/c", "fe80::1 is a link-local address"),
    ],
)
def test_mirrors_that_are_refused(url: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        mirror(url, "conda_channel_alias")
    assert caught.value.message.startswith("conda_channel_alias: ")
    assert why in caught.value.message
    assert "word" not in caught.value.message


@pytest.mark.parametrize("url", ["https://mirror.example.com/c/", "https://10.0.0.1/c", "http://127.0.0.1:8001/t"])
def test_mirrors_that_are_taken(url: str) -> None:
    assert mirror(url, "conda_channel_alias") == url.rstrip("/")


@pytest.mark.parametrize(
    ("image", "why"),
    [
        ("debian:12", None),
        ("team/train:1", None),
        ("10.0.0.1:5000/a", None),
        ("127.0.0.1:5000/a", None),
        ("169.254.169.254/a", "169.254.169.254 is a link-local address"),
        ("169.254.169.254:80/a:1", "169.254.169.254 is a link-local address"),
        ("2852039166:443/a:1", f"2852039166 {UNUSUAL}"),
        ("[fe80::1]:443/a", "fe80::1 is a link-local address"),
        ("[::1/a", "'[::1' is not a registry host"),
    ],
)
def test_registries_of_images(image: str, why: str | None) -> None:
    said = refusal_of_image(image)
    assert said is None if why is None else said is not None and said.startswith(why)
