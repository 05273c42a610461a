"""`envkit push` before a registry that throttles, fails, is cut off and receives other bytes; and killed at any moment.

After every one of these the old tag stands, or the new one stands whole; everything that the registry keeps is what its
name says; and the same push again, in fair weather, ends well.
"""

import hashlib
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envkit.ground.errors import EnvkitError, IntegrityError
from envkit.image import spec
from envkit.image.archive import write_archive
from envkit.image.name import Reference, parse_reference
from envkit.registry.registry import Registry
from envkit.registry.retry import Policy
from envkit.registry.transport import Transport
from tests.engines.faults import Fault, Proxy, proxy_before, storm
from tests.engines.oci_images import LABELS, image_of, push, registry
from tests.support.heard import Heard

pytestmark = pytest.mark.engine
QUICK = Policy(first_s=0.01, longest_s=0.05, silence_s=5.0)
ONCE = Policy(tries=1, silence_s=5.0)
GONE = Fault("", silent_s=0.001)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def host(folder: Path) -> Iterator[str]:
    (folder / "registry").mkdir()
    with registry(folder / "registry") as found:
        yield found


@pytest.fixture(scope="module")
def images(folder: Path) -> tuple[spec.Image, spec.Image]:
    """An old one, and a new one of which one layer is large enough to be sent in pieces."""
    for name in ("old", "new"):
        (folder / name).mkdir()
    return image_of(folder / "old", salt="old"), image_of(folder / "new", salt="new", big=1_500_000)


@pytest.fixture
def proxy(host: str) -> Iterator[Proxy]:
    with proxy_before(host) as found:
        yield found


def at(address: str, repository: str) -> Reference:
    return parse_reference(f"{address}/{repository}:1")


def send(image: spec.Image, where: Reference, policy: Policy = QUICK) -> None:
    with Transport(policy=policy) as transport:
        push(image, where, Registry(where.registry, transport, {}), Heard(), replace_tag=True)


def digest_at(where: Reference) -> str | None:
    with Transport(policy=QUICK) as transport:
        found = Registry(where.registry, transport, {}).manifest(where)
    return found.digest if found else None


def begun(host: str, old: spec.Image) -> Reference:
    """A repository of its own, in which the tag is the old image's."""
    where = at(host, f"team/{secrets.token_hex(6)}")
    send(old, where)
    return where


def require_sound(folder: Path) -> None:
    """Everything that the registry keeps has the digest that it is called by."""
    kept = list((folder / "registry" / "data").rglob("blobs/sha256/*/*/data"))
    assert kept
    for path in kept:
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.parent.name


@pytest.mark.requirement("R52")
@pytest.mark.parametrize("seed", range(10))
def test_storms(host: str, proxy: Proxy, folder: Path, images: tuple[spec.Image, spec.Image], *, seed: int) -> None:
    old, new = images
    where = begun(host, old)
    through = at(proxy.address, where.repository)
    for number in range(3):
        proxy.weather = storm(seed * 3 + number)
        ended = outcome(new, through)
        assert ended in (0, 8, 9, 10)
        assert digest_at(where) in ((new.digest,) if ended == 0 else (old.digest, new.digest))
        assert digest_at(where.at(old.digest)) == old.digest
        if ended == 0:
            break
    proxy.weather = None
    send(new, through)
    assert digest_at(where) == new.digest
    require_sound(folder)


def outcome(image: spec.Image, where: Reference) -> int:
    """The exit code that a push would end with."""
    try:
        send(image, where)
    except EnvkitError as error:
        return error.exit_code
    return 0


@pytest.mark.parametrize(
    "fault",
    [
        Fault("^PATCH ", flip_sent=1_000_000, times=1),
        Fault("^PUT .*/blobs/", flip_sent=100, times=1),
        Fault("^PUT .*/manifests/sha256", flip_sent=40, times=1),
        Fault("^GET .*/manifests/sha256", flip=40, times=1),
    ],
    ids=lambda fault: fault.match,
)
def test_a_byte_that_changes_on_the_way_is_told(
    host: str, proxy: Proxy, folder: Path, images: tuple[spec.Image, spec.Image], *, fault: Fault
) -> None:
    old, new = images
    where = begun(host, old)
    proxy.faults = [fault]
    with pytest.raises(IntegrityError) as caught:
        send(new, at(proxy.address, where.repository))
    assert caught.value.exit_code == 10
    assert digest_at(where) == old.digest
    fault.times = 0
    send(new, at(proxy.address, where.repository))
    assert digest_at(where) == new.digest
    require_sound(folder)


