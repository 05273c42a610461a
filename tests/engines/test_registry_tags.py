"""Tags of a registry: what a push that is killed, refused or never verified leaves of them."""

import hashlib
import json
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from envkit.ground.errors import EngineError, EnvkitError, IntegrityError
from envkit.image import spec
from envkit.image.layout import write_layout
from envkit.image.name import Reference, parse_reference
from envkit.registry.push import Pusher
from envkit.registry.registry import Registry
from envkit.registry.retry import Policy
from envkit.registry.tagging import check_target, move_tag
from envkit.registry.transport import Transport
from tests.engines.faults import Fault, Proxy, proxy_before
from tests.engines.oci_images import LABELS, image_of, push, registry
from tests.support.heard import Heard

pytestmark = pytest.mark.engine
QUICK = Policy(first_s=0.01, longest_s=1.0, silence_s=5.0)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture
def proxy(host: str) -> Iterator[Proxy]:
    with proxy_before(host) as found:
        yield found


@pytest.fixture
def transport() -> Iterator[Transport]:
    with Transport(policy=QUICK) as found:
        yield found


@pytest.fixture
def reference(host: str) -> Reference:
    return parse_reference(f"{host}/team/{secrets.token_hex(4)}:1")


@pytest.fixture
def target(reference: Reference, transport: Transport) -> Registry:
    return Registry(reference.registry, transport, {})


def made(folder: Path, big: int = 3_000_000) -> spec.Image:
    folder.mkdir()
    return image_of(folder, salt=secrets.token_hex(8), big=big)


def digest_at(reference: Reference, target: Registry) -> str | None:
    held = target.manifest(reference)
    return held.digest if held else None


def through(proxy: Proxy, reference: Reference, transport: Transport) -> tuple[Reference, Registry]:
    found = parse_reference(f"{proxy.address}/{reference.repository}:{reference.tag}")
    return found, Registry(found.registry, transport, {})


def offer_often(pusher: Pusher, layer: spec.Layer) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        pusher.offer(layer)
        time.sleep(0.01)


def test_a_push_moves_no_tag(reference: Reference, target: Registry, tmp_path: Path) -> None:
    image = made(tmp_path / "image")
    with Pusher(reference, target) as pusher:
        pushed = pusher.finish(image, Heard())
    assert pushed.reference == f"{reference.place}@{image.digest}"
    assert digest_at(reference.at(image.digest), target) == image.digest
    assert digest_at(reference, target) is None
    move_tag(reference, image.digest, target, replace_tag=False)
    assert digest_at(reference, target) == image.digest


def test_layers_are_sent_while_others_are_made(reference: Reference, target: Registry, tmp_path: Path) -> None:
    image, heard = made(tmp_path / "image"), Heard()
    with Pusher(reference, target) as pusher:
        pusher.offer(image.layers[1])
        deadline = time.monotonic() + 20
        while target.blob_size(reference.repository, image.layers[1].digest) is None:
            assert time.monotonic() < deadline
        assert not heard.progress
        pushed = pusher.finish(image, heard)
    total = sum(layer.descriptor.size for layer in image.layers) + len(image.config)
    assert pushed.sent == total
    assert heard.progress[0][0] >= image.layers[1].descriptor.size
    assert heard.progress[-1] == (total, total)


def test_a_layer_that_fails_ends_the_work_that_makes_more(
    reference: Reference, proxy: Proxy, transport: Transport, tmp_path: Path
) -> None:
    image = made(tmp_path / "image")
    where, through_proxy = through(proxy, reference, transport)
    proxy.faults = [Fault("^POST ", status=403)]
    with Pusher(where, through_proxy) as pusher:
        with pytest.raises(EngineError, match="the registry answers 403"):
            offer_often(pusher, image.layers[0])
        with pytest.raises(EngineError, match="the registry answers 403"):
            pusher.finish(image, Heard())


