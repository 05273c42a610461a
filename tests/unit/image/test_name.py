"""Names of images, and where their registries answer."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.ground.errors import UsageError
from envkit.image.name import (
    ImageName,
    InArchive,
    InEngine,
    InLayout,
    InRegistry,
    api,
    image_name,
    login_keys,
    parse_reference,
    published_name,
    repository_keys,
)

DIGEST = f"sha256:{'0' * 64}"
ECR = "123456789012.dkr.ecr.us-east-1.amazonaws.com"
# As users write them: in documentation of engines and clouds, in CI files, in questions about errors.
ENGINE = (
    "debian", "debian:12", "train:latest", "team/train:2026-11-27", "localhost/train", "localhost/train:1",
    "localhost:5000/train:1", "nvcr.io/nvidia/pytorch:24.05-py3", f"ghcr.io/owner/app@{DIGEST}",
    f"ghcr.io/owner/app:1.2@{DIGEST}", "[::1]:5000/train:1", DIGEST, "0123456789ab", "Train:1", "UPPER/Case",
    "docker-daemon:train:1", "docker://debian:12", "containers-storage:localhost/a", "dir:out", "oci", "oci:",
    "docker-archive:", "oci-archive:a.tar", "OCI:build", "registry", "registry/team", "C:\\images\\train.tar",
    "./train.tar", "../train", "/srv/images/train", "host", " train", "a:b:c", "tr\u00e4in",
)  # fmt: skip
REGISTRY = (
    ("registry:debian", "docker.io/library/debian:latest"),
    ("registry:docker.io/debian:12", "docker.io/library/debian:12"),
    ("registry:index.docker.io/library/debian", "docker.io/library/debian:latest"),
    ("registry://registry.example.com/team/train:1", "registry.example.com/team/train:1"),
    ("registry:registry.example.com:5000/team/train:1.0", "registry.example.com:5000/team/train:1.0"),
    ("registry:localhost:5000/a", "localhost:5000/a:latest"),
    ("registry:127.0.0.1:5000/a/b:1", "127.0.0.1:5000/a/b:1"),
    ("registry:[::1]:5000/a:1", "[::1]:5000/a:1"),
    ("registry:[2001:db8::7]/team/train", "[2001:db8::7]/team/train:latest"),
    ("registry:nvcr.io/nvidia/pytorch:24.05-py3", "nvcr.io/nvidia/pytorch:24.05-py3"),
    (f"registry:ghcr.io/owner/app@{DIGEST}", f"ghcr.io/owner/app@{DIGEST}"),
    (f"registry:ghcr.io/owner/app:1.2@{DIGEST}", f"ghcr.io/owner/app:1.2@{DIGEST}"),
    (f"registry:{ECR}/ml/train:latest", f"{ECR}/ml/train:latest"),
    ("registry:us-docker.pkg.dev/project/repo/train:v1", "us-docker.pkg.dev/project/repo/train:v1"),
    ("registry:registry.gitlab.com/group/sub-group/app/image:1", "registry.gitlab.com/group/sub-group/app/image:1"),
    ("registry:Registry.Example.COM/a:V1.0_rc", "Registry.Example.COM/a:V1.0_rc"),
)
FILES = (  # what follows the kind, the path, the tag, the digest; `build`, `a b`, `h:5` and `f.tar` exist
    ("build", "build", None, None),
    ("build/", "build", None, None),
    ("./build", "build", None, None),
    ("build:1.0", "build", "1.0", None),
    ("build:registry.example.com:5000/team/train:1", "build", "registry.example.com:5000/team/train:1", None),
    (f"build@{DIGEST}", "build", None, DIGEST),
    ("a b", "a b", None, None),
    ("a b:1", "a b", "1", None),
    ("h:5", "h:5", None, None),
    ("h:5:latest", "h:5", "latest", None),
    ("f.tar", "f.tar", None, None),
    ("f.tar:train:1", "f.tar", "train:1", None),
    ("f.tar:localhost/train:1", "f.tar", "localhost/train:1", None),
    ("nowhere", "nowhere", None, None),
    ("nowhere:1", "nowhere:1", None, None),
    (f"nowhere:1@{DIGEST}", "nowhere:1", None, DIGEST),
    ("/srv/images/train", "/srv/images/train", None, None),
    ("../up/train", "../up/train", None, None),
    ("C:\\images\\f.tar", "C:\\images\\f.tar", None, None),
    ("C:/images/f.tar:1", "C:/images/f.tar:1", None, None),
    ("build@sha256:12", "build@sha256:12", None, None),
    ("-", "-", None, None),
)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with images in it."""
    monkeypatch.chdir(tmp_path)
    for name in ("build", "a b", "h:5"):
        (tmp_path / name).mkdir()
    (tmp_path / "f.tar").touch()


def again(name: ImageName) -> ImageName:
    """The same name after it was written, such as into the state folder, and read again."""
    assert image_name(name.typed) == name
    return image_name(str(name))


@pytest.mark.parametrize("text", ENGINE)
def test_a_name_without_a_prefix_is_an_engines(text: str) -> None:
    name = image_name(text)
    assert name == again(name) == InEngine(name=text)
    assert name.typed == text


@pytest.mark.parametrize(("text", "full"), REGISTRY)
def test_a_name_in_a_registry(text: str, full: str) -> None:
    name = image_name(text)
    assert isinstance(name, InRegistry)
    assert name == again(name) == InRegistry(reference=parse_reference(full))
    assert (name.typed, str(name.reference), f"registry:{name.name}") == (text, full, text.replace("//", ""))
    assert image_name(InRegistry(reference=name.reference).typed) == name


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("kind", [InLayout, InArchive])
@pytest.mark.parametrize(("rest", "path", "tag", "digest"), FILES)
def test_a_name_in_a_file(
    kind: type[InLayout | InArchive], rest: str, path: str, tag: str | None, digest: str | None
) -> None:
    name = image_name(f"{kind.kind}:{rest}")
    assert name == again(name) == kind(path=Path(path), tag=tag, digest=digest)
    assert name.typed == f"{kind.kind}:{rest}"
    assert kind(path=Path(path), tag=tag, digest=digest).typed == str(name)


@given(st.text(max_size=60) | st.text(":/@.[]-_abz019", max_size=40))
def test_any_text_is_a_name_or_a_fault(text: str) -> None:
    for prefix in ("", "registry:"):
        try:
            name = image_name(f"{prefix}{text}")
        except UsageError:
            continue
        assert again(name) == name
        assert name.typed == f"{prefix}{text}"


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("registry.example.com/team/train:1", "registry.example.com/team/train:1"),
        ("localhost/train", "localhost/train:latest"),
        ("registry:debian", "docker.io/library/debian:latest"),
        ("debian:12", None),
        ("team/train", None),
        ("oci:build/a.b", None),
        ("/srv/images/train", None),
    ],
)
def test_what_was_published_is_in_the_registry_that_its_name_begins_with(text: str, full: str | None) -> None:
    name = published_name(text)
    if full is None:
        assert name == image_name(text)
    else:
        assert name == InRegistry(reference=parse_reference(full))
    assert name.typed == text


@pytest.mark.usefixtures("files")
def test_a_file_is_no_registry_where_files_are_taken() -> None:
    with pytest.raises(UsageError, match=r"'\./f.tar' is not a valid image name: '\.' is not a valid registry host"):
        published_name("./f.tar")
    assert published_name("./f.tar", or_file=True) == InEngine(name="./f.tar")


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