@pytest.mark.requirement("R53")
def test_a_tag_that_got_other_bytes_is_set_right_at_once(
    host: str, proxy: Proxy, images: tuple[spec.Image, spec.Image]
) -> None:
    old, new = images
    where, title = begun(host, old), LABELS["org.opencontainers.image.title"].encode()
    place = new.manifest.index(title)  # of no meaning to the registry, which so takes any byte there
    proxy.faults = [Fault("^PUT .*/manifests/1$", flip_sent=place, times=2)]
    send(new, at(proxy.address, where.repository))
    assert proxy.count("^PUT .*/manifests/1$") == 3
    assert digest_at(where) == new.digest
    proxy.faults = [Fault("^PUT .*/manifests/1$", flip_sent=place)]
    with pytest.raises(IntegrityError, match=f"pushing .*: the registry stored sha256:.* instead of {new.digest}"):
        send(new, at(proxy.address, where.repository))


@pytest.mark.long
def test_a_push_that_dies_at_any_request(
    host: str, proxy: Proxy, folder: Path, images: tuple[spec.Image, spec.Image]
) -> None:
    old, new = images
    where = begun(host, old)
    send(new, at(proxy.address, where.repository))
    every = len(proxy.seen)
    assert every >= 15
    for number in range(1, every + 1):
        where = begun(host, old)
        through = at(proxy.address, where.repository)
        proxy.seen.clear()
        # Every second time the registry does what the last request asks for.
        last = GONE if number % 2 else Fault("", mute=True)
        proxy.weather = dying(number, last)
        with pytest.raises(EnvkitError):
            send(new, through, ONCE)
        proxy.weather = None
        assert digest_at(where) == (new.digest if tagged(proxy, number) else old.digest)
        assert digest_at(where.at(old.digest)) == old.digest
        send(new, through)
        assert digest_at(where) == new.digest
    require_sound(folder)


def dying(last: int, fault: Fault) -> Callable[[int, str], Fault | None]:
    def weather(number: int, line: str) -> Fault | None:
        del line
        return None if number < last else fault if number == last else GONE

    return weather


def tagged(proxy: Proxy, last: int) -> bool:
    """Whether the registry was told to set the tag before the end came, or as the last thing of all."""
    done = proxy.seen[: last if not last % 2 else last - 1]
    return any(one.line.startswith("PUT ") and one.line.endswith("/manifests/1") for one in done)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 6))])
def test_kill_9(host: str, proxy: Proxy, folder: Path, images: tuple[spec.Image, spec.Image], *, seed: int) -> None:
    old, new = images
    where, chance = begun(host, old), random.Random(seed)
    archive = folder / "new.tar"
    if not archive.exists():
        write_archive(new, archive, ())
    argv = [sys.executable, "-m", "envkit", "push", str(at(proxy.address, where.repository)), "--unverified"]
    argv += ["--image", f"docker-archive:{archive}", "--replace-tag", "--progress", "quiet"]
    environ = os.environ | {"XDG_STATE_HOME": str(folder / "state"), "XDG_CACHE_HOME": str(folder / "cache")}
    last, passed = chance.randrange(1, 15), chance.random() < 0.5
    killed: list[subprocess.Popen[bytes]] = []

    def weather(number: int, line: str) -> Fault | None:
        del line
        if number < last:
            return None
        killed[0].kill()
        return Fault("", mute=True) if passed and number == last else GONE

    proxy.weather = weather
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        killed.append(process)
        assert process.wait(60) == -9
    # The same image from the engine's format has a manifest of its own.
    found = digest_at(where)
    assert found == old.digest or config_of(where) == new.id
    assert digest_at(where.at(old.digest)) == old.digest
    proxy.weather = None
    again = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert again.returncode == 0, again.stderr
    assert again.stdout == f"{proxy.address}/{where.repository}@{digest_at(where)}\n"
    assert config_of(where) == new.id
    assert not list((folder / "cache" / "envkit" / "runs").iterdir())
    require_sound(folder)


def config_of(where: Reference) -> str:
    with Transport(policy=QUICK) as transport:
        found = Registry(where.registry, transport, {}).manifest(where)
    assert found is not None
    return str(json.loads(found.data)["config"]["digest"])


@pytest.mark.requirement("R29")
@pytest.mark.parametrize(
    "fault", [Fault("^HEAD ", status=429, headers={"Retry-After": "30"}), Fault("^HEAD ", silent_s=20)]
)
def test_a_signal_ends_a_push_that_waits(
    host: str, proxy: Proxy, folder: Path, images: tuple[spec.Image, spec.Image], *, fault: Fault
) -> None:
    old, new = images
    where = begun(host, old)
    write_archive(new, folder / "signal.tar", ())
    proxy.faults = [fault]
    argv = [sys.executable, "-m", "envkit", "push", str(at(proxy.address, where.repository)), "--unverified"]
    argv += ["--image", f"docker-archive:{folder}/signal.tar", "--replace-tag", "--progress", "quiet"]
    environ = os.environ | {"XDG_STATE_HOME": str(folder / "state"), "XDG_CACHE_HOME": str(folder / "cache")}
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 120
        while not proxy.count(fault.match):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert digest_at(where) == old.digest
    assert not list((folder / "cache" / "envkit" / "runs").iterdir())