def test_a_tag_of_another_image_is_seen_before_anything_is_sent(
    reference: Reference, proxy: Proxy, target: Registry, transport: Transport, tmp_path: Path
) -> None:
    old = made(tmp_path / "old")
    push(old, reference, target, Heard())
    where, through_proxy = through(proxy, reference, transport)
    for labels in ({"envkit.plan": "sha256:other"}, {"absent": "1"}):
        with pytest.raises(EngineError) as caught:
            check_target(where, labels, through_proxy, replace_tag=False)
        assert caught.value.message == f"{where} already points to another image ({old.digest})"
        assert caught.value.hint == f"--replace-tag moves the tag; the other image stays as {where.place}@{old.digest}"
        assert caught.value.exit_code == 8
    assert not proxy.count("^(POST|PUT|PATCH) ")
    check_target(where, LABELS, through_proxy, replace_tag=False)
    check_target(where, {"absent": "1"}, through_proxy, replace_tag=True)
    with Pusher(where, through_proxy) as pusher, pytest.raises(EngineError, match="already points to another image"):
        pusher.finish(made(tmp_path / "new"), Heard())
    assert proxy.count("^(PUT|PATCH) ") == 0


def test_a_registry_that_takes_no_uploads_is_found_early(
    reference: Reference, proxy: Proxy, transport: Transport
) -> None:
    where, through_proxy = through(proxy, reference, transport)
    proxy.faults = [Fault("^POST ", status=403)]
    with pytest.raises(EngineError) as caught:
        check_target(where, {}, through_proxy, replace_tag=False)
    assert caught.value.message == f"pushing to {where.place}: the registry answers 403"
    proxy.faults = []
    check_target(where, {}, through_proxy, replace_tag=False)
    assert proxy.seen[-1].line.startswith("DELETE ")


def test_a_tag_is_not_set_to_what_is_gone(reference: Reference, target: Registry) -> None:
    with pytest.raises(IntegrityError, match=r"no longer has sha256:0+"):
        move_tag(reference, f"sha256:{'0' * 64}", target, replace_tag=False)


def test_a_tag_that_somebody_else_moved_meanwhile(reference: Reference, target: Registry, tmp_path: Path) -> None:
    image, other = made(tmp_path / "image"), made(tmp_path / "other")
    with Pusher(reference, target) as pusher:
        pusher.finish(image, Heard())
    push(other, reference, target, Heard())
    with pytest.raises(EngineError, match="already points to another image"):
        move_tag(reference, image.digest, target, replace_tag=False)
    assert digest_at(reference, target) == other.digest


FAULTS = (
    Fault("^POST ", status=403),
    Fault("^PATCH ", cut=1_000_000),
    Fault("^PUT .*/blobs/", status=400),
    Fault("^PUT .*/manifests/sha256", status=500),
    Fault("^GET .*/manifests/sha256", flip=50),
    Fault("^PUT .*/manifests/1$", status=403),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.match)
def test_no_fault_on_the_way_moves_a_tag(
    reference: Reference, proxy: Proxy, target: Registry, transport: Transport, tmp_path: Path, *, fault: Fault
) -> None:
    old, new = made(tmp_path / "old", 10), made(tmp_path / "new")
    push(old, reference, target, Heard())
    where, through_proxy = through(proxy, reference, transport)
    proxy.faults = [Fault(fault.match, fault.status, cut=fault.cut, flip=fault.flip)]
    with pytest.raises(EnvkitError):
        push(new, where, through_proxy, Heard(), replace_tag=True)
    assert digest_at(reference, target) == old.digest
    proxy.faults = []
    push(new, where, through_proxy, Heard(), replace_tag=True)
    assert digest_at(reference, target) == new.digest


@pytest.mark.requirement("R54")
@pytest.mark.long
def test_killed_pushes_leave_the_tag_and_no_wrong_blob(reference: Reference, target: Registry, tmp_path: Path) -> None:
    old, new = made(tmp_path / "old", 10), made(tmp_path / "new", 30_000_000)
    push(old, reference, target, Heard())
    write_layout(new, tmp_path / "layout")
    document = json.dumps({"layout": str(tmp_path / "layout"), "where": str(reference)})
    for _ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.engines.pushing"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(document)
            process.stdin.close()
            assert process.stdout.readline() == "ready\n"
            time.sleep(random.uniform(0, 0.4))
            process.kill()
        now = digest_at(reference, target)
        assert now == old.digest or (now == new.digest and digest_at(reference.at(new.digest), target) == now)
        for layer in new.layers:
            if target.blob_size(reference.repository, layer.digest) is not None:
                with target.blob(reference.repository, layer.digest) as answer:
                    assert f"sha256:{hashlib.sha256(answer.read(1 << 26)).hexdigest()}" == layer.digest
    push(new, reference, target, Heard(), replace_tag=True)
    assert digest_at(reference, target) == new.digest
