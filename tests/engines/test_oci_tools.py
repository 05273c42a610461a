"""Every tool that reads images takes those that the embedded engine writes."""

import json
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from envkit.assemble.outputs import deliver, load_into_docker
from envkit.image import spec
from envkit.image.archive import write_archive
from envkit.image.layout import write_layout
from envkit.image.name import InRegistry, InSif, output_name, parse_reference
from envkit.registry.registry import Registry
from envkit.registry.transport import Transport
from tests.engines.oci_images import LABELS, image_of, push, registry, run
from tests.support.file_images import read_folder
from tests.support.heard import Heard
from tests.world import apt
from tests.world.world import World

pytestmark = pytest.mark.engine


@pytest.fixture
def name() -> str:
    return f"localhost/envkit-test/{secrets.token_hex(4)}:1"


@pytest.fixture
def image(tmp_path: Path) -> spec.Image:
    return image_of(tmp_path, salt=secrets.token_hex(8), big=3_000_000)


@pytest.fixture
def docker(place: World, name: str) -> Iterator[str]:
    place.require("docker")
    yield "docker"
    run("docker", "image", "rm", "--force", name)


@pytest.fixture
def podman(place: World, name: str) -> Iterator[str]:
    place.require("podman")
    yield "podman"
    run("podman", "image", "rm", "--force", "--ignore", name)


@pytest.mark.requirement("R39")
def test_skopeo_reads_the_layout_and_keeps_its_digest(image: spec.Image, tmp_path: Path) -> None:
    skopeo = apt.require("skopeo", "skopeo")
    write_layout(image, tmp_path / "out", "1.0")
    assert run(skopeo, "inspect", "--raw", f"oci:{tmp_path}/out:1.0").encode() == image.manifest
    run(skopeo, "copy", f"oci:{tmp_path}/out:1.0", f"dir:{tmp_path}/copied")
    assert (tmp_path / "copied" / "manifest.json").read_bytes() == image.manifest
    assert json.loads(run(skopeo, "inspect", f"oci:{tmp_path}/out:1.0"))["Labels"] == LABELS


@pytest.mark.requirement("R39")
def test_umoci_unpacks_the_layout(image: spec.Image, tmp_path: Path) -> None:
    umoci = apt.require("umoci", "umoci")
    write_layout(image, tmp_path / "out")
    run(umoci, "unpack", "--rootless", "--image", f"{tmp_path}/out:latest", str(tmp_path / "bundle"))
    root = tmp_path / "bundle" / "rootfs"
    assert (root / "srv" / "one").read_bytes().startswith(b"1")
    assert (root / "bin" / "show").stat().st_mode & 0o777 == 0o755
    assert json.loads((tmp_path / "bundle" / "config.json").read_text())["process"]["args"] == [
        "/bin/show",
        "one",
        "two words",
    ]


@pytest.mark.requirement("R39")
def test_docker_loads_the_archive(image: spec.Image, docker: str, name: str, tmp_path: Path) -> None:
    write_archive(image, tmp_path / "image.tar", (name,))
    run(docker, "load", "--input", str(tmp_path / "image.tar"))
    found = json.loads(run(docker, "image", "inspect", name))[0]
    assert found["Id"] == image.id
    assert found["Config"]["Labels"] == LABELS
    assert found["RootFS"]["Layers"] == [layer.diff_id for layer in image.layers]


def test_the_docker_engine_takes_it_as_a_stream(image: spec.Image, docker: str, name: str, heard: Heard) -> None:
    assert load_into_docker(image, (name,), heard) == image.id
    assert run(docker, "image", "inspect", "--format", "{{.Id}}", name).strip() == image.id
    assert heard.steps == ["load the image into Docker"]
    assert heard.progress[-1] == (image.size, image.size)
    run(docker, "image", "rm", name)


