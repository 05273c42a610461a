"""What may follow --output."""

from pathlib import Path

import pytest

from envkit.assemble.outputs import check_output, repositories
from envkit.engines.model import BuildOptions
from envkit.ground.errors import UsageError
from envkit.image.name import InArchive, InEngine, InLayout, InRegistry, InSif, OutputName, output_name, parse_reference

FORMS = "--output oci:DIR, docker-archive:FILE, sif:FILE, docker-daemon or registry:HOST/NAME:TAG"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("oci:out", InLayout(path=Path("out"))),
        ("oci:/a b/out:1.0", InLayout(path=Path("/a b/out"), tag="1.0")),
        ("oci:C:/x", InLayout(path=Path("C:/x"))),
        ("docker-archive:a.tar", InArchive(path=Path("a.tar"))),
        ("docker-archive:a.tar:train", InArchive(path=Path("a.tar"), tag="train:latest")),
        (
            "docker-archive:a.tar:localhost:5000/train:1",
            InArchive(path=Path("a.tar"), tag="localhost:5000/train:1"),
        ),
        ("sif:a b/train.sif", InSif(path=Path("a b/train.sif"))),
        ("docker-daemon", InEngine(name="")),
        ("docker-daemon:train:1", InEngine(name="train:1")),
        (
            "registry:registry.example.com/team/train:1",
            InRegistry(reference=parse_reference("registry.example.com/team/train:1")),
        ),
    ],
)
def test_forms(text: str, wanted: OutputName) -> None:
    assert output_name(text) == wanted


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "--output '': unknown kind of output", FORMS),
        ("out", "--output 'out': unknown kind of output", FORMS),
        ("oci", "--output 'oci': a value is missing after the colon", FORMS),
        ("oci:", "--output 'oci:': a value is missing after the colon", FORMS),
        ("oci::1", "--output 'oci::1': '1' is not a tag", "--output oci:DIR:TAG"),
        ("oci:out:a b", "--output 'oci:out:a b': 'a b' is not a tag", "--output oci:DIR:TAG"),
        ("sif:", "--output 'sif:': a value is missing after the colon", FORMS),
        ("apptainer:a.sif", "--output 'apptainer:a.sif': unknown kind 'apptainer'", "--output sif:a.sif"),
        ("docker-daemon:", "--output 'docker-daemon:': a value is missing after the colon", FORMS),
        ("docker-archive::x", "--output 'docker-archive::x' has no valid path", FORMS),
        (
            "docker://registry.example.com/a",
            "--output 'docker://registry.example.com/a': unknown kind 'docker'",
            "--output registry:registry.example.com/a",
        ),
        (
            "registry:registry.example.com/Team",
            "--output 'registry:registry.example.com/Team' is not a valid image name: 'Team' is not a valid repository",
            "use HOST/NAME:TAG in lower case: registry.example.com/team/train:1.0",
        ),
    ],
)
def test_faults(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        output_name(text)
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_an_archive_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        output_name(f"docker-archive:{tmp_path}")
    assert caught.value.hint == f"--output docker-archive:{tmp_path}/image.tar"


def test_a_digest_is_not_for_the_user_to_choose() -> None:
    with pytest.raises(UsageError, match="has a digest; use a tag, because the digest follows from the image"):
        output_name(f"registry:registry.example.com/a@sha256:{'0' * 64}")


def test_repositories_of_the_same_registry() -> None:
    reference = parse_reference("registry.example.com:5000/a:1")
    typed = ("team/base", "registry.example.com:5000/team/other")
    assert repositories(reference, typed) == ("team/base", "team/other")
    assert repositories(parse_reference("docker.io/team/a:1"), ("debian", "team/b")) == ("library/debian", "team/b")


@pytest.mark.parametrize(
    "typed",
    ["team/base:1", f"team/base@sha256:{'0' * 64}", "other.example.com/base", "other:5000/base", "team/base:latest"],
)
def test_what_is_no_repository_of_it(typed: str) -> None:
    with pytest.raises(UsageError) as caught:
        repositories(parse_reference("registry.example.com/a:1"), (typed,))
    assert caught.value.message == f"--mount-from {typed!r} is not a repository of registry.example.com"
    assert caught.value.hint == "use a name without a tag: --mount-from registry.example.com/team/base"


@pytest.mark.parametrize("output", ["docker-daemon", "docker-archive:a.tar"])
def test_docker_s_own_formats_take_no_zstd(output: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_output(BuildOptions(output=output, compression="zstd"))
    kind = output.partition(":")[0]
    assert caught.value.message == f"--compression zstd does not work with {kind}: Docker before 25 cannot read zstd"
    assert caught.value.hint == "use --output oci:DIR or registry:HOST/NAME:TAG, or omit --compression"
    check_output(BuildOptions(output=output))
    check_output(BuildOptions(output="oci:x", compression="zstd"))
