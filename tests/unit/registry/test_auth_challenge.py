"""WWW-Authenticate, and to whom a login may be shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.registry.auth import Challenge, parse_challenges, trusted_realm


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("", ()),
        ("Basic", (Challenge(scheme="basic", parameters={}),)),
        ('Basic realm="a \\"b\\", c"', (Challenge(scheme="basic", parameters={"realm": 'a "b", c'}),)),
        (
            'Bearer realm="https://auth.example.com/token",service="registry.example.com",scope="repository:a/b:pull,push"',
            (
                Challenge(
                    scheme="bearer",
                    parameters={
                        "realm": "https://auth.example.com/token",
                        "service": "registry.example.com",
                        "scope": "repository:a/b:pull,push",
                    },
                ),
            ),
        ),
        (
            'Negotiate, BEARER Realm = "x" , error=expired, Basic realm="y"',
            (
                Challenge(scheme="negotiate", parameters={}),
                Challenge(scheme="bearer", parameters={"realm": "x", "error": "expired"}),
                Challenge(scheme="basic", parameters={"realm": "y"}),
            ),
        ),
        ('Bearer realm="first",realm="second"', (Challenge(scheme="bearer", parameters={"realm": "first"}),)),
        ("Bearer realm=", (Challenge(scheme="bearer", parameters={}),)),
    ],
)
def test_forms(header: str, wanted: tuple[Challenge, ...]) -> None:
    assert parse_challenges(header) == wanted


@pytest.mark.requirement("R12")
@given(st.text(alphabet='Bearer="\\, \tx;\x00ö', max_size=200))
def test_no_header_breaks_it(header: str) -> None:
    assert len(parse_challenges(header)) <= len(header)


@pytest.mark.parametrize(
    ("registry", "realm", "trusted"),
    [
        ("https://registry.example.com", "https://registry.example.com/token", True),
        ("https://registry.example.com", "https://auth.example.com/token", True),
        ("https://registry.example.com", "https://example.com/jwt", True),
        ("https://registry-1.docker.io", "https://auth.docker.io/token", True),
        ("http://127.0.0.1:5000", "http://127.0.0.1:5001/token", True),
        ("https://registry.example.com", "http://auth.example.com/token", False),
        ("https://registry.example.com", "https://auth.example.org/token", False),
        ("https://registry.example.com", "https://evilexample.com/token", False),
        ("https://registry.example.co.uk", "https://auth.example.co.uk/token", True),
        ("https://example.co.uk", "https://other.co.uk/token", False),
        ("https://ours.azurecr.io", "https://ours.azurecr.io/oauth2/token", True),
        ("https://ours.azurecr.io", "https://theirs.azurecr.io/oauth2/token", False),
        ("https://ours.github.io", "https://github.io/token", False),
        ("https://1.dkr.ecr.eu-west-1.amazonaws.com", "https://x.eu-west-1.elb.amazonaws.com/token", False),
        ("https://registry.gitlab.com", "https://gitlab.com/jwt/auth", True),
        ("https://10.0.0.1", "https://20.0.0.1/token", False),
        ("https://registry.example.com", "https://user@registry.example.com/token", False),
        ("https://registry.example.com", "ftp://registry.example.com/token", False),
        ("https://registry.example.com", "/token", False),
        ("https://registry", "https://auth/token", False),
    ],
)
def test_a_login_stays_with_its_domain(registry: str, realm: str, *, trusted: bool) -> None:
    assert trusted_realm(registry, realm) is trusted
