"""Names of images, and where their registries answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.ground.errors import UsageError
from envkit.image.reference import api, login_keys, parse_reference, repository_keys

DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("debian", "docker.io/library/debian:latest"),
        ("docker.io/debian:12", "docker.io/library/debian:12"),
        ("someone/train", "docker.io/someone/train:latest"),
        ("localhost/train:1", "localhost/train:1"),
        ("127.0.0.1:5000/a/b:1.0", "127.0.0.1:5000/a/b:1.0"),
        ("[::1]:5000/a", "[::1]:5000/a:latest"),
        (f"registry.example.com/a@{DIGEST}", f"registry.example.com/a@{DIGEST}"),
        (f"registry.example.com/a:1@{DIGEST}", f"registry.example.com/a:1@{DIGEST}"),
    ],
)
def test_forms(text: str, full: str) -> None:
    found = parse_reference(text)
    assert str(found) == full
    assert parse_reference(full) == found


def test_a_digest_is_what_is_asked_for() -> None:
    assert parse_reference(f"registry.example.com/a:1@{DIGEST}").tag_or_digest == DIGEST
    assert parse_reference("registry.example.com/a:1").at(DIGEST).tag_or_digest == DIGEST


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "'' is not a valid repository"),
        ("a b", "'a b' is not a valid repository"),
        ("registry.example.com/a:", "'' is not a valid tag"),
        ("registry.example.com/a@sha256:12", "'sha256:12' is not a sha256 digest"),
        ("exam_ple.com/a", "'exam_ple.com' is not a valid registry host"),
        ("registry.example.com:65536/a", "'registry.example.com:65536' is not a valid registry host"),
        ("registry.example.com/../a", "'../a' is not a valid repository"),
    ],
)
def test_faults(text: str, fault: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_reference(text)
    assert caught.value.message == f"{text!r} is not a valid image name: {fault}"


def test_a_login_is_not_repeated() -> None:
    with pytest.raises(UsageError, match="an image name cannot contain a login") as caught:
        parse_reference("me:hunter2@registry.example.com/a:1", what="REF 'me:hunter2@registry.example.com/a:1'")
    assert "hunter2" not in caught.value.message


@given(st.text(max_size=60))
def test_any_text_is_a_reference_or_a_fault(text: str) -> None:
    try:
        found = parse_reference(text)
    except UsageError:
        return
    assert parse_reference(str(found)) == found


def test_only_this_machine_is_spoken_to_in_plain() -> None:
    assert api("127.0.0.1:5000", tls=False) == "http://127.0.0.1:5000"
    assert api("localhost", tls=False) == "http://localhost"
    assert api("localhost", tls=True) == "https://localhost"
    for tls in (True, False):
        assert api("registry.example.com:5000", tls=tls) == "https://registry.example.com:5000"
        assert api("docker.io", tls=tls) == "https://registry-1.docker.io"


def test_a_login_may_be_for_a_part_of_a_registry() -> None:
    assert repository_keys("registry.example.com", "team/a/b") == (
        "registry.example.com/team/a/b",
        "registry.example.com/team/a",
        "registry.example.com/team",
    )


def test_where_logins_are_kept() -> None:
    assert login_keys("docker.io")[0] == "https://index.docker.io/v1/"
    assert login_keys("registry.example.com")[:2] == ("registry.example.com", "https://registry.example.com")