@pytest.mark.usefixtures("docker")
@pytest.mark.parametrize("kind", ["oci", "docker-archive", "docker-daemon"])
def test_every_output(image: spec.Image, name: str, heard: Heard, tmp_path: Path, *, kind: str) -> None:
    skopeo = apt.require("skopeo", "skopeo")
    text, answer, asked = {
        "oci": (f"oci:{tmp_path}/out:1.0", f"oci:{tmp_path}/out", f"oci:{tmp_path}/out:1.0"),
        "docker-archive": (f"docker-archive:{tmp_path}/a.tar:{name}",) + (f"docker-archive:{tmp_path}/a.tar",) * 2,
        "docker-daemon": (f"docker-daemon:{name}", image.id, f"docker-daemon:{name}"),
    }[kind]
    output = output_name(text)
    assert not isinstance(output, InRegistry | InSif)
    assert deliver(image, output, (), heard) == answer
    found = json.loads(run(skopeo, "inspect", "--config", asked))
    assert found["rootfs"]["diff_ids"] == [layer.diff_id for layer in image.layers]
    assert len(heard.steps) == 1


_WRITE = """
import errno
import sys
from pathlib import Path
from envkit.image.layout import write_layout
from tests.support.file_images import read_folder
def on_another_disk(path, other):
    raise OSError(errno.EXDEV, "Invalid cross-device link")
Path.hardlink_to = on_another_disk
one, two, out = map(Path, sys.argv[1:])
images = [read_folder(one), read_folder(two)]
print("ready", flush=True)
while True:
    for image in images:
        write_layout(image, out)
"""


@pytest.mark.requirement("R30")
def test_kill_minus_nine_leaves_one_whole_layout(tmp_path: Path) -> None:
    digests = set()
    for name in ("one", "two"):
        (tmp_path / f"{name}-layers").mkdir()
        image = image_of(tmp_path / f"{name}-layers", salt=name, big=2_000_000)
        write_layout(image, tmp_path / name)
        digests.add(image.digest)
    (tmp_path / "place").mkdir()
    out = tmp_path / "place" / "out"
    write_layout(read_folder(tmp_path / "one"), out)
    chance = random.Random(7)
    for _ in range(12):
        argv = [sys.executable, "-c", _WRITE, str(tmp_path / "one"), str(tmp_path / "two"), str(out)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(chance.random() / 10)
            process.kill()
        assert read_folder(out).digest in digests
    write_layout(read_folder(tmp_path / "two"), out)
    assert [path.name for path in out.parent.iterdir()] == ["out"]


@pytest.mark.requirement("R39")
def test_podman_loads_the_archive_and_pulls_the_layout(
    image: spec.Image, podman: str, name: str, tmp_path: Path
) -> None:
    write_archive(image, tmp_path / "image.tar", (name,))
    assert name in run(podman, "load", "--input", str(tmp_path / "image.tar"))
    write_layout(image, tmp_path / "out")
    pulled = run(podman, "pull", "--quiet", f"oci:{tmp_path}/out").strip()
    assert f"sha256:{pulled}" == image.id
    run(podman, "image", "rm", "--force", pulled)


def test_docker_podman_and_skopeo_pull_it_from_a_registry(
    image: spec.Image, docker: str, podman: str, heard: Heard, tmp_path: Path
) -> None:
    skopeo = apt.require("skopeo", "skopeo")
    with registry(tmp_path) as host, Transport() as transport:
        reference = parse_reference(f"{host}/team/train:1")
        pushed = push(image, reference, Registry.of(reference, transport), heard)
        assert pushed.reference == f"{host}/team/train@{image.digest}"
        run(docker, "pull", "--quiet", pushed.reference)
        assert run(docker, "image", "inspect", "--format", "{{.Id}}", pushed.reference).strip() == image.id
        run(docker, "image", "rm", pushed.reference)
        run(podman, "pull", "--quiet", "--tls-verify=false", pushed.reference)
        run(podman, "image", "rm", "--force", image.id.removeprefix("sha256:"))
        raw = run(skopeo, "inspect", "--raw", "--tls-verify=false", f"docker://{host}/team/train:1")
        assert raw.encode() == image.manifest
