import pytest

from envkit.ground.errors import UsageError
from envkit.ground.settings import Mirrors
from envkit.render import sources

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    "value",
    [
        "docker.io/library/debian:bookworm-slim",
        f"registry.example.com:5000/library/debian:12@{DIGEST}",
        "127.0.0.1:5000/library/debian",
        "registry.access.redhat.com/ubi9/ubi",
        "localhost/bootstrap",
        DIGEST,
        "0123456789ab",
    ],
)
def test_references(value: str) -> None:
    assert sources.reference(value, "base") == value


@pytest.mark.parametrize(
    "value",
    [
        "",
        "debian AS x",
        "debian\nRUN id",
        "${BASE}",
        "--platform=x debian",
        "Debian",
        "debian:",
        "debian@sha256:ab",
        "a b",
        "/x",
        "a:b:c",
    ],
)
def test_what_is_no_reference(value: str) -> None:
    with pytest.raises(UsageError, match=r"base: .* is not an image reference"):
        sources.reference(value, "base")


@pytest.mark.parametrize(
    "value", ["https://mirror.example.com/a/b", "http://127.0.0.1:8001", "http://localhost:8/x", "http://[::1]:8/x"]
)
def test_urls(value: str) -> None:
    assert sources.url(f"{value}/", "mirror") == value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("https://me:secret@mirror.example.com", "contains a login"),
        ("https://token@mirror.example.com", "contains a login"),
        ("http://mirror.example.com", "is plain http"),
        ("file:///etc", "is not an http or https URL"),
        ("ftp://mirror.example.com", "is not an http or https URL"),
        ("https://mirror.example.com/$(id)", "is not an http or https URL"),
        ("https://mirror.example.com/${X}", "is not an http or https URL"),
        ('https://mirror.example.com/"', "is not an http or https URL"),
        ("https://mirror.example.com/a\nRUN id", "is not an http or https URL"),
        ("https://mirror.example.com/a b", "is not an http or https URL"),
        ("mirror.example.com", "is not an http or https URL"),
    ],
)
def test_urls_that_are_refused(value: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        sources.url(value, "mirror")
    assert "secret" not in caught.value.message


def test_only_docker_hub_moves_to_the_mirror() -> None:
    mirrors = Mirrors(registry="registry.example.com:5000")
    assert sources.image("docker.io/library/debian:12", mirrors) == "registry.example.com:5000/library/debian:12"
    assert sources.image("registry.access.redhat.com/ubi9/ubi", mirrors) == "registry.access.redhat.com/ubi9/ubi"
    with pytest.raises(UsageError, match="registry"):
        sources.image("docker.io/library/debian:12", Mirrors(registry="a b"))
