"""What may follow --output."""

from pathlib import Path

import pytest

from envkit.build.embedded.outputs import Output, parse_output
from envkit.build.embedded.reference import parse_reference
from envkit.errors import UsageError

FORMS = "--output oci:DIR, docker-archive:FILE, docker-daemon or registry:HOST/NAME:TAG"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("oci:out", Output(kind="oci", path=Path("out"))),
        ("oci:/a b/out:1.0", Output(kind="oci", path=Path("/a b/out"), name="1.0")),
        ("oci:C:/x", Output(kind="oci", path=Path("C:/x"))),
        ("docker-archive:a.tar", Output(kind="docker-archive", path=Path("a.tar"))),
        ("docker-archive:a.tar:train", Output(kind="docker-archive", path=Path("a.tar"), name="train:latest")),
        (
            "docker-archive:a.tar:localhost:5000/train:1",
            Output(kind="docker-archive", path=Path("a.tar"), name="localhost:5000/train:1"),
        ),
        ("docker-daemon", Output(kind="docker-daemon")),
        ("docker-daemon:train:1", Output(kind="docker-daemon", name="train:1")),
        (
            "registry:registry.example.com/team/train:1",
            Output(kind="registry", reference=parse_reference("registry.example.com/team/train:1")),
        ),
    ],
)
def test_forms(text: str, wanted: Output) -> None:
    assert parse_output(text) == wanted


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "--output '' is not a place for an image", FORMS),
        ("out", "--output 'out' is not a place for an image", FORMS),
        ("oci", "--output 'oci': nothing follows the colon", FORMS),
        ("oci:", "--output 'oci:': nothing follows the colon", FORMS),
        ("oci::1", "--output 'oci::1': '1' is not a tag", "--output oci:DIR:TAG"),
        ("oci:out:a b", "--output 'oci:out:a b': 'a b' is not a tag", "--output oci:DIR:TAG"),
        ("docker-daemon:", "--output 'docker-daemon:': nothing follows the colon", FORMS),
        ("docker-archive::x", "--output 'docker-archive::x' names no path", FORMS),
        (
            "docker://registry.example.com/a",
            "--output 'docker://registry.example.com/a': 'docker' is not a kind of output",
            "--output registry:registry.example.com/a",
        ),
        (
            "registry:registry.example.com/Team",
            "--output 'registry:registry.example.com/Team' is not an image's name: 'Team' is not a repository",
            "write HOST/NAME:TAG, in lower case: registry.example.com/team/train:1.0",
        ),
    ],
)
def test_faults(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_output(text)
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_an_archive_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        parse_output(f"docker-archive:{tmp_path}")
    assert caught.value.hint == f"--output docker-archive:{tmp_path}/image.tar"


def test_a_digest_is_not_for_the_user_to_choose() -> None:
    with pytest.raises(UsageError, match="names a digest, which only the image itself decides"):
        parse_output(f"registry:registry.example.com/a@sha256:{'0' * 64}")
